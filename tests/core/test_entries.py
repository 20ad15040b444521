"""Reading the stream: each entry becomes one of five things without an error, in any language's names and types."""

import base64
import hashlib
import json
from random import Random
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs
from support.fixtures import one_redis
from support.stages import IngestHarness, Keyspace
from support.tables import as_bytes, expand, read_table

from tracejudge import Document, LateFeedback, ProducerReport, Span, Trace
from tracejudge.content.field_names import OTHER_NAMES
from worker.base.input.feature import InputKeys
from worker.base.input.unusable import MAX_INVALID, UnusableInput, read_invalid, read_left_out
from worker.core.config.settings import Rule
from worker.core.queue.batch import batch_header, decode_batch
from worker.core.selection.stream_entry import (
    FeedbackEntry,
    GoneEntry,
    InvalidEntry,
    ReportEntry,
    StreamEntry,
    TraceEntry,
    read_entry,
    trace_id_of,
)

ENTRY_ID = "1700000000000-0"
MAX_BYTES = 4 * 1024 * 1024
W3C = "4bf92f3577b34da6a3ce929d0e0e4736"
NEEDED = {"trace_id": W3C, "service": "shop", "output": "It is."}
REPORT = {"producer": "p1", "seq": 3, "service": "shop", "published": 5, "accepted": 4, "dropped": {"buffer_full": 1}}
BASE64 = base64.b64encode(Random(7).randbytes(3_000)).decode()
NO_TIMES = (0, -1, 1, 946_684_799.9, 4_102_444_800, 5_000_000_000, 10**11, 9e11, 10**16, 1e20, 10**400, -1e308)
TIMES = (946_684_800, 1_700_000_000.5, 4_102_444_799.9, None)
FULL = read_table(__file__, "trace")
any_redis_server = one_redis


def encoded(record: Any) -> bytes:
    return record if isinstance(record, bytes) else json.dumps(record).encode()


def read(fields: dict[bytes, bytes] | None, max_bytes: int = MAX_BYTES) -> StreamEntry:
    return read_entry((ENTRY_ID.encode(), fields), max_bytes)


def read_as(record: Any, kind: bytes = b"t") -> Any:
    """Read an entry with a trace `t`, a report `r` or feedback `f`."""
    return read({b"v": b"1", kind: encoded(record)})


def read_trace(**fields: Any) -> TraceEntry:
    entry = read_as(NEEDED | fields)
    assert isinstance(entry, TraceEntry), entry
    return entry


def check_invalid(entry: StreamEntry, reason: str, what: object = "", producer: str | None = None) -> None:
    assert isinstance(entry, InvalidEntry), what
    assert entry[:3] == (ENTRY_ID, producer, reason), what


def body(row: dict[str, Any]) -> bytes:
    """Return the body of a row of the table, in which «base64» stands for a file."""
    return as_bytes(row["raw"].replace("«base64»", BASE64)) if "raw" in row else encoded(row["body"])


def test_a_trace_needs_three_fields_and_may_hold_every_field_of_the_contract() -> None:
    payload = encoded(NEEDED)
    entry = read_trace()
    trace = Trace(trace_id=W3C, service="shop", output="It is.")
    assert entry == TraceEntry(entry_id=ENTRY_ID, producer=None, trace=trace, payload=payload)
    assert entry.publication_id == hashlib.blake2b(payload, digest_size=8).hexdigest()
    assert set(FULL) == set(Trace.__struct_fields__)
    entry = read_trace(**FULL)
    assert json.loads(msgspec.json.encode(entry.trace)) == FULL
    assert (entry.unknown, entry.left_out) == ((), ())
    entry = read_trace(secret="x", nested={"a": [1]}, context=[{"text": "t", "x": 1}])  # noqa: S106 - no secret
    assert entry.unknown == ("secret", "nested")
    assert json.loads(msgspec.json.encode(entry.trace)) == {**NEEDED, "context": [{"text": "t"}]}
    entry = read_trace(context=["A text.", {"text": "An object.", "id": "d2", "score": 1}])
    assert entry.trace.context == ["A text.", Document("An object.", "d2", 1.0)]
    # A span id of any text would go into logs and onto spans as it stands.
    assert read_trace(span_id="the user said: hello").trace.span_id is None


