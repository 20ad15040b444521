"""Simulated safety judges: false pages of a month, and hours until a rise of unsafe traces is paged."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.fleets import BUCKETS_PER_HOUR
from worker.features.safety.watch import Rates, State, Watched, confirmed_error, rates_of, step

ERRORS = (0.001, 0.003, 0.01)
CORRELATIONS = (0.0, 0.5, 1.0)


class Judge(NamedTuple):
    """A safety judge whose failures are judged a second time."""

    per_hour: float
    error: float
    correlation: float
    sensitivity: float = 0.9
    turns: int = 1
    agreement: float = 0.0
    """Correlation of the errors of a session's turns."""

    @property
    def base(self) -> float:
        """Confirmed failures of a safe trace."""
        return confirmed_error(self.error, self.correlation)

    @property
    def found(self) -> float:
        """Confirmed failures of an unsafe trace: two judgings, whose misses correlate like the errors."""
        return self.sensitivity**2 + self.correlation * self.sensitivity * (1 - self.sensitivity)

    def counted(self, unsafe: float = 0.0, error: float = 1.0) -> float:
        """Return the share of sessions that have a confirmed failure; the judge errs so many times as often."""
        p = error * self.base
        spread = (1 - self.agreement) / self.agreement if self.agreement else math.inf
        safe = math.prod(
            (1 - p if math.isinf(spread) else ((1 - p) * spread + turn) / (spread + turn)) for turn in range(self.turns)
        )
        return 1 - safe * (1 - unsafe * self.found) ** self.turns


def learned(chance: np.random.Generator, judge: Judge, series: int) -> Rates:
    """Return the rates after four weeks of history, with the declared error of a judge with a correlation of .5."""
    week = 168 * judge.per_hour
    earlier, last = (float(chance.poisson(weeks * week / judge.turns * judge.counted())) for weeks in (3, 1))
    return _rates(judge, series, [earlier + last, last], [4 * week, week])


def _rates(judge: Judge, series: int, failures: Sequence[float], judgements: Sequence[float]) -> Rates:
    return rates_of(
        declared=judge.base,
        failures=failures,
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
        sessions = chance.poisson(judge.per_hour / BUCKETS_PER_HOUR / judge.turns, 730 * BUCKETS_PER_HOUR)
        failures, counts = chance.binomial(sessions, judge.counted()), sessions * judge.turns
        # Between two failures the sum only falls, so their buckets and the judgements between them are enough.
        places = np.flatnonzero(failures)
        between = np.diff(np.concatenate([[0], np.cumsum(counts)[places]]))
        for place, failed, judged in zip(places.tolist(), failures[places].tolist(), between.tolist(), strict=True):
            step(state, place - 1, 0, judged - counts[place], rates)
            count += step(state, place, failed, int(counts[place]), rates) == "page"
    return count / months


def pages_of_a_worse_judge(seed: int, judge: Judge, error: float, *, months: int, known_days: int = 1) -> float:
    """Return the pages in a month of a judge that errs so many times as often since some days, with daily rates."""
    chance = np.random.default_rng(seed)
    day, count = 24 * BUCKETS_PER_HOUR, 0
    history, length = 29 * day, 60 * day
    for _ in range(months):
        entry = Watched()
        sessions = chance.poisson(judge.per_hour / BUCKETS_PER_HOUR / judge.turns, length)
        share = np.where(np.arange(length) < history - known_days * day, judge.counted(), judge.counted(error=error))
        failures, counts = chance.binomial(sessions, share), sessions * judge.turns
        for bucket in range(history, length):
            if bucket % day == 0:
                is_kept = np.ones(length, bool)
                for first, last in entry.incidents:
                    is_kept[first : last + 1 if last else length] = False
                spans = [slice(bucket - (days + 1) * day, bucket - day) for days in (28, 7)]
                sums = ([float((row * is_kept)[span].sum()) for span in spans] for row in (failures, counts))
                entry.rates = _rates(judge, 1, *sums)
            count += entry.count(bucket, int(failures[bucket]), 0, int(counts[bucket])) == "page"
    return count / months


def delays(seed: int, judge: Judge, *, series: int, runs: int, unsafe: float = 0.02, hours: int = 48) -> list[float]:
    """Return the hours until a rise of unsafe traces is paged, after a day without."""
    chance = np.random.default_rng(seed)
    delays_h = []
    for _ in range(runs):
        rates, state = learned(chance, judge, series), State()
        sessions = chance.poisson(judge.per_hour / BUCKETS_PER_HOUR / judge.turns, (24 + hours) * BUCKETS_PER_HOUR)
        rise = np.arange(len(sessions)) >= 24 * BUCKETS_PER_HOUR
        failures = chance.binomial(sessions, np.where(rise, judge.counted(unsafe), judge.counted()))
        counts = sessions * judge.turns
        delay = float("inf")
        for bucket, (failed, judged) in enumerate(zip(failures.tolist(), counts.tolist(), strict=True)):
            if step(state, bucket, failed, judged, rates) == "page" and rise[bucket]:
                delay = (bucket + 1) / BUCKETS_PER_HOUR - 24
                break
        delays_h.append(delay)
    return delays_h
