"""What the newest traces of a day show: rules that match none, and calls that two senders tell of in two partitions."""

import time
from collections import Counter
from collections.abc import Iterable, Sequence

from judges.registry import load_judges
from worker.base.commands.completion import remember_services
from worker.base.doctor.finding import Finding, ok, warning
from worker.base.doctor.lint import close_service
from worker.base.scans import scan_partitions
from worker.core.config.graders import Graders
from worker.core.config.settings import Settings
from worker.core.selection.evaluations import question_of
from worker.core.selection.sampling import Rules
from worker.core.selection.stream_entry import TraceEntry, read_entry
from worker.core.storage.client import Store

_MAX_TRACES = 2_000
_MAX_SECONDS = 2.0
_MAX_SERVICES = 10


def newest_traces(settings: Settings, store: Store) -> Sequence[Finding]:
    """Look among the newest traces of the last day for each rule, and for calls that are judged twice."""
    rules = Rules(settings, Graders(settings, load_judges(settings.judges)))
    unmatched, services = {rule.name: rule for rule in settings.rules}, Counter[str]()
    senders: dict[int, TraceEntry] = {}
    twice: tuple[TraceEntry, TraceEntry] | None = None
    first, end = f"{store.now_ms() - 86_400_000}", time.monotonic() + _MAX_SECONDS
    for chunk in scan_partitions(store, store.keys.traces, first, newest_first=True, most=500):
        for entry in (read_entry(raw, settings.max_trace_bytes) for raw in chunk):
            if isinstance(entry, TraceEntry):
                services[entry.trace.service] += 1
                trace = entry.trace
                other = senders.setdefault(hash((trace.trace_id, question_of(trace), trace.output)), entry)
                if other.trace.session_id != trace.session_id:
                    twice = other, entry
                for match in rules.matching(entry.trace).rules:
                    unmatched.pop(match.rule.name, None)
        if services.total() >= _MAX_TRACES or time.monotonic() > end:
            break
    if not services:
        return []
    remember_services(services)
    seen = f"services seen: {', '.join(name for name, _ in services.most_common(_MAX_SERVICES))}"
    findings = []
    for name, rule in unmatched.items():
        meant = close_service(rule.where.service or "*", services)
        fix = "correct its where, or take it out" if meant is None else f"did you mean service = {meant!r}?"
        what = f"rule {name!r} matched none of {services.total():,} traces of the last day; {seen}"
        findings.append(warning(f"rule {name}", what, fix))
    findings = findings or [ok("rules", f"each matched some of {services.total():,} traces of the last day")]
    findings += _unnamed(services)
    # Traces of one session lie in one partition, where the second telling of a call is left out.
    if twice and len(store.partitions) > 1 and not settings.judge_duplicates:
        what = f"one call is told by {_sender(twice[0])} and by {_sender(twice[1])}, and judged twice"
        findings.append(warning("same call", what, "give both the same session id, or let one of them publish"))
    return findings


def _unnamed(services: Iterable[str]) -> Sequence[Finding]:
    """Look for the name that OpenTelemetry's SDKs write where none is configured, as `unknown_service:node`."""
    names = sorted(name for name in services if name.startswith("unknown_service"))
    fix = "set OTEL_SERVICE_NAME there, or `service.name` of the OpenTelemetry resource"
    return [warning("service names", f"without a name: {', '.join(names)}", fix)] if names else []


def _sender(entry: TraceEntry) -> str:
    session = "without a session" if entry.trace.session_id is None else f"in session {entry.trace.session_id!r}"
    return f"service {entry.trace.service!r} {session} (producer {entry.producer or 'unknown'})"
