"""From the call to the entry in a real Redis: what arrives, under which ids, and what is reported of which mistake."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import pytest
from lookalikes import table
from opentelemetry import trace as opentelemetry
from sdk_rig import StartedSdk
from support.processes import PATIENCE_S, wait_until

import tracejudge
from tracejudge import model
from tracejudge.content.convert import Note, Notes, convert_trace
from tracejudge.content.field_names import MAX_TAGS, closest_field
from tracejudge.delivery import encoding
from tracejudge.delivery.buffer import Kind, Totals
from tracejudge.delivery.sender import MAX_WARNINGS, Reports
from tracejudge.ids import LANGSMITH, OPIK, current_span, library_tags
from tracejudge.model import Span, Trace, is_wire_span
from worker.core.config.settings import Settings
from worker.features.gateway.admission import Form
from worker.features.gateway.intake import Encoder, read_intake, sdk_settings

Start = Callable[..., StartedSdk]


class Call(NamedTuple):
    """A call of `publish`, and what follows from it.

    `arrives` is the whole trace in the stream without its ids, its service and the time of its arrival, unless the call
    gives these; None means that nothing arrives. A report is "reason field".
    """

    name: str
    given: list[Any]
    fields: dict[str, Any]
    arrives: dict[str, Any] | None
    reports: list[str]

    def difference(self, trace: dict[str, Any] | None) -> str:
        """Compare a trace without the ids and the time that the call did not give."""
        keys = (self.arrives or {}).keys()
        absent = {"trace_id", "span_id", "id", "service"} - keys
        absent |= set() if {"started_at", "ended_at"} & keys else {"ended_at"}
        trace = trace and {name: value for name, value in trace.items() if name not in absent}
        return "" if trace == self.arrives else f"{self.name}: {trace} arrived, not {self.arrives}"


@pytest.mark.swallows
def test_every_everyday_call_arrives_whole(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    sdk = start(max_bytes=1 << 30)
    reasons: dict[str, set[str]] = {}

    def add(notes: Iterable[Note], trace_id: str, _: str | None) -> None:
        reasons.setdefault(trace_id, set()).update(f"{note.reason} {note.field}" for note in notes)

    monkeypatch.setattr(sdk.client._delivery.reports, "add", add)
    # A busy machine takes longer for a value with methods than a host would wait for it.
    monkeypatch.setattr(encoding, "_LONGEST_S", PATIENCE_S)
    monkeypatch.setattr(encoding, "_SHORTEST_S", PATIENCE_S)
    calls = [Call(*row) for row in table("everyday_calls")]
    assert len(calls) >= 475
    wrong = []
    # A given trace id repeats, so that these calls go one at a time.
    repeated = [[call] for call in calls if "trace_id" in (call.arrives or {})]
    for group in ([call for call in calls if "trace_id" not in (call.arrives or {})], *repeated):
        reasons.clear()
        ids = [tracejudge.publish(*call.given, **call.fields) for call in group]
        arrived = {trace["trace_id"]: trace for trace in sdk.flushed()}
        for call, trace_id in zip(group, ids, strict=True):
            wrong.append(call.difference(arrived.get(trace_id)))
            if (reported := reasons.get(trace_id, set())) != set(call.reports):
                wrong.append(f"{call.name}: reported {reported}, not {call.reports}")
    assert not any(wrong), "\n".join(filter(None, wrong))
    # Only calls without any content are dropped.
    assert sdk.client.totals(Kind.TRACE).dropped == {"invalid": sum(call.arrives is None for call in calls)}


def _is_json(value: object) -> bool:
    """Return whether JSON holds a value as it is."""
    if type(value) is list:
        return all(map(_is_json, value))
    if type(value) is dict:
        return all(type(key) is str and _is_json(each) for key, each in value.items())
    return value is None or type(value) in (str, int, float, bool)


@pytest.mark.swallows
def test_the_gateway_reads_the_same_calls_in_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times without a zone are UTC in JSON, and local in a call of the SDK."""
    monkeypatch.setitem(os.environ, "TZ", "UTC")
    time.tzset()
    calls = [call for row in table("everyday_calls") if not (call := Call(*row)).given and _is_json(call.fields)]
    odd = ("NaN", "Infinity", "\\ud8", "\\udc")
    calls = [call for call in calls if call.fields and not any(text in json.dumps(call.fields) for text in odd)]
    assert len(calls) >= 150
    encoder = Encoder(sdk_settings(Settings()))
    wrong = []
    for call in calls:
        body = json.dumps({"service": "bot", **call.fields}).encode()
        intake = read_intake(body, Form.JSON, encoder, service=None, repeat_key=None, now_s=1.0)
        trace = json.loads(intake.entries[0].payload) if intake.entries else None
        wrong.append((difference := call.difference(trace)) and f"{difference}; {intake.rejected}")
        told = {field.field for field in intake.left_out}
        losses = [report.split() for report in call.reports]
        lost = {field.partition(".")[0] for reason, *field in losses for field in field[:1] if reason in _LOSSES}
        if trace is not None and told - {"other"} != lost & set(Trace.__struct_fields__):
            wrong.append(f"{call.name}: {told} left out, not {lost}")
    monkeypatch.undo()
    time.tzset()
    assert not any(wrong), "\n".join(filter(None, wrong))


