"""Reading the stream: anything may stand in it, and each entry becomes one of five things, without an error."""

import hashlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cases import each_case

from tracejudge import Document, LateFeedback, ProducerReport, Span, Trace
from worker.core.queue.batch import batch_header, decode_batch
from worker.core.selection.stream_entry import (
    FeedbackEntry,
    GoneEntry,
    InvalidEntry,
    ReportEntry,
    StreamEntry,
    TraceEntry,
    read_entry,
)

ID = b"1700000000000-0"
MAX_BYTES = 4 * 1024 * 1024
W3C = "4bf92f3577b34da6a3ce929d0e0e4736"
NEEDED = {"trace_id": W3C, "service": "shop", "output": "It is."}
REPORT = {"producer": "p1", "seq": 3, "service": "shop", "published": 5, "accepted": 4, "dropped": {"buffer_full": 1}}


def read(fields: dict[bytes, bytes] | None, max_bytes: int = MAX_BYTES) -> StreamEntry:
    return read_entry((ID, fields), max_bytes)


def encoded(record: Any) -> bytes:
    return record if isinstance(record, bytes) else json.dumps(record).encode()


def read_trace(record: Any) -> StreamEntry:
    return read({b"v": b"1", b"t": encoded(record)})


def read_report(**fields: Any) -> StreamEntry:
    return read({b"v": b"1", b"r": encoded({**REPORT, **fields})})


def invalid(reason: Any, producer: str | None = None) -> tuple[object, ...]:
    return (ID.decode(), producer, reason)


def ending(entry: StreamEntry) -> tuple[object, ...]:
    """The id, the producer and the reason of an invalid entry."""
    assert isinstance(entry, InvalidEntry)
    return entry[:3]


# --- traces ---


def test_a_trace_needs_three_fields() -> None:
    payload = encoded(NEEDED)
    read = read_trace(NEEDED)
    assert read == TraceEntry(
        entry_id="1700000000000-0",
        producer=None,
        trace=Trace(trace_id=W3C, service="shop", output="It is."),
        payload=payload,
    )
    assert read.publication_id == hashlib.blake2b(payload, digest_size=8).hexdigest()


def test_a_trace_may_hold_every_field_of_the_contract() -> None:
    full = {
        **NEEDED,
        "id": "0123456789abcdef",
        "span_id": "00f067aa0ba902b7",
        **dict.fromkeys(("environment", "release", "name", "session_id", "user_id", "response_id"), "x"),
        "started_at": 1_700_000_001.5,
        "ended_at": 1_700_000_002,
        "provider": "openai",
        "model": "gpt-6-luna",
        "input": "Is it?",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi", "name": "Inès"}],
        "context": [{"text": "It is.", "id": "d1", "score": 0.9}, {"text": "So."}],
        "expected_response": "Yes.",
        "expected_facts": ["It is."],
        "guidelines": ["Be brief."],
        "tool_calls": [{"name": "search", "arguments": {"q": [1, None]}, "result": "none", "error": "late"}],
        "tools": [{"name": "search", "description": "Finds.", "parameters": {"type": "object"}}],
        "expected_tools": [{"name": "search", "arguments": {"q": [1]}}],
        "spans": [
            {
                "span_id": "1",
                "parent_id": "0",
                "name": "root",
                "kind": "chain",
                "started_at": 1_700_000_001,
                "ended_at": 1_700_000_002,
                "status": "ok",
                "inputs": {"a": 1},
                "outputs": [2],
                "attributes": {"k": "v"},
            }
        ],
        "usage": {"input_tokens": 1, "output_tokens": 2},
        "error": "timeout",
        "feedback": {"score": -1, "comment": "no"},
        "tags": {"team": "a"},
    }
    assert set(full) == set(Trace.__struct_fields__)
    entry = read_trace(full)
    assert isinstance(entry, TraceEntry)
    assert json.loads(msgspec.json.encode(entry.trace)) == full
    assert (entry.unknown, entry.left_out) == ((), ())


TRACE_IDS = {
    "W3C": (W3C, True),
    "one sign": ("a", True),
    "not hex": ("request 7/é", True),
    "128 signs": ("é" * 128, True),
    "empty": ("", False),
    "null": (None, False),
    "list": (["a"], False),
}


@each_case(("trace_id", "good"), TRACE_IDS.values(), ids=TRACE_IDS.keys())
def test_any_trace_id_up_to_128_signs_is_taken(trace_id: object, good: bool) -> None:  # noqa: FBT001
    got = read_trace({**NEEDED, "trace_id": trace_id})
    if good:
        assert isinstance(got, TraceEntry)
        assert got.trace.trace_id == trace_id
    else:
        assert ending(got) == invalid("wrong_type")


