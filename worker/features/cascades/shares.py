"""The share of a cascade by its sums in Redis, and the factors of its second judgings.

`judges.agreement.cascade` defines the sums and estimates the share from them. They are of the last 24 whole hours that
ended an hour ago: until then second verdicts that are under way would look as if they were missing.
"""

import datetime as dt
import math
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Final

import msgspec
from msgspec import Struct

from judges.agreement.cascade import (
    MOST_FLOOR,
    CascadeSums,
    ClassKey,
    add_sums,
    estimate_cascade,
    plain_is_as_good,
    total_sums,
)
from judges.agreement.shares import ShareEstimate
from worker.base.monitor.counts import read_counts
from worker.base.monitor.series import DAY_S, HOUR_S, Series
from worker.core.storage.client import Store
from worker.features.cascades.feature import Cascade, CascadeKeys

SUMS_KIND: Final = "cascade_sums"
UNCERTAINTY_KIND: Final = "cascade_uncertainty"
_HOURS: Final = 24
UNIT: Final = 10**6  # Sums are counted in whole parts of this size; squares of weights are large.
UNITS: Final = dict.fromkeys(("spread", "squares", "refused_squares", "waiting_squares"), 10**4) | dict.fromkeys(
    ("first", "second", "refused", "waiting"), 1
)
_MIN_UNCERTAINTY: Final = 0.005
"""Models that round return a probability of exactly 0 or 1; without a minimum no factor would raise their rate."""
START_RATE: Final = 0.02  # The rate of a cascade with a budget until the cost of its second judgings is known.
_MOST_HOURS_ABSENT: Final = 4  # With fewer hours the second verdicts of a day are not known.


class CascadeShare(Struct, frozen=True):
    """The share of one cascade, metric and service in 24 hours; times are in seconds since the epoch."""

    series: Series  # Its judge model is the cascade.
    since: float
    until: float
    sums: CascadeSums
    estimate: ShareEstimate | None  # None with fewer than ten second verdicts.
    own_share: float  # The first model's own share.
    advice: str  # Where a plain sample is as good; else empty.

    @property
    def sentence(self) -> str:
        """The share with its name and what is not known of it."""
        series, estimate = self.series, self.estimate
        metric = "" if series.metric == series.judge else f" {series.metric}"
        second = f"{self.sums.second:,.0f} second verdicts"
        parts = [f"{second} are too few for a share"]
        if estimate is not None:
            parts = [estimate.interval.percent if estimate.known else "", estimate.unknown_text(0.0)]
        parts += [f"{second} of {self.sums.first:,.0f} first ones", self.advice]
        span = " to ".join(f"{dt.datetime.fromtimestamp(at, dt.UTC):%Y-%m-%d %H:%M}" for at in (self.since, self.until))
        name = f"{series.judge}{metric} of {series.service} by {series.judge_model}, {span} UTC"
        return f"{name}: {'; '.join(filter(None, parts))}"


def uncertainty(probabilities: Mapping[str, float]) -> float:
    """Return the standard deviation of the least certain metric, 0.005..0.5."""
    return max(_MIN_UNCERTAINTY, *(math.sqrt(g * (1 - g)) for g in probabilities.values()))


def second_rate(
    cascade: Cascade,
    probabilities: Mapping[str, float],
    factor: float | None,
    rate: float | None = None,
    floor: float | None = None,
) -> float:
    """Return the probability of a second judging.

    Args:
        cascade: The cascade.
        probabilities: That the metrics of the first verdict pass.
        factor: By which the uncertainty is multiplied; None if unknown.
        rate: The present mean rate of a cascade with a budget; None if unknown.
        floor: The least probability as a part of the rate; None if unknown.
    """
    if cascade.uncertain is not None:
        low, high = cascade.uncertain
        return 1.0 if any(low <= g <= high for g in probabilities.values()) else cascade.audit
    rate = cascade.rate or rate or START_RATE
    factor = 2 * rate if factor is None else factor
    return min(1.0, max((floor or MOST_FLOOR) * rate, factor * uncertainty(probabilities)))


