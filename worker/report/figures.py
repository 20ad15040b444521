"""Figures of the report, computed from sums of verdicts. Pure: no Redis, no files, no clock.

A row is one metric of one judge, for each value of the keys that the user asked for. Shares of different judges or
metrics measure different things, so they are never added up.
"""

import datetime as dt
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final, NamedTuple, get_args

import msgspec
from msgspec import Struct

from judges.agreement.intervals import Interval, wilson
from worker.config.settings import SeriesLabel
from worker.monitor.baseline import HISTORY_DAYS
from worker.monitor.series import COARSE_DAYS, FINE_DAYS, FIVE_MINUTES_S, HOUR_S, Bucket
from worker.monitor.shares import Sums, merged, pass_share

SERIES_KEYS: Final = ("service", "environment", "judge", "version", "judge_model", "metric")
SEGMENT_KEYS: Final[tuple[str, ...]] = get_args(SeriesLabel)
DAY_S: Final = 24 * HOUR_S
LEAST_JUDGEMENTS: Final = 5
_FINE_S: Final = 6 * HOUR_S
_HOURLY_POINTS_S: Final = 2 * DAY_S

Labels = tuple[tuple[str, str], ...]
"""Keys with their values, in the order of `Scope.keys`."""


class Period(NamedTuple):
    """A span of time in seconds since the epoch; the end is not included."""

    since: float
    until: float

    def __contains__(self, at: object) -> bool:
        return isinstance(at, int | float) and self.since <= at < self.until


class Scope(NamedTuple):
    """What the user asked for; periods consist of whole buckets of ``step`` seconds."""

    period: Period
    compared: Period | None
    by: tuple[str, ...]
    service: str | None = None
    judges: tuple[str, ...] = ()
    step: int = HOUR_S

    @classmethod
    def of(  # noqa: PLR0917 - the options of the command
        cls,
        period: Period,
        shift_s: float | None,
        by: Sequence[str],
        service: str | None,
        judges: Sequence[str],
        now: float,
    ) -> "Scope":
        """Choose the buckets: five minutes for a few hours of the last days, else an hour.

        Args:
            period: The period of the report.
            shift_s: How much earlier the compared period lies; None compares with nothing.
            by: Keys of `SERIES_KEYS` and `SEGMENT_KEYS`.
            service: Pattern of services.
            judges: Names of judges; all if empty.
            now: Seconds since the epoch.
        """
        first = period.since - (shift_s or 0.0)
        is_short = period.until - period.since <= _FINE_S and first > now - FINE_DAYS * DAY_S + HOUR_S
        step = FIVE_MINUTES_S if is_short else HOUR_S
        # Both ends move up, so that the last seven days and those before them share no bucket.
        until = math.ceil(period.until / step) * step
        since = min(math.ceil(period.since / step) * step, until - step)
        earlier = None if shift_s is None else math.ceil(shift_s / step) * step
        compared = None if earlier is None else Period(since - earlier, until - earlier)
        return cls(Period(since, until), compared, tuple(by), service, tuple(judges), step)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of a row, each once: those asked for, judge, and metric as the last."""
        return (*dict.fromkeys(key for key in (*self.by, "judge") if key != "metric"), "metric")

    @property
    def segments(self) -> tuple[str, ...]:
        """The keys that are labels of segments, not of series."""
        return tuple(key for key in self.keys if key not in SERIES_KEYS)

    @property
    def first(self) -> float:
        """The earliest time of which verdicts are in the report."""
        return self.period.since if self.compared is None else min(self.period.since, self.compared.since)

    @property
    def history(self) -> float:
        """The time from which verdicts steady the design effect of sessions."""
        return min(self.first, self.period.until - HISTORY_DAYS * DAY_S)

    def wants(self, service: str, judge: str) -> bool:
        """Return whether verdicts of a service by a judge are asked for."""
        return fnmatchcase(service, self.service or "*") and (not self.judges or judge in self.judges)


class Estimate(Struct, frozen=True):
    """A figure with the limits of its 95 % interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, interval: Interval) -> "Estimate":
        """Convert an interval."""
        return cls(*interval)


class CorrectedShare(Struct, frozen=True):
    """A share corrected for the judge's error, by a method and a number of labels."""

    share: Estimate
    method: str
    labels: int


class Cost(Struct):
    """Cost of evaluations in USD; ``unpriced`` ones have an unknown cost and are in neither sum."""

    usd: float = 0.0
    evaluations: int = 0
    unpriced: int = 0

    @property
    def per_thousand(self) -> float | None:
        """USD per thousand evaluations of known cost."""
        return 1000 * self.usd / self.evaluations if self.evaluations else None


class Point(Struct, frozen=True):
    """One mark of a chart: the share of a day, or of an hour in a period of up to two days."""

    begins_at: dt.datetime
    share: Estimate
    judgements: int


