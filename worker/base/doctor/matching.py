"""Rules that match none of the traces of the last day."""

import time
from collections import Counter
from collections.abc import Sequence

from judges.registry import load_judges
from worker.base.commands.completion import remember_services
from worker.base.doctor.finding import Finding, ok, warning
from worker.base.doctor.lint import close_service
from worker.base.scans import scan_partitions
from worker.core.config.graders import Graders
from worker.core.config.settings import Settings
from worker.core.selection.sampling import Rules
from worker.core.selection.stream_entry import TraceEntry, read_entry
from worker.core.storage.client import Store

_MAX_TRACES = 2_000
_MAX_SECONDS = 2.0
_MAX_SERVICES = 10


def unmatched_rules(settings: Settings, store: Store) -> Sequence[Finding]:
    """Look among the newest traces of the last day for each rule."""
    rules = Rules(settings, Graders(settings, load_judges(settings.judges)))
    unmatched, services = {rule.name: rule for rule in settings.rules}, Counter[str]()
    first, end = f"{store.now_ms() - 86_400_000}", time.monotonic() + _MAX_SECONDS
    for chunk in scan_partitions(store, store.keys.traces, first, newest_first=True, most=500):
        for entry in (read_entry(raw, settings.max_trace_bytes) for raw in chunk):
            if isinstance(entry, TraceEntry):
                services[entry.trace.service] += 1
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
    return findings or [ok("rules", f"each matched some of {services.total():,} traces of the last day")]