_LOSSES = {"unreadable", "no_text", "missing"}


def test_only_spans_in_the_form_of_the_wire_are_sent_as_they_are() -> None:
    plain = {"text": "a", "count": 1, "share": 0.5, "whether": True}
    assert is_wire_span(Span("a", "b"), 128)
    assert is_wire_span(Span("a", "b", "c", "llm", 1.7e9, 1.7e9, "ok", "in", "out", plain), 128)
    others: dict[str, Any] = {
        "span_id": ["", "a" * 129, 7],
        "name": ["", 7],
        "parent_id": ["", 7],
        "status": [7],
        "inputs": [{"a": 1}],
        "started_at": [1, 1.7e12, float("nan")],
        "attributes": [{}, {"a": [1]}, {"a": None}, {7: "a"}, {"a": 2**63}, [("a", 1)]],
    }
    for field, values in others.items():
        for value in values:
            assert not is_wire_span(Span(**{"span_id": "a", "name": "b", field: value}), 128), (field, value)


def test_every_field_arrives_as_it_was_given(sdk: StartedSdk) -> None:
    everything = table("every_field")
    assert tracejudge.publish(**everything) == everything["trace_id"]
    assert tracejudge.flush(60)
    entry = sdk.entries()[0]
    assert (entry.kind, entry.version, entry.producer) == ("t", "1", sdk.client.producer)
    assert entry.record == everything


def test_ids_and_what_init_said_fill_the_rest(start: Start) -> None:
    sdk = start(environment="prod", release="8")
    before_s = time.time()
    trace_id = tracejudge.publish(output="Done.")
    after_s = time.time()
    (stored,) = sdk.flushed()
    assert before_s <= stored.pop("ended_at") <= after_s
    assert re.fullmatch("[0-9a-f]{32} [0-9a-f]{16} [0-9a-f]{16}", f"{trace_id} {stored.pop('id')} {stored['span_id']}")
    given = {"trace_id": trace_id, "service": "shop", "output": "Done.", "environment": "prod", "release": "8"}
    assert stored == {**given, "span_id": stored["span_id"]}
    for _ in range(3):
        random.seed(1)  # the host's, which they do not follow
        tracejudge.publish(output="again")
        tracejudge.publish(trace_id="same", output="again")
    traces = sdk.flushed()
    assert len({stored["id"] for stored in traces}) == 6, "every publication has an id of its own"
    assert len({stored["trace_id"] for stored in traces}) == 4


