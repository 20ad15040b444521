import json
from typing import Any

from msgspec import structs
from sdk_bench import SETTINGS
from support.cases import each_case

from tracejudge.delivery.buffer import Entry, Item, Kind, Reason
from tracejudge.delivery.encoding import MAX_ENTRY_BYTES, ItemEncoder
from tracejudge.delivery.sender import encode_report
from tracejudge.ids import place_of
from tracejudge.model import Document, ProducerReport, Span, ToolCall

encode = ItemEncoder(SETTINGS).encode


def item(**fields: Any) -> Item:
    identifier = {"trace_id": "1", "output": "", "id": "2", "span_id": "3", "started_at": 1_700_000_004}
    return Item(Kind.TRACE, {**identifier, **fields}, 1, trace_id="1")


def test_a_trace_becomes_json_without_what_is_absent() -> None:
    entry = encode(item(context=[Document(text="a"), "b", {"text": "c", "score": 0.5}], tags={"k": "v"}))
    assert isinstance(entry, Entry)
    assert entry.kind is Kind.TRACE
    assert json.loads(entry.payload) == {
        "trace_id": "1",
        "service": "shop",
        "output": "",
        "id": "2",
        "span_id": "3",
        "started_at": 1_700_000_004,
        "context": [{"text": "a"}, "b", {"text": "c", "score": 0.5}],
        "tags": {"k": "v"},
    }


def test_feedback_and_reports_have_kinds_of_their_own() -> None:
    feedback = encode(Item(Kind.FEEDBACK, {"trace_id": "1", "score": -1}, 1))
    assert feedback == Entry(Kind.FEEDBACK, b'{"trace_id":"1","score":-1}')
    report = encode_report(ProducerReport("p", 1, "shop", 3, 2, {"invalid": 1}))
    payload = b'{"producer":"p","seq":1,"service":"shop","published":3,"accepted":2,"dropped":{"invalid":1}}'
    assert report == Entry(Kind.REPORT, payload, place_of("p", None))


def recursive() -> list[Any]:
    inner: list[Any] = []
    inner.append(inner)
    return inner


def test_what_json_cannot_hold_does_not_cost_the_trace() -> None:
    for value in (object(), "\ud800", recursive(), {object(): "a"}, [["\ud800"]], {"a": {1, 2}}):
        for name in ("tags", "context", "messages", "input", "tool_calls", "spans", "usage", "guidelines"):
            outcome = encode(item(**{name: value}))
            assert isinstance(outcome, Entry), (name, value)
            assert json.loads(outcome.payload)["trace_id"] == "1"


def test_the_largest_entry_is_4_mib() -> None:
    shell = len(encode(item()).payload)  # type: ignore[union-attr]
    fits = encode(item(output="x" * (MAX_ENTRY_BYTES - shell)))
    assert isinstance(fits, Entry)
    assert len(fits.payload) == 4 * 1024 * 1024
    assert encode(item(output="x" * (MAX_ENTRY_BYTES - shell + 1))) is Reason.TOO_LARGE


TIMES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "none": ({}, {"ended_at": 7.5}),
    "the start": ({"started_at": 1_700_000_001}, {"started_at": 1_700_000_001}),
    "the end": ({"ended_at": 1_700_000_002}, {"ended_at": 1_700_000_002}),
    "both": (
        {"started_at": 1_700_000_001, "ended_at": 1_700_000_002},
        {"started_at": 1_700_000_001, "ended_at": 1_700_000_002},
    ),
    "none, said aloud": ({"started_at": None, "ended_at": None}, {"ended_at": 7.5}),
}


@each_case(("text", "stored"), TIMES.values(), ids=TIMES.keys())
def test_without_any_time_a_trace_ended_when_it_was_published(text: dict[str, Any], stored: dict[str, Any]) -> None:
    entry = encode(Item(Kind.TRACE, {"output": "", **text}, 1, published_at_s=7.5, trace_id="1"))
    assert isinstance(entry, Entry)
    record = json.loads(entry.payload)
    assert {name: value for name, value in record.items() if name.endswith("_at")} == stored


SEARCHED = {"name": "kb_search", "arguments": {"q": "tea"}, "result": "Tea is hot."}
MAILED = {"name": "send_mail", "result": "queued"}
TOOL_CONTEXTS: dict[str, tuple[dict[str, Any], list[object] | None]] = {
    "a call": ({"tool_calls": [MAILED, SEARCHED]}, [{"text": "Tea is hot."}]),
    "a call as an object": ({"tool_calls": [ToolCall("kb_search", result="Tea.")]}, [{"text": "Tea."}]),
    "documents": (
        {"tool_calls": [{**SEARCHED, "result": [{"content": "A.", "id": 7}, "B."]}]},
        [{"text": "A.", "id": "7"}, {"text": "B."}],
    ),
    "another object": ({"tool_calls": [{**SEARCHED, "result": {"count": 3}}]}, [{"text": '{"count":3}'}]),
    "a span": ({"spans": [{"span_id": "a", "name": "execute_tool kb_search", "outputs": "Tea."}]}, [{"text": "Tea."}]),
    "a call and its span": (
        {"tool_calls": [SEARCHED], "spans": [Span("a", "kb_search", outputs="Tea is hot.")]},
        [{"text": "Tea is hot."}],
    ),
    "a context of its own": ({"context": ["Own."], "tool_calls": [SEARCHED]}, ["Own."]),
    "an empty context": ({"context": [], "tool_calls": [SEARCHED]}, [{"text": "Tea is hot."}]),
    "other tools": ({"tool_calls": [MAILED]}, None),
    "no result": ({"tool_calls": [{**SEARCHED, "result": None}, {**SEARCHED, "result": "[]"}]}, None),
    "items of other types": ({"tool_calls": ["kb_search", 7]}, None),
}


def test_results_of_named_tools_become_the_context() -> None:
    naming = ItemEncoder(structs.replace(SETTINGS, context_tools=("kb_search",)))
    for name, (body, context) in TOOL_CONTEXTS.items():
        entry = naming.encode(item(**body))
        assert isinstance(entry, Entry), name
        assert json.loads(entry.payload).get("context") == context, name
        plain = encode(item(**body))
        assert isinstance(plain, Entry), name
        assert json.loads(plain.payload).get("context") == body.get("context"), name
