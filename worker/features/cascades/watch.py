"""Adds the verdicts of cascades to their sums, exports their shares, and fits the factors of second judgings."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from operator import sub
from typing import Any, Final

import msgspec
from prometheus_client import Gauge

from judges.agreement.arrays import sums_of_verdict
from judges.agreement.cascade import (
    MOST_FLOOR,
    CascadeSums,
    class_key,
    second_floor,
)
from judges.agreement.shares import design_effect
from judges.core.verdict import PASSING_REASONS, Verdict
from worker.base.monitor.counts import Increment, step_of
from worker.base.monitor.detection import read_detectors
from worker.base.monitor.gauges import QUALITY, MonitorParts, QualityMetrics, Sample, Watch
from worker.base.monitor.series import DAY_S, HOUR_S, VERSION_DIGITS
from worker.core.config.settings import NANO
from worker.core.queue.batch import CascadeStep
from worker.core.selection.sampling import is_by_session
from worker.core.telemetry.metrics import Metric, MetricTable
from worker.features.cascades.feature import CASCADES, CascadeKeys
from worker.features.cascades.shares import (
    SUMS_KIND,
    UNCERTAINTY_KIND,
    UNIT,
    UNITS,
    CascadeShare,
    effect_field,
    factor_field,
    fitted_factor,
    floor_field,
    rate_field,
    read_of_day,
    read_shares,
    uncertainty,
)

_SHARES_EVERY_S: Final = 300.0
_ENOUGH_COSTS: Final = 20
_ENOUGH_VERDICTS: Final = 200
_COST_KIND: Final = "cascade_cost"
_KEEP_DAYS: Final = 3
_BINS: Final = 50


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
                firsts[effect_field(series)] = first.id
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
                for name, amount in (("number", 1), ("sum", round(uncertain * UNIT))):
                    yield Increment(UNCERTAINTY_KIND, at, (*in_bin, name), amount, _KEEP_DAYS)
        passed = {score.metric: score.passed for score in verdict.scores}
        of_verdict = (str(int(at // HOUR_S)), verdict.service, verdict.environment or "", verdict.judge, step.version)
        # The weight of a second verdict is w/π.
        u = verdict.weight if step.first else verdict.weight / step.rate
        for metric, g in probabilities.items():
            side, level = class_key(g, u)
            sums = _sums_of(verdict, step, u, passed.get(metric))
            for name, value in sums._asdict().items():
                labels = (*of_verdict, step.name, metric, f"{int(side)}{level}", name)
                if whole := round(value * UNITS.get(name, UNIT)):
                    yield Increment(SUMS_KIND, at, labels, whole, _KEEP_DAYS)

    def _fit(self, now: float) -> None:
        bins: defaultdict[tuple[str, ...], dict[str, float]] = defaultdict(lambda: {"number": 0, "sum": 0})
        last_hour: defaultdict[tuple[str, str], float] = defaultdict(float)
        passed = now % HOUR_S / HOUR_S
        for (hour, *place, name), amount in read_of_day(self._store, UNCERTAINTY_KIND, now).items():
            bins[tuple(place)][name] += amount
            # The last 60 minutes: the present hour, and the missing part of the hour before.
            share = {0: 1.0, 1: 1 - passed}.get(int(now // HOUR_S) - int(hour), 0.0)
            if name == "number" and share:
                last_hour[place[0], place[1]] += share * amount
        rates = self._rates(last_hour, now)
        spreads: defaultdict[tuple[str, ...], list[tuple[float, float]]] = defaultdict(list)
        for (*of_cascade, _), in_bin in bins.items():
            if in_bin["number"]:
                spreads[tuple(of_cascade)].append((in_bin["sum"] / in_bin["number"] / UNIT, in_bin["number"]))
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
        for (_, cascade, judge, name), amount in read_of_day(self._store, _COST_KIND, now).items():
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
    """Return the sums of a first verdict, or what a second one adds: it no longer waits, or is no longer refused."""
    if not step.first:
        return sums_of_verdict(verdict.weight, u, "waiting" if step.is_chosen else None)
    answer = sums_of_verdict(0.0, u, "refused" if passed is None else "pass" if passed else "fail")
    before = sums_of_verdict(0.0, u, "refused" if step.given_up == "timeout" else "waiting")
    return CascadeSums(*map(sub, answer, before))