def test_ids_come_from_the_current_span_unless_the_trace_is_another(sdk: StartedSdk) -> None:
    context = opentelemetry.SpanContext(0xA1 << 120, 0xB2 << 56, is_remote=False)
    with opentelemetry.use_span(opentelemetry.NonRecordingSpan(context)):
        assert tracejudge.publish(output="Done.") == "a1" + "0" * 30
        tracejudge.publish(output="Done.", trace_id="c" * 32)
    same, other = sdk.flushed()
    assert same["span_id"] == "b2" + "0" * 14
    assert (other["trace_id"], other["span_id"] != "b2" + "0" * 14) == ("c" * 32, True)


@pytest.mark.swallows
def test_without_a_span_or_opentelemetry_there_are_no_current_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    assert current_span() is None
    monkeypatch.delitem(sys.modules, "opentelemetry.trace")
    assert (current_span(), "opentelemetry.trace" in sys.modules) == (None, False)
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", ModuleType("opentelemetry.trace"))
    assert current_span() is None, "half imported"


@pytest.mark.swallows
def test_ids_of_opik_and_langsmith_become_tags(sdk: StartedSdk, monkeypatch: pytest.MonkeyPatch) -> None:
    assert library_tags({"team": "a"}) == {}
    opik, langsmith = ModuleType(OPIK), ModuleType(LANGSMITH)
    opik.get_current_trace_data = lambda: SimpleNamespace(id="01-opik")  # type: ignore[attr-defined]
    langsmith.get_current_run_tree = lambda: SimpleNamespace(id=UUID(int=5))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, OPIK, opik)
    assert library_tags(None) == {"tags": {"opik_trace_id": "01-opik"}}
    tags = dict.fromkeys(map(str, range(300_000)), "a")
    tracemalloc.start()
    tracejudge.publish(output="a", tags=tags)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000, "tags without end are not copied whole"
    assert sdk.flushed()[0]["tags"]["opik_trace_id"] == "01-opik"
    monkeypatch.setitem(sys.modules, LANGSMITH, langsmith)
    both = {"opik_trace_id": "01-opik", "langsmith_run_id": str(UUID(int=5))}
    assert library_tags({"team": "a"}) == {"tags": {**both, "team": "a"}}
    assert library_tags({"opik_trace_id": "mine"})["tags"]["opik_trace_id"] == "mine"
    assert library_tags("no tags") == {}
    opik.get_current_trace_data = langsmith.get_current_run_tree = lambda: None  # type: ignore[attr-defined]
    assert library_tags(None) == {}
    del opik.get_current_trace_data
    assert library_tags(None) == {}, "a library that is being imported"


def test_lists_and_dicts_are_copied_at_the_call_and_late_feedback_is_an_entry_of_its_own(sdk: StartedSdk) -> None:
    """The sender is kept from encoding until the caller has changed what it gave."""
    context, tags = ["first"], {"k": "v"}
    comment: Any = ["good"]
    with sdk.client._delivery.buffer._lock:
        trace_id = tracejudge.publish(output="a", context=context, tags=tags)
        tracejudge.publish(tracejudge.Trace(trace_id="1", service="s", output="b", context=context))
        tracejudge.feedback("1", 1, comment)
        context.append("second")
        tags.clear()
        comment.clear()
    tracejudge.feedback(trace_id, score=-1)
    tracejudge.feedback(trace_id, 0.5, comment="better")
    stored = sdk.flushed()
    assert [trace["context"] for trace in stored] == [["first"], ["first"]]
    assert stored[0]["tags"] == {"k": "v"}
    assert sdk.records("f") == [
        {"trace_id": "1", "score": 1, "comment": '["good"]'},
        {"trace_id": trace_id, "score": -1},
        {"trace_id": trace_id, "score": 0.5, "comment": "better"},
    ]
    assert sdk.producer()["sent"] == "2"


def test_threads_and_a_signal_handler_publish_and_nothing_is_lost_or_doubled(sdk: StartedSdk) -> None:
    def publish(first: int) -> None:
        for number in range(first, first + 300):
            tracejudge.publish(output=str(number))

    tracejudge.publish(output="-1")
    wait_until(lambda: len(sdk.traces()) == 1, what="an entry without a flush")
    former = signal.signal(signal.SIGUSR1, lambda *_: tracejudge.publish(output="-1"))
    try:
        with ThreadPoolExecutor(8) as pool:
            for first in range(0, 2_400, 300):
                pool.submit(publish, first)
            for _ in range(200):
                tracejudge.publish(output="-1")
                signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, former)
    assert tracejudge.flush(60)
    assert sorted(map(int, sdk.outputs())) == [*[-1] * 401, *range(2_400)]
    assert sdk.producer()["sent"] == "2801"


