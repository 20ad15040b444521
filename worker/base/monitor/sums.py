"""Adds verdicts to the monitor's sums: each once, in the script that acknowledges it.

One worker is active at a time, by a lock in Redis. Another takes over within 30 s after its end. Restarts and kills
do not change the sums.

The sums are in the first partition. The outbox of another is read in its order from a position beside the sums, which
the script that adds to them moves, so that each verdict is in them once. Then its group there moves on. A verdict that
a partition loses with its last writes stays in the sums, and the verdict of the repeated judging is added.
"""

import contextlib
import datetime as dt
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from operator import attrgetter, methodcaller
from typing import Any, Final, NamedTuple

import msgspec
import structlog
from redis.client import Pipeline

from judges.core.verdict import Verdict
from worker.base.monitor.counts import Increment, field_of
from worker.base.monitor.feature import MONITOR, Monitor, MonitorKeys, tag_of
from worker.base.monitor.gauges import MonitorParts, Watch
from worker.base.monitor.incidents import remove_examples, scan_examples
from worker.base.monitor.series import (
    CLUSTER_PARTS,
    CLUSTER_PERIOD_S,
    COARSE_DAYS,
    DAY_S,
    FINE_DAYS,
    FIVE_MINUTES_S,
    HOUR_S,
    TEN_MINUTES_S,
    TEN_SECONDS_S,
    TRACE_PERIOD_S,
    Series,
    class_of,
    cluster_of,
    is_unknown,
    place,
    read_series,
    series_of,
)
from worker.base.monitor.votes import VOTED, count_votes
from worker.base.monitor.watch import QualityWatch
from worker.core.config.settings import Settings
from worker.core.export.consumer import ExportConsumer
from worker.core.features import import_attribute, installed
from worker.core.queue.ledger import OutboxEntry, read_outbox_entry
from worker.core.selection.sampling import Rules
from worker.core.storage.client import Store, StoreError
from worker.core.storage.group_reader import entry_position
from worker.core.storage.keys import MONITOR_GROUP, Keys
from worker.core.telemetry.metrics import Metrics
from worker.core.telemetry.service import ServiceThread

log = structlog.get_logger("tracejudge.monitor")
_MAX_REMEMBERED: Final = 10_000
_LABELS: Final = ("service", "environment", "judge", "judge_version", "judge_model", "metrics")
"""The fields of a verdict that, with the segments, decide about its series."""
_STANDBY_S: Final = 1.0
# A key gets its TTL with its first field.
_COARSE_TTL_S: Final = (COARSE_DAYS + 1) * 24 * HOUR_S
_FINE_TTL_S: Final = FINE_DAYS * 24 * HOUR_S + HOUR_S
_FINEST_TTL_S: Final = HOUR_S + TEN_MINUTES_S
# Clusters of one part of a series and period; judgements of further ones count as independent.
_MAX_CLUSTERS: Final = 4096
_SILENT_DAYS: Final = 7
"""A value of a segment that has as many values as allowed leaves after this time; its sums stay, and it may return."""

_Part = tuple[int, float, int] | tuple[int, float, int, int, int, str]
"""One judgement of an entry for one series, as script `add_quality` reads it."""


class Source(NamedTuple):
    """The source of entries of another partition: its number, and the position before them, empty for its begin."""

    partition: int
    after: str


