"""The content of a trace that is sent: what is withheld, redacted and cut, in which order, and what stays."""

import base64
import json
import re
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from random import Random
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from lookalikes import table
from sdk_rig import SETTINGS

from tracejudge.content import redact
from tracejudge.content.convert import Notes, convert_trace
from tracejudge.content.encode import ContentPolicy, copied, snapshot
from tracejudge.content.redact import redact_secrets, without_possessive
from tracejudge.content.truncate import (
    Budget,
    common_length,
    mark_media,
    replace_large_structures,
    truncate_record,
    truncate_text,
)
from tracejudge.log import RedactionError
from tracejudge.model import LateFeedback, Span, Tool, ToolCall, Trace

MAIL = "ann@example.org"
SIGN = "[redacted e-mail]"
REDACTED = {"redact": (redact_secrets,)}
FIELD, TRACE = 65_536, 262_144


def prepared(record: Trace | LateFeedback, **changes: Any) -> dict[str, Any]:
    policy = ContentPolicy(msgspec.structs.replace(SETTINGS, **changes))
    result: dict[str, Any] = json.loads(msgspec.json.encode(policy.prepare(record)))
    return result


def trace(**fields: Any) -> Trace:
    return Trace(**{"trace_id": "1" * 32, "service": "shop", "output": "", **fields})


def full(text: str) -> Trace:
    """Make a trace with a text in every place there is, metadata included."""
    return msgspec.json.decode(json.dumps(table("full_trace")["given"]).replace("TEXT", text), type=Trace)


def test_every_place_of_content_is_redacted_or_withheld_and_no_other() -> None:
    places = table("full_trace")
    for name, changes in (("redacted", REDACTED), ("withheld", {"content": False})):
        expected = json.dumps({**places["metadata"], **places[name]}).replace("TEXT", MAIL).replace("SIGN", SIGN)
        assert prepared(full(MAIL), **changes) == json.loads(expected), name
    assert msgspec.json.encode(ContentPolicy(SETTINGS).prepare(full("a"))) == msgspec.json.encode(full("a"))


def test_without_content_classes_of_errors_kinds_and_redacted_tags_stay() -> None:
    errors = {
        "TimeoutError: the customer Ann": "TimeoutError",
        "openai.RateLimitError(Ann)": "openai.RateLimitError",
        "ValueError": "ValueError",
        "no customer Ann: gone": "error",
        "Ann is gone": "error",
    }
    assert {error: prepared(trace(error=error), content=False)["error"] for error in errors} == errors
    spans = [Span("1", "step", kind="LLM", status="ok", inputs="in"), Span("2", "step", status="error: Ann")]
    assert prepared(trace(spans=spans), content=False)["spans"] == [
        {"span_id": "1", "name": "step", "kind": "LLM", "status": "ok"},
        {"span_id": "2", "name": "step", "status": "error"},
    ]
    assert prepared(trace(tags={"who": MAIL}), content=False, **REDACTED)["tags"] == {"who": SIGN}
    for content, comment in ((True, {"comment": f"ask {SIGN}"}), (False, {})):
        feedback = prepared(LateFeedback("1", -1, f"ask {MAIL}"), content=content, **REDACTED)
        assert feedback == {"trace_id": "1", "score": -1, **comment}


def test_nothing_slips_through_in_an_unexpected_form() -> None:
    said: Any = {"role": "user", "content": MAIL}
    deep: Any = MAIL
    for _ in range(70):
        deep = [deep]
    for fields in (
        {"messages": [{**said, "content": [{"type": "text", "text": MAIL}], "tool_calls": [{"id": MAIL}]}]},
        {"context": [{"text": "a", "metadata": {"author": MAIL}}]},
        {"messages": [{"role": {"said": MAIL}, "content": ""}]},
        {"tool_calls": [ToolCall("f", (MAIL,), {MAIL})]},
        {"input": [MAIL]},
        {"messages": said},
        {"tool_calls": [ToolCall("f", {"at": datetime(2024, 1, 1, tzinfo=UTC), "by": MAIL})]},
        {"tool_calls": [ToolCall("f", json.dumps({"to": MAIL}))]},
    ):
        assert MAIL in json.dumps(prepared(trace(**fields)))
        for changes in (REDACTED, {"content": False}):
            assert MAIL not in json.dumps(prepared(trace(**fields), **changes)), (fields, changes)
    assert MAIL not in json.dumps(prepared(trace(tool_calls=[ToolCall("f", deep)]), **REDACTED)), "too deep"


def arguments_of(arguments: Any, **changes: Any) -> Any:
    return prepared(trace(tool_calls=[ToolCall("f", arguments)]), **changes)["tool_calls"][0]["arguments"]


