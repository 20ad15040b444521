"""The traces in a recording, in a form that two runs of a client share.

    python -m clients.replay NAME …            # from tests/: write the tables of arrived fields anew, and review them

Beside each recording, `arrived.json` holds its traces by scenario, and `not_sent` names the fields that the client does
not send although the scenario has them, with the reason.
"""

import gzip
import json
import sys
from pathlib import Path
from typing import Any, Final

import msgspec
from support.otlp_raw import groups

from clients.recording import RECORDED
from tracejudge.content.tool_context import tool_context
from tracejudge.otel.joining import join

CONTEXT_TOOLS: Final = ("kb_search",)
TABLE: Final = "arrived.json"
_TIMES: Final = ("trace_id", "started_at", "ended_at")
_OWN_IDS: Final = {"session_id": "session-", "user_id": "user-", "response_id": ("chatcmpl-", "resp_", "msg_", "resp-")}
"""How ids begin that are the same in every run; clients make others by chance."""

Traces = list[dict[str, Any]]


def arrived(traces: bytes, logs: bytes = b"") -> Traces:
    """Join the traces of exported spans and logs; ids and times are replaced by names."""
    found = []
    for group in groups(traces, logs):
        fields = join(group)
        if fields is None:
            continue
        if "context" not in fields and (context := tool_context(fields, CONTEXT_TOOLS)):
            fields["context"] = context
        spans = {span.span_id: span.name for span in group.spans}
        fields["span_id"] = spans[fields["span_id"]]
        fields["spans"] = [f"{span.kind}: {span.name}" for span in fields["spans"]]
        for key in _TIMES:
            del fields[key]
        for key, start in _OWN_IDS.items():
            if key in fields and not fields[key].startswith(start):
                fields[key] = "generated"
        found.append(msgspec.to_builtins(fields))
    return found


def recorded(name: str) -> dict[str, tuple[bytes, bytes]]:
    """Return the recorded spans and logs of a client by scenario."""
    folder = RECORDED / name
    scenarios = sorted(file.name.partition(".")[0] for file in folder.glob("*.traces.gz"))
    return {one: (_read(folder / f"{one}.traces.gz"), _read(folder / f"{one}.logs.gz")) for one in scenarios}


def _read(file: Path) -> bytes:
    return gzip.decompress(file.read_bytes()) if file.exists() else b""


def table(name: str) -> dict[str, Any]:
    """Read the table of a client."""
    return json.loads((RECORDED / name / TABLE).read_text())


def write_table(name: str) -> None:
    """Write the arrived fields of a client; what it does not send stays as it is."""
    file = RECORDED / name / TABLE
    not_sent = table(name)["not_sent"] if file.exists() else {}
    found = {scenario: arrived(*bodies) for scenario, bodies in recorded(name).items()}
    file.write_text(json.dumps({"not_sent": not_sent, "arrived": found}, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    for one in sys.argv[1:]:
        write_table(one)