def test_context_is_read_as_texts_and_as_objects() -> None:
    got = read_trace({**NEEDED, "context": ["A text.", {"text": "An object.", "id": "d2", "score": 1}]})
    assert isinstance(got, TraceEntry)
    assert got.trace.context == ["A text.", Document("An object.", "d2", 1.0)]


def test_an_empty_output_is_an_output() -> None:
    assert isinstance(read_trace({**NEEDED, "output": "", "error": "timeout"}), TraceEntry)


def test_the_publication_id_is_the_given_one() -> None:
    got = read_trace({**NEEDED, "id": "0123456789abcdef"})
    assert isinstance(got, TraceEntry)
    assert got.publication_id == "0123456789abcdef"


@each_case("given_id", [{}, {"id": None}, {"id": ""}], ids=["absent", "null", "empty"])
def test_without_an_id_the_payload_is_the_publication(given_id: dict[str, Any]) -> None:
    first, again = (read_trace({**NEEDED, **given_id}) for _ in range(2))
    other = read_trace({**NEEDED, **given_id, "output": "It is not."})
    assert isinstance(first, TraceEntry)
    assert isinstance(again, TraceEntry)
    assert isinstance(other, TraceEntry)
    assert first.publication_id == again.publication_id != other.publication_id
    assert len(first.publication_id) == 16


NO_TIMES = (0, -1, 1, 946_684_799.9, 4_102_444_800, 5_000_000_000, 10**11, 9e11, 10**16, 1e20, 10**400, -1e308)
TIMES = (946_684_800, 1_700_000_000.5, 4_102_444_799.9, None)


def test_times_before_2000_or_after_2100_are_left_out_and_named() -> None:
    for name in ("started_at", "ended_at"):
        for value in NO_TIMES:
            entry = read_trace({**NEEDED, name: value})
            assert isinstance(entry, TraceEntry), f"{name}={value}"
            assert (getattr(entry.trace, name), entry.left_out) == (None, ((name, "number"),)), f"{name}={value}"
        for value in TIMES:
            entry = read_trace({**NEEDED, name: value})
            assert isinstance(entry, TraceEntry), f"{name}={value}"
            assert (getattr(entry.trace, name), entry.left_out) == (value, ()), f"{name}={value}"
        for factor in (1_000, 1_000_000, 1_000_000_000):
            entry = read_trace({**NEEDED, name: 1_700_000_000.5 * factor})
            assert isinstance(entry, TraceEntry), f"{name}={factor}"
            assert (getattr(entry.trace, name), entry.left_out) == (1_700_000_000.5, ()), f"{name}={factor}"
    spans = [
        {"span_id": "1", "name": "a", "started_at": 1_700_000_000, "ended_at": 1e16},
        {"span_id": "2", "name": "b", "started_at": 1_700_000_000_500},
    ]
    entry = read_trace({**NEEDED, "spans": spans, "ended_at": 5})
    assert isinstance(entry, TraceEntry)
    assert [name for name, _ in entry.left_out] == ["ended_at", "spans"]
    assert entry.trace.spans == [Span("1", "a", started_at=1_700_000_000), Span("2", "b", started_at=1_700_000_000.5)]


def test_unknown_fields_are_counted_and_kept_out() -> None:
    got = read_trace({**NEEDED, "secret": "x", "nested": {"a": [1]}, "context": [{"text": "t", "x": 1}]})
    assert isinstance(got, TraceEntry)
    assert got.unknown == ("secret", "nested")
    assert msgspec.json.decode(msgspec.json.encode(got.trace)) == {**NEEDED, "context": [{"text": "t"}]}


# --- what is no trace ---