def test_a_text_under_the_name_of_a_secret_is_redacted_by_the_built_in_set() -> None:
    arguments = {"password": "tomato", "x-api-key": "a1", "clientSecret": "b", "max_tokens": "5", "in": {"pwd": "c"}}
    sign = "[redacted secret]"
    assert arguments_of(arguments, **REDACTED) == {
        **dict.fromkeys(("password", "x-api-key", "clientSecret"), sign),
        "max_tokens": "5",
        "in": {"pwd": sign},
    }
    assert arguments_of(arguments, redact=(str.upper,))["PASSWORD"] == "TOMATO"  # noqa: S105 - none
    # Two keys that become one sign keep both values.
    assert arguments_of({"a@example.org": 1, "b@example.org": 2}, **REDACTED) == {SIGN: 1, f"{SIGN} 2": 2}


def _raises(text: str) -> str:
    raise ValueError(text)


def test_functions_of_the_host_are_applied_in_order_and_a_failure_stops_the_trace_without_quoting_it() -> None:
    redact = (redact_secrets, lambda text: text.replace("tomato", "[fruit]"), str.upper)
    assert prepared(trace(output=f"tomato {MAIL}"), redact=redact)["output"] == "[FRUIT] [REDACTED E-MAIL]"
    failing: list[tuple[Callable[[str], Any], str]] = [
        (_raises, "redact raised ValueError"),
        (lambda _: None, "redact returned no text"),
        (str.encode, "redact returned no text"),
    ]
    for function, message in failing:
        with pytest.raises(RedactionError, match=f"^{message}$") as caught:
            prepared(trace(output="secret words"), redact=(function,))
        assert "secret words" not in "".join(traceback.format_exception(caught.value, limit=0))


def test_redaction_comes_before_cutting_and_neither_changes_the_hosts_own_objects() -> None:
    """A mark in the middle of a secret would leave two halves that nobody finds."""
    text = f"{'a ' * 359}{MAIL} {'b ' * 1000}"
    halves = prepared(trace(output=text), max_field_bytes=1_000)["output"]
    assert "ann@" in halves
    assert MAIL not in halves
    assert "ann@" not in prepared(trace(output=text), max_field_bytes=1_000, **REDACTED)["output"]
    for record in (
        full(MAIL * 100),
        trace(messages=[{"role": "user", "content": MAIL}], context=[{"text": MAIL * 100}]),
    ):
        before = msgspec.json.encode(record)
        prepared(record, max_field_bytes=200, **REDACTED)
        assert msgspec.json.encode(record) == before


# --- cutting ---------------------------------------------------------------------------------------------------------


def cut_record(record: dict[str, Any]) -> dict[str, Any]:
    payload = truncate_record({"output": "", **record}, max_field_bytes=FIELD, max_trace_bytes=TRACE)
    assert len(payload) <= TRACE
    result: dict[str, Any] = json.loads(payload)
    return result


@given(st.text(min_size=1), st.integers(min_value=30, max_value=400))
@example("".join(f"{number:05}" for number in range(200)), 250)
def test_a_cut_text_keeps_its_beginning_and_its_end_and_says_how_much_is_missing(text: str, cap: int) -> None:
    text *= 20
    result = truncate_text(text, cap)
    assert len(result.encode()) <= cap
    if result != text:
        head, _, rest = result.partition("[... ")
        amount, _, tail = rest.partition(" characters cut]")
        assert text.startswith(head)
        assert text.endswith(tail)
        assert len(head) + len(tail) + int(amount.replace(",", "")) == len(text)
    assert truncate_text("a" * 1_000, 300) == f"{'a' * 206}[... 726 characters cut]{'a' * 68}"
    assert truncate_text("a" * 100, 10) == "[... 100 characters cut]", "a cap below the mark leaves the mark"


def test_the_largest_are_cut_to_one_length() -> None:
    for sizes, room, expected in (
        *(([], 10, 0), ([3, 5], 8, 5), ([3, 50, 20], 33, 15)),  # the small stay whole
        *(([10, 10], 10, 5), ([10, 10], -5, 0)),
    ):
        assert common_length(sizes, room) == expected, (sizes, room)
    record = {"output": "o" * 60_000, "input": "i" * 1_000, "context": [{"text": "c" * 60_000} for _ in range(6)]}
    result = cut_record(record)
    lengths = [len(result["output"]), *(len(document["text"]) for document in result["context"])]
    assert result["input"] == "i" * 1_000
    assert max(lengths) - min(lengths) == 0
    assert sum(lengths) > TRACE - 2_000
    # The whole way: a trace comes under its cap, and is used up to it.
    record = {"output": "o" * 100_000, "context": [{"text": "c" * 100_000} for _ in range(5)]}
    payload = msgspec.json.encode(ContentPolicy(SETTINGS).prepare(trace(**record)))
    assert 250_000 < len(payload) <= 256 * 1024
    assert msgspec.json.decode(payload, type=Trace).output.count("characters cut]") == 1


