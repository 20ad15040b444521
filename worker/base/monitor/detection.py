"""Drops of all series: a detector each, stepped through the buckets of five minutes, with its state in Redis.

The active monitor steps a series only through buckets that are complete: their time has passed, and the outbox holds
no verdict of them that is not counted yet, as after an outage. A detector's state is written after each step,
so that another worker goes on where the last one stopped.
"""

import math
import operator
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import compress, islice
from operator import and_
from statistics import median
from typing import Final, Literal

import msgspec
import structlog

from judges.agreement.shares import MOST_UNKNOWN, Sums, design_effect, merge_sums, unknown_part
from worker.base.monitor.baseline import (
    DROPS,
    HISTORY_DAYS,
    LAG_HOURS,
    LONGEST_DAYS,
    QUIET_DAYS,
    Baseline,
    Day,
    Decline,
    Hour,
    baseline,
    find_decline,
    hour_of,
    level,
)
from worker.base.monitor.counts import GRACE_S, read_horizon
from worker.base.monitor.detector import (
    Change,
    Limits,
    Moments,
    Session,
    State,
    delay_hours,
    drops_below,
    limits_of,
    step,
)
from worker.base.monitor.feature import Monitor, MonitorKeys
from worker.base.monitor.incidents import Incident, Member, investigate, keep_examples, read_examples
from worker.base.monitor.objectives import Objective
from worker.base.monitor.series import (
    CLUSTER_PARTS,
    CLUSTER_PERIOD_S,
    DAY_S,
    FINE_DAYS,
    FIVE_MINUTES_S,
    HOUR_S,
    Bucket,
    Series,
    read_buckets,
    read_states,
    utc_minute,
    write_states,
)
from worker.core.storage.client import Store

log = structlog.get_logger("tracejudge.monitor")
_PER_HOUR: Final = HOUR_S // FIVE_MINUTES_S
_MAX_STEP_S: Final = 3.0
_RECENT_HOURS: Final = 7 * 24
_LEAST_EFFECTIVE_OF_PEERS: Final = 50
Against = Literal["objective", "environment"]
SESSIONS_KEPT: Final = 0.995
"""The share of the moments of sessions that a period of six hours leaves: half of them after 35 days."""


class Reference(msgspec.Struct, array_like=True):
    """A constant share that a series is compared with beside its baseline, by separate sums."""

    share: float  # The expected share.
    unit: float  # The weight that counts as one judgement.
    limits: Limits  # The limits that belong to the share.
    state: State = msgspec.field(default_factory=State)  # The sums.


class Detector(msgspec.Struct, array_like=True):
    """The stored state of the detector of one series."""

    state: State = msgspec.field(default_factory=State)  # The sums.
    norm: Baseline | None = None  # The baseline; None until there are 7 days of verdicts.
    limits: Limits | None = None  # The limits that belong to the baseline.
    learned_at: float = 0.0  # When both were computed, in seconds since the epoch.
    done: int = 0  # The last bucket that was counted, in buckets of five minutes since the epoch.
    moments: Moments = msgspec.field(default_factory=Moments)  # Those of the sessions of past periods.
    period: int = 0  # The last period whose sessions were counted.
    references: dict[Against, Reference] = {}  # The objective, and for a new service the share of its environment.
    incident: Incident | None = None  # The open drop of a whole series or of any of its segments.
    # Sums of the last four weeks without incidents, which steady the design effect of sessions.
    history: Sums | None = None
    decline: Decline | None = None  # The notice of a slow decline, for 28 days.
    # The sums of the verdicts alone, without those that are unknown, which ``state`` takes for passes.
    judged: State = msgspec.field(default_factory=State)

    @property
    def is_drop_unknown(self) -> bool:
        """Whether there is a drop that would be none if all unknown verdicts had passed."""
        return self.judged.since is not None and self.state.since is None

    def is_masked(self, first: int, after: int) -> bool:
        """Whether a bucket from ``first`` to before ``after`` belongs to a drop, also to one that is not known."""
        return self.state.is_masked(first, after) or self.judged.is_masked(first, after)

    def is_due(self, now: float) -> bool:
        """Return whether baseline and references are to be computed: every day, every hour without a baseline."""
        return now - self.learned_at >= (HOUR_S if self.norm is None else DAY_S)


