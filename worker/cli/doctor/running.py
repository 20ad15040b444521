"""Whether a worker runs each role, and makes progress."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import redis
from redis.exceptions import ResponseError

from worker.cli.doctor.finding import Finding, broken, ok
from worker.cli.doctor.words import circuit_words
from worker.keys import INGEST_GROUP, outbox_groups
from worker.measure import Measure, measure
from worker.presence import present
from worker.settings import Settings
from worker.store import Store

__all__ = ["roles"]

_SEEN_MS: Final = 10_000


class _Role(NamedTuple):
    """What is known of a role: whether each worker that says it runs it makes progress; what else shows a worker."""

    words: Sequence[bool]
    seen: bool
    waits: str


def roles(settings: Settings, store: Store) -> Sequence[Finding]:
    """Look for a worker in each role, by the workers' own word, or by what else they leave."""
    groups = outbox_groups(otel=settings.otlp_endpoint is not None)
    found = measure(store, groups=groups)
    workers = [worker.roles for worker in present(store)]
    seen = {
        "ingest": _reads(store, store.keys.traces, INGEST_GROUP),
        "judge": bool(circuit_words(store)),
        "export": any(_reads(store, store.keys.verdicts, group) for group in groups),
    }
    waits = _waiting(found)
    return [
        _finding(role, _Role([worker[role] for worker in workers if role in worker], seen[role], waits[role]))
        for role in ("ingest", "judge", "export")
    ]


def _finding(role: str, known: _Role) -> Finding:
    name, waits = f"role {role}", f"; {known.waits}" if known.waits else ""
    if any(known.words):
        return ok(name, f"{sum(known.words)} of {len(known.words)} workers make progress{waits}")
    if known.words:
        mend = "ask a worker's /readyz what it waits for, and see its log"
        return broken(name, f"{len(known.words)} workers run it, and none makes progress{waits}", mend)
    if known.seen:
        return ok(name, f"a worker was seen{waits}")
    mend = f"start one: tracejudge worker --roles {role}, or without --roles for all"
    return broken(name, f"no worker runs it{waits}", mend)


def _waiting(found: Measure) -> Mapping[str, str]:
    behind = [f"{position.lag:,} verdicts for {name}" for name, position in found.outbox.items() if position.lag]
    return {
        "ingest": f"{found.traces.lag:,} traces wait" if found.traces.lag else "",
        "judge": f"{found.batches:,} batches wait" if found.batches else "",
        "export": f"{' and '.join(behind)} wait" if behind else "",
    }


def _reads(store: Store, stream: str, group: str) -> bool:
    """Tell whether somebody has read from a group lately; older versions of Redis do not see who waits in vain."""
    idle = store.call(partial(_idle, stream, group))
    return any(each < _SEEN_MS for each in idle)


def _idle(stream: str, group: str, client: "redis.Redis") -> list[int]:
    try:
        return [int(consumer["idle"]) for consumer in client.xinfo_consumers(stream, group)]
    except ResponseError:
        # There is no stream or no group yet.
        return []
