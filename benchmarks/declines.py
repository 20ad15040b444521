"""Simulated days of series, stable or in slow decline, and the monitor's notices of them."""

from typing import NamedTuple

import numpy as np

from worker.base.monitor.baseline import LONGEST_DAYS, QUIET_DAYS, Day, Decline, find_decline

HISTORY_DAYS = LONGEST_DAYS


class Notices(NamedTuple):
    """Notices of a kind of series."""

    false: float
    """Notices a week of a hundred series that do not decline, or before they do."""
    delays: np.ndarray
    """Days from the begin of the decline to its notice, inf without one."""


class Days(NamedTuple):
    """A kind of series: judgements an hour, and the standard deviation and correlation of the share between days."""

    rate: float
    jitter: float = 0.0
    correlation: float = 0.0
    share: float = 0.9
    weekend: float = 0.05


def draw(chance: np.random.Generator, kind: Days, length: int, slope: float) -> list[Day]:
    """Draw days; the share changes by the slope in each week after six weeks."""
    noise = chance.normal(0, kind.jitter, length)
    for day in range(1, length):
        own = np.sqrt(1 - kind.correlation**2) * noise[day]
        noise[day] = kind.correlation * noise[day - 1] + own
    numbers = np.arange(length)
    level = kind.share + slope * np.maximum(0, numbers - HISTORY_DAYS) / 7 - kind.weekend * np.isin(numbers % 7, (2, 3))
    judged = chance.poisson(24 * kind.rate, length).clip(1)
    passed = chance.binomial(judged, np.clip(level + noise, 0, 1))
    return [Day(day, float(passed[day] / judged[day]), float(judged[day])) for day in range(length)]


def notices(seed: int, kind: Days, *, series: int, weeks: int = 12, slope: float = 0.0) -> Notices:
    """Look for notices each day after six weeks of history, as the monitor does."""
    chance, false, delays = np.random.default_rng(seed), 0, []
    for _ in range(series):
        days = draw(chance, kind, HISTORY_DAYS + 7 * weeks, slope)
        told: Decline | None = None
        delay = np.inf
        for today in range(HISTORY_DAYS, len(days) + 1):
            if told is not None and today - told.told_day < QUIET_DAYS:
                continue
            told = find_decline(days[today - LONGEST_DAYS : today], today)
            if told is not None:
                false += not slope
                delay = min(delay, today - HISTORY_DAYS)
        delays.append(delay)
    return Notices(100 * false / series / weeks, np.array(delays))