def test_fields_and_texts_inside_json_are_cut_one_by_one_and_escapes_count() -> None:
    assert cut_record({"output": "a" * 70_000, "input": "short", "trace_id": "t" * 70_000}) == {
        "output": f"{'a' * 49_132}[... 4,491 characters cut]{'a' * 16_377}",
        "input": "short",
        "trace_id": "t" * 70_000,
    }
    arguments = {"rows": [{"id": 1, "text": "r" * 70_000}], "flag": True, "none": None}
    (call,) = cut_record({"tool_calls": [{"name": "n" * 70_000, "arguments": arguments}]})["tool_calls"]
    row = call["arguments"].pop("rows")[0]
    assert (call["name"], row["id"], row["text"].count("characters cut")) == ("n" * 70_000, 1, 1)
    assert call["arguments"] == {"flag": True, "none": None}
    (call,) = cut_record({"tool_calls": [{"name": "f", "arguments": {"k" * 70_000: 1}}]})["tool_calls"]
    assert "characters cut" in next(iter(call["arguments"]))
    # JSON writes a control character in six bytes.
    assert len(cut_record({"output": "\x01" * 60_000, "input": "\n" * 60_000})["output"]) < 60_000


def test_a_structure_of_very_many_values_becomes_a_mark() -> None:
    rows = [[number] for number in range(6_000)]
    size = len(json.dumps(rows, separators=(",", ":")))
    record: dict[str, Any] = {
        "tool_calls": [{"name": "f", "arguments": {"a": [1] * 9_000}, "result": rows}],
        "spans": [{"span_id": "1", "name": "s", "attributes": dict.fromkeys(map(str, range(10_001)), 0)}],
    }
    replace_large_structures(record)
    call = {"name": "f", "arguments": {"a": [1] * 9_000}, "result": f"[... {size:,} bytes of JSON cut]"}
    assert record["tool_calls"] == [call]
    assert record["spans"][0]["attributes"].endswith(" bytes of JSON cut]")


def test_a_copy_at_the_call_has_a_hundred_values_whatever_holds_them() -> None:
    value = [[0] * 30, [0] * 30, [0] * 60]
    assert [copy is given for copy, given in zip(snapshot(value, Budget()), value, strict=True)] == [False, False, True]


def test_too_many_items_leave_the_first_and_of_messages_the_latest_too() -> None:
    messages = [{"role": "user", "content": f"{number} " + "m" * 190} for number in range(3_000)]
    mark = "[... 2,000 items cut]"
    result = cut_record({"messages": messages})["messages"]
    assert result == [messages[0], {"role": "system", "content": mark}, *messages[-999:]]
    items: list[tuple[str, Any, Any]] = [
        ("context", {"text": "d" * 195}, mark),
        ("context", "d" * 195, mark),
        ("tool_calls", {"name": "n" * 195}, {"name": mark}),
        ("spans", {"span_id": "1", "name": "n" * 195}, {"span_id": "", "name": mark}),
        ("guidelines", "g" * 195, mark),
    ]
    for field, item, last in items:
        assert cut_record({field: [item] * 3_000})[field] == [*[item] * 1_000, last], field
    attributes = {f"key-{number}-{'k' * 100}": [number] * 2 for number in range(4_000)}
    spans = [{"span_id": "1", "name": "s", "attributes": attributes}]
    result = cut_record({"spans": spans})["spans"][0]["attributes"]
    assert [*result.items()] == [*[*attributes.items()][:1_000], ("[... 3,000 items cut]", "")]
    tags = cut_record({"tags": {f"{number:0200}": "v" * 200 for number in range(2_000)}})["tags"]
    assert all(isinstance(value, str) for value in tags.values())
    assert tags["[... 1,750 items cut]"] == ""


FIELDS = ["output", "messages", "context", "tool_calls", "spans", "tags", "error", "expected_facts"]
VALUES = st.recursive(
    st.text(max_size=300) | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=25) | st.dictionaries(st.text(max_size=20), inner, max_size=25),
)