NO_TRACE = {
    "no fields": ({}, "no_payload"),
    "only a version": ({b"v": b"1"}, "no_payload"),
    "another field": ({b"v": b"1", b"x": encoded(NEEDED)}, "no_payload"),
    "no version": ({b"t": encoded(NEEDED)}, "unknown_version"),
    "another version": ({b"v": b"2", b"t": encoded(NEEDED)}, "unknown_version"),
    "empty": ({b"v": b"1", b"t": b""}, "not_json"),
    "no JSON": ({b"v": b"1", b"t": b"It is."}, "not_json"),
    "half of it": ({b"v": b"1", b"t": encoded(NEEDED)[:-1]}, "not_json"),
    "UTF-16": ({b"v": b"1", b"t": json.dumps(NEEDED).encode("utf-16")}, "not_json"),
    "nested without end": ({b"v": b"1", b"t": b"[" * 100_000}, "wrong_type"),
    "list": ({b"v": b"1", b"t": encoded([NEEDED])}, "wrong_type"),
    "null": ({b"v": b"1", b"t": b"null"}, "wrong_type"),
    "string": ({b"v": b"1", b"t": b'"trace"'}, "wrong_type"),
    "empty object": ({b"v": b"1", b"t": b"{}"}, "wrong_type"),
    "no trace id": ({b"v": b"1", b"t": encoded({"service": "shop", "output": ""})}, "wrong_type"),
    "no service": ({b"v": b"1", b"t": encoded({"trace_id": W3C, "output": ""})}, "wrong_type"),
    "empty service": ({b"v": b"1", b"t": encoded({**NEEDED, "service": ""})}, "wrong_type"),
    "no output": ({b"v": b"1", b"t": encoded({"trace_id": W3C, "service": "shop"})}, "wrong_type"),
    "null output": ({b"v": b"1", b"t": encoded({**NEEDED, "output": None})}, "wrong_type"),
    "too large": ({b"v": b"1", b"t": b"x" * (MAX_BYTES + 1)}, "too_large"),
    "large and no JSON": ({b"v": b"1", b"t": b"x" * MAX_BYTES}, "not_json"),
    "large report": ({b"v": b"1", b"r": b"x" * (MAX_BYTES + 1)}, "too_large"),
    "report that is no JSON": ({b"v": b"1", b"r": b"{"}, "not_json"),
    "report that is a trace": ({b"v": b"1", b"r": encoded(NEEDED)}, "wrong_type"),
    "report of another version": ({b"v": b"9", b"r": encoded(REPORT)}, "unknown_version"),
    "feedback without a score": ({b"v": b"1", b"f": encoded({"trace_id": W3C})}, "wrong_type"),
    "feedback that is no JSON": ({b"v": b"1", b"f": b"+1"}, "not_json"),
}


@each_case(("fields", "reason"), NO_TRACE.values(), ids=NO_TRACE.keys())
def test_an_entry_that_is_no_trace_has_a_reason(fields: dict[bytes, bytes], reason: str) -> None:
    assert ending(read(fields)) == invalid(reason)
    # A producer counts the traces that it sends, and nothing else.
    assert ending(read({**fields, b"p": b"p1"})) == invalid(reason, "p1" if b"t" in fields else None)


def test_an_invalid_entry_keeps_nothing_of_its_text() -> None:
    got = read_trace({**NEEDED, "service": None, "It is. Is it?": 1})
    assert got == InvalidEntry(
        *invalid("wrong_type"), "no service", ("trace_id", "service", "output", "(another)"), trace_id=W3C
    )
    assert "It is." not in repr(got)
    assert read_trace({**NEEDED, "service": None, "trace_id": "It is."}).trace_id is None


def test_an_entry_that_was_trimmed_away_is_gone() -> None:
    assert read(None) == GoneEntry("1700000000000-0")


def test_a_trace_of_a_megabyte_is_taken_and_one_of_five_is_too_large() -> None:
    taken = read_trace({**NEEDED, "context": ["x" * 1_000_000]})
    assert isinstance(taken, TraceEntry)
    assert ending(read_trace({**NEEDED, "context": ["x" * 5_000_000]})) == invalid("too_large")


def test_the_limit_is_the_configured_one_and_belongs_to_the_payload() -> None:
    fields = {b"v": b"1", b"t": encoded(NEEDED)}
    assert isinstance(read(fields, len(fields[b"t"])), TraceEntry)
    assert ending(read(fields, len(fields[b"t"]) - 1)) == invalid("too_large")


# --- nesting ---


def nested(levels: int) -> bytes:
    call = b'{"name":"search","arguments":' + b"[" * levels + b"]" * levels + b"}"
    return encoded(NEEDED)[:-1] + b',"tool_calls":[' + call + b"]}"


def test_nesting_is_no_mistake() -> None:
    assert isinstance(read_trace(nested(200)), TraceEntry)


@each_case("levels", range(700, 1100, 20))
def test_an_accepted_trace_can_be_decoded_inside_a_batch(levels: int) -> None:
    """What is nested to the last level would fail the whole batch it is put into, again and again."""
    got = read_trace(nested(levels))
    if not isinstance(got, TraceEntry):
        assert ending(got) == invalid("not_json")
        return
    item = b'{"trace":' + msgspec.json.encode(got.trace) + b',"evaluations":[]}'
    payload = batch_header("b1", "default", "lexical", 0.0).encode() + item + b"]}"

    def deeper(frames: int) -> Any:
        return deeper(frames - 1) if frames else decode_batch(payload)

    assert deeper(50).items[0].trace == got.trace


def test_an_unknown_field_may_be_nested_as_far_as_any_other() -> None:
    payload = encoded(NEEDED)[:-1] + b',"x":' + b"[" * 1000 + b"]" * 1000 + b"}"
    assert ending(read_trace(payload)) == invalid("not_json")


