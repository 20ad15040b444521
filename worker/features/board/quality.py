"""Rows of the overview: the share of each service and judge, and its change against its own past.

A series that is older than a day is compared with the days before. A younger one has no baseline: its last minutes are
compared with the minutes before by the monitor's own detector, on the finest sums that exist.
"""

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from judges.agreement.intervals import Interval, difference
from judges.agreement.shares import ShareEstimate, Sums, estimate_share, merge_sums, sum_unjudged
from worker.base.monitor.baseline import flat
from worker.base.monitor.detection import Detector, read_detectors
from worker.base.monitor.detector import Limits, Moments, State, limits_of, step
from worker.base.monitor.incidents import Incident
from worker.base.monitor.series import (
    DAY_S,
    FIVE_MINUTES_S,
    HOUR_S,
    TEN_SECONDS_S,
    Bucket,
    Series,
    read_buckets,
    read_newest_buckets,
    read_series,
)
from worker.core.storage.client import Store

PERIODS: Final[Mapping[str, tuple[str, int, int]]] = {
    "24h": ("24 h", DAY_S, 7 * DAY_S),
    "7d": ("7 d", 7 * DAY_S, 7 * DAY_S),
    "30d": ("30 d", 30 * DAY_S, 30 * DAY_S),
}
"""By the name in addresses: the name that people read, the length, and the length of what it is compared with."""
DEFAULT_PERIOD: Final = "24h"
_MOST_SERIES: Final = 400
_FALL: Final = 0.02  # A smaller change is no news, however certain.
_LEAST_BEFORE: Final = 20  # Judgements before a fall can be looked for: the limit of fewer is no share to fall from.
_LEAST_HORIZON: Final = 200.0  # Verdicts that the budget of false alarms is for, if there are fewer.
_LEAST_COMPARED: Final = 5
_DASH: Final = "\u2013"  # As people write spans.


class Row(NamedTuple):
    """One service and judge with its figures. Times are in seconds since the epoch."""

    series: Series  # The newest judge version.
    former: Sequence[Series]  # The same metric by other versions of the judge, the newest first.
    buckets: Sequence[Bucket]  # The sums of this version, in order; those of the last day and hour may be finer.
    history: Sums  # All of them together, which steady the intervals of single marks.
    detector: Detector
    since: float  # When the share that is shown began,
    first: float  # and the time before that it is compared with.
    is_fall: bool = False  # Whether the detector finds a fall of a series that has no baseline yet.
    is_young: bool = False  # Whether it is younger than a day.
    now: ShareEstimate | None = None  # The share since then.
    before: ShareEstimate | None = None  # The share of what it is compared with.
    verdicts: int = 0  # All verdicts of the period.
    unscored: float = 0.0  # The share of them without a score.
    abstained: float = 0.0

    @property
    def title(self) -> str:
        """The names of the judge and its metric."""
        series = self.series
        return series.judge if series.metric == series.judge else f"{series.judge} {series.metric}"

    @property
    def reference(self) -> str:
        """What it is compared with, as text; empty without verdicts then."""
        return written_span(self.first, self.since) if self.before is not None else ""

    @property
    def incident(self) -> Incident | None:
        """The open incident of the monitor."""
        return self.detector.incident

    @property
    def change(self) -> Interval | None:
        """The difference of both shares; None if one of them is not known or of very few judgements."""
        now, before = self.now, self.before
        if now is None or before is None or min(now.judgements, before.judgements) < _LEAST_COMPARED:
            return None
        if not (now.known and before.known):
            return None
        return difference(now.interval, before.interval)

    @property
    def is_bad(self) -> bool:
        """Whether an incident is open, or the share fell beyond the interval of the change."""
        change, fell = self.change, False
        if change is not None and change.value <= -_FALL and self.now is not None and self.before is not None:
            fell = fell_surely(self.now, self.before)
        return self.incident is not None or self.is_fall or fell

    @property
    def owner(self) -> tuple[str, str]:
        """The service and its environment."""
        return self.series.service, self.series.environment

    def is_bad_of(self, owner: tuple[str, str]) -> bool:
        """Whether something of a service got worse."""
        return self.is_bad and self.owner == owner

    @property
    def order(self) -> tuple[object, ...]:
        """What rows are sorted by: incidents, falls beyond chance by their certain part, the change, the share."""
        change = self.change
        fall = 0.0 if change is None else change.high if self.is_bad else change.value
        share = 2.0 if self.now is None else self.now.interval.value
        return (self.incident is None, not self.is_fall, not self.is_bad, fall, share, self.series.service, self.title)


