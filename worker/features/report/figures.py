"""Figures of the report, computed from sums of verdicts. Pure: no Redis, no files, no clock.

A row is one metric of one judge, for each value of the keys that the user asked for. Shares of different judges or
metrics measure different things, so they are never added up.
"""

import datetime as dt
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final, NamedTuple, get_args

import msgspec
from msgspec import Struct

from judges.agreement.cascade import CascadeSums
from judges.agreement.intervals import difference, wilson
from judges.agreement.shares import (
    UNKNOWN_MENTIONED,
    ShareEstimate,
    Sums,
    estimate_share,
    merge_sums,
    sum_unjudged,
    unknown_part,
)
from worker.base.monitor.baseline import HISTORY_DAYS, LAG_HOURS
from worker.base.monitor.series import COARSE_DAYS, DAY_S, FINE_DAYS, FIVE_MINUTES_S, HOUR_S, Bucket
from worker.base.monitor.votes import Votes
from worker.core.config.settings import SeriesLabel

SERIES_KEYS: Final = ("service", "environment", "judge", "version", "judge_model", "metric")
SEGMENT_KEYS: Final[tuple[str, ...]] = (*get_args(SeriesLabel), "prompt_version", "guideline")
LEAST_JUDGEMENTS: Final = 5
_MOST_NAMES: Final = 5

Labels = tuple[tuple[str, str], ...]  # Keys with their values, in the order of `Scope.keys`.


class Period(NamedTuple):
    """A span of time in seconds since the epoch; the end is not included."""

    since: float
    until: float

    def __contains__(self, at: object) -> bool:
        return isinstance(at, int | float) and self.since <= at < self.until