def test_ids_of_traces_and_publications_and_times_before_2000_or_after_2100() -> None:
    for trace_id in (W3C, "a", "request 7/é", "é" * 128):
        assert read_trace(trace_id=trace_id).trace.trace_id == trace_id
    for trace_id in ("", None, ["a"]):
        check_invalid(read_as(NEEDED | {"trace_id": trace_id}), "wrong_type", trace_id)
    assert read_trace(id="0123456789abcdef").publication_id == "0123456789abcdef"
    for given_id in ({}, {"id": None}, {"id": ""}):
        first, again, other = (read_trace(**given_id, output=output).publication_id for output in ("So.", "So.", "No."))
        assert first == again != other, "without an id the payload is the publication"
        assert len(first) == 16
    fields = {b"v": b"1", b"t": encoded(NEEDED)}
    for field, producer in ((b"p" * 64, "p" * 64), (b"", None), (b"p" * 65, None), (b"\xff", "\ufffd")):
        assert read({**fields, b"p": field}).producer == producer, field
    for name in ("started_at", "ended_at"):
        times: dict[Any, Any] = dict.fromkeys(NO_TIMES) | {time: time for time in TIMES}
        times |= {1_700_000_000.5 * factor: 1_700_000_000.5 for factor in (1_000, 1_000_000, 1_000_000_000)}
        for value, time in times.items():
            entry = read_trace(**{name: value})
            left_out = ((name, "number"),) if value in NO_TIMES else ()
            assert (getattr(entry.trace, name), entry.left_out) == (time, left_out), f"{name}={value}"
    spans = [
        {"span_id": "1", "name": "a", "started_at": 1_700_000_000, "ended_at": 1e16},
        {"span_id": "2", "name": "b", "started_at": 1_700_000_000_500},
    ]
    entry = read_trace(spans=spans, ended_at=5)
    assert [name for name, _ in entry.left_out] == ["ended_at", "spans"]
    assert entry.trace.spans == [Span("1", "a", started_at=1_700_000_000), Span("2", "b", started_at=1_700_000_000.5)]


def test_fields_under_the_names_and_in_the_types_of_other_services_are_read() -> None:
    for name, row in read_table(__file__, "entries")["read"].items():
        entry = read_as(body(row))
        assert isinstance(entry, TraceEntry), name
        built = json.loads(msgspec.json.encode(entry.trace))
        if built.get("context"):
            built["context"] = [{"text": each} if isinstance(each, str) else each for each in built["context"]]
        values = json.loads(expand(json.dumps(row["fields"], ensure_ascii=False)))
        assert {field: built.get(field, "" if field == "output" else None) for field in values} == values, name
        assert [*map(list, entry.left_out)] == row.get("left_out", []), name
        assert trace_id_of(entry.payload) == entry.trace.trace_id, name
        again = read_as(msgspec.json.encode(entry.trace))
        assert (again.trace, again.left_out, again.unknown) == (entry.trace, (), ()), f"{name}: a batch holds it"
    for field, names in OTHER_NAMES.items():
        for name in names:
            first, *others = name.split("_")
            for spelling in (name, first + "".join(map(str.capitalize, others))):
                record: dict[str, object] = {key: text for key, text in NEEDED.items() if key != field}
                entry = read_as(record | {spelling: {"a": 1} if field in {"tags", "usage"} else "1"})
                assert isinstance(entry, TraceEntry), f"{spelling}: {entry}"
                assert entry.unknown == (), spelling


