"""Cutting: how a text is cut, how a trace comes under its cap, and what is cut first."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cases import each_case

from tracejudge.content.truncate import common_length, replace_large_structures, truncate_record, truncate_text

FIELD, TRACE = 65_536, 262_144


def cut_record(record: dict[str, Any], max_field_bytes: int = FIELD, max_trace_bytes: int = TRACE) -> dict[str, Any]:
    payload = truncate_record(record, max_field_bytes=max_field_bytes, max_trace_bytes=max_trace_bytes)
    assert len(payload) <= max_trace_bytes
    result: dict[str, Any] = json.loads(payload)
    return result


def test_a_text_within_its_cap_stays() -> None:
    assert truncate_text("a" * 100, 100) == "a" * 100


def test_a_cut_text_keeps_its_beginning_and_its_end_and_says_how_much_is_missing() -> None:
    text = "".join(f"{number:05}" for number in range(4_000))
    assert truncate_text(text, 1_024) == f"{text[:748]}[... 19,003 characters cut]{text[-249:]}"


def test_a_cap_below_the_mark_leaves_the_mark() -> None:
    assert truncate_text("a" * 100, 10) == "[... 100 characters cut]"


@given(st.text(min_size=1), st.integers(min_value=30, max_value=400))
def test_characters_are_never_split_and_the_mark_is_true(text: str, cap: int) -> None:
    text *= 20
    result = truncate_text(text, cap)
    assert len(result.encode()) <= cap
    if result != text:
        head, _, rest = result.partition("[... ")
        amount, _, tail = rest.partition(" characters cut]")
        assert text.startswith(head)
        assert text.endswith(tail)
        assert len(head) + len(tail) + int(amount.replace(",", "")) == len(text)


@each_case(
    ("sizes", "room", "expected"),
    [
        pytest.param([], 10, 0, id="nothing"),
        pytest.param([3, 5], 8, 5, id="all fits"),
        pytest.param([3, 50, 20], 33, 15, id="the small stay whole"),
        pytest.param([10, 10], 10, 5, id="equals"),
        pytest.param([10, 10], -5, 0, id="no room"),
    ],
)
def test_the_largest_are_cut_to_one_length(sizes: list[int], room: int, expected: int) -> None:
    assert common_length(sizes, room) == expected


def test_fields_are_cut_one_by_one() -> None:
    record = {"output": "a" * 70_000, "input": "short", "trace_id": "t" * 70_000}
    assert cut_record(record) == {
        "output": f"{'a' * 49_132}[... 4,491 characters cut]{'a' * 16_377}",
        "input": "short",
        "trace_id": "t" * 70_000,
    }


def test_a_trace_over_its_cap_loses_from_its_largest_texts() -> None:
    record = {"output": "o" * 60_000, "input": "i" * 1_000, "context": [{"text": "c" * 60_000} for _ in range(6)]}
    result = cut_record(record)
    lengths = [len(result["output"]), *(len(document["text"]) for document in result["context"])]
    assert result["input"] == "i" * 1_000
    assert max(lengths) - min(lengths) == 0
    assert sum(lengths) > TRACE - 2_000


def test_texts_inside_json_are_cut_and_its_form_stays() -> None:
    arguments = {"rows": [{"id": 1, "text": "r" * 70_000}], "flag": True, "none": None}
    record = {"output": "", "tool_calls": [{"name": "n" * 70_000, "arguments": arguments}]}
    (call,) = cut_record(record)["tool_calls"]
    assert call["name"] == "n" * 70_000
    assert call["arguments"]["rows"][0]["text"].count("characters cut") == 1
    assert call["arguments"]["rows"][0]["id"] == 1
    assert {key: call["arguments"][key] for key in ("flag", "none")} == {"flag": True, "none": None}


def test_a_key_is_cut_as_a_text_is() -> None:
    record = {"output": "", "tool_calls": [{"name": "f", "arguments": {"k" * 70_000: 1}}]}
    (key,) = cut_record(record)["tool_calls"][0]["arguments"]
    assert "characters cut" in key


def test_escapes_count_for_the_trace() -> None:
    """JSON writes a control character in six bytes."""
    assert len(cut_record({"output": "\x01" * 60_000, "input": "\n" * 60_000})["output"]) < 60_000


def test_a_structure_of_very_many_values_becomes_a_mark() -> None:
    rows = [[number] for number in range(6_000)]
    size = len(json.dumps(rows, separators=(",", ":")))
    record: dict[str, Any] = {
        "tool_calls": [{"name": "f", "arguments": {"a": [1] * 9_000}, "result": rows}],
        "spans": [{"span_id": "1", "name": "s", "attributes": dict.fromkeys(map(str, range(10_001)), 0)}],
    }
    replace_large_structures(record)
    assert record["tool_calls"] == [
        {"name": "f", "arguments": {"a": [1] * 9_000}, "result": f"[... {size:,} bytes of JSON cut]"}
    ]
    assert record["spans"][0]["attributes"].endswith(" bytes of JSON cut]")


def test_too_many_messages_leave_the_first_and_the_latest() -> None:
    messages = [{"role": "user", "content": f"{number} " + "m" * 190} for number in range(3_000)]
    result = cut_record({"output": "", "messages": messages})["messages"]
    assert result[0] == messages[0]
    assert result[1] == {"role": "system", "content": "[... 2,000 items cut]"}
    assert result[2:] == messages[-999:]


@each_case(
    ("field", "item", "mark"),
    [
        pytest.param("context", {"text": "d" * 195}, "[... 2,000 items cut]", id="documents"),
        pytest.param("context", "d" * 195, "[... 2,000 items cut]", id="plain documents"),
        pytest.param("tool_calls", {"name": "n" * 195}, {"name": "[... 2,000 items cut]"}, id="tool calls"),
        pytest.param(
            "spans", {"span_id": "1", "name": "n" * 195}, {"span_id": "", "name": "[... 2,000 items cut]"}, id="spans"
        ),
        pytest.param("guidelines", "g" * 195, "[... 2,000 items cut]", id="guidelines"),
    ],
)
def test_too_many_items_leave_the_first(field: str, item: object, mark: object) -> None:
    result = cut_record({"output": "", field: [item] * 3_000}, max_trace_bytes=TRACE)[field]
    assert result == [*[item] * 1_000, mark]


def test_free_json_is_thinned_as_well() -> None:
    attributes = {f"key-{number}-{'k' * 100}": [number] * 2 for number in range(4_000)}
    spans = [{"span_id": "1", "name": "s", "attributes": attributes}]
    result = cut_record({"output": "", "spans": spans})["spans"][0]["attributes"]
    assert len(result) == 1_001
    assert result["[... 3,000 items cut]"] == ""
    assert list(result.items())[:1_000] == list(attributes.items())[:1_000]


def test_tags_stay_a_map_of_texts() -> None:
    result = cut_record({"output": "", "tags": {f"{number:0200}": "v" * 200 for number in range(2_000)}})["tags"]
    assert all(isinstance(value, str) for value in result.values())
    assert result["[... 1,750 items cut]"] == ""


@settings(deadline=None, max_examples=40)
@given(
    st.dictionaries(
        st.sampled_from(["output", "messages", "context", "tool_calls", "spans", "tags", "error", "expected_facts"]),
        st.recursive(
            st.text(max_size=300) | st.integers() | st.none(),
            lambda inner: st.lists(inner, max_size=60) | st.dictionaries(st.text(max_size=20), inner, max_size=60),
        ),
    )
)
def test_whatever_stands_in_the_fields_comes_under_the_cap(record: dict[str, Any]) -> None:
    payload = truncate_record(record, max_field_bytes=300, max_trace_bytes=6_000)
    assert len(payload) <= 6_000 or set(record) & {"messages", "context", "tool_calls", "spans"}
    json.loads(payload)