class Scope(NamedTuple):
    """The requested report; periods consist of whole buckets of ``step`` seconds."""

    period: Period
    compared: Period | None
    by: tuple[str, ...]
    service: str | None = None
    judges: tuple[str, ...] = ()
    step: int = HOUR_S
    now: float = math.inf

    @classmethod
    def from_options(  # noqa: PLR0917 - the options of the command
        cls,
        period: Period,
        shift_s: float | None,
        by: Sequence[str],
        service: str | None,
        judges: Sequence[str],
        now: float,
    ) -> "Scope":
        """Choose the buckets: five minutes for a few hours of the last days, else an hour.

        The compared period lies ``shift_s`` earlier; None compares with nothing. ``by`` are keys of `SERIES_KEYS` and
        `SEGMENT_KEYS`, or `tags.NAME`; ``service`` is a pattern, ``judges`` are names, all if empty.
        """
        first = period.since - (shift_s or 0.0)
        is_short = period.until - period.since <= 6 * HOUR_S and first > now - FINE_DAYS * DAY_S + HOUR_S
        step = FIVE_MINUTES_S if is_short else HOUR_S
        # Both ends move up, so that the last seven days and those before them share no bucket.
        until = math.ceil(period.until / step) * step
        since = min(math.ceil(period.since / step) * step, until - step)
        earlier = None if shift_s is None else math.ceil(shift_s / step) * step
        compared = None if earlier is None else Period(since - earlier, until - earlier)
        return cls(Period(since, until), compared, tuple(by), service, tuple(judges), step, now)

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

    @property
    def lag(self) -> float:
        """The time up to which verdicts steady the design effect, as the monitor takes them."""
        return self.period.until - LAG_HOURS * HOUR_S

    def covers(self, at: float) -> bool:
        """Return whether a time lies in the period or in the compared one."""
        return at in self.period or (self.compared is not None and at in self.compared)

    @property
    def point_s(self) -> int:
        """The length of what a mark of a chart is of, in seconds."""
        return HOUR_S if self.period.until - self.period.since <= 2 * DAY_S else DAY_S

    def condensed(self, buckets: Iterable[Bucket]) -> list[Bucket]:
        """Add up buckets that belong to the same periods and the same mark of a chart; each begins with its first.

        A thousand series of a month have a million buckets.
        """
        grouped: dict[tuple[bool, bool, float], list[Bucket]] = defaultdict(list)
        for bucket in buckets:
            at = bucket.begins_at
            is_inside, is_compared = at in self.period, self.compared is not None and at in self.compared
            grouped[is_inside, is_compared, at // self.point_s if is_inside else 0].append(bucket)
        return [
            Bucket(
                min(bucket.begins_at for bucket in group),
                merge_sums(bucket.sums for bucket in group),
                sum_unjudged(bucket.abstained for bucket in group),
                sum_unjudged(bucket.inapplicable for bucket in group),
            )
            for group in grouped.values()
        ]

    def wants(self, service: str, judge: str) -> bool:
        """Return whether verdicts of a service by a judge are asked for."""
        return fnmatchcase(service, self.service or "*") and (not self.judges or judge in self.judges)


class Estimate(Struct, frozen=True):
    """A figure with the limits of its 95 % interval."""

    value: float
    low: float
    high: float


class CascadeRow(Struct, frozen=True):
    """The share of a cascade in 24 whole hours."""

    labels: Mapping[str, str]
    since: dt.datetime
    until: dt.datetime
    share: ShareEstimate | None  # None with too few second verdicts.
    sums: CascadeSums
    text: str  # All of it in one line, with what is not known, and where a plain sample is as good.


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
    without_images: int = 0  # Of both, those in which the model did not see all images.

    @property
    def per_thousand(self) -> float | None:
        """USD per thousand evaluations of known cost."""
        return 1000 * self.usd / self.evaluations if self.evaluations else None


class Point(Struct, frozen=True):
    """One mark of a chart: the share of a day, or of an hour in a period of up to two days."""

    begins_at: dt.datetime
    share: Estimate
    judgements: int


def name_of(labels: Mapping[str, str]) -> str:
    """Return the values of labels, for sentences; the only metric of a judge is named once."""
    values = [value for key, value in labels.items() if value and key != "metric"]
    return " ".join(values if labels["metric"] == labels.get("judge") else [*values, labels["metric"]])


class Row(Struct, frozen=True, kw_only=True):
    """The figures of one metric of one judge."""

    labels: Mapping[str, str]  # The keys of the report with their values.
    share: Estimate | None  # Weighted pass share; null without a judgement.
    judgements: int  # Verdicts that pass or fail.
    unknown: float = 0.0  # The part of the verdicts that was asked for and not given; above .1 no share is known.
    lowest: float | None = None  # The limits that these allow; null where they are at most .02.
    highest: float | None = None
    unknown_text: str = ""  # What is not known, in one sentence.
    judged_text: str = ""  # The share of what was judged, where the whole is not known.
    effective_n: float | None  # Independent, equally weighted judgements that would be as precise.
    compared: Estimate | None  # The share of the compared period.
    compared_judgements: int  # Its judgements.
    difference: Estimate | None  # share - compared, in shares.
    corrected: Sequence[CorrectedShare]  # The share corrected by labels, by each method that the labels allow.
    verdicts: int  # Judgements, abstained and unscored.
    traffic: float  # Traces that the verdicts stand for: the sum of their weights.
    abstained: Estimate | None  # Weighted share of abstained verdicts.
    unscored: Estimate | None  # Weighted share of unscored verdicts.
    usd_per_thousand: float | None  # Cost of a thousand evaluations in USD; null if unknown.
    points: Sequence[Point]  # Shares over time.

    @property
    def name(self) -> str:
        """The values of the labels, for sentences."""
        return name_of(self.labels)


class Coverage(Struct, frozen=True, kw_only=True):
    """The outcomes of all traces of the installation, in whole days (UTC)."""

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
    reasons: Mapping[str, int]  # Unscored evaluations by reason.


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
    """Sums of verdicts with the same labels, judge version and judge model, in buckets of `Scope.condensed`."""

    labels: Labels
    version: str
    judge_model: str
    buckets: Sequence[Bucket]
    history: Sums  # Of four weeks, as the monitor takes them, which steady the design effect of sessions.


class Evidence(NamedTuple):
    """The data of a scope in all sources."""

    parts: Sequence[Part]
    costs: Mapping[Labels, Cost]
    coverage: Coverage | None
    sources: Sources
    limits: Sequence[Limit]
    corrected: Mapping[Labels, Sequence[CorrectedShare]] = {}
    newest: Mapping[tuple[str, str], float] = {}
    """Services and judges with the time of their newest verdict, 0 if not known; only if the period has none."""
    cascades: Sequence[CascadeRow] = ()
    votes: Sequence[Votes] = ()


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
    cascades: Sequence[CascadeRow] = ()
    votes: Sequence[Votes] = ()


def make_report(scope: Scope, evidence: Evidence) -> Report:
    """Compute the rows of all parts, sorted by their labels."""
    # Several series may be one row: of other judge versions, or for keys that were not asked for.
    grouped: dict[Labels, list[Part]] = defaultdict(list)
    for part in evidence.parts:
        grouped[part.labels].append(part)
    made = {labels: make_row(scope, labels, parts, evidence) for labels, parts in sorted(grouped.items())}
    rows = {labels: row for labels, row in made.items() if row.verdicts or row.compared_judgements}
    texts = ((row.name, row.unknown_text) for row in rows.values())
    unknown = [Limit("unknown_verdicts", f"{name}: {text}") for name, text in texts if text]
    unknown += _without_images(rows, evidence.costs)
    absent = [
        Limit("no_values", f"no {key} in these verdicts")
        for key in scope.by
        if rows and not any(row.labels[key] for row in rows.values())
    ]
    if rows and scope.compared is not None and not any(row.compared_judgements for row in rows.values()):
        span = f"{written(time_of(scope.compared.since))} and {written(time_of(scope.compared.until))}"
        absent.append(Limit("nothing_compared", f"nothing to compare with: no judgements between {span} UTC"))
    return Report(
        since=time_of(scope.period.since),
        until=time_of(min(scope.period.until, scope.now)),  # The last bucket ends later.
        compared_since=None if scope.compared is None else time_of(scope.compared.since),
        compared_until=None if scope.compared is None else time_of(scope.compared.until),
        by=scope.by,
        sources=evidence.sources,
        coverage=evidence.coverage,
        rows=list(rows.values()),
        cascades=evidence.cascades,
        votes=evidence.votes,
        limits=[*evidence.limits, *absent, *unknown, *_limits(scope, rows, grouped, evidence.costs)],
    )


def time_of(at: float) -> dt.datetime:
    """Return a time in UTC."""
    return dt.datetime.fromtimestamp(at, dt.UTC)


def written(at: dt.datetime) -> str:
    """Write a time to the minute."""
    return f"{at:%Y-%m-%d %H:%M}"


def oldest_bucket(now: float) -> float:
    """Return the begin of the oldest day of which buckets are kept."""
    return (now // DAY_S - COARSE_DAYS + 1) * DAY_S


def make_row(scope: Scope, labels: Labels, parts: Sequence[Part], evidence: Evidence) -> Row:
    """Compute the figures of the parts with the same labels."""
    buckets = [bucket for part in parts for bucket in part.buckets]
    inside = [bucket for bucket in buckets if bucket.begins_at in scope.period]
    history = merge_sums(part.history for part in parts)
    share = _share_of(buckets, scope.period, history)
    before = None if scope.compared is None else _share_of(buckets, scope.compared, history)
    # Verdicts without a pass or fail come from the same sessions, so the same design effect widens their intervals.
    effect = 1.0 if share is None else share.design_effect
    kinds = [(bucket.abstained, bucket.unscored) for bucket in inside]
    weights = [sum(kind[place].weight for kind in kinds) for place in (0, 1)]
    window = merge_sums(bucket.sums for bucket in inside)
    # A metric without a pass rule has no share that could be unknown.
    is_rated = any(bucket.sums.classes for bucket in buckets)
    total, unknown = window.total, unknown_part(window) if is_rated else 0.0
    is_mentioned = unknown > UNKNOWN_MENTIONED
    traffic = total.weight + sum(weights)
    squares = total.squares + sum(count.squares for kind in kinds for count in kind)
    abstained_unscored = [
        Estimate(*wilson(weight / traffic, traffic**2 / squares / effect)) if traffic > 0 else None
        for weight in weights
    ]
    # One point has too few sessions for a design effect of its own.
    whole, grouped = merge_sums(bucket.sums for bucket in buckets), defaultdict[float, list[Sums]](list)
    for bucket in inside:
        grouped[bucket.begins_at // scope.point_s * scope.point_s].append(bucket.sums)
    shares = ((begins_at, estimate_share(merge_sums(sums), whole)) for begins_at, sums in sorted(grouped.items()))
    are_known = share is not None and before is not None and share.known and before.known
    return Row(
        labels=dict(labels),
        share=None if share is None else Estimate(*share.interval),
        judgements=total.judgements,
        unknown=unknown,
        lowest=None if not is_mentioned else 0.0 if share is None else share.lowest,
        highest=None if not is_mentioned else 1.0 if share is None else share.highest,
        unknown_text="" if share is None else share.unknown_text(),
        judged_text="" if share is None or share.known else share.judged_text,
        effective_n=None if share is None else share.effective,
        compared=None if before is None else Estimate(*before.interval),
        compared_judgements=0 if before is None else before.judgements,
        difference=Estimate(*difference(share.interval, before.interval)) if share and before and are_known else None,
        corrected=list(evidence.corrected.get(labels, ())),
        verdicts=total.judgements + sum(count.verdicts for kind in kinds for count in kind),
        traffic=traffic,
        abstained=abstained_unscored[0],
        unscored=abstained_unscored[1],
        usd_per_thousand=evidence.costs[labels].per_thousand if labels in evidence.costs else None,
        points=[
            Point(time_of(begins_at), Estimate(*share.interval), share.judgements)
            for begins_at, share in shares
            if share is not None
        ],
    )


def _share_of(buckets: Sequence[Bucket], period: Period, history: Sums) -> ShareEstimate | None:
    return estimate_share(merge_sums(bucket.sums for bucket in buckets if bucket.begins_at in period), history)


def _limits(
    scope: Scope, rows: Mapping[Labels, Row], grouped: Mapping[Labels, Sequence[Part]], costs: Mapping[Labels, Cost]
) -> Iterator[Limit]:
    """Yield what the figures of rows cannot say; rows with the same limit share its text."""
    if none := [row.name for row in rows.values() if not row.judgements]:
        text = "no verdict passes or fails: the metric has no pass rule, or the judge gave no score"
        yield Limit("no_judgements", f"{text}: {_listed(none)}")
    text = f"fewer than {LEAST_JUDGEMENTS} judgements are too few"
    if few := [row.name for row in rows.values() if 0 < row.judgements < LEAST_JUDGEMENTS]:
        yield Limit("few_judgements", f"{text} for a share: {_listed(few)}")
    few = [row.name for row in rows.values() if row.compared_judgements < LEAST_JUDGEMENTS <= row.judgements]
    if few and scope.compared is not None:
        yield Limit("few_judgements", f"{text} for a difference; the compared period has no more: {_listed(few)}")
    changed: dict[str, list[str]] = defaultdict(list)
    for labels, row in rows.items():
        # A new version gets its own series, so its first bucket is the time of the change.
        begins: dict[tuple[str, str], float] = {}
        for part in grouped[labels]:
            times = [bucket.begins_at for bucket in part.buckets if scope.covers(bucket.begins_at)]
            if times:
                judge = part.version, part.judge_model
                begins[judge] = min(*times, begins.get(judge, times[0]))
        if len(begins) > 1:
            first = sorted((at, *judge) for judge, at in begins.items())
            each = [f"{version} by {model} from {written(time_of(at))}" for at, version, model in first]
            changed[", ".join(each)].append(row.name)
    separating = ",".join(dict.fromkeys((*scope.by, "version", "judge_model")))
    for judges, names in changed.items():
        text = f"verdicts of several judge versions or models are added up ({judges}): {_listed(names)}"
        yield Limit("judge_changed", f"{text}; --by {separating} separates them")
    # Metrics, the last label, of one judge share its evaluations.
    priced = {labels[:-1]: costs[labels] for labels in rows if labels in costs}.values()
    if unpriced := sum(cost.unpriced for cost in priced):
        total = unpriced + sum(cost.evaluations for cost in priced)
        text = f"{unpriced:,} of {total:,} evaluations have no cost: their model has no price, or reports no tokens"
        yield Limit("cost_unknown", text)


def _without_images(rows: Mapping[Labels, Row], costs: Mapping[Labels, Cost]) -> Iterator[Limit]:
    """Yield how many evaluations of each row were judged without all images of their traces."""
    counts = {row.name: costs[labels].without_images for labels, row in rows.items() if labels in costs}
    if names := [f"{name} ({count:,})" for name, count in counts.items() if count]:
        yield Limit("images_left_out", f"evaluations that were judged without images of their traces: {_listed(names)}")


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more:,} more" if more > 0 else "")


def encode(report: Report) -> str:
    """Write the report as one JSON document."""
    return msgspec.json.encode(report).decode()