def test_the_stream_is_capped_and_the_cut_counted(start: Start) -> None:
    sdk = start(max_stream=100)
    for number in range(1_000):
        tracejudge.publish(output=str(number))
    assert tracejudge.flush(60)
    stored, producer = sdk.entries(), sdk.producer()
    assert 100 <= len(stored) < 300
    assert producer["sent"] == "1000"
    # Of the reports all that were ever made: one that was due on the way may have been cut off like the traces.
    assert int(producer["trimmed"]) == 1_000 + sdk.reports()[-1]["seq"] - len(stored)


LIGHT = """
import sys, tracejudge
heavy = ("tracejudge.wrap", "redis", "opentelemetry", "celery", "httpx", "asyncio", "ssl")
print([name for name in heavy if name in sys.modules])
import tracejudge.settings, tracejudge.redis_url as urls
urls.parse_redis_url("redis+sentinel://h1,h2/m")
urls.parse_redis_url("redis+cluster://h1,h2")
import tracejudge.dialects
print([name for name in heavy if name in sys.modules])
"""


def test_the_import_is_light_and_its_names_are_public() -> None:
    """How long it takes is measured by `make bench`; what makes it slow is what it loads."""
    loaded = subprocess.run([sys.executable, "-c", LIGHT], check=True, capture_output=True).stdout
    assert loaded == b"[]\n[]\n"
    named = {name: value for name, value in vars(tracejudge).items() if not name.startswith("_")}
    public = {name for name, value in named.items() if not isinstance(value, ModuleType)}
    assert tracejudge.__all__ == sorted(public | {"wrap_anthropic", "wrap_openai"})  # loaded by their first use
    kinds = [value for value in vars(model).values() if isinstance(value, type)]
    structs = {kind.__name__ for kind in kinds if issubclass(kind, msgspec.Struct) and kind is not msgspec.Struct}
    assert structs <= set(tracejudge.__all__), "every struct of the wire"


# --- mistakes of callers are counted and said once, and never raise ---
_MISSING = "Field output is missing: pass the answer as output, or the failure of the call as error"
_NO_TIME = (
    "Field started_at cannot be read from a value of type str and is left out; "
    "it is read from a number of seconds, a datetime or a text in ISO 8601"
)


class _Stubborn(list[str]):
    def copy(self) -> "_Stubborn":
        raise OSError("never")


@pytest.mark.swallows
def test_wrong_feedback_is_a_drop_with_its_cause_and_place(sdk: StartedSdk, caplog: pytest.LogCaptureFixture) -> None:
    wrong: list[tuple[Any, Any]] = [
        *(("t", "SECRET"), (None, 1), ("t", [5]), (object(), 1), ("t", 5), ("1", 1.5), ("1", float("nan"))),
        *(("1", None), ("", 1), ([], 1), ("abc", _Stubborn())),
    ]
    for count, (trace_id, score) in enumerate(wrong, 1):
        tracejudge.feedback(trace_id, score)
        assert tracejudge.flush(60)
        assert sdk.client.totals(Kind.FEEDBACK) == Totals(count, count, {"invalid": count}), (trace_id, score)
    assert sdk.client.totals(Kind.TRACE) == Totals(0, 0, {})
    assert sdk.records("f") == []
    scale = "scale a rating, as (stars - 3) / 2 for 1 to 5, or pass True or False for a thumb"
    assert [message.partition("; published at ")[0] for message in caplog.messages] == [
        f"Feedback dropped: invalid (score must be a number from -1 to 1, not str); {scale}; trace id t",
        "Feedback dropped: invalid (trace_id must be a non-empty string, not NoneType); pass what publish returned",
    ]
    assert all(f"published at {__file__}:" in message for message in caplog.messages)


