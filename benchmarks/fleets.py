"""Simulated series of verdicts, and the drop detector of the product run over them."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from msgspec import structs
from numpy.random import Generator

from worker.base.monitor.baseline import HISTORY_DAYS, LAG_HOURS, Baseline, Hour, baseline
from worker.base.monitor.detection import SESSIONS_KEPT
from worker.base.monitor.detector import (
    Bucket,
    Change,
    Limits,
    Moments,
    Session,
    State,
    delay_hours,
    limits_of,
    since_interval,
    step,
)
from worker.base.monitor.incidents import Member, explain_drop
from worker.base.monitor.series import Series as Labels

BUCKETS_PER_HOUR = 12
TURNS = 5
PERIOD = 6


class Traffic(NamedTuple):
    """A kind of series: judgements an hour, pass share, and how the share varies without an incident."""

    rate: float
    share: float
    swing: float = 0.0
    """Amplitude of day and night around the mean."""
    weekend: float = 0.0
    """By how much weekends are lower."""
    correlation: float = 0.0
    """Intraclass correlation of sessions of five turns; 0 for independent judgements."""
    phase: int = 0
    jitter: float = 0.0
    """Standard deviation of the share between days, or between spans of so many hours:"""
    span: int = 24

    def shares(self, hours: np.ndarray) -> np.ndarray:
        """Return the true pass share of each hour."""
        by_hour = self.share + self.swing * np.cos(2 * np.pi * (hours - self.phase) / 24)
        return np.clip(by_hour - self.weekend * np.isin(hours // 24 % 7, (2, 3)), 0.0, 1.0)


class Series(NamedTuple):
    """Judgements and passes by bucket, and by hour how many sessions had how many passes."""

    first_hour: int
    judged: np.ndarray
    passed: np.ndarray
    sessions: np.ndarray
    """By hour, then by number of passes; without sessions one judgement each."""


def simulate(chance: Generator, traffic: Traffic, first_hour: int, shares: np.ndarray) -> Series:
    """Draw the verdicts of consecutive hours with the given shares, which jitter moves from span to span."""
    if traffic.jitter:
        spans = (first_hour + np.arange(len(shares))) // traffic.span
        shares = np.clip(shares + chance.normal(0, traffic.jitter, spans[-1] + 1)[spans], 0, 1)
    by_bucket = np.repeat(shares, BUCKETS_PER_HOUR)
    turns = TURNS if traffic.correlation else 1
    counts = chance.poisson(traffic.rate / BUCKETS_PER_HOUR / turns, len(by_bucket))
    if not traffic.correlation:
        passed = chance.binomial(counts, by_bucket)
        kept = passed.reshape(-1, BUCKETS_PER_HOUR).sum(1)
        judged = counts.reshape(-1, BUCKETS_PER_HOUR).sum(1)
        return Series(first_hour, counts, passed, np.stack([judged - kept, kept], 1))
    places = np.repeat(np.arange(len(by_bucket)), counts)
    spread = (1 - traffic.correlation) / traffic.correlation
    p = np.clip(by_bucket[places], 1e-6, 1 - 1e-6)
    kept = chance.binomial(turns, chance.beta(p * spread, (1 - p) * spread))
    passed = np.bincount(places, kept, len(by_bucket)).astype(int)
    by_hour = np.zeros((len(shares), turns + 1), int)
    np.add.at(by_hour, (places // BUCKETS_PER_HOUR, kept), 1)
    return Series(first_hour, counts * turns, passed, by_hour)


def hours_of(series: Series) -> list[Hour]:
    """Return the hourly sums that the monitor would keep."""
    passes = np.arange(series.sessions.shape[1])
    turns = passes[-1]
    number = series.sessions.sum(1)
    kept = series.sessions @ passes
    columns = (number * turns, number * turns, kept, number * turns, number * turns**2, turns * kept)
    last = series.sessions @ passes**2
    return [
        Hour(series.first_hour + position, *map(float, row))
        for position, row in enumerate(zip(*columns, last, strict=True))
    ]


def add_sessions(moments: Moments, series: Series, norm: Baseline, first: int, last: int) -> None:
    """Count the sessions of the hours from `first` to before `last` as the monitor does when a period ends."""
    by_hour = series.sessions[first:last]
    weights = by_hour.sum(1)
    if not weights.sum():
        return
    shares = [norm.expected(series.first_hour + position) for position in range(first, last)]
    usual = np.average(shares, 0, weights).tolist()
    turns = by_hour.shape[1] - 1
    for kept, number in enumerate(by_hour.sum(0).tolist()):
        if number:
            moments.add(Session(kept, turns - kept, usual), number)


class Run:
    """One detector over one series: baselines daily, sessions by periods of six hours, a step for each bucket."""

    def __init__(self, series: Series, *, total: float = 100.0) -> None:
        self.series = series
        self.total = total
        self.hours = hours_of(series)
        self.state = State()
        self.norm: Baseline | None = None
        self.limits: Limits | None = None
        self.moments = Moments()
        self.counted = 0
        self.judged, self.passed = series.judged.tolist(), series.passed.tolist()

    def learn(self, now: int) -> None:
        """Compute the baseline for the hour at this position, from 28 days that end a day before."""
        last = now - LAG_HOURS
        first = max(0, last - 24 * HISTORY_DAYS)
        b = BUCKETS_PER_HOUR
        kept = [
            hour
            for position, hour in enumerate(self.hours[first:last], first)
            if not self.state.is_masked(position * b, position * b + b)
        ]
        self.norm = baseline(kept) or self.norm
        if self.norm is None:
            return
        self.counted = max(self.counted, now - 24 * HISTORY_DAYS)
        while self.counted + PERIOD <= now:
            after = self.counted + PERIOD
            if self.norm.needs_sessions and not self.state.is_masked(self.counted * b, after * b):
                self.moments.fade(SESSIONS_KEPT)
                add_sessions(self.moments, self.series, self.norm, self.counted, after)
            self.counted = after
        self.limits = limits_of(self.norm, self.moments, series=self.total)

    def run(self, first: int, last: int) -> list[tuple[int, Change]]:
        """Step through the buckets of the hours from `first` to before `last`; return changes with their bucket."""
        changes = []
        for hour in range(first, last):
            if self.norm is None or (hour - first) % 24 == 0:
                self.learn(hour)
            if self.norm is None or self.limits is None:
                continue
            expected = self.norm.expected(self.series.first_hour + hour)
            for bucket in range(hour * BUCKETS_PER_HOUR, (hour + 1) * BUCKETS_PER_HOUR):
                judged = self.judged[bucket]
                if judged:
                    passed = self.passed[bucket]
                    change = step(self.state, bucket, passed, judged - passed, expected=expected, limits=self.limits)
                    if change:
                        changes.append((bucket, change))
        return changes

    def buckets(self, first: int, last: int, whole: Baseline | None = None) -> list[Bucket]:
        """Return the buckets from `first` to `last`, with what the newest baseline, or else the whole's, expects."""
        norm, in_range = self.norm or whole, []
        if norm is None:
            raise ValueError("no baseline")
        for bucket in range(first, last + 1):
            passed, judged = self.passed[bucket], self.judged[bucket]
            expected = norm.expected(self.series.first_hour + bucket // BUCKETS_PER_HOUR)[0]
            in_range.append(Bucket(bucket, passed, judged - passed, expected))
        return in_range


def kinds(
    chance: Generator, count: int, *, weekend: float, correlation: float, rate: float = 0.0, **jitter: Any
) -> list[Traffic]:
    """Draw series of 30 to 300 judgements an hour, or of one rate, and levels of .7 to .95, with day and night."""
    traffics = []
    for _ in range(count):
        share = chance.uniform(0.7, 0.95)
        rate_of_series = rate or 30 * 10 ** chance.uniform(0, 1)
        swing, phase = min(0.1, 0.99 - share), int(chance.integers(24))
        traffics.append(Traffic(rate_of_series, share, swing, weekend, correlation, phase, **jitter))
    return traffics


def false_alarms(
    seed: int,
    *,
    count: int = 100,
    weeks: int = 12,
    history: int = 4,
    weekend: float = 0.05,
    correlation: float = 0.0,
    rate: float = 0.0,
    total: int = 0,
    **jitter: Any,
) -> float:
    """Return the drops a week that the detector reports in a fleet where nothing happens, one of ``total`` series."""
    chance = np.random.default_rng(seed)
    alarms = 0
    for traffic in kinds(chance, count, weekend=weekend, correlation=correlation, rate=rate, **jitter):
        start = int(chance.integers(168))
        length = (history + weeks) * 168
        series = simulate(chance, traffic, start, traffic.shares(start + np.arange(length)))
        changes = Run(series, total=total or count).run(history * 168, length)
        alarms += sum(change.kind == "drop" for _, change in changes)
    return alarms / weeks


class Found(NamedTuple):
    """Results of the runs of one incident, a value for each run."""

    delays: list[float]
    """Hours to the alarm, inf without one."""
    alarms: list[int]
    """Alarms of the incident."""
    since: list[float]
    """Hours from the incident's begin to the one reported."""
    covered: list[bool]
    """Whether the interval of the begin held it."""

    @property
    def median(self) -> float:
        """The median delay in hours."""
        return float(np.median(self.delays))


QUIET = 4 * 168 + 24
"""Hours before an incident: four weeks of history and a day on which the detector runs."""


def incident(
    seed: int,
    traffic: Traffic,
    drops: Sequence[float],
    runs: int,
    *,
    after: int = 0,
    total: float = 100.0,
    quiet: int = QUIET,
) -> Found:
    """Run an incident whose share is lower by `drops`, hour by hour.

    Alarms count from the incident's first hour, to `after` hours of health behind it.
    """
    chance = np.random.default_rng(seed)
    measured = Found([], [], [], [])
    first = quiet * BUCKETS_PER_HOUR
    for _ in range(runs):
        run, changes = _incident(chance, traffic, [*drops, *[0.0] * after], total, quiet)
        alarms = [(bucket, change) for bucket, change in changes if change.kind == "drop" and bucket >= first]
        measured.alarms.append(len(alarms))
        measured.delays.append((alarms[0][0] - first + 1) / BUCKETS_PER_HOUR if alarms else float("inf"))
        if alarms and run.limits is not None:
            bucket, change = alarms[0]
            measured.since.append((change.since - first) / BUCKETS_PER_HOUR)
            interval = since_interval(run.buckets(change.since - 288, bucket), change.size, run.limits.factors[0])
            measured.covered.append(interval.low <= first <= interval.high)
    return measured


def _incident(
    chance: Generator, traffic: Traffic, drops: Sequence[float], total: float, quiet: int = QUIET
) -> tuple[Run, list[tuple[int, Change]]]:
    start = int(chance.integers(168))
    shares = traffic.shares(start + np.arange(quiet + len(drops)))
    shares[quiet:] -= np.asarray(drops)
    run = Run(simulate(chance, traffic, start, np.clip(shares, 0, 1)), total=total)
    return run, run.run(quiet - 24, quiet + len(drops))


def stated_delays(seed: int, traffic: Traffic, drops: Sequence[float], runs: int) -> np.ndarray:
    """Return the hours after which the monitor says that it finds drops of these sizes."""
    chance = np.random.default_rng(seed)
    delays_h = []
    for _ in range(runs):
        run = Run(simulate(chance, traffic, 0, traffic.shares(np.arange(QUIET))))
        run.learn(QUIET)
        if run.norm is None or run.limits is None:
            raise ValueError("no baseline")
        delays_h.append([delay_hours(run.norm, run.limits, drop) for drop in drops])
    return np.asarray(np.mean(delays_h, 0))


class Second(NamedTuple):
    """Shares of runs: a second incident raised an alarm of its own, or the first alarm was open all the time."""

    found: float
    open: float


def second_incident(seed: int, traffic: Traffic, drop: float, runs: int, *, health: int = 10) -> Second:
    """Run 36 hours of an incident twice as deep, hours of health, and two days of the second incident."""
    chance = np.random.default_rng(seed)
    begin = (QUIET + 36 + health) * BUCKETS_PER_HOUR
    opened = still_open = 0
    for _ in range(runs):
        _, changes = _incident(chance, traffic, [2 * drop] * 36 + [0.0] * health + [drop] * 48, 100.0)
        own = any(change.kind == "drop" and bucket >= begin for bucket, change in changes)
        before = [change.kind for bucket, change in changes if bucket < begin]
        opened += own
        still_open += not own and before[-1:] == ["drop"]
    return Second(opened / runs, still_open / runs)


class Named(NamedTuple):
    """Explanations of alarms: how often each was said, and the median delay in hours."""

    answers: Counter[str]
    median: float

    def part(self, answer: str) -> float:
        """Return the share of the alarms that were explained so."""
        return self.answers[answer] / self.answers.total()


def segments(seed: int, rates: np.ndarray, shares: np.ndarray, runs: int) -> Named:
    """Run a series of segments, each with a detector of its own.

    Args:
        seed: The seed.
        rates: By segment, its judgements an hour before and in the incident.
        shares: The same of its pass share.
        runs: The number of runs.
    """
    chance = np.random.default_rng(seed)
    first = QUIET * BUCKETS_PER_HOUR
    answers, delays = Counter[str](), []
    spans = (0, QUIET), (QUIET, QUIET + 48)
    labels = Labels("shop", "", "safety", "01234567", "lexical", "safety")
    names = [labels, *(structs.replace(labels, segment="model", value=str(k)) for k in range(len(rates)))]
    for _ in range(runs):
        parts = []
        for rate, share in zip(rates, shares, strict=True):
            halves = [
                simulate(chance, Traffic(per_hour, level), begin, np.full(end - begin, level))
                for per_hour, level, (begin, end) in zip(rate, share, spans, strict=True)
            ]
            parts.append(Series(0, *(np.concatenate(column) for column in list(zip(*halves, strict=True))[1:])))
        whole = Series(0, *(sum(column) for column in list(zip(*parts, strict=True))[1:]))
        all_runs = [Run(row, total=100.0 * (1 + len(parts))) for row in (whole, *parts)]
        alarms = []
        for run in all_runs:
            changes = run.run(QUIET - 24, QUIET + 48)
            alarms += [(bucket, change) for bucket, change in changes if change.kind == "drop" and bucket >= first]
        if not alarms:
            delays.append(float("inf"))
            continue
        bucket, change = min(alarms, key=lambda pair: pair[0])
        delays.append((bucket - first + 1) / BUCKETS_PER_HOUR)
        members = [Member(name, run.state, run.norm, run.limits) for name, run in zip(names, all_runs, strict=True)]
        observed = [run.buckets(change.since, bucket, all_runs[0].norm) for run in all_runs]
        named, cause, _ = explain_drop(members, observed, change.since)
        answers[names[named].value or cause] += 1
    return Named(answers, float(np.median(delays)))


def falling(rate: float, drop: float, *, falls: int, count: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Return rates and shares of equal segments, of which the first ones fall."""
    lower = 0.9 - drop * (np.arange(count) < falls)
    return np.full((count, 2), rate / count), np.stack([np.full(count, 0.9), lower], 1)


def mixed(rate: float, count: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Return those of segments of which one passes less often and grows from a tenth to four tenths; none falls."""
    parts = np.array([[0.1, 0.4]] + [[0.9 / (count - 1), 0.6 / (count - 1)]] * (count - 1))
    return rate * parts, np.array([[0.6, 0.6]] + [[0.95, 0.95]] * (count - 1))


def born(rate: float, count: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Return those of segments of which one begins with the incident: three tenths of the traffic, share .6."""
    parts = np.array([[0.0, 0.3]] + [[1 / (count - 1), 0.7 / (count - 1)]] * (count - 1))
    return rate * parts, np.array([[0.6, 0.6]] + [[0.9, 0.9]] * (count - 1))


def known_levels(seed: int, rate: float, share: float, drop: float) -> float:
    """Return the median delay in hours of a CUSUM that knows both levels, passed by chance in one of 100 weeks."""
    chance = np.random.default_rng(seed)
    gains = np.log((share - drop) / share), np.log((1 - share + drop) / (1 - share))

    def scores(level: float, size: int) -> np.ndarray:
        judged = chance.poisson(rate / BUCKETS_PER_HOUR, size)
        passed = chance.binomial(judged, level)
        return np.asarray(passed * gains[0] + (judged - passed) * gains[1])

    return optimal_delay(partial(scores, share), partial(scores, share - drop), runs=20_000, hours=168, by_chance=0.01)


def optimal_delay(
    healthy: Callable[[int], np.ndarray],
    fallen: Callable[[int], np.ndarray],
    *,
    runs: int,
    hours: int,
    by_chance: float,
) -> float:
    """Return the median hours until a sum of log-likelihood ratios passes its limit, CUSUM's optimum.

    Args:
        healthy: returns the scores of one bucket for so many runs, before the incident.
        fallen: the same in the incident.
        runs: number of sums.
        hours: the period of the false-alarm budget.
        by_chance: the share of healthy periods in which the limit is passed.
    """
    sums, most, day = np.zeros(runs), np.zeros(runs), 24 * BUCKETS_PER_HOUR
    for bucket in range(day + hours * BUCKETS_PER_HOUR):
        sums = np.maximum(0, sums + healthy(runs))
        if bucket >= day:
            most = np.maximum(most, sums)
    limit = np.quantile(most, 1 - by_chance)
    delays = np.full(runs, np.inf)
    sums[sums > limit] = 0
    for bucket in range(2 * day):
        sums = np.maximum(0, sums + fallen(runs))
        delays[(sums > limit) & np.isinf(delays)] = (bucket + 1) / BUCKETS_PER_HOUR
    return float(np.median(delays))
