"""Everything that services pass to `publish` arrives, and what cannot be used is reported once."""

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import everyday_calls
import pytest
from sdk_started import StartedSdk

import tracejudge
from tracejudge.content.convert import Note
from tracejudge.delivery.buffer import Kind
from tracejudge.model import Span, is_wire_span
from worker.core.config.settings import Settings
from worker.features.gateway.admission import Form
from worker.features.gateway.intake import Encoder, read_intake, sdk_settings

_IDS = ("trace_id", "span_id", "id", "service")


_LOSSES = {"unreadable", "no_text", "missing"}


def _without_defaults(trace: dict[str, Any], call: everyday_calls.Call) -> dict[str, Any]:
    """Return a trace without the ids and the time that the call did not give."""
    keys = (call.arrives or {}).keys()
    absent = set() if {"started_at", "ended_at"} & keys else {"ended_at"}
    return {name: value for name, value in trace.items() if name not in absent | ({*_IDS} - keys)}


def _differences(
    sdk: StartedSdk, ids: list[str], reasons: dict[str, set[str]], calls: list[everyday_calls.Call]
) -> list[str]:
    arrived = {trace["trace_id"]: trace for trace in sdk.traces()}
    wrong = []
    for call, trace_id in zip(calls, ids, strict=True):
        trace = arrived.get(trace_id)
        if trace is not None:
            trace = _without_defaults(trace, call)
        if trace != call.arrives:
            wrong.append(f"{call.name}: {trace} arrived, not {call.arrives}")
        if reasons.get(trace_id, set()) != call.reports:
            wrong.append(f"{call.name}: reported {reasons.get(trace_id, set())}, not {set(call.reports)}")
    return wrong


@pytest.mark.swallows
def test_every_everyday_call_arrives_whole(start: Callable[..., StartedSdk], monkeypatch: pytest.MonkeyPatch) -> None:
    sdk = start(max_bytes=1 << 30)
    reasons: dict[str, set[str]] = {}

    def add(notes: Iterable[Note], trace_id: str, _: str | None) -> None:
        reasons.setdefault(trace_id, set()).update(f"{note.reason} {note.field}" for note in notes)

    monkeypatch.setattr(sdk.client._delivery.reports, "add", add)
    calls = everyday_calls.CALLS
    assert len(calls) >= 200
    wrong = []
    # A given trace id repeats, so that these calls go one at a time.
    repeated = [call for call in calls if "trace_id" in (call.arrives or {})]
    others = [call for call in calls if "trace_id" not in (call.arrives or {})]
    ids = [tracejudge.publish(*call.given, **call.fields) for call in others]
    assert tracejudge.flush(60)
    wrong += _differences(sdk, ids, reasons, others)
    for call in repeated:
        reasons.clear()
        trace_id = tracejudge.publish(*call.given, **call.fields)
        assert tracejudge.flush(60)
        wrong += _differences(sdk, [trace_id], reasons, [call])
    assert not wrong, "\n".join([f"{len(wrong)} differences", *wrong])
    # Only calls without any content are dropped.
    dropped = sum(values.arrives is None for values in calls)
    assert sdk.client.totals(Kind.TRACE).dropped == {"invalid": dropped}


@pytest.fixture
def local_is_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Times without a zone are UTC in JSON, and local in a call of the SDK."""
    monkeypatch.setitem(os.environ, "TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def _is_json(fields: dict[str, Any]) -> bool:
    """Return whether JSON holds these values as they are."""

    def is_plain(value: object) -> bool:
        if type(value) is list:
            return all(map(is_plain, value))
        if type(value) is dict:
            return all(type(key) is str and is_plain(each) for key, each in value.items())
        return value is None or type(value) in (str, int, float, bool)

    return is_plain(fields) and not any(each in json.dumps(fields) for each in ("NaN", "Infinity", "\\ud8", "\\udc"))


@pytest.mark.swallows
@pytest.mark.usefixtures("local_is_utc")
def test_the_gateway_reads_the_same_calls_in_json() -> None:
    calls = [call for call in everyday_calls.CALLS if not call.given and call.fields and _is_json(call.fields)]
    assert len(calls) >= 150
    encoder = Encoder(sdk_settings(Settings()))
    wrong = []
    for call in calls:
        body = json.dumps({"service": "bot", **call.fields}).encode()
        intake_result = read_intake(body, Form.JSON, encoder, service=None, repeat_key=None, now_s=1.0)
        trace = _without_defaults(json.loads(intake_result.entries[0].payload), call) if intake_result.entries else None
        if trace != call.arrives:
            wrong.append(f"{call.name}: {trace} arrived, not {call.arrives}; {intake_result.rejected}")
        told = {field.field for field in intake_result.left_out}
        lost = {report.split()[1].partition(".")[0] for report in call.reports if report.split()[0] in _LOSSES}
        if trace is not None and told - {"other"} != lost & set(everyday_calls.Trace.__struct_fields__):
            wrong.append(f"{call.name}: {told} left out, not {lost}")
    assert not wrong, "\n".join([f"{len(wrong)} differences of {len(calls)}", *wrong])


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