def test_a_number_is_an_id_and_one_of_opentelemetry_is_hexadecimal(sdk: StartedSdk) -> None:
    for number, written in (
        (2**64 - 1, str(2**64 - 1)),
        (2**64, f"{2**64:032x}"),
        (2**128 - 1, "f" * 32),
        (2**128, str(2**128)),
    ):
        assert tracejudge.publish(trace_id=number, output="a") == written  # type: ignore[arg-type]
    # One of 4,096 bits is shortened, and no longer one is an id.
    for number, length in ((2**4096 - 1, 128), (2**4096, 32)):
        assert len(tracejudge.publish(trace_id=number, output="a")) == length  # type: ignore[arg-type]
    assert len(sdk.flushed()) == 6


@pytest.mark.swallows
def test_what_has_no_content_is_a_counted_drop_and_the_counts_balance_after_a_flush(sdk: StartedSdk) -> None:
    """What the hash says was sent is what was accepted less what was dropped after."""
    assert re.fullmatch("[0-9a-f]{32}", tracejudge.publish(input=None, model="m"))
    assert tracejudge.publish(trace_id="mine", user_id=7) == "mine"
    assert sdk.flushed() == []
    assert sdk.client.totals() == Totals(published=2, accepted=2, dropped={"invalid": 2})
    assert sdk.reports()[0]["dropped"] == {"invalid": 2}
    for number in range(20):
        tracejudge.publish(output=str(number))
        tracejudge.publish(model="without content")
        tracejudge.publish(output=None, user_id="u")
    tracejudge.feedback("1", 1)
    assert tracejudge.flush(60)
    assert sdk.client.totals() == Totals(published=62, accepted=62, dropped={"invalid": 42})
    assert sdk.producer() == {"batch": sdk.producer()["batch"], "service": "shop", "sent": "20", "trimmed": "0"}
    report = {"producer": sdk.client.producer, "seq": len(sdk.reports()), "service": "shop"}
    assert sdk.reports()[-1] == {**report, "published": 62, "accepted": 62, "dropped": {"invalid": 42}}
    assert sdk.outputs() == [str(number) for number in range(20)]


def test_each_fault_is_said_once_with_field_type_and_place_and_without_a_text(
    sdk: StartedSdk, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3):
        tracejudge.publish(trace_id=f"t{number}", output="SECRET", contxt="SECRET", started_at="SECRET")
    tracejudge.publish(trace_id="t3", input="SECRET")
    assert tracejudge.flush(60)
    warnings = [message.partition(f"{__file__}:") for message in caplog.messages]
    assert [before for before, _, _ in warnings] == [
        "Field contxt is no field and is sent as a tag; did you mean context?; trace id t0; published at ",
        f"{_NO_TIME}; trace id t0; published at ",
        f"{_MISSING}; trace id t3; published at ",
    ]
    assert all(line.isdigit() for _, _, line in warnings)
    assert "SECRET" not in caplog.text
    assert len(sdk.traces()) == 4
    caplog.clear()
    tracejudge.shutdown()
    (summary,) = caplog.messages
    assert summary.startswith("Faults of published traces since the start, by reason and field: ")
    assert summary.endswith(": unknown_name contxt 3, unreadable started_at 3, missing output 1")


def test_at_most_twenty_warnings_and_the_totals_each_hour(caplog: pytest.LogCaptureFixture) -> None:
    clock = [0.0]
    reports = Reports(lambda: clock[0])
    for number in range(30):
        reports.add([Note("unknown_name", f"f{number}")] * 2, "t", "bot.py:1")
    assert len(caplog.messages) == MAX_WARNINGS
    assert caplog.messages[-1].endswith("further faults are only counted")
    caplog.clear()
    for clock[0] in (10.0, 3600.0, 3601.0, 7200.0):
        reports.summarize()
    assert len(caplog.messages) == 1, "nothing new after the first hour"
    assert "unknown_name f29 2" in caplog.messages[0]
    caplog.clear()
    reports = Reports(lambda: 0.0)
    reports.sites_left = 0
    for site in (None, None, "bot.py:1", "bot.py:2"):
        reports.add([Note("missing", "output")], "t", site)
    assert caplog.messages == [f"{_MISSING}; trace id t", f"{_MISSING}; trace id t; published at bot.py:1"]
    assert reports.sites_left > 0, "the place of the next call is recorded"


