"""The traces in a recording, in a form that two runs of a client share.

    python -m clients.replay NAME …            # from tests/: write the tables of arrived fields anew, and review them
    python -m clients.replay --not-sent        # the table of docs/reference/measured/clients.md

Beside each recording, `arrived.json` holds its traces by scenario, and `not_sent` names the fields that the client does
not send although the scenario has them, with the reason.
"""

import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from clients.recording import RECORDED, REQUIREMENTS
from tracejudge.delivery.encoding import tool_context
from tracejudge.otel.joining import SpanGroup, join
from worker.features.gateway.admission import Form
from worker.features.gateway.gathering import split_groups
from worker.features.gateway.otlp import Part, decode_parts, read_request

CONTEXT_TOOLS: Final = ("kb_search",)
TABLE: Final = "arrived.json"
_TIMES: Final = ("trace_id", "started_at", "ended_at")
_OWN_IDS: Final = {"session_id": "session-", "user_id": "user-", "response_id": ("chatcmpl-", "resp_", "msg_", "resp-")}
"""How ids begin that are the same in every run; clients make others by chance."""

Traces = list[dict[str, Any]]


def arrived(traces: bytes, logs: bytes = b"") -> Traces:
    """Join the traces of exported spans and logs as the gateway does; ids and times are replaced by names."""
    return [described(msgspec.to_builtins(fields)) for group in groups(traces, logs) if (fields := join(group))]


def trace_ids(traces: bytes) -> list[str]:
    """Return the trace ids in an export request of spans."""
    return list(read_request(traces, Form.PROTOBUF, is_log=False, service="replayed").traces)


def groups(traces: bytes, logs: bytes) -> list[SpanGroup]:
    parts: dict[str, list[Part]] = {}
    for body, is_log in ((traces, False), (logs, True)):
        request = read_request(body, Form.PROTOBUF, is_log=is_log, service="replayed")
        for trace_id, group in request.traces.items():
            parts.setdefault(trace_id, []).extend(group.parts.values())
    groups = [group for trace_id, some in parts.items() for _, group in split_groups(decode_parts(trace_id, some))]
    return sorted(groups, key=lambda group: min(span.started_at or 0.0 for span in group.spans))


def described(fields: dict[str, Any]) -> dict[str, Any]:
    """Describe a trace in a form that two runs share."""
    if "context" not in fields and (context := tool_context(fields, CONTEXT_TOOLS)):
        fields["context"] = msgspec.to_builtins(context)
    spans = {span["span_id"]: span for span in fields["spans"]}
    fields["span_id"] = spans[fields["span_id"]]["name"]
    fields["spans"] = [f"{span.get('kind')}: {span['name']}" for span in _in_order(None, spans)]
    for key in _TIMES:
        del fields[key]
    for key, start in _OWN_IDS.items():
        if key in fields and not fields[key].startswith(start):
            fields[key] = "generated"
    return fields


def _in_order(parent_id: str | None, spans: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the spans below one, each before its own: of Node.js several begin in the same millisecond."""
    below = [span for span in spans.values() if _parent(span, spans) == parent_id]
    for span in sorted(below, key=lambda span: (span["started_at"], span["ended_at"])):
        yield span
        yield from _in_order(span["span_id"], spans)


def _parent(span: dict[str, Any], spans: dict[str, Any]) -> str | None:
    return parent_id if (parent_id := span.get("parent_id")) in spans else None


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


def not_sent() -> list[str]:
    """Return the table of what clients do not send, in Markdown."""
    lines = ["| client | rows | not sent | reason |", "|---|---|---|---|"]
    for name in sorted(REQUIREMENTS):
        result = table(name)
        rows_of: dict[tuple[str, str], list[str]] = {}
        for row, reasons in result["not_sent"].items():
            fields_of: dict[str, list[str]] = {}
            for field, reason in reasons.items():
                fields_of.setdefault(reason, []).append(f"`{field}`")
            for reason, fields in fields_of.items():
                rows_of.setdefault((", ".join(sorted(fields)), reason), []).append(row)
        for (fields, reason), rows in sorted(rows_of.items()):
            others = set(result["arrived"]) - set(rows)
            named = ", ".join(sorted(rows)) if len(others) > 1 else " but ".join(["all", *others])
            lines.append(f"| `{name}` | {named} | {fields} | {reason} |".replace("two_turns", "two turns"))
    return lines


if __name__ == "__main__":
    if sys.argv[1:] == ["--not-sent"]:
        sys.stdout.write("\n".join([*not_sent(), ""]))
    else:
        for one in sys.argv[1:]:
            write_table(one)
