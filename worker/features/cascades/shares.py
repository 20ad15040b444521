"""The share of a cascade: its sums in Redis, the gauges of its share, and the factors of its second judgings.

`judges.agreement.cascade` defines the sums and estimates the share from them. They are of the last 24 whole hours that
ended an hour ago: until then second verdicts that are under way would look as if they were missing.
"""

import datetime as dt
import math
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from operator import sub
from typing import Any, Final

import msgspec
from msgspec import Struct
from prometheus_client import Gauge

from judges.agreement.arrays import sums_of_verdict
from judges.agreement.cascade import (
    MOST_FLOOR,
    CascadeSums,
    ClassKey,
    add_sums,
    class_key,
    estimate_cascade,
    plain_is_as_good,
    second_floor,
    total_sums,
)
from judges.agreement.shares import ShareEstimate, design_effect
from judges.core.verdict import PASSING_REASONS, Verdict
from worker.base.monitor.counts import Increment, read_counts, step_of
from worker.base.monitor.detection import read_detectors
from worker.base.monitor.gauges import QUALITY, MonitorParts, QualityMetrics, Sample, Watch
from worker.base.monitor.series import DAY_S, HOUR_S, VERSION_DIGITS, Series
from worker.core.config.settings import NANO
from worker.core.queue.batch import CascadeStep
from worker.core.selection.sampling import is_by_session
from worker.core.storage.client import Store
from worker.core.telemetry.metrics import Metric, MetricTable
from worker.features.cascades.feature import CASCADES, Cascade, CascadeKeys

_KIND: Final = "cascade_sums"
_UNCERTAINTY_KIND: Final = "cascade_uncertainty"
_KEEP_DAYS: Final = 3
_HOURS: Final = 24
_UNIT: Final = 10**6  # Sums are counted in whole parts of this size; squares of weights are large.
_UNITS: Final = dict.fromkeys(("spread", "squares", "refused_squares", "waiting_squares"), 10**4) | dict.fromkeys(
    ("first", "second", "refused", "waiting"), 1
)
_BINS: Final = 50
_MIN_UNCERTAINTY: Final = 0.005
"""Models that round return a probability of exactly 0 or 1; without a minimum no factor would raise their rate."""
START_RATE: Final = 0.02  # The rate of a cascade with a budget until the cost of its second judgings is known.
_COST_KIND: Final = "cascade_cost"
_ENOUGH_COSTS: Final = 20
_ENOUGH_VERDICTS: Final = 200
_MOST_HOURS_ABSENT: Final = 4  # With fewer hours the second verdicts of a day are not known.
_SHARES_EVERY_S: Final = 300.0


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


def _effect_field(series: Series) -> str:
    """Return the field of the design effect of a cascade whose first verdicts are drawn by session."""
    return msgspec.json.encode((*msgspec.structs.astuple(series)[:6], "effect")).decode()


def read_factors(store: Store) -> dict[str, float]:
    """Read the factors of all cascades by ``factor_field``, and what the other fields hold."""
    fields = store.call(lambda client: client.hgetall(CascadeKeys(store.keys.prefix).cascades))
    return {field.decode(): float(factor) for field, factor in fields.items()}


class CascadeMetrics(MetricTable):
    """The gauges of cascades."""

    # fmt: off
    cascade_second = Metric(Gauge, "cascade_second_verdicts", "verdicts", (*QUALITY, "state"),
        "Second judgings chosen in the 24 hours of the share: scored; refused, without a usable score; waiting")