def test_a_hint_names_a_field_only_for_a_misspelt_name() -> None:
    misspelt = {"contxt": "context", "anwser": "output", "sesion_id": "session_id", "promt": "input"}
    others = ("tenant", "region", "plan", "product", "customer", "category", "finish_reason", "request_id")
    assert {name: closest_field(name) for name in (*misspelt, *others)} == {**misspelt, **dict.fromkeys(others)}


def test_a_field_after_very_many_names_is_read(sdk: StartedSdk, caplog: pytest.LogCaptureFixture) -> None:
    """The count of the names that are cut is no tag, which could be one of the caller's."""
    names = {f"name{number}": 1 for number in range(700)}
    tracejudge.publish(**names, output="a")
    tracejudge.publish({**names, "output": "a", "input": "q"})
    many = {"...": "mine"} | {f"name{number}": 1 for number in range(3_000)}
    tracejudge.publish({**names, "output": "a"}, input="q", further=1)
    tracejudge.publish(output="a", tags=many)
    tracejudge.publish(output="a", tags={"b": "c"}, metadata=many)
    traces = sdk.flushed()
    assert [(trace["output"], len(trace["tags"])) for trace in traces] == [("a", 500)] * 4 + [("a", 501)]
    assert [trace["tags"].get("...") for trace in traces] == [None] * 3 + ["mine"] * 2
    assert not any(value.startswith("[...") for trace in traces for value in trace["tags"].values())
    tracejudge.shutdown(60)
    assert "Field tags has too many names; the last 200 are left out" in caplog.text
    assert f"too_many tags {200 + 200 + 201 + 2 * 2_501}" in caplog.text


def test_names_without_end_cost_little_and_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    """The field that a name resembles takes a third of a millisecond to find, so it is for names that are shown."""
    notes, began = Notes(), time.process_time()
    fields = convert_trace({"output": "a", **{f"name{number}": 1 for number in range(100_000)}, "contxt": "b"}, notes)
    assert len(fields["tags"]) == MAX_TAGS
    assert Counter(note.reason for note in notes.entries) == {"unknown_name": MAX_TAGS, "too_many": 1}
    reports = Reports(time.monotonic)
    reports.add(notes.entries, "t", "bot.py:1")
    reports.summarize(at_end=True)
    assert time.process_time() - began < 2
    assert "too_many tags 99001" in caplog.messages[-1]
    assert len(caplog.messages) == MAX_WARNINGS + 1


def test_a_second_init_repeats_no_warning(start: Any, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        start()
        for number in range(15):
            tracejudge.publish(output="a", started_at="soon", **{f"key{number}": 1})
        tracejudge.publish({"output": "a", "my words are SECRET": 1})
        assert tracejudge.flush(60)
    warnings = [message for message in caplog.messages if message.startswith("Field ")]
    assert len(warnings) == 17
    assert "Field (another) is no field" in warnings[-1]
    assert "SECRET" not in caplog.text


@pytest.mark.swallows
def test_an_exit_in_a_redaction_of_the_host_costs_its_trace_and_not_the_delivery(start: Any) -> None:
    def redact(text: str) -> str:
        if "poison" in text:
            raise SystemExit(3)
        return text

    sdk = start(redact=redact)
    tracejudge.publish(output="poison")
    tracejudge.publish(output="fine", context="one", guidelines="be brief", feedback=-1)
    (trace,) = sdk.flushed()
    assert trace["output"] == "fine"
    assert (trace["context"], trace["guidelines"], trace["feedback"]) == (["one"], ["be brief"], {"score": -1})