def read_detectors(store: Store, series_ids: Sequence[str]) -> dict[str, Detector]:
    """Read the detectors of series, as the active monitor has stored them; a new one where none can be read."""
    names = list(map(MonitorKeys(store.keys.prefix).quality_detector, series_ids))
    stored = store.pipeline(lambda pipe: [pipe.get(name) for name in names]) if names else []
    detectors: dict[str, Detector] = {}
    for series_id, raw in zip(series_ids, stored, strict=True):
        detectors[series_id] = Detector()
        with suppress(msgspec.DecodeError):
            detectors[series_id] = msgspec.msgpack.decode(raw, type=Detector) if raw else Detector()
    return detectors


class Detection:
    """The detectors of all series."""

    def __init__(
        self, store: Store, settings: Monitor, objectives: Sequence[Objective], clock: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._keys = MonitorKeys(store.keys.prefix)
        self._budget = settings.false_alarms_per_week
        self._objectives = {(row.judge, row.metric): row.objective for row in objectives}
        self._clock = clock
        self._detectors: dict[str, Detector] = {}

    def clear(self) -> None:
        """Forget all detectors: another worker goes on with them."""
        self._detectors.clear()

    def objective(self, series: Series) -> float | None:
        """Return the objective of a whole series; segments have no objective."""
        return None if series.segment else self._objectives.get((series.judge, series.metric))

    def step(self, series: Mapping[str, Series]) -> Mapping[str, Detector]:
        """Step the detectors of active series through all complete buckets; return all by series. Safe to repeat."""
        now, began = self._clock(), time.monotonic()
        names = {key: self._keys.quality_detector(key) for key in series if key not in self._detectors}
        detectors = self._detectors | read_states(self._store, names, Detector)
        self._detectors = {series_id: detectors[series_id] for series_id in series}
        active = len(series) + sum(self.objective(labels) is not None for labels in series.values())
        complete_s = min(now - GRACE_S, read_horizon(self._store, now))
        last = int(complete_s // FIVE_MINUTES_S) - 1
        ids, may_learn = iter(series), 20
        # After a long absence the next looks go on, so that the lock of the active monitor is renewed meanwhile.
        while time.monotonic() - began < _MAX_STEP_S and (some := list(islice(ids, 100))):
            self._count_sessions(some, int(complete_s // CLUSTER_PERIOD_S) - 1)
            due = [key for key in some if self._detectors[key].is_due(now)][:may_learn]
            may_learn -= len(due)
            self._learn(due, series, now, active)
            self._count([key for key in some if self._detectors[key].done < last], series, last)
        self._explain(series)
        return self._detectors

    def _save(self, series_ids: Sequence[str]) -> None:
        write_states(self._store, {self._keys.quality_detector(key): self._detectors[key] for key in series_ids})

    def _learn(self, series_ids: Sequence[str], series: Mapping[str, Series], now: float, active: int) -> None:
        """Compute baselines, from four weeks that end a day ago, references, from the last week, and slow declines."""
        until, today = (now // HOUR_S - LAG_HOURS) * HOUR_S, int(now // DAY_S)
        begin, oldest = until - HISTORY_DAYS * DAY_S, (today - LONGEST_DAYS) * DAY_S
        buckets = read_buckets(self._store, series_ids, oldest, now, fine=False)
        others = self._others([key for key in series_ids if self._detectors[key].norm is None], series, now)
        for series_id, stored in zip(series_ids, buckets, strict=True):
            detector, labels = self._detectors[series_id], series[series_id]
            detector.learned_at, had_norm = now, detector.norm is not None
            for state in (detector.state, detector.judged):
                state.forget(oldest // FIVE_MINUTES_S)
            all_hours = [hour_of(int(bucket.begins_at) // HOUR_S, bucket.sums) for bucket in stored]
            kept = [
                begin <= hour.hour * HOUR_S < until
                and not detector.is_masked(hour.hour * _PER_HOUR, (hour.hour + 1) * _PER_HOUR)
                for hour in all_hours
            ]
            # How sessions agree is learned from all verdicts that are known, as `report` learns it.
            detector.history = merge_sums(bucket.sums for bucket in compress(stored, kept)) if any(kept) else None
            # Unknown verdicts hide drops, which must not become the norm. Where they are usual, hours would be few.
            usual = median(unknown_part(bucket.sums) for bucket in stored) if stored else 0.0
            known = [unknown_part(bucket.sums) <= max(MOST_UNKNOWN, 2 * usual) for bucket in stored]
            hours = list(compress(all_hours, known))
            # The last baseline stays where a long incident would leave too little.
            norm = detector.norm = baseline(list(compress(all_hours, map(and_, kept, known)))) or detector.norm
            if norm is not None:
                detector.limits = limits_of(norm, detector.moments, series=active, false_alarms_per_week=self._budget)
                if not had_norm:
                    delays = {drop: delay_hours(norm, detector.limits, drop) for drop in DROPS}
                    log.info(
                        "quality baseline known",
                        share=round(sum(norm.cells) / len(norm.cells), 3),
                        judgements_per_hour=round(norm.per_week / len(norm.cells), 1),
                        **{f"hours_to_find_{drop:.2f}": round(hours, 1) for drop, hours in delays.items()},
                        **labels.log_fields,
                        segment=labels.segment_name or None,
                    )
            if not labels.segment:
                _notice(detector, hours, today, labels)
            shares: dict[Against, tuple[float, float]] = {}
            if (objective := self.objective(labels)) is not None:
                shares["objective"] = (objective, 0.0)
            if norm is None and series_id in others:
                shares["environment"] = others[series_id]
            self._refer(detector, shares, hours[-_RECENT_HOURS:], active)

    def _refer(
        self, detector: Detector, shares: Mapping[Against, tuple[float, float]], recent: Sequence[Hour], active: int
    ) -> None:
        """Keep a reference for each of these shares with their standard errors, and no other."""
        references: dict[Against, Reference] = {}
        for against, (share, error) in shares.items():
            if (norm := level(recent, share, error)) is not None:
                limits = limits_of(
                    norm,
                    detector.moments,
                    series=active,
                    false_alarms_per_week=self._budget,
                    drops=drops_below(norm.expected(0)[0]),
                )
                former = detector.references.get(against)
                state = former.state if former is not None else State()
                references[against] = Reference(norm.expected(0)[0], norm.mean_weight, limits, state)
        detector.references = references

    def _others(
        self, series_ids: Sequence[str], series: Mapping[str, Series], now: float
    ) -> dict[str, tuple[float, float]]:
        """Return the share of the last day of all other services of an environment, with its standard error."""
        if not series_ids:
            return {}
        groups: dict[Series, list[str]] = {}
        for series_id, labels in series.items():
            if not labels.segment:
                groups.setdefault(msgspec.structs.replace(labels, service=""), []).append(series_id)
        peer_groups = {msgspec.structs.replace(series[series_id], service="") for series_id in series_ids}
        peers = [series_id for group in peer_groups for series_id in groups.get(group, ())]
        hours = read_buckets(self._store, peers, now - DAY_S, now, fine=False)
        days = {series_id: [bucket.sums for bucket in buckets] for series_id, buckets in zip(peers, hours, strict=True)}
        shares: dict[str, tuple[float, float]] = {}
        for series_id in series_ids:
            group = groups.get(msgspec.structs.replace(series[series_id], service=""), ())
            sums = merge_sums(hour_sums for peer in group if peer != series_id for hour_sums in days[peer])
            total = sums.total
            if series[series_id].segment or total.squares <= 0:
                continue
            effective = total.weight**2 / total.squares / design_effect(sums)
            if effective >= _LEAST_EFFECTIVE_OF_PEERS:
                share = total.passed / total.weight
                shares[series_id] = share, math.sqrt(share * (1 - share) / effective)
        return shares

    def _count_sessions(self, series_ids: Sequence[str], period: int) -> None:
        """Count the sessions of the newest complete period, of series whose sessions or weights matter."""
        # Redis keeps the sessions of two periods. Those of a period in which no monitor ran, or of an incident, are
        # left out: the factor of the scores needs a sample of them, not all.
        due = []
        first = period * CLUSTER_PERIOD_S // FIVE_MINUTES_S
        after = first + CLUSTER_PERIOD_S // FIVE_MINUTES_S
        for series_id in series_ids:
            detector = self._detectors[series_id]
            if detector.period < period and detector.norm is not None:
                detector.period = period
                if detector.norm.needs_sessions and not detector.is_masked(first, after):
                    due.append(series_id)
        if not due:
            return
        names = [
            self._keys.quality_clusters(series_id, period, part) for series_id in due for part in range(CLUSTER_PARTS)
        ]
        clusters = iter(self._store.pipeline(lambda pipe: [pipe.hvals(name) for name in names]))
        span = period * CLUSTER_PERIOD_S, (period + 1) * CLUSTER_PERIOD_S
        for series_id, hours in zip(due, read_buckets(self._store, due, *span, fine=False), strict=True):
            sessions = Counter(raw for _ in range(CLUSTER_PARTS) for raw in next(clusters))
            add_sessions(self._detectors[series_id], hours, sessions)

    def _count(self, series_ids: Sequence[str], series: Mapping[str, Series], last: int) -> None:
        """Count the buckets up to the last complete one, and store the detectors."""
        if not series_ids:
            return
        oldest = last - FINE_DAYS * 24 * _PER_HOUR
        first = max(oldest, min(self._detectors[series_id].done for series_id in series_ids)) + 1
        span = first * FIVE_MINUTES_S, (last + 1) * FIVE_MINUTES_S
        all_buckets = read_buckets(self._store, series_ids, *span, fine=True)
        for series_id, buckets in zip(series_ids, all_buckets, strict=True):
            detector = self._detectors[series_id]
            for bucket in buckets:
                number = int(bucket.begins_at) // FIVE_MINUTES_S
                if number > detector.done and bucket.sums.total.weight > 0:
                    count(detector, number, bucket)
                    _count_references(detector, number, bucket, series[series_id])
            detector.done = last
        self._save(series_ids)

    def _explain(self, series: Mapping[str, Series]) -> None:
        """Store an incident for each series with an open drop, also of a segment, and end those without one."""
        families: dict[Series, list[str]] = {}
        for series_id, labels in series.items():
            whole = msgspec.structs.replace(labels, segment="", value="") if labels.segment else labels
            families.setdefault(whole, []).append(series_id)
        explained = []
        for whole, ids in families.items():
            is_open = any(self._detectors[series_id].state.alarm >= 0 for series_id in ids)
            whole_id = next((series_id for series_id in ids if not series[series_id].segment), None)
            if whole_id is None or is_open == ((detector := self._detectors[whole_id]).incident is not None):
                continue
            if detector.incident is not None:
                _report("quality recovered", whole, detector.incident)
                keep_examples(self._store, "drop", whole_id, ())
                detector.incident = None
            else:
                # The whole series first.
                ordered = ((series[name], self._detectors[name]) for name in sorted(ids, key=whole_id.__ne__))
                members = [Member(labels, part.state, part.norm, part.limits) for labels, part in ordered]
                names = "service", "environment", "judge", "metric"
                siblings = [
                    family
                    for family in families
                    if family != whole and all(getattr(family, name) == getattr(whole, name) for name in names)
                ]
                detector.incident = investigate(self._store, members, siblings, detector.done)
                examples = read_examples(self._store, "drop").get(whole_id, ())
                _report("quality dropped", whole, detector.incident, examples)
            explained.append(whole_id)
        if explained:
            self._save(explained)


def add_sessions(detector: Detector, hours: Sequence[Bucket], sessions: Mapping[bytes, int]) -> None:
    """Add the stored sessions of a period to the moments; judgements without one are groups of their design effect."""
    if (norm := detector.norm) is None or not hours:
        return
    whole = merge_sums(bucket.sums for bucket in hours)
    weight = whole.total.weight
    if weight <= 0:
        return
    # A session does not tell its hours.
    parts = [bucket.sums.total.weight / weight for bucket in hours]
    shares = zip(*(norm.expected(int(bucket.begins_at) // HOUR_S) for bucket in hours), strict=True)
    expected = [sum(map(operator.mul, of_drop, parts)) for of_drop in shares]
    detector.moments.fade(SESSIONS_KEPT)
    unit, within = norm.mean_weight, 0.0
    for raw, number in sessions.items():
        total, passed = msgspec.msgpack.decode(raw, type=tuple[float, float])
        within += number * total
        detector.moments.add(Session(passed / unit, (total - passed) / unit, expected), number)
    alone = max(0.0, 1 - within / weight)
    # Judgements of traces without a session count as groups of one outcome, because only their sums are known.
    has_groups = not sessions and whole.over_sessions.sessions < whole.total.judgements
    effect = design_effect(whole) if has_groups else 1.0
    for class_sums in whole.classes.values():
        # Σw²y / Σwy is the mean weight of passes of a class; so many of them make up their sum.
        if class_sums.passed > 0:
            size = effect * class_sums.passed_squares / class_sums.passed
            detector.moments.add(Session(size / unit, 0.0, expected), alone * class_sums.passed / size)
        if (failed := class_sums.weight - class_sums.passed) > 0:
            size = effect * (class_sums.squares - class_sums.passed_squares) / failed
            detector.moments.add(Session(0.0, size / unit, expected), alone * failed / size)


def count(detector: Detector, number: int, bucket: Bucket) -> Change | None:
    """Count a bucket that has judgements against the baseline; return the change, if there is one."""
    if detector.norm is None or detector.limits is None:
        return None
    total = bucket.sums.total
    # Where rates fell since the baseline, one judgement must not count as many.
    unit = max(total.squares / total.weight, detector.norm.mean_weight)
    passed, expected = total.passed / unit, detector.norm.expected(number // _PER_HOUR)
    failed, limits = (total.weight - total.passed) / unit, detector.limits
    step(detector.judged, number, passed, failed, expected=expected, limits=limits)
    # A drop is told where it would be one if the unknown verdicts had passed. They do not bring a recovery.
    unknown = bucket.sums.unknown.weight / unit if detector.state.since is None else 0.0
    return step(detector.state, number, passed + unknown, failed, expected=expected, limits=limits)


def _notice(detector: Detector, hours: Iterable[Hour], today: int, series: Series) -> None:
    """Keep the notice of a slow decline for 28 days, and look for another one then."""
    if detector.norm is None or (detector.decline is not None and today - detector.decline.told_day < QUIET_DAYS):
        return
    sums: dict[int, list[float]] = {}
    for hour in hours:
        day = sums.setdefault(hour.hour // 24, [0.0, 0.0, 0.0])
        for position, value in enumerate((hour.weight, hour.passed, hour.squares)):
            day[position] += value
    days = [
        Day(number, passed / weight, weight * weight / (squares * detector.norm.dispersion))
        for number, (weight, passed, squares) in sums.items()
        if weight > 0 and not detector.is_masked(number * 24 * _PER_HOUR, (number + 1) * 24 * _PER_HOUR)
    ]
    detector.decline = find_decline(days, today)
    if detector.decline is not None:
        log.info("quality declines slowly", meaning=detector.decline.text, **series.log_fields)


def _count_references(detector: Detector, number: int, bucket: Bucket, series: Series) -> None:
    total = bucket.sums.total
    for against, ref in detector.references.items():
        unit = max(total.squares / total.weight, ref.unit)
        passed, failed = total.passed / unit, (total.weight - total.passed) / unit
        unknown = bucket.sums.unknown.weight / unit if ref.state.since is None else 0.0
        expected = (ref.share,) * len(DROPS)
        change = step(ref.state, number, passed + unknown, failed, expected=expected, limits=ref.limits)
        ref.state.masks.clear()
        if change is not None:
            log.warning(
                f"quality below {against}" if change.kind == "drop" else f"quality back at {against}",
                since=_time(change.since),
                share=round(ref.share - change.size, 3),
                expected=round(ref.share, 3),
                **series.log_fields,
            )


def _time(bucket: int) -> str:
    return utc_minute(bucket * FIVE_MINUTES_S)


def _report(event: str, series: Series, incident: Incident, examples: Sequence[str] = ()) -> None:
    log.warning(
        event,
        since=_time(incident.since),
        since_low=_time(incident.low),
        since_high=_time(incident.high),
        size=round(incident.size, 3),
        segment=incident.segment or None,
        meaning=incident.meaning or None,
        changed=",".join(incident.changed) or "nothing",
        examples=" ".join(examples) or None,
        **series.log_fields,
    )
