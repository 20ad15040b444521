"""Coverage of 95 % intervals: windows of judgements drawn by every way of sampling, beside the share they come from."""

import itertools
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from judges.agreement.intervals import difference
from judges.agreement.shares import ClassSums, SessionSums, ShareEstimate, Sums, estimate_share, merge_sums

SHARES = (0.5, 0.8, 0.9, 0.95)
_ERRORS = 0.05
"""Share of traces with an error."""


class Window(NamedTuple):
    """Judgements of one run: weights, verdicts, session of each, and the share that the interval should cover."""

    weights: np.ndarray
    passed: np.ndarray
    sessions: np.ndarray
    truth: float


def sums_of(weights: np.ndarray, passed: np.ndarray, sessions: np.ndarray) -> Sums:
    """Return the sums that Sums.count reaches verdict by verdict."""
    classes = np.frexp(weights)[1] - 1
    by_class = {}
    for key in np.unique(classes):
        w, y = weights[classes == key], passed[classes == key]
        by_class[int(key)] = ClassSums(len(w), *(float(each.sum()) for each in (w, w * y, w * w, w * w * y)))
    names, inverse = np.unique(sessions, return_inverse=True)
    total = np.bincount(inverse, weights, len(names))
    kept = np.bincount(inverse, weights * passed, len(names))
    cubes, fourths = (float((total**power).sum() - (weights**power).sum()) for power in (3, 4))
    squares = float(total @ total), float(total @ kept), float(kept @ kept)
    return Sums(by_class, SessionSums(len(names), *squares, cubes, fourths))


def drawn(chance: Generator, probability: np.ndarray, share: np.ndarray, truth: float) -> Window:
    """Judge each trace with its probability; each is a session of its own."""
    judged = chance.random(len(probability)) < probability
    weights = 1 / probability[judged]
    passed = (chance.random(len(weights)) < share[judged]).astype(float)
    return Window(weights, passed, np.arange(len(weights)), truth)


def uniform(chance: Generator, share: float, size: int) -> Window:
    """Judge one trace of ten."""
    return drawn(chance, np.full(size * 10, 0.1), np.full(size * 10, share), share)


def errors_always(chance: Generator, share: float, size: int) -> Window:
    """Judge every trace with an error, 5 % of the traffic and failing twice as often, and one of ten of the others."""
    traces = round(size / 0.145)
    is_error = chance.random(traces) < _ERRORS
    fails = (1 - share) / 1.05
    return drawn(chance, np.where(is_error, 1.0, 0.1), 1 - fails * np.where(is_error, 2, 1), share)


def rate_falls(chance: Generator, share: float, size: int) -> Window:
    """Judge every second trace, from the middle of the window on one of twenty; the share falls by a tenth with it."""
    traces = round(size / 0.275)
    late = np.arange(traces) >= traces // 2
    shares = share * np.where(late, 0.95, 1.05)
    return drawn(chance, np.where(late, 0.05, 0.5), shares, float(shares.mean()))


def continuous(chance: Generator, share: float, size: int) -> Window:
    """Judge with a probability that falls all the time, from 1 to 1/20."""
    traces = round(size * np.log(20) / 0.95)
    return drawn(chance, np.exp(np.linspace(0, -np.log(20), traces)), np.full(traces, share), share)


def continuous_errors(chance: Generator, share: float, size: int) -> Window:
    """Judge errors always, and others with a probability that falls all the time."""
    traces = round(size / 0.35)
    is_error = chance.random(traces) < _ERRORS
    probability = np.where(is_error, 1.0, np.exp(np.linspace(0, -np.log(20), traces)))
    return drawn(chance, probability, 1 - (1 - share) / 1.05 * np.where(is_error, 2, 1), share)


DESIGNS: dict[str, Callable[[Generator, float, int], Window]] = {
    "uniform": uniform,
    "errors always": errors_always,
    "rate ÷ 10 half-way": rate_falls,
    "continuous fall": continuous,
    "continuous fall, errors always": continuous_errors,
}


def conversations(chance: Generator, share: float, sessions: int, correlation: float, turns: int = 5) -> Window:
    """Judge every turn of a tenth of the sessions; turns of a session agree with the intraclass correlation."""
    spread = (1 - correlation) / correlation
    shares = np.repeat(chance.beta(share * spread, (1 - share) * spread, sessions), turns)
    passed = (chance.random(len(shares)) < shares).astype(float)
    return Window(np.full(len(shares), 10.0), passed, np.repeat(np.arange(sessions), turns), share)


def _pareto(chance: Generator, sessions: int) -> np.ndarray:
    return np.minimum(200, np.ceil(chance.random(sessions) ** (-1 / 1.2))).astype(int)


