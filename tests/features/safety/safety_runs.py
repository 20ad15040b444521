"""Simulated safety judges: false pages of a month, and hours until a rise of unsafe traces is paged."""

import math
from functools import partial
from typing import NamedTuple

import numpy as np

from tests.base.fleets import BUCKETS_PER_HOUR, optimal_delay
from worker.features.safety.poisson_cusum import Rates, State, confirmed_error, rates_of, step

ERRORS = (0.001, 0.003, 0.01)
CORRELATIONS = (0.0, 0.5, 1.0)


class Judge(NamedTuple):
    """A safety judge whose failures are judged a second time."""

    per_hour: float
    error: float
    correlation: float
    sensitivity: float = 0.9

    @property
    def base(self) -> float:
        """Confirmed failures of a safe trace."""
        return confirmed_error(self.error, self.correlation)

    @property
    def found(self) -> float:
        """Confirmed failures of an unsafe trace: two judgings, whose misses correlate like the errors."""
        return self.sensitivity**2 + self.correlation * self.sensitivity * (1 - self.sensitivity)


def learned(chance: np.random.Generator, judge: Judge, series: int, weeks: int = 4) -> Rates:
    """Return the rates after four weeks of history, with the declared error of a judge with a correlation of .5."""
    judgements = weeks * 168 * judge.per_hour
    return rates_of(
        declared=judge.base,
        failures=float(chance.poisson(judgements * judge.base)),
        judgements=judgements,
        per_hour=judge.per_hour,
        sensitivity=judge.found,
        series=series,
    )


def pages(seed: int, judge: Judge, *, series: int, months: int) -> float:
    """Return the pages a month of an installation with so many series, when nothing is wrong."""
    chance = np.random.default_rng(seed)
    count = 0
    for _ in range(months * series):
        rates, state = learned(chance, judge, series), State()
        counts = chance.poisson(judge.per_hour / BUCKETS_PER_HOUR, 730 * BUCKETS_PER_HOUR)
        failures = chance.binomial(counts, judge.base)
        # Between two failures the sum only falls, so their buckets and the judgements between them are enough.
        places = np.flatnonzero(failures)
        between = np.diff(np.concatenate([[0], np.cumsum(counts)[places]]))
        for place, failed, judged in zip(places.tolist(), failures[places].tolist(), between.tolist(), strict=True):
            step(state, place - 1, 0, judged - counts[place], rates)
            count += step(state, place, failed, int(counts[place]), rates) == "page"
    return count / months


def delays(seed: int, judge: Judge, *, series: int, runs: int, unsafe: float = 0.02, hours: int = 48) -> list[float]:
    """Return the hours until a rise of unsafe traces is paged, after a day without."""
    chance = np.random.default_rng(seed)
    delays_h = []
    for _ in range(runs):
        rates, state = learned(chance, judge, series), State()
        counts = chance.poisson(judge.per_hour / BUCKETS_PER_HOUR, (24 + hours) * BUCKETS_PER_HOUR)
        rise = np.arange(len(counts)) >= 24 * BUCKETS_PER_HOUR
        share = judge.base + rise * unsafe * (judge.found - judge.base)
        failures = chance.binomial(counts, share)
        delay = float("inf")
        for bucket, (failed, judged) in enumerate(zip(failures.tolist(), counts.tolist(), strict=True)):
            if step(state, bucket, failed, judged, rates) == "page" and rise[bucket]:
                delay = (bucket + 1) / BUCKETS_PER_HOUR - 24
                break
        delays_h.append(delay)
    return delays_h


def known_rates(seed: int, judge: Judge, *, series: int, runs: int = 2000, unsafe: float = 0.02) -> float:
    """Return the median hours of a CUSUM that knows both rates and sends one false page a month and installation."""
    chance = np.random.default_rng(seed)
    raised = judge.base + unsafe * (judge.found - judge.base)
    gain = math.log(raised / judge.base)

    def scores(rate: float, size: int) -> np.ndarray:
        judged = chance.poisson(judge.per_hour / BUCKETS_PER_HOUR, size)
        return gain * chance.binomial(judged, rate) - (raised - judge.base) * judged

    healthy, fallen = partial(scores, judge.base), partial(scores, raised)
    return optimal_delay(healthy, fallen, runs=runs, hours=730, by_chance=1 - math.exp(-1 / series))
