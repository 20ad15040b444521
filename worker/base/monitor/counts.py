"""Whole numbers that the monitor counts by day: repeated judgings, agreement with canaries, safety failures.

A verdict's increments are added by the script that acknowledges it, so that each counts once. All counts of a kind and
day are fields of one hash, which is kept for 90 days or as its kind says.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from judges.core.verdict import Verdict
from worker.base.monitor.series import COARSE_DAYS, utc_days
from worker.core.config.settings import Settings
from worker.core.selection.sampling import Rules
from worker.core.storage.client import Store, StoreError
from worker.core.storage.keys import MONITOR_GROUP
from worker.core.telemetry.metrics import Metrics

GRACE_S: Final = 60.0
"""Verdicts that another worker had read come this late into their bucket."""


class Increment(NamedTuple):
    """An amount that is added to one count.

    Attributes:
        kind: What is counted; a word that names the hash, as `repeats`.
        at: The time whose day (UTC) it belongs to, in seconds since the epoch.
        labels: The labels of the count.
        amount: A whole number.
        keep_days: How long the counts of that kind and day are kept.
    """

    kind: str
    at: float
    labels: Sequence[str]
    amount: int = 1
    keep_days: int = COARSE_DAYS


VerdictCounter = Callable[[Verdict, float], Iterable[Increment]]


class MonitorParts(NamedTuple):
    """What counters and watches of features may use.

    Attributes:
        settings: The configuration.
        store: The first server, which has the sums.
        metrics: The metrics of the process.
        rules: The rules, and through them judges and models.
        is_listed: Whether the monitor keeps sums for a series; called in the thread that adds them.
    """

    settings: Settings
    store: Store
    metrics: Metrics
    rules: Rules
    is_listed: Callable[[str], bool]


"""Makes the increments of a verdict; the time is that of its entry in the outbox."""


def field_of(labels: Sequence[str]) -> str:
    """Return the field of a count."""
    return msgspec.json.encode(labels).decode()


def read_counts(store: Store, kind: str, since: float, until: float) -> Counter[tuple[str, ...]]:
    """Read the counts of a kind, added up over the days of two times and those between them, by labels."""
    names = [store.keys.quality_counts(kind, day) for day in utc_days(since, until)]
    total: Counter[tuple[str, ...]] = Counter()
    for fields in store.hashes(names):
        for field, amount in fields.items():
            total[msgspec.json.decode(field, type=tuple[str, ...])] += int(amount)
    return total


def counted_until(store: Store, now: float) -> float:
    """Return the time up to which all outboxes are counted: now, unless verdicts wait there.

    A shard that does not answer is left out: it must not hold up the detection of what the others show.
    """

    def read(pipe: Any) -> None:
        pipe.hget(store.keys.groups, f"verdicts:{MONITOR_GROUP}")
        pipe.xrevrange(store.keys.verdicts, count=1)

    until = now
    for shard in store.answering:
        try:
            acknowledged, newest = shard.pipeline(read)
        except StoreError:
            if shard is store:
                raise
            continue
        last = tuple(map(int, acknowledged.split(b"-"))) if acknowledged else (0, 0)
        # The newest entry is older than the acknowledged one where `forget` has removed that.
        if newest and last < tuple(map(int, newest[0][0].split(b"-"))):
            until = min(until, last[0] / 1000)
    return until
