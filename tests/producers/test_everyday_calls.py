"""Everything that services pass to `publish` arrives, and what cannot be used is reported once."""

from collections.abc import Callable, Iterable

import everyday_calls
import pytest
from sdk_started import StartedSdk

import tracejudge
from tracejudge.content.convert import Note
from tracejudge.delivery.buffer import Kind

_IDS = ("trace_id", "span_id", "id", "service")


def _differences(
    sdk: StartedSdk, ids: list[str], said: dict[str, set[str]], calls: list[everyday_calls.Call]
) -> list[str]:
    arrived = {trace["trace_id"]: trace for trace in sdk.traces()}
    wrong = []
    for given, trace_id in zip(calls, ids, strict=True):
        trace = arrived.get(trace_id)
        if trace is not None:
            absent = [name for name in _IDS if name not in (given.arrives or {})]
            absent += ["ended_at"] if not {"started_at", "ended_at"} & (given.arrives or {}).keys() else []
            trace = {name: value for name, value in trace.items() if name not in absent}
        if trace != given.arrives:
            wrong.append(f"{given.name}: {trace} arrived, not {given.arrives}")
        if said.get(trace_id, set()) != given.reports:
            wrong.append(f"{given.name}: reported {said.get(trace_id, set())}, not {set(given.reports)}")
    return wrong


@pytest.mark.swallows
def test_every_everyday_call_arrives_whole(start: Callable[..., StartedSdk], monkeypatch: pytest.MonkeyPatch) -> None:
    sdk = start(max_bytes=1 << 30)
    said: dict[str, set[str]] = {}

    def add(notes: Iterable[Note], trace_id: str, _: str | None) -> None:
        said.setdefault(trace_id, set()).update(f"{note.reason} {note.field}" for note in notes)

    monkeypatch.setattr(sdk.client._delivery.reports, "add", add)
    calls = everyday_calls.CALLS
    assert len(calls) >= 200
    wrong = []
    # A given trace id repeats, so that these calls go one at a time.
    repeated = [given for given in calls if "trace_id" in (given.arrives or {})]
    others = [given for given in calls if "trace_id" not in (given.arrives or {})]
    ids = [tracejudge.publish(*given.given, **given.fields) for given in others]
    assert tracejudge.flush(60)
    wrong += _differences(sdk, ids, said, others)
    for given in repeated:
        said.clear()
        trace_id = tracejudge.publish(*given.given, **given.fields)
        assert tracejudge.flush(60)
        wrong += _differences(sdk, [trace_id], said, [given])
    assert not wrong, "\n".join([f"{len(wrong)} differences", *wrong])
    # Only calls without any content are dropped.
    dropped = sum(given.arrives is None for given in calls)
    assert sdk.client.totals(Kind.TRACE).dropped == {"invalid": dropped}
