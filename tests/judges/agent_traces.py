"""The labelled agent traces of ``corpora/agent_traces.json``, for tests and `make agreement`.

A third are recordings of real clients, some with a change of answer, calls or conversation that makes the label. The
labels were decided when the traces were written, not by a model.
"""

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from clients.recording import RECORDED
from clients.replay import groups

from tracejudge import Trace
from tracejudge.otel.joining import join


class Labelled(NamedTuple):
    """A trace, whether a judge passes it, and what the parts in code find: None where they have no input."""

    id: str
    judge: str
    passes: bool
    schema_errors: int
    repeats: int
    trajectory_match: bool | None
    is_recorded: bool
    trace: Trace


def recording(client: str, scenario: str) -> dict[str, Any]:
    """Return the fields of the trace of a recorded scenario."""
    spans, logs = (RECORDED / client / f"{scenario}.{kind}.gz" for kind in ("traces", "logs"))
    bodies = gzip.decompress(spans.read_bytes()), gzip.decompress(logs.read_bytes()) if logs.exists() else b""
    traces = (fields for group in groups(*bodies) if (fields := join(group)) and fields.get("tool_calls"))
    return dict(msgspec.to_builtins(next(traces)))


@cache
def labelled() -> list[Labelled]:
    """Read all of them."""
    rows = []
    file = Path(__file__).parent / "corpora" / "agent_traces.json"
    for number, row in enumerate(json.loads(file.read_text(encoding="utf-8"))):
        recorded = recording(*row["recording"]) if "recording" in row else {"trace_id": f"{number:032x}"}
        fields = {"service": "agents", **recorded, **row["trace"]}
        trace = msgspec.convert(fields, Trace)
        rows.append(Labelled(row["id"], row["judge"], row["passes"], *row["code"].values(), "recording" in row, trace))
    return rows