# --- producers' reports ---


def test_a_report_is_read() -> None:
    assert read_report() == ReportEntry("1700000000000-0", ProducerReport("p1", 3, "shop", 5, 4, {"buffer_full": 1}))


BAD_REPORTS = {
    "negative published": {"published": -1},
    "negative accepted": {"accepted": -1},
    "negative number": {"seq": -1},
    "negative drops": {"dropped": {"buffer_full": -1}},
    "more than anybody publishes": {"published": 10**13},
    "more than 64 bits": {"published": 10**30},
    "drops of more than 64 bits": {"dropped": {"buffer_full": 10**30}},
    "half a trace": {"published": 0.5},
    "number as a text": {"published": "5"},
    "drops of more than anybody publishes": {"dropped": {str(number): 10**12 for number in range(2)}},
    "no producer": {"producer": ""},
    "long producer": {"producer": "p" * 65},
    "no drops": {"dropped": None},
}


@each_case("fields", BAD_REPORTS.values(), ids=BAD_REPORTS.keys())
def test_a_report_that_would_bend_the_accounting_is_invalid(fields: dict[str, Any]) -> None:
    assert ending(read_report(**fields)) == invalid("wrong_type")


def test_a_report_at_the_edge_is_taken() -> None:
    got = read_report(producer="p" * 64, published=10**12, accepted=0, dropped={"buffer_full": 10**12})
    assert isinstance(got, ReportEntry)
    assert got.report.dropped == {"buffer_full": 10**12}


def test_invented_reasons_of_a_report_are_other() -> None:
    invented = ["Buffer", "a:b", "a\n", "", "a" * 33, "other", *(f"reason_{number}" for number in range(1000))]
    got = read_report(dropped={"buffer_full": 5, "redaction": 2, **dict.fromkeys(invented, 3)})
    assert isinstance(got, ReportEntry)
    assert got.report.dropped == {"buffer_full": 5, "redaction": 2, "other": 3 * len(invented)}


# --- feedback and producers ---


@pytest.mark.parametrize("comment", [{}, {"comment": "Wrong."}], ids=["bare", "with a comment"])
def test_late_feedback_is_read(comment: dict[str, str]) -> None:
    got = read({b"v": b"1", b"f": encoded({"trace_id": W3C, "score": -1, **comment})})
    assert got == FeedbackEntry("1700000000000-0", LateFeedback(W3C, -1.0, comment.get("comment")))


PRODUCERS = {
    "absent": (None, None),
    "an id": (b"0123456789abcdef", "0123456789abcdef"),
    "64 bytes": (b"p" * 64, "p" * 64),
    "empty": (b"", None),
    "65 bytes": (b"p" * 65, None),
    "not UTF-8": (b"\xff", "\ufffd"),
}


@each_case(("field", "producer"), PRODUCERS.values(), ids=PRODUCERS.keys())
def test_an_entry_names_its_producer(field: bytes | None, producer: str | None) -> None:
    fields = {b"v": b"1", b"t": encoded(NEEDED)}
    got = read(fields if field is None else {**fields, b"p": field})
    assert isinstance(got, TraceEntry)
    assert got.producer == producer


# --- anything ---

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
some_fields = st.dictionaries(st.sampled_from(Trace.__struct_fields__) | st.text(max_size=8), json_values, max_size=6)
payloads = st.binary(max_size=200) | json_values.map(encoded) | some_fields.map(lambda fields: encoded(NEEDED | fields))
fields = st.dictionaries(
    st.sampled_from([b"v", b"t", b"r", b"f", b"p", b"x"]), payloads | st.just(b"1") | st.binary(max_size=70), max_size=6
)


def check(got: StreamEntry) -> None:
    assert isinstance(got, StreamEntry)
    if isinstance(got, TraceEntry):
        again = read_trace(msgspec.json.encode(got.trace))
        assert isinstance(again, TraceEntry)
        assert again.trace == got.trace, "what was taken travels on unchanged"


@settings(deadline=None)
@given(fields)
def test_reading_never_raises(entry: dict[bytes, bytes]) -> None:
    check(read(entry))


@settings(deadline=None, max_examples=100)
@given(payloads)
def test_reading_a_payload_never_raises(payload: bytes) -> None:
    for kind in (b"t", b"r", b"f"):
        check(read({b"v": b"1", kind: payload}))


def test_a_span_id_that_is_none_is_kept_out() -> None:
    """It would go into logs and onto spans as it stands, whatever text somebody put there."""
    payload = b'{"trace_id": "a", "service": "s", "output": "", "span_id": "the user said: hello"}'
    entry = read_entry((b"1-0", {b"v": b"1", b"t": payload}), 1000)
    assert entry.trace.span_id is None