def _bot(chance: Generator, sessions: int) -> np.ndarray:
    sizes = chance.geometric(0.2, sessions)
    return np.append(sizes, sizes.sum() // 4)


SIZES: dict[str, Callable[[Generator, int], np.ndarray]] = {
    "Pareto 1.2, at most 200": _pareto,
    "lognormal 1.2": lambda chance, sessions: np.ceil(chance.lognormal(0.5, 1.2, sessions)).astype(int),
    "one bot with 20 %": _bot,
    "geometric, mean 5": lambda chance, sessions: chance.geometric(0.2, sessions),
}
"""Numbers of verdicts of sessions."""


def uneven(chance: Generator, sizes: str, share: float, sessions: int, correlation: float) -> Window:
    """Judge every turn of sessions of very different sizes, whose turns agree with the intraclass correlation."""
    counts = SIZES[sizes](chance, sessions)
    spread = (1 - correlation) / correlation
    shares = np.repeat(chance.beta(share * spread, (1 - share) * spread, len(counts)), counts)
    passed = (chance.random(len(shares)) < shares).astype(float)
    return Window(np.ones(len(shares)), passed, np.repeat(np.arange(len(counts)), counts), share)


PARETO, LOGNORMAL, BOT, GEOMETRIC = SIZES
UNEVEN = (
    *((sizes, 0.25, 0, (20, 60, 200)) for sizes in SIZES),
    (PARETO, 0.1, 0, (60,)),
    (PARETO, 0.5, 0, (60, 200)),
    (PARETO, 0.25, 10, (20, 60, 200)),
    (PARETO, 0.5, 10, (60, 200)),
    (LOGNORMAL, 0.25, 10, (60,)),
    (BOT, 0.25, 10, (60, 200)),
    (GEOMETRIC, 0.25, 10, (20, 60, 200)),
    (GEOMETRIC, 0.05, 0, (40, 100)),
)
"""Sizes, correlation, windows of the history, and numbers of sessions."""


def uneven_windows(
    sizes: str, correlation: float, past: int, *, count: int, share: float, runs: int, seed: int = 9
) -> tuple[float, float]:
    """Return coverage and mean width of windows of uneven sessions; each fifth draws a new history."""
    chance, covered, width, history = np.random.default_rng(seed), 0, 0.0, None
    for run in range(runs):
        if past and run % 5 == 0:
            history = merge_sums(sums_of(*uneven(chance, sizes, share, count, correlation)[:3]) for _ in range(past))
        estimate = _estimate(sums_of(*uneven(chance, sizes, share, count, correlation)[:3]), history)
        covered += estimate.low <= share <= estimate.high
        width += (estimate.high - estimate.low) / runs
    return covered / runs, width


def _estimate(sums: Sums, history: Sums | None = None) -> ShareEstimate:
    share = estimate_share(sums, history)
    if share is None:
        raise ValueError("a window without verdicts")
    return share


def covers(window: Window, history: Sums | None = None) -> bool:
    """Whether the interval of the product holds the true share."""
    share = estimate_share(sums_of(window.weights, window.passed, window.sessions), history)
    return share is not None and share.interval.low <= window.truth <= share.interval.high


def coverage(make: Callable[[Generator], Window], runs: int, seed: int, *, with_history: int = 0) -> float:
    """Return the share of runs whose interval covers; each tenth run draws a new history of so many windows."""
    chance = np.random.default_rng(seed)
    covered, history = 0, None
    for run in range(runs):
        if with_history and run % 10 == 0:
            history = Sums()
            for _ in range(with_history):
                past = make(chance)
                history.add(sums_of(past.weights, past.passed, past.sessions))
        covered += covers(make(chance), history)
    return covered / runs


def sizes_of(name: str) -> tuple[int, ...]:
    """Return the numbers of judgements a claim is made for: weights that differ more than tenfold need more."""
    return (50, 150, 400) if name in {"uniform", "errors always"} else (150, 400)


def table(runs: int, seed: int = 1) -> dict[tuple[str, float, int], float]:
    """Return the coverage of every way of sampling, share and number of judgements."""
    cells = [(name, share, size) for name in DESIGNS for share in SHARES for size in sizes_of(name)]
    return {cell: coverage(partial(_draw, *cell), runs, seed) for cell in cells}


def _draw(name: str, share: float, size: int, chance: Generator) -> Window:
    return DESIGNS[name](chance, share, size)


def session_table(
    runs: int, counts: tuple[int, ...] = (40, 100, 250), seed: int = 2
) -> dict[tuple[float, float, int, bool], float]:
    """Return the coverage of conversations by correlation, share and number of sessions, without and with history."""
    cells = itertools.product((0.1, 0.25, 0.5), SHARES, counts, (False, True))
    return {cell: coverage(partial(_converse, *cell[:3]), runs, seed, with_history=10 * cell[3]) for cell in cells}


def _converse(correlation: float, share: float, count: int, chance: Generator) -> Window:
    return conversations(chance, share, count, correlation)


PAIR_DESIGNS: dict[str, Callable[[Generator, float], Window]] = {
    "uniform, 50": lambda chance, share: uniform(chance, share, 50),
    "uniform, 400": lambda chance, share: uniform(chance, share, 400),
    "errors always, 150": lambda chance, share: errors_always(chance, share, 150),
    "sessions of five, correlation .25, 100": lambda chance, share: conversations(chance, share, 100, 0.25),
}
PAIRS = ((0.9, 0.9), (0.9, 0.8), (0.95, 0.85))
"""Shares of two periods that are compared."""


def difference_coverage(
    make: Callable[[Generator, float], Window], before: float, now: float, runs: int, seed: int = 8
) -> float:
    """Return the share of pairs of periods whose interval of the difference holds the true one."""
    chance = np.random.default_rng(seed)
    covered = 0
    for _ in range(runs):
        earlier, later = make(chance, before), make(chance, now)
        sums = [sums_of(each.weights, each.passed, each.sessions) for each in (earlier, later)]
        # Each period is the history of the other.
        old, new = _estimate(sums[0], sums[1]), _estimate(sums[1], sums[0])
        _, low, high = difference(new.interval, old.interval)
        covered += low <= later.truth - earlier.truth <= high
    return covered / runs