class Row(Struct, frozen=True, kw_only=True):
    """The figures of one metric of one judge.

    Attributes:
        labels: The keys of the report with their values.
        share: Weighted pass share; null without a judgement.
        judgements: Verdicts that pass or fail.
        effective_n: Independent, equally weighted judgements that would be as precise.
        compared: The share of the compared period.
        compared_judgements: Its judgements.
        difference: share - compared, in shares.
        corrected: The share corrected by labels, by each method that the labels allow.
        verdicts: Judgements, abstained and unscored.
        traffic: Traces that the verdicts stand for: the sum of their weights.
        abstained: Weighted share of abstained verdicts.
        unscored: Weighted share of unscored verdicts.
        usd_per_thousand: Cost of a thousand evaluations in USD; null where unknown.
        points: Shares over time.
    """

    labels: Mapping[str, str]
    share: Estimate | None
    judgements: int
    effective_n: float | None
    compared: Estimate | None
    compared_judgements: int
    difference: Estimate | None
    corrected: Sequence[CorrectedShare]
    verdicts: int
    traffic: float
    abstained: Estimate | None
    unscored: Estimate | None
    usd_per_thousand: float | None
    points: Sequence[Point]

    @property
    def name(self) -> str:
        """The values of the labels, for sentences."""
        values = [value for key, value in self.labels.items() if value and key != "metric"]
        metric = self.labels["metric"]
        return " ".join(values if metric == self.labels["judge"] else [*values, metric])


class Coverage(Struct, frozen=True, kw_only=True):
    """What became of the traces of the whole installation, in whole days (UTC)."""

    first_day: dt.date
    last_day: dt.date
    published: int
    dropped: int
    cut_off: int
    invalid: int
    no_rule: int
    not_sampled: int
    shed: int
    sampled: int
    chosen: int
    scored: int
    abstained: int
    unscored: int
    dead: int
    reasons: Mapping[str, int]
    """Unscored evaluations by reason."""


class Limit(Struct, frozen=True):
    """One thing that the figures cannot say."""

    code: str
    text: str


class Sources(Struct, frozen=True):
    """Which source gave which figure, in words."""

    shares: str
    cost: str
    coverage: str


class Part(NamedTuple):
    """Sums of verdicts with the same labels, judge version and judge model."""

    labels: Labels
    version: str
    judge_model: str
    buckets: Sequence[Bucket]


class Evidence(NamedTuple):
    """What the sources hold about a scope."""

    parts: Sequence[Part]
    costs: Mapping[Labels, Cost]
    coverage: Coverage | None
    sources: Sources
    limits: Sequence[Limit]
    corrected: Mapping[Labels, Sequence[CorrectedShare]] = {}


class Report(Struct, frozen=True, kw_only=True):
    """The report; the document of ``--format json``."""

    since: dt.datetime
    until: dt.datetime
    compared_since: dt.datetime | None
    compared_until: dt.datetime | None
    by: Sequence[str]
    sources: Sources
    coverage: Coverage | None
    rows: Sequence[Row]
    limits: Sequence[Limit]


def make_report(scope: Scope, found: Evidence) -> Report:
    """Compute the rows of all parts, sorted by their labels."""
    grouped: dict[Labels, list[Part]] = defaultdict(list)
    for part in found.parts:
        grouped[part.labels].append(part)
    rows, limits = [], list(found.limits)
    for labels, parts in sorted(grouped.items()):
        row = _row(scope, labels, parts, found)
        if row.verdicts or row.compared_judgements:
            rows.append(row)
            limits += _limits(scope, row, parts)
    limits += _cost_limits(rows, found.costs)
    return Report(
        since=time_of(scope.period.since),
        until=time_of(scope.period.until),
        compared_since=None if scope.compared is None else time_of(scope.compared.since),
        compared_until=None if scope.compared is None else time_of(scope.compared.until),
        by=scope.by,
        sources=found.sources,
        coverage=found.coverage,
        rows=rows,
        limits=limits,
    )


def difference(now: Interval, before: Interval) -> Interval:
    """Return the difference of two independent shares with its interval, made of both of theirs.

    The method of variance estimates recovery (Zou and Donner, Statistics in Medicine 27, 2008); with Wilson's
    intervals it is method 10 of Newcombe (Statistics in Medicine 17, 1998).
    """
    middle = now.value - before.value
    below = math.hypot(now.value - now.low, before.high - before.value)
    above = math.hypot(now.high - now.value, before.value - before.low)
    return Interval(middle, max(-1.0, middle - below), min(1.0, middle + above))


def time_of(at: float) -> dt.datetime:
    """Return a time in UTC."""
    return dt.datetime.fromtimestamp(at, dt.UTC)


def written(at: dt.datetime) -> str:
    """Write a time to the minute."""
    return f"{at:%Y-%m-%d %H:%M}"