class CascadeWatch(Watch):
    """Computes the gauges of cascades over 24 hours, and the factors of their second judgings."""

    detail = "cascade"
    counts_dead = True

    def __init__(self, parts: MonitorParts, clock: Callable[[], float] = time.time) -> None:
        super().__init__(parts.store, clock)
        self._cascades = CASCADES.read(parts.settings)
        self._fixed = {name: cascade.rate for name, cascade in self._cascades.items() if cascade.rate is not None}
        self._metrics, self._quality = parts.metrics.table(CascadeMetrics), parts.metrics.table(QualityMetrics)
        self._shares: list[CascadeShare] = []
        self._next_shares = 0.0
        graders = parts.rules.graders
        self._by_session: dict[tuple[str, str], tuple[str, str]] = {}  # Version and model of the first verdicts.
        for rule in parts.settings.rules:
            if is_by_session(rule) and rule.models[0] in self._cascades:
                model = graders.grader(self._cascades[rule.models[0]].first).judge_model
                for judge in rule.judges:
                    self._by_session[rule.models[0], judge] = graders.version(judge, model)[:VERSION_DIGITS], model

    def run(self, now: float) -> None:
        """Compute gauges and factors."""
        if not self._cascades:
            return
        if now >= self._next_shares:
            # The sums of a day are thousands of fields.
            self._next_shares = now + _SHARES_EVERY_S
            shares = read_shares(self._store, now)
            self._shares = [share for share in shares if share.series.judge_model in self._cascades]
            self.show(sample for share in self._shares for sample in self._samples(share))
        self._fit(now)

    def clear(self) -> None:
        """Begin anew."""
        super().clear()
        self._next_shares = 0.0

    def _samples(self, share: CascadeShare) -> Iterator[Sample]:
        """Yield the gauges of one cascade; no share that is not known."""
        labels = (share.series.metric, "", *share.series.labels)
        for state, number in (
            ("scored", share.sums.second),
            ("refused", share.sums.refused),
            ("waiting", share.sums.waiting),
        ):
            yield self._metrics.cascade_second, (*labels, state), number
        if (estimate := share.estimate) is None:
            return
        quality, of_share = self._quality, (*labels, "cascade")
        yield from quality.unknown_samples(labels, estimate.unknown, estimate.lowest, estimate.highest)
        if estimate.known:
            yield quality.quality_corrected_share, of_share, estimate.share
            yield quality.quality_corrected_lower, of_share, estimate.low
            yield quality.quality_corrected_upper, of_share, estimate.high
            yield quality.quality_corrected_window, of_share, share.until - share.since

    def _effects(self) -> dict[str, float]:
        """Return the design effects of sessions of the first verdicts, where these are drawn by session."""
        firsts: dict[str, str] = {}
        for series in (share.series for share in self._shares):
            if of_first := self._by_session.get((series.judge_model, series.judge)):
                first = msgspec.structs.replace(series, version=of_first[0], judge_model=of_first[1])
                firsts[_effect_field(series)] = first.id
        detectors = read_detectors(self._store, list(firsts.values()))
        pasts = {field: detectors[series_id].history for field, series_id in firsts.items()}
        return {field: design_effect(past, past) for field, past in pasts.items() if past and past.classes}

    def count(self, verdict: Verdict, at: float) -> Iterator[Increment]:
        """Count a first or second verdict of a cascade; both belong to the hour of the first.

        Of the second judgings that were given up, those that timed out were refused: long traces time out.
        """
        step = step_of(verdict)
        if step is None or (verdict.reason in PASSING_REASONS and verdict.reason != "timeout"):
            return
        if step.first:
            if verdict.cost_usd is not None:
                of_judge = (str(int(step.ended_at // HOUR_S)), step.name, verdict.judge)
                for name, amount in (("number", 1), ("usd", round(verdict.cost_usd * NANO))):
                    yield Increment(_COST_KIND, step.ended_at, (*of_judge, name), amount, _KEEP_DAYS)
            at, probabilities = step.ended_at, step.probability
        else:
            at, probabilities = verdict.started_at + verdict.duration_s, verdict.probabilities
            if probabilities:
                uncertain = uncertainty(probabilities)
                of_cascade = (str(int(at // HOUR_S)), step.name, verdict.judge, step.version)
                in_bin = (*of_cascade, str(min(_BINS - 1, int(2 * _BINS * uncertain))))
                for name, amount in (("number", 1), ("sum", round(uncertain * _UNIT))):
                    yield Increment(_UNCERTAINTY_KIND, at, (*in_bin, name), amount, _KEEP_DAYS)
        passed = {score.metric: score.passed for score in verdict.scores}
        of_verdict = (str(int(at // HOUR_S)), verdict.service, verdict.environment or "", verdict.judge, step.version)
        # The weight of a second verdict is w/π.
        u = verdict.weight if step.first else verdict.weight / step.rate
        for metric, g in probabilities.items():
            side, level = class_key(g, u)
            sums = _sums_of(verdict, step, u, passed.get(metric))
            for name, value in sums._asdict().items():
                labels = (*of_verdict, step.name, metric, f"{int(side)}{level}", name)
                if whole := round(value * _UNITS.get(name, _UNIT)):
                    yield Increment(_KIND, at, labels, whole, _KEEP_DAYS)

    def _fit(self, now: float) -> None:
        bins: defaultdict[tuple[str, ...], dict[str, float]] = defaultdict(lambda: {"number": 0, "sum": 0})
        last_hour: defaultdict[tuple[str, str], float] = defaultdict(float)
        passed = now % HOUR_S / HOUR_S
        for (hour, *place, name), amount in _read(self._store, _UNCERTAINTY_KIND, now).items():
            bins[tuple(place)][name] += amount
            # The last 60 minutes: the present hour, and the missing part of the hour before.
            share = {0: 1.0, 1: 1 - passed}.get(int(now // HOUR_S) - int(hour), 0.0)
            if name == "number" and share:
                last_hour[place[0], place[1]] += share * amount
        rates = self._rates(last_hour, now)
        spreads: defaultdict[tuple[str, ...], list[tuple[float, float]]] = defaultdict(list)
        for (*of_cascade, _), in_bin in bins.items():
            if in_bin["number"]:
                spreads[tuple(of_cascade)].append((in_bin["sum"] / in_bin["number"] / _UNIT, in_bin["number"]))
        factors: dict[Any, float] = dict(self._effects())
        factors |= {rate_field(name): rate for name, rate in rates.items() if name not in self._fixed}
        firsts: defaultdict[tuple[str, str, str], defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
        for known in self._shares:
            series = known.series
            if series.judge_model in rates:
                at = known.own_share if known.estimate is None else known.estimate.share
                # Fails that a plain sample would meet, added up over services.
                fails = rates[series.judge_model] * known.sums.first * min(at, 1 - at)
                firsts[series.judge_model, series.judge, series.version][series.metric] += fails
        factors |= {floor_field(*names): second_floor(min(fails.values())) for names, fails in firsts.items()}
        factors |= {
            factor_field(name, judge, version): fitted_factor(
                rate, spread, factors.get(floor_field(name, judge, version), MOST_FLOOR)
            )
            for (name, judge, version), spread in spreads.items()
            if (rate := rates.get(name)) is not None and sum(number for _, number in spread) >= _ENOUGH_VERDICTS
        }
        key = CascadeKeys(self._store.keys.prefix).cascades
        if factors:
            self._store.pipeline(lambda pipe: [pipe.hset(key, mapping=factors), pipe.expire(key, DAY_S)])

    def _rates(self, last_hour: Mapping[tuple[str, str], float], now: float) -> dict[str, float]:
        """Return the rates of cascades: the configured rates, and the rates that spend a budget if costs are known."""
        rates = dict(self._fixed)
        costs: defaultdict[tuple[str, str], dict[str, float]] = defaultdict(lambda: {"number": 0, "usd": 0})
        for (_, cascade, judge, name), amount in _read(self._store, _COST_KIND, now).items():
            costs[cascade, judge][name] += amount
        for cascade, settings in self._cascades.items():
            if settings.usd_per_day is None:
                continue
            usd = 0.0
            for (name, judge), number in last_hour.items():
                cost = costs[name, judge]
                if name == cascade and cost["number"] >= _ENOUGH_COSTS:
                    usd += number * cost["usd"] / cost["number"] / NANO
            if usd > 0:
                # ``usd`` is the cost of an hour if all first verdicts were judged a second time.
                rates[cascade] = min(1.0, max(1e-4, settings.usd_per_day / 24 / usd))
        return rates


def _sums_of(verdict: Verdict, step: CascadeStep, u: float, passed: bool | None) -> CascadeSums:  # noqa: FBT001
    """Return the sums of a first verdict, or what a second one adds: it no longer waits."""
    if not step.first:
        return sums_of_verdict(verdict.weight, u, "waiting" if step.is_chosen else None)
    answer = sums_of_verdict(0.0, u, "refused" if passed is None else "pass" if passed else "fail")
    return CascadeSums(*map(sub, answer, sums_of_verdict(0.0, u, "waiting")))


def read_shares(store: Store, now: float) -> list[CascadeShare]:
    """Estimate the shares of all cascades in the 24 whole hours that ended an hour ago."""
    until = (now // HOUR_S - 1) * HOUR_S
    since = until - DAY_S
    hours: defaultdict[tuple[str, ...], defaultdict[int, defaultdict[ClassKey, dict[str, float]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(dict))
    )
    for (hour, *labels, key, name), amount in read_counts(store, _KIND, since, until + DAY_S).items():
        if since <= int(hour) * HOUR_S < until:
            of_class = hours[tuple(labels)][int(hour)][key[0] == "1", int(key[1:])]
            of_class[name] = amount / _UNITS.get(name, _UNIT)
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
        estimate = estimate_cascade(by_hour, factors.get(_effect_field(series), 1.0))
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


def _read(store: Store, kind: str, now: float) -> dict[tuple[str, ...], int]:
    """Read the counts of the last 24 hours, the current one included; their first label is the hour since 1970."""
    # A worker's clock may be ahead of ours.
    counts = read_counts(store, kind, now - DAY_S, now + DAY_S)
    return {labels: count for labels, count in counts.items() if int(labels[0]) > now // HOUR_S - _HOURS}