def read_rows(store: Store, period: str, now: float, false_alarms_per_week: float = 1.0) -> list[Row]:
    """Read the rows of a period, what got worse first."""
    _, length, compared = PERIODS[period]
    families: dict[Series, list[Series]] = defaultdict(list)
    whole = [series for series in read_series(store).values() if not series.segment]
    detectors: dict[str, Detector] = {}
    if len(whole) > _MOST_SERIES:
        detectors = read_detectors(store, [series.id for series in whole])
        whole.sort(key=lambda series: detectors[series.id].incident is None)
        del whole[_MOST_SERIES:]
    for series in whole:
        families[msgspec.structs.replace(series, version="")].append(series)
    ids = [series.id for series in whole]
    spans = read_buckets(store, ids, now - length - compared, now + HOUR_S, fine=False)
    hours = {series_id: buckets for series_id, buckets in zip(ids, spans, strict=True) if buckets}
    detectors = detectors or read_detectors(store, list(hours))
    chosen = []
    for family in families.values():
        versions = sorted((each for each in family if each.id in hours), key=lambda each: _begin(hours[each.id]))
        if versions and hours[versions[-1].id][-1].begins_at >= now - length - HOUR_S:
            chosen.append((versions[-1], versions[-2::-1]))
    young = {series.id for series, _ in chosen if _begin(hours[series.id]) >= now - DAY_S}
    fine_ids = [each.id for each, _ in chosen if each.id in young or detectors[each.id].incident is not None]
    buckets = hours | read_fine(store, fine_ids, hours, now)
    falls = {
        series_id: since
        for series_id in young
        if (since := find_fall(buckets[series_id], len(young), false_alarms_per_week)) is not None
    }
    first_fall: dict[str, float] = {}
    for series, _ in chosen:
        if series.id in falls:
            first_fall[series.environment] = min(falls[series.id], first_fall.get(series.environment, now))
    rows = []
    for series, former in chosen:
        of_series, incident = buckets[series.id], detectors[series.id].incident
        begin, end = _begin(of_series), of_series[-1].begins_at
        if incident is not None:
            fell = float(incident.since * FIVE_MINUTES_S)
            since, first = max(fell, now - length), fell - compared
        elif series.id in young:
            # What fell elsewhere may have fallen here too.
            common = falls.get(series.id, first_fall.get(series.environment, 0.0))
            # By its last verdicts: a burst that is over has none in the minutes before now.
            since = common if begin < common <= end else end - min(HOUR_S, (end - begin) / 2)
            first = begin
        else:
            since = now - min(length, (now - begin) / 2)
            first = since - compared
        history = merge_sums(bucket.sums for bucket in of_series)
        row = Row(series, former, of_series, history, detectors[series.id], since, max(first, begin))
        row = row._replace(is_fall=series.id in falls, is_young=series.id in young)
        rows.append(compare(row, now - length))
    return sorted(rows, key=lambda row: row.order)


def _begin(buckets: Sequence[Bucket]) -> float:
    return buckets[0].begins_at


def read_fine(
    store: Store, ids: Sequence[str], hours: Mapping[str, Sequence[Bucket]], now: float
) -> dict[str, list[Bucket]]:
    """Replace the hours of the last day by five minutes, and of the last hour by ten seconds where these are whole."""
    edge = (now - DAY_S) // HOUR_S * HOUR_S
    begin = max(edge, min((hours[series_id][0].begins_at for series_id in ids if hours[series_id]), default=now))
    fives = read_buckets(store, ids, begin, now + HOUR_S, fine=True)
    tens = read_newest_buckets(store, ids, max(begin, now - HOUR_S), now + 60)
    # Both are read in chunks at the same time: a bucket that grows meanwhile has more in its tens.
    return {
        series_id: [*(hour for hour in hours[series_id] if hour.begins_at < edge), *finest(of_fives, of_tens)]
        for series_id, of_fives, of_tens in zip(ids, fives, tens, strict=True)
    }


def finest(fives: Sequence[Bucket], tens: Sequence[Bucket]) -> list[Bucket]:
    """Replace buckets of five minutes by those of ten seconds that hold all of their verdicts."""
    chosen: list[Bucket] = []
    for five in fives:
        of_five = [ten for ten in tens if 0 <= ten.begins_at - five.begins_at < FIVE_MINUTES_S]
        chosen += of_five if sum(ten.verdicts for ten in of_five) >= five.verdicts else [five]
    return chosen