class _Plan:
    """The keys and the plan of one call of script `add_quality`. Indices count from 1, as in Lua."""

    def __init__(self, keys: Keys, source: Source | None, last: str) -> None:
        self._keys = MonitorKeys(keys.prefix)
        self.keys = [keys.verdicts if source is None else self._keys.quality_positions, keys.account_all, keys.groups]
        self._source = source
        self._ttls: list[int] = []
        self._places: list[tuple[int | str, ...]] = []
        self._entries: list[tuple[str, list[_Part], list[tuple[int | str, ...]]]] = []
        self._last = entry_position(last)
        self._index: dict[str, int] = {}
        self._cluster_keys: dict[tuple[str, int, int], int] = {}
        self._place_of: dict[tuple[str, int, str], int] = {}

    def add(self, entry_id: str, parts: list[_Part], increments: Iterable[Increment] = ()) -> None:
        """Add an entry with its judgements and increments; also one without any is acknowledged."""
        counts: list[tuple[int | str, ...]] = []
        for kind, at, labels, amount, keep_days, once, once_at in increments:
            key = self._keys.quality_counts(kind, dt.datetime.fromtimestamp(at, dt.UTC).date())
            count = self._key(key, keep_days * 24 * HOUR_S), field_of(labels), amount
            if once:
                once_key = self._keys.quality_once(kind, int((at if once_at is None else once_at) // CLUSTER_PERIOD_S))
                counts.append((*count, self._key(once_key, 2 * CLUSTER_PERIOD_S), once))
            else:
                counts.append(count)
        self._entries.append((entry_id, parts, counts))
        self._last = max(self._last, entry_position(entry_id))

    def place(self, series_id: str, at: int, kind: str, *, finest: bool) -> int:
        """Return the index of the fields of a kind in the buckets of a time, by ``finest`` also in that of 10 s."""
        index = self._place_of.get(name := (series_id, at // (TEN_SECONDS_S if finest else FIVE_MINUTES_S), kind))
        if index is None:
            of = place(self._keys, series_id, at)
            hour, five = self._key(of.hour_key, _COARSE_TTL_S), self._key(of.five_key, _FINE_TTL_S)
            ten = (self._key(of.ten_key, _FINEST_TTL_S), of.ten + kind) if finest else ()
            self._places.append((hour, of.hour + kind, five, of.five + kind, *ten))
            index = self._place_of[name] = len(self._places)
        return index

    def cluster_key(self, series_id: str, at: int, cluster: str, period_s: int) -> int:
        """Return the index of the hash with a cluster."""
        # Numbers of periods of both lengths are far apart.
        period, part = at // period_s, ord(cluster[0]) % CLUSTER_PARTS
        index = self._cluster_keys.get(name := (series_id, period, part))
        if index is None:
            key = self._key(self._keys.quality_clusters(series_id, period, part), 2 * period_s)
            index = self._cluster_keys[name] = key
        return index

    def arguments(self) -> bytes:
        """Encode the plan."""
        plan = {
            "group": MONITOR_GROUP,
            "partition": "" if self._source is None else str(self._source.partition),
            "after": "" if self._source is None else self._source.after,
            "last": "-".join(map(str, self._last)),
            "max_clusters": _MAX_CLUSTERS,
            "ttls": self._ttls,
            "places": self._places,
            "entries": self._entries,
        }
        return msgspec.msgpack.encode(plan)

    def _key(self, name: str, ttl_s: int) -> int:
        index = self._index.get(name)
        if index is None:
            self.keys.append(name)
            self._ttls.append(ttl_s)
            index = self._index[name] = len(self.keys)
        return index


class QualitySums(ExportConsumer):
    """Reads the group ``monitor``, while it holds the lock."""

    role = "monitor"
    exporter = MONITOR_GROUP
    drop_reasons = ("unreadable", "too_many_series", "too_many_values")
    stale_ms = 5_000
    # A read and its script cost as much as 20 verdicts; sums may be late by seconds, and the lock lasts longer.
    gather_s = 1.0

    def __init__(self, settings: Settings, store: Store, metrics: Metrics, rules: Rules) -> None:
        super().__init__(settings, store, metrics)
        self._segments = MONITOR.read(settings).segments
        # One script of so many judgements occupies Redis for some 15 ms.
        self.read_count = max(64, 960 // (1 + len(self._segments)))
        self._max_series = MONITOR.read(settings).max_series
        self._max_values = MONITOR.read(settings).max_segment_values
        parts = MonitorParts(settings, store, metrics, rules, self._is_listed)
        watches: list[Watch] = [import_attribute(feature.watch)(parts) for feature in installed() if feature.watch]
        self.tasks: tuple[Watch, ...] = (
            QualityWatch(parts),
            *watches,
            SeriesPruning(store, MONITOR.read(settings), self.relist),
        )
        self.counting = [watch for watch in watches if watch.detail or watch.origin or watch.judges]
        self._holder = secrets.token_hex(8)
        self.is_active = False
        # Outboxes of other partitions are read by threads of their own.
        self.adding = threading.Lock()
        self._known: set[str] = set()
        # New series of the entries that are being added.
        self._added: dict[str, Series] = {}
        self._tags = MONITOR.read(settings).tags
        self._labels = attrgetter(*_LABELS, *(segment for segment in self._segments if tag_of(segment) is None))
        self._series_of: dict[object, list[tuple[Series, str]]] = {}
        self._values: Counter[Series] = Counter()

    def prepare(self) -> None:
        """Create the consumer group, and read which series are known."""
        super().prepare()
        self.relist(read_series(self._store).values())

    def run_once(self) -> None:
        """Add the entries of the outbox, and run due tasks, if this worker is the active monitor; else wait."""
        if not self._holds_lock():
            self.is_active = False
            for task in self.tasks:
                task.clear()
            self.stopping.wait(_STANDBY_S)
            return
        if not self.is_active:
            # Another worker may have added and removed series.
            self.relist(read_series(self._store).values())
            self.is_active = True
        super().run_once()
        for task in self.tasks:
            # Several tasks together may take longer than the lock lasts.
            if not self._holds_lock():
                break
            task.run_due()

    def stop(self, timeout_s: float) -> bool:
        """End the thread, and release the lock, so that another worker is active at once."""
        ended = super().stop(timeout_s)
        self.is_active = False
        if ended:
            with contextlib.suppress(StoreError):
                self._store.release_lock(self._store.keys.monitor, self._holder)
        return ended

    def deliver(self, entries: Sequence[OutboxEntry]) -> None:
        """Add the judgements of live traffic and acknowledge all entries, in one script."""
        with self.adding:
            self.add(entries)

    def add(self, entries: Sequence[OutboxEntry], source: Source | None = None, last: str = "0-0") -> bool:
        """Add entries while the caller holds ``adding``; ``last`` was read last. False if none was new."""
        plan = _Plan(self._store.keys, source, last)
        added = self._added = {}
        refused: Counter[str] = Counter()
        hour_ago = time.time() - HOUR_S
        for entry in entries:
            parts: list[_Part] = []
            at = int(entry.written_s)
            # Other origins are picked on purpose and would bias the share.
            if entry.verdict.origin == "live" and entry.verdict.weight > 0:
                cluster = cluster_of(entry.verdict.session_id or entry.verdict.trace_id)
                period_s = CLUSTER_PERIOD_S if entry.verdict.session_id else TRACE_PERIOD_S
                for series, series_id, kind, passes in self._judgements(entry.verdict):
                    if not self._is_listed(series_id):
                        if (reason := self._refusal(series, added)) is not None:
                            refused[reason] += 1
                            continue
                        added[series_id] = series
                    # Only what charts of the last hour show: after an outage the script would take longer.
                    finest = at >= hour_ago and not series.segment
                    part = (plan.place(series_id, at, kind, finest=finest), entry.verdict.weight, passes)
                    if passes < 0:
                        parts.append(part)
                    else:
                        key = plan.cluster_key(series_id, at, cluster, period_s)
                        parts.append((*part, plan.place(series_id, at, "s", finest=finest), key, cluster))
            plan.add(entry.entry_id, parts, self._increments(entry, at))
        if added:
            labels: dict[Any, bytes] = {series_id: msgspec.json.encode(series) for series_id, series in added.items()}
            series_key = MonitorKeys(self._store.keys.prefix).quality_series
            self._store.call(lambda client: client.hset(series_key, mapping=labels))
        fresh, unclustered = self._store.run("add_quality", plan.keys, (plan.arguments(),))
        self._known.update(added)
        self._values.update(segment_of(series) for series in added.values() if series.segment)
        for reason, verdicts in refused.items() if fresh else ():
            self.count_dropped(reason, verdicts)
            log.warning("verdicts without a series", reason=reason, verdicts=verdicts)
        if unclustered:
            log.debug("sessions not kept", judgements=unclustered)
        return bool(fresh)

    def _holds_lock(self) -> bool:
        return self._store.acquire_lock(self._store.keys.monitor, self._holder, 10_000)

    def _is_listed(self, series_id: str) -> bool:
        return series_id in self._known or series_id in self._added

    def _judgements(self, verdict: Verdict) -> Iterator[tuple[Series, str, str, int]]:
        """Yield the series of each metric and its id, the kind of its sums, and 1 for a pass, 0 for a fail, else -1."""
        labels = (self._labels(verdict), *map(verdict.tags.get, self._tags)) if self._tags else self._labels(verdict)
        all_series = self._series_of.get(labels)
        if all_series is None:
            if len(self._series_of) >= _MAX_REMEMBERED:
                self._series_of.clear()
            all_series = [(series, series.id) for series in series_of(verdict, self._segments)]
            self._series_of[labels] = all_series
        if verdict.outcome != "scored":
            kind = "x" if is_unknown(verdict) else verdict.outcome[0]
            for series, series_id in all_series:
                yield series, series_id, kind, -1
            return
        passed = {score.metric: score.passed for score in verdict.scores}
        kind = class_of(verdict.weight)
        for series, series_id in all_series:
            if (passes := passed.get(series.metric)) is not None:
                yield series, series_id, kind, int(passes)

    def _increments(self, entry: OutboxEntry, at: float) -> Iterator[Increment]:
        """Yield further counts, which are added exactly once, for verdicts of any origin."""
        verdict = entry.verdict
        if entry.kind == "j" and not VOTED.isdisjoint(verdict.details):
            yield from count_votes(verdict, at, self._is_listed)
        for watch in self.counting:
            if entry.kind == "d" and not watch.counts_dead:
                continue
            if watch.detail in verdict.details or watch.origin == verdict.origin or verdict.judge in watch.judges:
                yield from watch.count(verdict, at)

    def _refusal(self, series: Series, added: Mapping[str, Series]) -> str | None:
        """Return why a new series is beyond a bound, else None; its value then counts for its segment."""
        if len(self._known) + len(added) >= self._max_series:
            return "too_many_series"
        if series.segment:
            segment = segment_of(series)
            # `_values` grows when they are added, because Redis may refuse the script, and the entries come again.
            new = sum(segment_of(series) == segment for series in added.values())
            if self._values[segment] + new >= self._max_values:
                return "too_many_values"
        return None

    def relist(self, series: Iterable[Series]) -> None:
        """Remember which series are listed."""
        by_id = {labels.id: labels for labels in series}
        self._known = set(by_id)
        self._values = Counter(segment_of(labels) for labels in by_id.values() if labels.segment)


class PartitionSums(ServiceThread):
    """Reads the outbox of another partition than the first, while this worker is the active monitor."""

    role = "monitor"
    shares = True

    def __init__(self, store: Store, sums: QualitySums) -> None:
        super().__init__(f"export-{MONITOR_GROUP}")
        self._store = store
        self._sums = sums
        self.after_id: str | None = None

    def prepare(self) -> None:
        """Create the consumer group, by which the outbox is measured."""
        self._store.make_group(self._store.keys.verdicts, MONITOR_GROUP)

    def run_once(self) -> None:
        """Add the entries after the position in the outbox; then let entries gather."""
        if not self._sums.is_active:
            self.after_id = None
            self.pause(_STANDBY_S)
            return
        partition, keys = self._store.partition, self._store.keys
        if self.after_id is None:
            # Another worker may have moved it, or ended before the group followed.
            key = MonitorKeys(self._store.first.keys.prefix).quality_positions
            stored = self._store.first.call(lambda client: client.hget(key, str(partition)))
            self.after_id = stored.decode() if stored else ""
            self.pass_group(self.after_id)
        begin, count = f"({self.after_id}" if self.after_id else "-", self._sums.read_count
        rows = self._store.call(methodcaller("xrange", keys.verdicts, begin, "+", count))
        if rows:
            after, self.after_id = self.after_id, None
            last = rows[-1][0].decode()
            # Entries that cannot be read are passed.
            entries = [read for read in map(read_outbox_entry, rows) if read is not None]
            with self._sums.adding:
                is_added = self._sums.add(entries, Source(partition, after), last)
            if not is_added:
                return
            self.pass_group(last)
            self.after_id = last
        if len(rows) < count:
            self.pause(self._sums.gather_s)

    def pass_group(self, entry_id: str) -> None:
        """Move the consumer group to an entry, if there is one."""
        keys = self._store.keys
        if entry_id:
            self._store.run("pass_group", (keys.verdicts, keys.account_all, keys.groups), (MONITOR_GROUP, entry_id))


class SeriesPruning(Watch):
    """Removes, once an hour, series without sums and silent values of full segments; reports which are listed then."""

    every_s = float(HOUR_S)

    def __init__(
        self,
        store: Store,
        settings: Monitor,
        listed: Callable[[Iterable[Series]], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(store, clock)
        self._keys = MonitorKeys(store.keys.prefix)
        self._max_values = settings.max_segment_values
        self._listed = listed

    def run(self, now: float) -> None:
        """Remove series, and report those that are left."""
        all_series = read_series(self._store)
        by_segment: dict[Series, list[str]] = {}
        for series_id, series in all_series.items():
            if series.segment:
                by_segment.setdefault(segment_of(series), []).append(series_id)
        full = [series_id for ids in by_segment.values() if len(ids) >= self._max_values for series_id in ids]
        silent = {*self._silent(all_series, now, COARSE_DAYS + 1), *self._silent(full, now, _SILENT_DAYS)}
        if silent:
            keys = self._keys
            self._store.call(lambda client: client.hdel(keys.quality_series, *silent))
            self._store.call(lambda client: client.delete(*map(keys.quality_detector, silent)))
            remove_examples(self._store, (row for row in scan_examples(self._store) if row.series_id in silent))
            log.info("silent series removed", series=len(silent))
        self._listed(series for series_id, series in all_series.items() if series_id not in silent)

    def _silent(self, series_ids: Collection[str], now: float, days: int) -> list[str]:
        def count(some: Sequence[str], pipe: Pipeline) -> None:
            for series_id in some:
                # Look at tomorrow as well, because Redis dates verdicts by its own clock.
                times = (now + ahead * DAY_S for ahead in range(1 - days, 2))
                pipe.exists(*(place(self._keys, series_id, at).hour_key for at in times))

        ids, silent = iter(series_ids), list[str]()
        while some := list(islice(ids, 100)):
            counts = self._store.pipeline(partial(count, some))
            silent += [series_id for series_id, amount in zip(some, counts, strict=True) if not amount]
        return silent


def segment_of(series: Series) -> Series:
    """Return a segment of one series without its value."""
    return msgspec.structs.replace(series, value="")