def oldest_bucket(now: float) -> float:
    """Return the begin of the oldest day of which buckets are kept."""
    return (now // DAY_S - COARSE_DAYS + 1) * DAY_S


def _row(scope: Scope, labels: Labels, parts: Sequence[Part], found: Evidence) -> Row:
    buckets = [bucket for part in parts for bucket in part.buckets]
    inside = [bucket for bucket in buckets if bucket.begins_at in scope.period]
    history = merged(bucket.sums for bucket in buckets if bucket.begins_at not in scope.period)
    share = pass_share(window := merged(bucket.sums for bucket in inside), _usable(history))
    before, compared_judgements = None, 0
    if scope.compared is not None:
        compared = merged(bucket.sums for bucket in buckets if bucket.begins_at in scope.compared)
        before, compared_judgements = pass_share(compared, _usable(history)), compared.total.judgements
    effect = 1.0 if share is None else share.design_effect
    kinds = [(bucket.abstained, bucket.unscored) for bucket in inside]
    weights = [sum(kind[place].weight for kind in kinds) for place in (0, 1)]
    total = window.total
    traffic = total.weight + sum(weights)
    squares = total.squares + sum(one.squares for kind in kinds for one in kind)
    others = [
        Estimate.of(wilson(weight / traffic, traffic**2 / squares / effect)) if traffic > 0 else None
        for weight in weights
    ]
    return Row(
        labels=dict(labels),
        share=None if share is None else Estimate.of(share.interval),
        judgements=total.judgements,
        effective_n=None if share is None else share.effective,
        compared=None if before is None else Estimate.of(before.interval),
        compared_judgements=compared_judgements,
        difference=None
        if share is None or before is None
        else Estimate.of(difference(share.interval, before.interval)),
        corrected=list(found.corrected.get(labels, ())),
        verdicts=total.judgements + sum(one.verdicts for kind in kinds for one in kind),
        traffic=traffic,
        abstained=others[0],
        unscored=others[1],
        usd_per_thousand=found.costs[labels].per_thousand if labels in found.costs else None,
        points=list(_points(scope.period, inside, merged(bucket.sums for bucket in buckets))),
    )


def _usable(history: Sums) -> Sums | None:
    return history if history.total.weight > 0 else None


def _points(period: Period, buckets: Sequence[Bucket], history: Sums) -> Iterator[Point]:
    step = HOUR_S if period.until - period.since <= _HOURLY_POINTS_S else DAY_S
    grouped: dict[float, list[Sums]] = defaultdict(list)
    for bucket in buckets:
        grouped[bucket.begins_at // step * step].append(bucket.sums)
    for begins_at, sums in sorted(grouped.items()):
        share = pass_share(merged(sums), _usable(history))
        if share is not None:
            yield Point(time_of(begins_at), Estimate.of(share.interval), share.judgements)


def _limits(scope: Scope, row: Row, parts: Sequence[Part]) -> Iterator[Limit]:
    """Yield what the figures of one row cannot say."""
    if row.judgements < LEAST_JUDGEMENTS:
        yield Limit("few_judgements", f"{row.name}: {row.judgements} judgements are too few for a share")
    elif scope.compared is not None and row.compared_judgements < LEAST_JUDGEMENTS:
        text = f"{row.name}: {row.compared_judgements} judgements in the compared period are too few for a difference"
        yield Limit("few_judgements", text)
    spans: dict[tuple[str, str], list[float]] = defaultdict(list)
    for part in parts:
        spans[part.version, part.judge_model] += [
            bucket.begins_at
            for bucket in part.buckets
            if bucket.begins_at in scope.period or (scope.compared is not None and bucket.begins_at in scope.compared)
        ]
    seen = sorted((min(times), max(times), *judge) for judge, times in spans.items() if times)
    if len(seen) > 1:
        each = [
            f"{version} by {model} ({written(time_of(first))} to {written(time_of(last + scope.step))})"
            for first, last, version, model in seen
        ]
        text = f"{row.name}: verdicts of {len(seen)} judge versions or models are added up: {', '.join(each)}"
        separating = ",".join(dict.fromkeys((*scope.by, "version", "judge_model")))
        yield Limit("judge_changed", f"{text}; --by {separating} separates them")


def _cost_limits(rows: Sequence[Row], costs: Mapping[Labels, Cost]) -> Iterator[Limit]:
    # Metrics of one judge share its evaluations.
    known = {labels[:-1]: costs[labels] for row in rows if (labels := tuple(row.labels.items())) in costs}.values()
    if unpriced := sum(cost.unpriced for cost in known):
        total = unpriced + sum(cost.evaluations for cost in known)
        yield Limit(
            "cost_unknown",
            f"{unpriced:,} of {total:,} evaluations have no cost: their model has no price, or reports no tokens",
        )


def encode(report: Report) -> str:
    """Write the report as one JSON document."""
    return msgspec.json.encode(report).decode()