def find_fall(buckets: Sequence[Bucket], series: int, false_alarms_per_week: float = 1.0) -> float | None:
    """Return when the open fall of a series without a baseline began, None without one.

    The detector's own sums, with the verdicts before they left zero in place of a baseline. Its error is the error of a
    share of few verdicts: they are compared with the lower limit of its interval. ``series`` are compared so.
    """
    state, before, pending, learned = State(), Sums(), Sums(), 0
    limits: Limits | None = None
    expected: Sequence[float] = ()
    past = before.total
    total = merge_sums(bucket.sums for bucket in buckets).total
    # The budget is that of the time so far: such a series lives for less than a day.
    so_far = max(_LEAST_HORIZON, total.weight**2 / total.squares) if total.weight > 0 else 0.0
    for bucket in buckets:
        judged = bucket.sums.total
        if judged.weight <= 0:
            continue
        if state.alarm < 0 and max(state.sums) <= 0:
            before.add(pending)
            pending, past = Sums(), before.total
        # Limits take longer to compute than a step, and hardly change with a few more verdicts.
        if past.judgements >= max(_LEAST_BEFORE, 1.3 * learned) and (share := estimate_share(before)) is not None:
            norm = flat(share.interval.low, so_far, dispersion=share.design_effect)
            # One hour stands for all, which are alike.
            norm = msgspec.structs.replace(norm, cells=norm.cells[:1])
            limits = limits_of(norm, Moments(), series=series, false_alarms_per_week=false_alarms_per_week)
            learned, expected = past.judgements, norm.expected(0)
        pending.add(bucket.sums)
        if limits is not None:
            # Where rates fell, one judgement must not count as many.
            unit = max(judged.squares / judged.weight, past.squares / past.weight)
            failed, number = (judged.weight - judged.passed) / unit, int(bucket.begins_at) // TEN_SECONDS_S
            # As in the monitor unknown verdicts pass until there is a fall.
            unknown = bucket.sums.unknown.weight if state.since is None else 0.0
            passed = (judged.passed + unknown) / unit
            change = step(state, number, passed, failed, expected=expected, limits=limits)
            if change is not None and change.kind == "recovery":
                pending = Sums()
    return None if state.since is None else state.since * float(TEN_SECONDS_S)


def divide(buckets: Iterable[Bucket], row: Row) -> tuple[Sums, Sums]:
    """Add up the buckets before and since the time that a row compares."""
    sums = (Sums(), Sums())
    for bucket in buckets:
        if bucket.begins_at >= row.first:
            sums[bucket.begins_at >= row.since].add(bucket.sums)
    return sums


def compare(row: Row, period_began: float) -> Row:
    """Add the shares of a row, and what its period holds."""
    before, since = divide(row.buckets, row)
    inside = [bucket for bucket in row.buckets if bucket.begins_at >= period_began]
    judged = merge_sums(bucket.sums for bucket in inside).total
    unscored = sum_unjudged(bucket.unscored for bucket in inside)
    abstained = sum_unjudged(bucket.abstained for bucket in inside)
    weight = judged.weight + unscored.weight + abstained.weight or 1.0
    return row._replace(
        now=estimate_share(since, row.detector.history),
        before=estimate_share(before, row.detector.history),
        verdicts=judged.judgements + unscored.verdicts + abstained.verdicts,
        unscored=unscored.weight / weight,
        abstained=abstained.weight / weight,
    )


def fell_surely(now: ShareEstimate, before: ShareEstimate) -> bool:
    """Whether a share is lower than before, also if all unknown verdicts had passed."""
    return difference(now.interval._replace(high=now.highest), before.interval).high < 0


def written_span(since: float, until: float) -> str:
    """Write a span of time (UTC) as short as it can be read: times of a day, or days."""
    if until - since > DAY_S:
        return _DASH.join(f"{dt.datetime.fromtimestamp(at, dt.UTC):%-d %b}" for at in (since, until))
    return _DASH.join(clock(at, until, precise=until - since < 2 * FIVE_MINUTES_S) for at in (since, until))


def clock(at: float, now: float, *, precise: bool = False) -> str:
    """Write a time (UTC), with its day if that is not today."""
    time = dt.datetime.fromtimestamp(at, dt.UTC)
    day = "" if at // DAY_S == now // DAY_S else f"{time:%-d %b} "
    return f"{day}{time:%H:%M:%S}" if precise else f"{day}{time:%H:%M}"
