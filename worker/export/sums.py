"""Adds verdicts to the monitor's sums: each once, in the script that acknowledges it.

One worker is active at a time, by a lock in Redis. Another takes over within seconds after its end. Restarts and kills
do not change the sums.
"""

import binascii
import contextlib
import datetime as dt
import hashlib
import secrets
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, Protocol

import msgspec
import structlog

from judges.core.verdict import Verdict
from worker.config.canary import Canary
from worker.config.settings import Settings
from worker.export.consumer import ExportConsumer, OutboxEntry
from worker.monitor.budgets import BudgetController
from worker.monitor.canary import CanaryCounter, CanaryWatch
from worker.monitor.correction import CorrectionWatch
from worker.monitor.counts import Increment, VerdictCounter, field_of
from worker.monitor.repeats import RepeatsWatch, count_repeats
from worker.monitor.safety_watch import SafetyWatch, count_safety
from worker.monitor.series import (
    CLUSTER_PARTS,
    CLUSTER_PERIOD_S,
    COARSE_DAYS,
    FINE_DAYS,
    FIVE_MINUTES_S,
    HOUR_S,
    Series,
    class_of,
    place,
    read_series,
    series_of,
)
from worker.monitor.watch import QualityWatch
from worker.storage.client import Store, StoreError
from worker.telemetry.metrics import Metrics

log = structlog.get_logger("tracejudge.monitor")
_LOCK_MS: Final = 10_000
_STANDBY_S: Final = 1.0
_COARSE_TTL_S: Final = COARSE_DAYS * 24 * HOUR_S
_FINE_TTL_S: Final = FINE_DAYS * 24 * HOUR_S
# Clusters of one part of a series and period; judgements of further ones count as independent.
_MAX_CLUSTERS: Final = 4096
# Two sessions with the same id within a period would count as one: 1 of 10^7 among 7,500.
_CLUSTER_BYTES: Final = 6


_Part = tuple[int, float, int] | tuple[int, float, int, int, int, str]
"""One judgement of an entry for one series, as script `add_quality` reads it."""


