"""The share of a cascade: the first model's probabilities everywhere, corrected by the second model's verdicts.

Notation: a first verdict has the weight w = 1 / probability of being judged and the probability g that the metric
passes; with the probability π it was chosen for a second judging, whose verdict is z, 1 for a pass. The share is the
difference estimator (Särndal, Swensson and Wretman, Model Assisted Survey Sampling, 1992, section 9.6)

    [Σ w·g + Σ_second (w/π)(z - g)] / Σ w

It is unbiased whatever g is, as π is known. Its variance is the variance of two independent choices with known
probabilities: of the traces, and of the second judgings.
"""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec
from prometheus_client import Gauge

from judges.agreement.intervals import Interval, wilson
from judges.core.verdict import Verdict
from worker.base.monitor.counts import Increment, read_counts, step_of
from worker.base.monitor.gauges import QUALITY, MonitorParts, QualityMetrics, Sample, Watch
from worker.base.monitor.series import DAY_S, HOUR_S
from worker.core.config.settings import NANO
from worker.core.queue.batch import CascadeStep
from worker.core.storage.client import Store
from worker.core.telemetry.metrics import Metric, MetricTable
from worker.features.cascades.feature import CASCADES, Cascade, CascadeKeys

_KIND: Final = "cascades"
_UNCERTAINTY_KIND: Final = "cascade_uncertainty"
_KEEP_DAYS: Final = 3
_HOURS: Final = 24
_UNIT: Final = 10**6  # Sums are counted in whole parts of this size.
_BINS: Final = 50
_MIN_UNCERTAINTY: Final = 0.005
"""Models that round return a probability of exactly 0 or 1; without a minimum no factor would raise their rate."""
START_RATE: Final = 0.02  # The rate of a cascade with a budget until the cost of its second judgings is known.
_COST_KIND: Final = "cascade_cost"
_ENOUGH_COSTS: Final = 20
_ENOUGH_VERDICTS: Final = 200
_ENOUGH_SECOND: Final = 30


class CascadeSums(NamedTuple):
    """Sums over the verdicts of one metric of a cascade."""

    first: float = 0  # First verdicts.
    weight: float = 0  # Σ w
    expected: float = 0  # Σ w·g
    spread: float = 0  # Σ w(w - 1)
    expected_spread: float = 0  # Σ w(w - 1)g
    chosen: float = 0  # First verdicts that were chosen for a second judging.
    chosen_weight: float = 0  # Σ w/π of these.
    second: float = 0  # Second verdicts with a score.
    second_weight: float = 0  # Σ w/π of these, as all sums below.
    correction: float = 0  # Σ (w/π)(z - g)
    squares: float = 0  # Σ (w/π)²(z - g)²
    sampled_squares: float = 0  # Σ (w²/π)(z - g)²
    correction_spread: float = 0  # Σ (w(w - 1)/π)(z - g)
    no_score: float = 0  # Second verdicts without a score.

    @property
    def waiting(self) -> float:
        """Second judgings that have no verdict: those that have not ended, and dead letters."""
        return max(0.0, self.chosen - self.second - self.no_score)


_COUNTS: Final = frozenset({"first", "chosen", "second", "no_score"})


def estimate(sums: CascadeSums) -> Interval | None:
    """Return the share of a cascade with its 95 % interval; None without enough second verdicts.

    Second judgings without a score, and those that wait, are made up for by the others.
    """
    if sums.weight <= 0 or sums.second < _ENOUGH_SECOND:
        return None
    missing = max(1.0, sums.chosen_weight / sums.second_weight)
    share = min(1.0, max(0.0, (sums.expected + missing * sums.correction) / sums.weight))
    # Σ (1 - π)/π²·w²(z - g)², where π / missing is the probability of a second verdict.
    variance = missing * (missing * sums.squares - sums.sampled_squares)
    # Σ w(w - 1)(z - share)², estimated in the same way as the share.
    spread = (1 - 2 * share) * (sums.expected_spread + missing * sums.correction_spread)
    variance = (max(0.0, variance) + max(0.0, spread + share * share * sums.spread)) / sums.weight**2
    # A pseudo-observation on either side: a share of 0 or 1 has no variance by itself.
    middle = (share * sums.second + 1) / (sums.second + 2)
    effective = middle * (1 - middle) / variance if variance > 0 else math.inf
    return Interval(share, share, share) if math.isinf(effective) else wilson(share, effective)


