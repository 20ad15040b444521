"""Published traces as read from the stream, with comparable ids and times."""

import re
import time
from typing import Any

from sdk_started import StartedSdk

import tracejudge


def published(sdk: StartedSdk) -> list[dict[str, Any]]:
    """Read all traces. Ids become t0, t1 ... for traces and s0, s1 ... for spans, in the order they are met.

    Times are checked and taken out: an end stands where and only where something ended, and not before its begin.
    """
    assert tracejudge.flush(60)
    names: dict[str, str] = {}
    return [_comparable(trace, names) for trace in sdk.traces()]


def the_trace(sdk: StartedSdk) -> dict[str, Any]:
    """Read the only trace there is."""
    (trace,) = published(sdk)
    return trace


def _comparable(trace: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    assert re.fullmatch("[0-9a-f]{16}", trace.pop("id"))
    trace["trace_id"] = _name(trace["trace_id"], "t", 32, names)
    trace["span_id"] = _name(trace["span_id"], "s", 16, names)
    _take_times(trace, ended=True)
    for span in trace.get("spans", []):
        span["span_id"] = _name(span["span_id"], "s", 16, names)
        if "parent_id" in span:
            span["parent_id"] = _name(span["parent_id"], "s", 16, names)
        if "status" in span:  # the note of spans left out has neither
            _take_times(span, ended=span["status"] != "unfinished")
    return trace


def _name(real_id: str, letter: str, digits: int, names: dict[str, str]) -> str:
    assert re.fullmatch(f"[0-9a-f]{{{digits}}}", real_id)
    taken = sum(name.startswith(letter) for name in names.values())
    return names.setdefault(real_id, f"{letter}{taken}")


def _take_times(record: dict[str, Any], *, ended: bool) -> None:
    started_at = record.pop("started_at")
    assert time.time() - 600 < started_at <= time.time()
    assert ("ended_at" in record) is ended
    if ended:
        assert started_at <= record.pop("ended_at") <= time.time()