def test_an_entry_that_is_no_trace_has_a_reason_and_keeps_nothing_of_its_text() -> None:
    tables = read_table(__file__, "entries")
    for name, row in tables["invalid"].items():
        fields = {key.encode(): as_bytes(text) for key, text in row["fields"].items()}
        check_invalid(read(fields), row["reason"], name)
        # A producer counts the traces that it sends, and nothing else.
        check_invalid(read({**fields, b"p": b"p1"}), row["reason"], name, "p1" if b"t" in fields else None)
    for name, row in tables["no trace"].items():
        entry = read_as(body(row))
        assert isinstance(entry, InvalidEntry), name
        assert (entry.reason, entry.detail, [*entry.keys]) == ("wrong_type", row["detail"], row["keys"]), name
    entry = read_as({**NEEDED, "service": None, "It is. Is it?": 1})
    keys = ("trace_id", "service", "output", "(another)")
    assert entry == InvalidEntry(ENTRY_ID, None, "wrong_type", "no service", keys, trace_id=W3C)
    assert "It is." not in repr(entry)
    assert read_as({**NEEDED, "service": None, "trace_id": "It is."}).trace_id is None
    assert read(None) == GoneEntry(ENTRY_ID), "it was trimmed away"


def test_an_accepted_trace_can_be_decoded_inside_a_batch() -> None:
    """What is nested to the last level would fail the whole batch it is put into, again and again."""

    def deeper(payload: str, frames: int) -> Any:
        return deeper(payload, frames - 1) if frames else decode_batch(payload.encode())

    ends = set()
    for levels in (200, *range(700, 1100, 20)):
        nested = b"[" * levels + b"]" * levels
        calls = b',"tool_calls":[{"name":"search","arguments":' + nested + b"}]}"
        entry = read_as(encoded(NEEDED)[:-1] + calls)
        ends.add(type(entry))
        if isinstance(entry, InvalidEntry):
            check_invalid(entry, "not_json", levels)
            assert levels > 200
            continue
        item = '{"trace":' + msgspec.json.encode(entry.trace).decode() + ',"evaluations":[]}'
        payload = batch_header("b1", "default", "lexical", 0.0) + item + "]}"
        assert deeper(payload, 50).items[0].trace == entry.trace, levels
    assert ends == {TraceEntry, InvalidEntry}
    payload = encoded(NEEDED)[:-1] + b',"x":' + b"[" * 1000 + b"]" * 1000 + b"}"
    check_invalid(read_as(payload), "not_json", "an unknown field")
    # The limit of bytes is the configured one, and that of the payload.
    read_trace(context=["x" * 1_000_000])
    check_invalid(read_as(NEEDED | {"context": ["x" * 5_000_000]}), "too_large")
    fields = {b"v": b"1", b"t": encoded(NEEDED)}
    assert isinstance(read(fields, len(fields[b"t"])), TraceEntry)
    check_invalid(read(fields, len(fields[b"t"]) - 1), "too_large")


def test_reports_are_read_and_those_that_would_bend_the_accounting_are_invalid() -> None:
    assert read_as(REPORT, b"r") == ReportEntry(ENTRY_ID, ProducerReport("p1", 3, "shop", 5, 4, {"buffer_full": 1}))
    most = {"producer": "p" * 64, "published": 10**12, "accepted": 0, "dropped": {"buffer_full": 10**12}}
    assert read_as(REPORT | most, b"r").report.dropped == {"buffer_full": 10**12}
    for name, fields in read_table(__file__, "entries")["bad reports"].items():
        check_invalid(read_as(REPORT | fields, b"r"), "wrong_type", name)
    invented = ["Buffer", "a:b", "a\n", "", "a" * 33, "other", *(f"reason_{number}" for number in range(1000))]
    dropped = {"buffer_full": 5, "redaction": 2, **dict.fromkeys(invented, 3)}
    counted = read_as(REPORT | {"dropped": dropped}, b"r").report.dropped
    assert counted == {"buffer_full": 5, "redaction": 2, "other": 3 * len(invented)}
    # So is late feedback, in other names and types.
    for record, feedback in (
        ({"trace_id": W3C, "score": -1}, LateFeedback(W3C, -1.0)),
        ({"trace_id": W3C, "score": -1, "comment": "Wrong."}, LateFeedback(W3C, -1.0, "Wrong.")),
        ({"traceId": "t1", "score": "-1"}, LateFeedback("t1", -1.0)),
        ({"trace_id": 7, "value": True, "reason": "Good."}, LateFeedback("7", 1, "Good.")),
        ({"trace_id": "x" * 128, "rating": 0.5}, LateFeedback("x" * 128, 0.5)),
    ):
        assert read_as(record, b"f") == FeedbackEntry(ENTRY_ID, feedback), record
    for wrong in ({"traceId": "t1"}, {"score": 1}, {"trace_id": "t1", "score": 5}, {"traceId": 1, "score": [1]}):
        check_invalid(read_as(wrong, b"f"), "wrong_type", wrong)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