def uncertainty(probabilities: Mapping[str, float]) -> float:
    """Return the standard deviation of the least certain metric, 0.005..0.5."""
    return max(_MIN_UNCERTAINTY, *(math.sqrt(g * (1 - g)) for g in probabilities.values()))


def second_rate(
    cascade: Cascade, probabilities: Mapping[str, float], factor: float | None, rate: float | None = None
) -> float:
    """Return the probability of a second judging.

    Args:
        cascade: The cascade.
        probabilities: That the metrics of the first verdict pass.
        factor: By which the uncertainty is multiplied; None if unknown.
        rate: The present mean rate of a cascade with a budget; None if unknown.
    """
    if cascade.uncertain is not None:
        low, high = cascade.uncertain
        return 1.0 if any(low <= g <= high for g in probabilities.values()) else cascade.audit
    rate = cascade.rate or rate or START_RATE
    factor = 2 * rate if factor is None else factor
    return min(1.0, max(rate / 4, factor * uncertainty(probabilities)))


def fitted_factor(rate: float, spread: Collection[tuple[float, float]]) -> float:
    """Return the factor by which the mean probability of a second judging is the rate.

    ``spread`` are uncertainties, each with its number of first verdicts.
    """
    total, (low, high) = sum(number for _, number in spread), (0.0, 1 / _MIN_UNCERTAINTY)
    for _ in range(50):
        factor = (low + high) / 2
        mean = sum(number * min(1.0, max(rate / 4, factor * each)) for each, number in spread) / total
        low, high = (factor, high) if mean < rate else (low, factor)
    return high


def factor_field(name: str, judge: str, version: str) -> str:
    """Return the field of a cascade's factor."""
    return msgspec.json.encode((name, judge, version)).decode()


def rate_field(name: str) -> str:
    """Return the field of the rate of a cascade with a budget."""
    return factor_field(name, "", "rate")


def read_factors(store: Store) -> dict[str, float]:
    """Read the factors of all cascades by ``factor_field``, and rates by ``rate_field``."""
    fields = store.call(lambda client: client.hgetall(CascadeKeys(store.keys.prefix).cascades))
    return {field.decode(): float(factor) for field, factor in fields.items()}


def _of_second(verdict: Verdict, step: CascadeStep, metric: str, g: float) -> CascadeSums:
    z = next((score.passed for score in verdict.scores if score.metric == metric), None)
    if z is None:
        return CascadeSums(no_score=1)
    # The weight of a second verdict is w/π.
    weight, difference = verdict.weight, z - g
    w = weight * step.rate
    return CascadeSums(
        second=1,
        second_weight=weight,
        correction=weight * difference,
        squares=(weight * difference) ** 2,
        sampled_squares=w * weight * difference**2,
        correction_spread=weight * (w - 1) * difference,
    )


class CascadeMetrics(MetricTable):
    """The gauges of cascades."""

    # fmt: off
    cascade_first_share = Metric(Gauge, "cascade_first_share", "ratio", QUALITY,
        "Weighted mean probability of passing by the first model of a cascade in the last day, not corrected")
    cascade_second = Metric(Gauge, "cascade_second_verdicts", "verdicts", (*QUALITY, "state"),
        "Second judgings chosen in the last day: scored, which correct the share; no_score; waiting")


