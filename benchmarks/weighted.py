"""Simulated series whose verdicts have unequal weights and come in sessions, stored and read as the monitor does."""

from collections import Counter
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.random import Generator

from judges.agreement.shares import ClassSums, SessionSums, Sums, Unjudged, merge_sums, weight_class
from worker.base.monitor.baseline import HISTORY_DAYS, LAG_HOURS, baseline, hour_of
from worker.base.monitor.detection import Detector, add_sessions, count
from worker.base.monitor.detector import limits_of
from worker.base.monitor.series import CLUSTER_PERIOD_S, FIVE_MINUTES_S, HOUR_S, Bucket

WEIGHTS = (1.0, 8.0)
"""Of errors, which are always judged, and of all other traces."""
_PER_HOUR = HOUR_S // FIVE_MINUTES_S
PERIOD = CLUSTER_PERIOD_S // HOUR_S
_NOTHING = Unjudged()


class Design(NamedTuple):
    """Judgements an hour; the share of passes among other traces, and among errors a factor of it."""

    rate: float
    share: float
    errors: float = 0.3
    """Part of the judgements that are of errors."""
    factor: float = 0.6
    turns: int = 1
    correlation: float = 0.0


def simulate(chance: Generator, design: Design, shares: np.ndarray) -> list[tuple[Bucket, Counter[bytes]]]:
    """Draw buckets of five minutes with these shares of other traces; with each its sessions as they are stored."""
    spread = (1 - design.correlation) / design.correlation if design.correlation else 0.0
    draws = []
    for share in shares.tolist():
        sessions = int(chance.poisson(design.rate / _PER_HOUR / design.turns))
        own = chance.beta(share * spread, (1 - share) * spread, sessions) if spread else np.full(sessions, share)
        draws.append((own, chance.random((sessions, design.turns)), chance.random((sessions, design.turns))))
    own, of_error, of_pass = (np.concatenate(columns) for columns in zip(*draws, strict=True))
    places = np.repeat(np.arange(len(draws)), [len(each) for each, *_ in draws])
    is_error = of_error < design.errors
    passes = of_pass < own[:, None] * np.where(is_error, design.factor, 1.0)
    weight = np.where(is_error, *WEIGHTS)
    totals, kept = weight.sum(1), (weight * passes).sum(1)

    def by_bucket(amounts: np.ndarray) -> list[float]:
        sums: list[float] = np.bincount(places, amounts, len(draws)).tolist()
        return sums

    counts = [[by_bucket(each.sum(1)) for each in (weight == one, passes & (weight == one))] for one in WEIGHTS]
    squares = map(by_bucket, (np.ones_like(totals), totals**2, totals * kept, kept**2))
    stored = list(map(msgspec.msgpack.encode, zip(totals.tolist(), kept.tolist(), strict=True)))
    buckets, begin = [], 0
    for number, (sessions, *products) in enumerate(zip(*squares, strict=True)):
        sums = Sums(over_sessions=SessionSums(int(sessions), *products))
        for each, (judged, passed) in zip(WEIGHTS, counts, strict=True):
            n, y = int(judged[number]), int(passed[number])
            if n:
                sums.classes[weight_class(each)] = ClassSums(n, n * each, y * each, n * each**2, y * each**2)
        after = begin + int(sessions)
        bucket = Bucket(float(number * FIVE_MINUTES_S), sums, _NOTHING, _NOTHING)
        buckets.append((bucket, Counter(stored[begin:after]) if design.turns > 1 else Counter[bytes]()))
        begin = after
    return buckets


class Run:
    """One detector over one series, learned anew each day."""

    def __init__(self, buckets: list[tuple[Bucket, Counter[bytes]]], total: float) -> None:
        self.buckets, self.total = buckets, total
        self.detector, self.periods = Detector(), 0
        self.hours = []
        for begin in range(0, len(buckets), _PER_HOUR):
            sums = merge_sums(bucket.sums for bucket, _ in buckets[begin : begin + _PER_HOUR])
            self.hours.append(Bucket(float(begin * FIVE_MINUTES_S), sums, _NOTHING, _NOTHING))

    def learn(self, now: int) -> None:
        """Compute the baseline of an hour, count the sessions of the periods before it, and compute the limits."""
        detector, first = self.detector, max(0, now - LAG_HOURS - 24 * HISTORY_DAYS)
        past = [
            hour_of(number, hour.sums)
            for number, hour in enumerate(self.hours[first : now - LAG_HOURS], first)
            if not detector.state.is_masked(number * _PER_HOUR, (number + 1) * _PER_HOUR)
        ]
        detector.norm = baseline(past) or detector.norm
        while (self.periods + 1) * PERIOD <= now:
            begin, after = self.periods * PERIOD, (self.periods + 1) * PERIOD
            stored: Counter[bytes] = Counter()
            for _, sessions in self.buckets[begin * _PER_HOUR : after * _PER_HOUR]:
                stored.update(sessions)
            add_sessions(detector, self.hours[begin:after], stored)
            self.periods += 1
        if detector.norm is not None:
            detector.limits = limits_of(detector.norm, detector.moments, series=self.total)

    def alarms(self, first: int) -> list[int]:
        """Run from an hour on; return the buckets of the alarms."""
        numbers = []
        for number in range(first * _PER_HOUR, len(self.buckets)):
            if (number - first * _PER_HOUR) % (24 * _PER_HOUR) == 0:
                self.learn(number // _PER_HOUR)
            bucket, _ = self.buckets[number]
            change = count(self.detector, number, bucket) if bucket.sums.classes else None
            if change is not None and change.kind == "drop":
                numbers.append(number)
        return numbers


def false_alarms(seed: int, design: Design, *, series: int = 50, history: int = 4, weeks: int = 8) -> float:
    """Return the drops a week that are reported in a fleet where nothing happens."""
    chance = np.random.default_rng(seed)
    shares = np.full((history + weeks) * 168 * _PER_HOUR, design.share)
    runs = (Run(simulate(chance, design, shares), series) for _ in range(series))
    return sum(len(run.alarms(history * 168)) for run in runs) / weeks


def median_delay(seed: int, design: Design, drop: float, runs: int) -> float:
    """Return the median hours after which a drop of the other traces' share is found, M / B = 100."""
    chance, first = np.random.default_rng(seed), 4 * 168 + 24
    shares = np.full((first + 48) * _PER_HOUR, design.share)
    shares[first * _PER_HOUR :] -= drop
    delays = []
    for _ in range(runs):
        run = Run(simulate(chance, design, shares), 100)
        alarms = [alarm for alarm in run.alarms(first - 24) if alarm >= first * _PER_HOUR]
        delays.append((alarms[0] + 1) / _PER_HOUR - first if alarms else float("inf"))
    return float(np.median(delays))