class _Plan:
    """The keys and the plan of one call of script `add_quality`. Indices count from 1, as in Lua."""

    def __init__(self, store: Store, group: str) -> None:
        self._keys = store.keys
        self.keys = [self._keys.verdicts, self._keys.account_all, self._keys.groups]
        self._group = group
        self._ttls: list[int] = []
        self._places: list[tuple[int, str, int, str]] = []
        self._entries: list[tuple[str, list[_Part], list[tuple[int, str, int]]]] = []
        self._index: dict[str, int] = {}
        self._cluster_keys: dict[tuple[str, int, int], int] = {}
        self._place_of: dict[tuple[str, int, str], int] = {}

    def add(self, entry_id: str, parts: list[_Part], increments: Iterable[Increment] = ()) -> None:
        """Add an entry with its judgements and increments; also one without any is acknowledged."""
        counts = []
        for kind, at, labels, amount, keep_days in increments:
            key = self._keys.quality_counts(kind, dt.datetime.fromtimestamp(at, dt.UTC).date())
            counts.append((self._key(key, keep_days * 24 * HOUR_S), field_of(labels), amount))
        self._entries.append((entry_id, parts, counts))

    def place(self, series_id: str, at: int, kind: str) -> int:
        """Return the index of the fields of a kind in both buckets of a time."""
        known = self._place_of.get(name := (series_id, at // FIVE_MINUTES_S, kind))
        if known is None:
            of = place(self._keys, series_id, at)
            hour, five = self._key(of.hour_key, _COARSE_TTL_S), self._key(of.five_key, _FINE_TTL_S)
            self._places.append((hour, of.hour + kind, five, of.five + kind))
            known = self._place_of[name] = len(self._places)
        return known

    def cluster_key(self, series_id: str, at: int, cluster: str) -> int:
        """Return the index of the hash that holds a cluster."""
        period, part = at // CLUSTER_PERIOD_S, ord(cluster[0]) % CLUSTER_PARTS
        known = self._cluster_keys.get(name := (series_id, period, part))
        if known is None:
            key = self._key(self._keys.quality_clusters(series_id, period, part), 2 * CLUSTER_PERIOD_S)
            known = self._cluster_keys[name] = key
        return known

    def arguments(self) -> bytes:
        """Encode the plan."""
        plan = {
            "group": self._group,
            "last": max((entry_id for entry_id, *_ in self._entries), key=lambda one: tuple(map(int, one.split("-")))),
            "max_clusters": _MAX_CLUSTERS,
            "ttls": self._ttls,
            "places": self._places,
            "entries": self._entries,
        }
        return msgspec.msgpack.encode(plan)

    def _key(self, name: str, ttl_s: int) -> int:
        known = self._index.get(name)
        if known is None:
            self.keys.append(name)
            self._ttls.append(ttl_s)
            known = self._index[name] = len(self.keys)
        return known


class MonitorTask(Protocol):
    """Work of the active monitor beside its sums. A further one is a row of ``QualitySums``."""

    def run_due(self) -> None:
        """Do what is due; called about once a second.

        Raises:
            StoreError: Redis did not answer; it is safe to call again.
        """

    def clear(self) -> None:
        """Forget everything: another worker is the active monitor."""


class QualitySums(ExportConsumer):
    """Reads the group ``monitor``, while it holds the lock."""

    role = "monitor"
    exporter = "monitor"
    drop_reasons = ("unreadable", "too_many_series")
    stale_ms = 5_000

    def __init__(self, settings: Settings, store: Store, metrics: Metrics) -> None:
        super().__init__(settings, store, metrics)
        self._segments = settings.monitor.segments
        self._max_series = settings.monitor.max_series
        canary = Canary.of(settings)
        self._tasks: tuple[MonitorTask, ...] = (
            QualityWatch(store, settings.monitor, metrics),
            BudgetController(settings, store, metrics),
            CorrectionWatch(store, metrics),
            CanaryWatch(settings, store, metrics, canary),
            RepeatsWatch(store, metrics),
            SafetyWatch(store, settings, metrics),
        )
        # Further counts that are added exactly once, whatever the origin of a verdict.
        self._counters: tuple[VerdictCounter, ...] = (
            CanaryCounter(canary),
            count_repeats,
            partial(count_safety, settings.monitor.safety),
        )
        self._holder = secrets.token_hex(8)
        self._known: dict[Series, str] = {}

    @classmethod
    def is_enabled(cls, settings: Settings) -> bool:
        """Return whether some worker runs the monitor."""
        return settings.monitor.enabled

    def prepare(self) -> None:
        """Create the consumer group, and read which series are known."""
        super().prepare()
        self._known = {series: series_id for series_id, series in read_series(self._store).items()}

    def run_once(self) -> None:
        """Add what the outbox holds, and compute what is due, if this worker is the active monitor; else wait."""
        if self._store.hold(self._store.keys.monitor, self._holder, _LOCK_MS):
            super().run_once()
            for task in self._tasks:
                task.run_due()
        else:
            for task in self._tasks:
                task.clear()
            self.stopping.wait(_STANDBY_S)

    def stop(self, timeout_s: float) -> bool:
        """End the thread, and release the lock, so that another worker is active at once."""
        ended = super().stop(timeout_s)
        if ended:
            with contextlib.suppress(StoreError):
                self._store.hold(self._store.keys.monitor, self._holder, 0)
        return ended

    def deliver(self, entries: Sequence[OutboxEntry]) -> None:
        """Add the judgements of live traffic and acknowledge all entries, in one script."""
        plan = _Plan(self._store, self.exporter)
        added: dict[Series, str] = {}
        refused = 0
        for entry in entries:
            parts: list[_Part] = []
            at = int(entry.entry_id.partition("-")[0]) // 1000
            # Other origins are picked on purpose: they would bias the share.
            if entry.kind == "j" and entry.verdict.origin == "live" and entry.verdict.weight > 0:
                cluster = _cluster(entry.verdict.session_id)
                for series, kind, passes in self._judgements(entry.verdict):
                    if (series_id := self._id(series, added)) is None:
                        refused += 1
                        continue
                    part = (plan.place(series_id, at, kind), entry.verdict.weight, passes)
                    if cluster is None or passes < 0:
                        parts.append(part)
                    else:
                        of_sessions = plan.place(series_id, at, "s"), plan.cluster_key(series_id, at, cluster), cluster
                        parts.append((*part, *of_sessions))
            counters = self._counters if entry.kind == "j" else ()
            plan.add(entry.entry_id, parts, (one for count in counters for one in count(entry.verdict, at)))
        if added:
            labels: dict[Any, bytes] = {series_id: msgspec.json.encode(series) for series, series_id in added.items()}
            self._store.call(lambda client: client.hset(self._store.keys.quality_series, mapping=labels))
        fresh, unclustered = self._store.run("add_quality", plan.keys, (plan.arguments(),))
        self._known.update(added)
        if refused and fresh:
            self.dropped("too_many_series", refused)
            log.warning("verdicts without a series", verdicts=refused, max_series=self._max_series)
        if unclustered:
            log.debug("sessions not kept", judgements=unclustered)

    def _judgements(self, verdict: Verdict) -> Iterator[tuple[Series, str, int]]:
        """Yield the series of each metric, with the kind of its sums, and 1 for a pass, 0 for a fail, else -1."""
        if verdict.outcome != "scored":
            for series in series_of(verdict, self._segments):
                yield series, verdict.outcome[0], -1
            return
        passed = {score.metric: score.passed for score in verdict.scores}
        kind = class_of(verdict.weight)
        for series in series_of(verdict, self._segments):
            if (passes := passed.get(series.metric)) is not None:
                yield series, kind, int(passes)

    def _id(self, series: Series, added: dict[Series, str]) -> str | None:
        """Return the id of a series, None for a new one beyond the bound."""
        series_id = self._known.get(series)
        if series_id is None:
            if series not in added and len(self._known) + len(added) >= self._max_series:
                return None
            series_id = added.setdefault(series, series.id)
        return series_id


def _cluster(session_id: str | None) -> str | None:
    """Return the short name of a session in the hashes of clusters."""
    if session_id is None:
        return None
    digest = hashlib.blake2b(session_id.encode("utf-8", "surrogatepass"), digest_size=_CLUSTER_BYTES).digest()
    return binascii.b2a_base64(digest, newline=False).decode()