def fitted_factor(rate: float, spread: Collection[tuple[float, float]], floor: float = MOST_FLOOR) -> float:
    """Return the factor by which the mean probability of a second judging is the rate.

    ``spread`` are uncertainties, each with its number of first verdicts.
    """
    total, (low, high) = sum(number for _, number in spread), (0.0, 1 / _MIN_UNCERTAINTY)
    for _ in range(50):
        factor = (low + high) / 2
        mean = sum(number * min(1.0, max(floor * rate, factor * each)) for each, number in spread) / total
        low, high = (factor, high) if mean < rate else (low, factor)
    return high


def factor_field(name: str, judge: str, version: str) -> str:
    """Return the field of a cascade's factor."""
    return msgspec.json.encode((name, judge, version)).decode()


def rate_field(name: str) -> str:
    """Return the field of the rate of a cascade with a budget."""
    return factor_field(name, "", "rate")


def floor_field(name: str, judge: str, version: str) -> str:
    """Return the field of the least probability of a cascade's second judgings, as a part of its rate."""
    return factor_field(name, judge, f"{version} floor")


def effect_field(series: Series) -> str:
    """Return the field of the design effect of a cascade whose first verdicts are drawn by session."""
    return msgspec.json.encode((*msgspec.structs.astuple(series)[:6], "effect")).decode()


def read_factors(store: Store) -> dict[str, float]:
    """Read the factors of all cascades by ``factor_field``, and what the other fields hold."""
    fields = store.call(lambda client: client.hgetall(CascadeKeys(store.keys.prefix).cascades))
    return {field.decode(): float(factor) for field, factor in fields.items()}


def read_shares(store: Store, now: float) -> list[CascadeShare]:
    """Estimate the shares of all cascades in the 24 whole hours that ended an hour ago."""
    until = (now // HOUR_S - 1) * HOUR_S
    since = until - DAY_S
    hours: defaultdict[tuple[str, ...], defaultdict[int, defaultdict[ClassKey, dict[str, float]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(dict))
    )
    for (hour, *labels, key, name), amount in read_counts(store, SUMS_KIND, since, until + DAY_S).items():
        if since <= int(hour) * HOUR_S < until:
            of_class = hours[tuple(labels)][int(hour)][key[0] == "1", int(key[1:])]
            of_class[name] = amount / UNITS.get(name, UNIT)
    factors = read_factors(store) if hours else {}
    shares = []
    for (service, environment, judge, version, cascade, metric), of_series in sorted(hours.items()):
        series = Series(service, environment, judge, version, cascade, metric)
        by_hour = [
            {key: _without_rest(CascadeSums(**amounts)) for key, amounts in of_series[hour].items()}
            for hour in sorted(of_series)
        ]
        classes = add_sums(by_hour)
        total = total_sums(classes)
        if total.weight <= 0:
            continue
        estimate = estimate_cascade(by_hour, factors.get(effect_field(series), 1.0))
        own = sum(sums.weight for (is_likely, _), sums in classes.items() if is_likely) / total.weight
        is_whole = len(by_hour) >= DAY_S // HOUR_S - _MOST_HOURS_ABSENT
        advice = plain_is_as_good(
            total.chosen / total.first,
            total.chosen if is_whole else None,
            None if estimate is None or not estimate.known else estimate.share,
        )
        shares.append(CascadeShare(series, since, until, total, estimate, own, advice))
    return shares


def _without_rest(sums: CascadeSums) -> CascadeSums:
    """Return the sums without what rounding leaves where nothing waits."""
    return sums if sums.waiting > 0 else sums._replace(waiting=0, waiting_weight=0, waiting_squares=0)


def read_of_day(store: Store, kind: str, now: float) -> dict[tuple[str, ...], int]:
    """Read the counts of the last 24 hours, the current one included; their first label is the hour since 1970."""
    # A worker's clock may be ahead of ours.
    counts = read_counts(store, kind, now - DAY_S, now + DAY_S)
    return {labels: count for labels, count in counts.items() if int(labels[0]) > now // HOUR_S - _HOURS}