class CascadeWatch(Watch):
    """Computes the gauges of cascades over the last 24 hours, and the factors of their second judgings."""

    detail = "cascade"

    def __init__(self, parts: MonitorParts, clock: Callable[[], float] = time.time) -> None:
        super().__init__(parts.store, clock)
        self._cascades = CASCADES.read(parts.settings)
        self._fixed = {name: cascade.rate for name, cascade in self._cascades.items() if cascade.rate is not None}
        self._metrics, self._quality = parts.metrics.table(CascadeMetrics), parts.metrics.table(QualityMetrics)

    def run(self, now: float) -> None:
        """Compute gauges and factors."""
        if not self._cascades:
            return
        metrics, quality, samples = self._metrics, self._quality, list[Sample]()
        for (service, environment, judge, version, name, metric), sums in read_sums(self._store, now).items():
            if name not in self._cascades or sums.weight <= 0:
                continue
            labels: tuple[str, ...] = (metric, "", service, environment, judge, version, name)
            samples.append((metrics.cascade_first_share, labels, sums.expected / sums.weight))
            for state, number in (("scored", sums.second), ("no_score", sums.no_score), ("waiting", sums.waiting)):
                samples.append((metrics.cascade_second, (*labels, state), number))
            if (share := estimate(sums)) is not None:
                of_share = (*labels, "cascade")
                samples += [
                    (quality.quality_corrected_share, of_share, share.value),
                    (quality.quality_corrected_lower, of_share, share.low),
                    (quality.quality_corrected_upper, of_share, share.high),
                    (quality.quality_corrected_window, of_share, _HOURS * HOUR_S),
                ]
        self.show(samples)
        self._fit(now)

    def count(self, verdict: Verdict, at: float) -> Iterator[Increment]:
        """Count a first or second verdict of a cascade; both belong to the hour of the first."""
        step = step_of(verdict)
        if step is None:
            return
        if step.first:
            if verdict.cost_usd is not None:
                of_judge = (str(int(step.ended_at // HOUR_S)), step.name, verdict.judge)
                for name, amount in (("number", 1), ("usd", round(verdict.cost_usd * NANO))):
                    yield Increment(_COST_KIND, step.ended_at, (*of_judge, name), amount, _KEEP_DAYS)
            at, probabilities = step.ended_at, step.probability
            sums = {metric: _of_second(verdict, step, metric, g) for metric, g in probabilities.items()}
        else:
            at = verdict.started_at + verdict.duration_s
            probabilities = verdict.probabilities
            w = verdict.weight
            sums = {
                metric: CascadeSums(
                    first=1,
                    weight=w,
                    expected=w * g,
                    spread=w * (w - 1),
                    expected_spread=w * (w - 1) * g,
                    chosen=float(step.is_chosen),
                    chosen_weight=w / step.rate if step.is_chosen else 0.0,
                )
                for metric, g in probabilities.items()
            }
            if probabilities:
                uncertain = uncertainty(probabilities)
                of_cascade = (str(int(at // HOUR_S)), step.name, verdict.judge, step.version)
                in_bin = (*of_cascade, str(min(_BINS - 1, int(2 * _BINS * uncertain))))
                for name, amount in (("number", 1), ("sum", round(uncertain * _UNIT))):
                    yield Increment(_UNCERTAINTY_KIND, at, (*in_bin, name), amount, _KEEP_DAYS)
        hour, environment = str(int(at // HOUR_S)), verdict.environment or ""
        for metric, of_metric in sums.items():
            for name, amount in of_metric._asdict().items():
                labels = (hour, verdict.service, environment, verdict.judge, step.version, step.name, metric, name)
                if whole := round(amount * (1 if name in _COUNTS else _UNIT)):
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
        factors: dict[Any, float] = {rate_field(name): rates[name] for name in rates if name not in self._fixed}
        factors |= {
            factor_field(name, judge, version): fitted_factor(rate, spread)
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


def read_sums(store: Store, now: float) -> dict[tuple[str, ...], CascadeSums]:
    """Read the sums of the last 24 hours by service, environment, judge, version, cascade and metric."""
    amounts: defaultdict[tuple[str, ...], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for (_, *series, name), amount in _read(store, _KIND, now).items():
        amounts[tuple(series)][name] += amount / (1 if name in _COUNTS else _UNIT)
    return {series: CascadeSums(**sums) for series, sums in amounts.items()}


def _read(store: Store, kind: str, now: float) -> dict[tuple[str, ...], int]:
    """Read the counts of the last 24 hours, the current one included; their first label is the hour since 1970."""
    # A worker's clock may be ahead of ours.
    counts = read_counts(store, kind, now - DAY_S, now + DAY_S)
    return {labels: count for labels, count in counts.items() if int(labels[0]) > now // HOUR_S - _HOURS}