@hypothesis_settings(deadline=None, max_examples=10)
@given(st.dictionaries(st.sampled_from(FIELDS), VALUES))
def test_whatever_stands_in_the_fields_comes_under_the_cap(record: dict[str, Any]) -> None:
    payload = truncate_record(record, max_field_bytes=300, max_trace_bytes=6_000)
    assert len(payload) <= 6_000 or set(record) & {"messages", "context", "tool_calls", "spans"}
    json.loads(payload)


# --- media and tools -------------------------------------------------------------------------------------------------


def joined(text: str, gap: str) -> str:
    return gap.join(text[start : start + 76] for start in range(0, len(text), 76))


def base64_text(start: bytes, size: int = 165_000) -> str:
    return base64.b64encode(start + Random(7).randbytes(size - len(start))).decode()


PNG = base64_text(b"\x89PNG\r\n\x1a\n")
WAV = base64_text(b"RIFF\0\0\0\0WAVEfmt ", 50_000)
RAW = base64_text(b"", 3_000)
MEDIA = {
    "PNG": PNG,
    "WAV": WAV,
    "RAW": RAW,
    "LONG": RAW * 9,
    "QUOTED": quote(PNG, ""),
    "QUOTED LONG": quote(RAW * 9, ""),
    "ESCAPED": PNG.replace("/", r"\/"),
    "URLSAFE": base64.urlsafe_b64encode(base64.b64decode(RAW)).decode(),
}


def with_media(text: str) -> str:
    """Put media in place of `«NAME»`, and in lines with the gap between them in place of `«NAME|gap»`."""

    def medium(match: re.Match[str]) -> str:
        name, _, gap = match[1].partition("|")
        return joined(MEDIA[name], gap) if gap else MEDIA[name]

    return re.sub("«([^»]+)»", medium, text)


NO_MEDIA = (
    *("x" * 100_000, "theQuickBrownFox" * 500, "some_Name2_X" * 500, Random(1).randbytes(3_000).hex(), "中文" * 3_000),
    *("\n".join(["Alpha1", "Beta2"] * 900), "/".join(["usr", "Local2", "Share"] * 300), RAW[:900], "-" * 5_000),
    *("\n".join(Random(n).randbytes(32).hex() for n in range(90)), "".join(Random(1).choices("ACGT", k=9_000))),
    *("".join(Random(1).choices("ACDEFGHIKLMNPQRSTVWY", k=9_000)), "Hello World, again. " * 500, str(10**4_000)),
    *(quote("Where is Order 4711, and who Has it? " * 99, ""), quote("Wo ist Größe 42, Äpfel? " * 99, "")),
    "\n".join(f"    {Random(n).randbytes(24).hex()} {Random(n).randbytes(9)!r}" for n in range(90)),
)


def test_a_long_run_of_base64_becomes_a_mark_wherever_it_is() -> None:
    for form, written in table("media_texts"):
        text = with_media(form)
        sent = prepared(trace(output=text, context=[text], tool_calls=[ToolCall("f", {"a": [text]})]))
        assert sent["output"] == sent["context"][0] == sent["tool_calls"][0]["arguments"]["a"][0] == written, form
    for text in NO_MEDIA:
        assert mark_media(text) == text, text[:80]
    assert arguments_of({"image_bytes": RAW}) == {"image_bytes": "[image 3 kB]"}
    raw = {"image": base64.b64decode(PNG), "note": "é".encode(), "data": b"\0" * 2_000}
    assert copied(raw) == {"image": "[image 165 kB]", "note": "é", "data": "[file 2 kB]"}


def test_the_search_for_base64_is_linear() -> None:
    texts = ["%2B" * 150_000, f"{'Aa1' * 20} " * 8_000, f"{RAW[:60]}{' ' * 81}" * 3_500, f"{RAW[:60]}%2C" * 4_500]
    for text in (
        "a/" * 250_000,
        "data:" * 100_000,
        "\\n" * 250_000,
        ("A" * 61 + "\n") * 8_000,
        "a" * 500_000,
        RAW * 125,
    ):
        texts += [text, quote(text, ""), joined(text, "\n  > "), f"%2B{text}", text.replace("A", "%2F")]
    for text in texts:
        start_s = time.process_time()
        mark_media(text)
        assert time.process_time() - start_s < 2, text[:20]


def test_tools_that_could_be_called_are_read_in_the_forms_of_all_providers() -> None:
    many = [{"name": f"t{number}"} for number in range(2_000)]
    for value, tools in [*table("offered_tools"), (many, many[:1_000])]:
        notes = Notes()
        converted = convert_trace({"output": "o", "tools": value}, notes).get("tools")
        assert converted == (None if tools is None else msgspec.convert(tools, list[Tool])), value
        assert [note.reason for note in notes.entries] == (["unreadable"] if tools is None and value else []), value
    expected = convert_trace({"output": "o", "expected_tool_calls": [("track", {"number": 7}), "pay"]}, Notes())
    assert expected["expected_tools"] == [ToolCall("track", {"number": 7}), ToolCall("pay")]