some_fields = st.dictionaries(st.sampled_from(Trace.__struct_fields__) | st.text(max_size=8), json_values, max_size=6)
payloads = st.binary(max_size=200) | json_values.map(encoded) | some_fields.map(lambda fields: encoded(NEEDED | fields))
names = st.sampled_from([b"v", b"t", b"r", b"f", b"p", b"x"])


@settings(deadline=None, max_examples=50)
@given(st.dictionaries(names, payloads | st.just(b"1") | st.binary(max_size=70), max_size=6), payloads)
def test_reading_never_raises_and_what_was_taken_stays_unchanged(fields: dict[bytes, bytes], payload: bytes) -> None:
    for entry in (read(fields), *(read_as(payload, kind) for kind in (b"t", b"r", b"f"))):
        assert isinstance(entry, StreamEntry)
        if isinstance(entry, TraceEntry):
            again = read_as(msgspec.json.encode(entry.trace))
            assert isinstance(again, TraceEntry)
            assert again.trace == entry.trace


def test_a_field_that_is_left_out_is_counted_logged_once_and_listed(keyspace: Keyspace) -> None:
    chosen = IngestHarness(keyspace, rules=(Rule(name="all", judges=("safety",)),))
    for number in range(3):
        keyspace.add({**NEEDED, "traceId": f"t{number}", "trace_id": None, "tool_calls": 5, "ended_at": "secret"})
    with capture_logs() as logs:
        chosen.process()
        chosen.write_unusable()
    lines = [line for line in logs if line["event"] == "field left out of traces"]
    fields = [("tool_calls", "number"), ("ended_at", "string")]
    assert [(line["field"], line["type"], line["trace_id"]) for line in lines] == [(*each, "t0") for each in fields]
    assert "secret" not in repr(logs)
    listed = {(field.field, field.type, field.service, field.trace_id) for field in read_left_out(keyspace.store)}
    assert listed == {(*each, "shop", "t2") for each in fields}
    assert 0 < keyspace.client.ttl(InputKeys(keyspace.keys.prefix).left_out) <= 7 * 86_400
    keyspace.next_case("the last hundred invalid entries are listed without their texts")
    chosen, key = IngestHarness(keyspace), InputKeys(keyspace.keys.prefix).invalid
    for number in range(MAX_INVALID + 20):
        keyspace.add({"trace_id": f"t{number}", "content": "secret", "a secret": 1})
    keyspace.add(b"{secret")
    chosen.process()
    chosen.process()
    chosen.write_unusable()
    broken, last, *others = read_invalid(keyspace.store)
    assert (broken.reason, broken.keys, broken.trace_id) == ("not_json", ("v", "t"), None)
    shown = (last.reason, last.detail, last.keys, last.trace_id)
    assert shown == ("wrong_type", "no service", ("trace_id", "content", "(another)"), "t119")
    assert len(others) == MAX_INVALID - 2
    assert "secret" not in repr(keyspace.client.xrange(key))
    assert 0 < keyspace.client.ttl(key) <= 7 * 86_400
    keyspace.next_case("written at most once a second")
    now = [0.0]
    unusable, entry = UnusableInput(keyspace.store, lambda: now[0]), read_as({"content": "x"})
    for now[0], listed in ((0.0, 1), (0.5, 1), (0.9, 1), (1.0, 4), (9.0, 5)):
        unusable.add([entry], [])
        unusable.write()
        assert keyspace.client.xlen(key) == listed, now