# --- the built-in set: what it finds and leaves alone, and that no text makes it slow or deaf ---
# Secrets are put together here, so that no scanner of repositories takes those of the table for live ones.
MIXED = "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC1eF3hJ5kL7nP9rS1uV3xY5"
PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA" + MIXED + "\n" + MIXED + "=\n-----END RSA PRIVATE KEY-----"
PARTS = {
    "MIXED": MIXED,
    "HEX": "0f1e2d3c4b5a69788796a5b4c3d2e1f0",
    "JWT": "eyJhbGciOiJIUzI1NiJ9" + ".eyJzdWIiOiIxMjM0NTY3ODkwIn0." + "dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
    "PEM": PEM,
    "ESCAPED": PEM.replace("\n", "\\n"),
}


def whole(text: str) -> str:
    """Put parts in place of `<NAME>`, their first characters in place of `<NAME:number>`, and nothing for `<>`."""
    names = "|".join(PARTS)
    return re.sub(
        rf"<({names})(?::(\d+))?>", lambda found: PARTS[found[1]][: int(found[2] or 10**9)], text.replace("<>", "")
    )


def rows(kind: str) -> Iterator[Any]:
    for name, text, *expected in table("redaction")[kind]:
        yield name, whole(text), *expected


def assert_redacted(cases: dict[str, tuple[str, str]], function: Callable[[str], str] = redact_secrets) -> None:
    results = {name: function(text) for name, (text, _) in cases.items()}
    assert {name: text for name, text in results.items() if text != cases[name][1]} == {}


def test_finds_a_secret_wherever_it_stands_and_leaves_what_stands_around_it() -> None:
    for around in ("{}", "It is {}, she said.", 'f("{}")', "a={}\nb=1", "(ünicode: {})"):
        assert_redacted({name: (around.format(text), around.format(sign)) for name, text, sign in rows("issued")})
    surrounded = {name: (text, expected) for name, text, expected in rows("surrounded")}
    assert_redacted(surrounded)
    assert_redacted(surrounded, lambda text: redact_secrets(redact_secrets(text)))
    assert redact_secrets("\ud800 ann@example.org") == "\ud800 [redacted e-mail]", "a text that is no Unicode"
    for around in ("{0}", "({0}) {0}, {0}"):  # which only looks like a secret
        assert_redacted({name: (around.format(text), around.format(text)) for name, text in rows("innocent")})


@pytest.mark.slow("texts of megabytes")
@pytest.mark.timeout(120)
def test_a_hostile_text_takes_no_longer_than_its_length_and_hides_nothing_behind_it() -> None:
    """Twice: what is quadratic takes minutes here, what is linear a quarter of a second at most."""
    for name, text in rows("hostile"):
        redacted = redact_secrets(f"{text * 2}\n-----END PRIVATE KEY-----\n ann@example.org 4111111111111111")
        assert redacted.endswith("[redacted e-mail] [redacted card number]"), name


def test_a_secret_in_json_that_stands_in_a_text_is_found_and_the_json_stays_json() -> None:
    for name, text, secret in rows("in JSON"):
        redacted = redact_secrets(text)
        assert secret not in redacted, name
        json.loads(redacted)
    assert json.loads(redact_secrets(r'{"note": "a\nbob@example.com"}')) == {"note": "a\n[redacted e-mail]"}


def test_the_patterns_without_possessive_quantifiers_find_the_same() -> None:
    """Python 3.10 has no possessive quantifiers."""
    # The patterns are no part of what the module offers.
    patterns = [form.pattern for form in (*redact._SURROUNDED, *redact._ISSUED)]
    patterns += [value for value in vars(redact).values() if isinstance(value, re.Pattern)]
    changed = {pattern: re.compile(without_possessive(pattern.pattern)) for pattern in patterns}
    assert sum(pattern.pattern != plain.pattern for pattern, plain in changed.items()) > 10
    texts = [row[1] for kind in ("issued", "surrounded", "innocent", "hostile") for row in rows(kind)]
    for text in (text for text in texts if len(text) < 10_000):
        for pattern, plain in changed.items():
            if pattern is not redact._POSSESSIVE:
                assert pattern.sub("#", text) == plain.sub("#", text), (pattern.pattern, text)
    assert not any(re.search(r"[*+?}]\+", re.sub(r"\[[^\]]*\]", "", plain.pattern)) for plain in changed.values())
