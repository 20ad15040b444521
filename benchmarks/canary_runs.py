"""Simulated judges on the canary, judged every hour: false drifts a week, and hours until a change is seen."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from worker.features.canary.canary import CLOSES_AT, OPENS_AT, RECENT, Verdicts, shift

HISTORY_DAYS = 9
# Rates of disagreement of single traces: a judge that always says the same, one with traces on the border of its
# decision, and one whose traces are spread over all rates.
JUDGES = ("steady", "borderline", "scattered")


class Hour(NamedTuple):
    """The verdicts that the monitor compares in one hour, by trace."""

    recent: dict[str, Verdicts]
    before: dict[str, Verdicts]


def rates_of(chance: np.random.Generator, judge: str, traces: int) -> np.ndarray:
    """Return how often the judge disagrees with the label of each trace."""
    if judge == "steady":
        return (chance.random(traces) < 0.15).astype(float)
    if judge == "borderline":
        return chance.choice([*[0.001] * 13, 0.02, 0.02, 0.05, 0.1, 0.3, 0.5, 0.99], traces)
    return chance.beta(0.3, 1.2, traces)


def hours(misses: np.ndarray, first: int) -> Iterator[Hour]:
    """Yield the verdicts compared in each hour from `first` on; `misses` are the disagreements by hour and trace."""
    traces = misses.shape[1]
    for hour in range(first, len(misses)):
        today = hour // 24
        past = misses[max(0, today - 8) * 24 : (today - 1) * 24]
        last = misses[hour - RECENT + 1 : hour + 1]
        yield Hour(
            {f"{number}": Verdicts(len(last), len(last) - int(last[:, number].sum())) for number in range(traces)},
            {f"{number}": Verdicts(len(past), len(past) - int(past[:, number].sum())) for number in range(traces)},
        )


def false_drifts(seed: int, judge: str, *, weeks: int, judges: int, traces: int = 20) -> float:
    """Return the drifts a week and judge, of judges that do not change."""
    chance, drifts = np.random.default_rng(seed), 0
    for _ in range(judges):
        rates = rates_of(chance, judge, traces)
        misses = chance.random(((HISTORY_DAYS + 7 * weeks) * 24, traces)) < rates
        is_open = False
        for recent, before in hours(misses, HISTORY_DAYS * 24):
            compared = shift(recent, before)
            assert compared is not None
            if not is_open and compared.probability <= OPENS_AT:
                is_open, drifts = True, drifts + 1
            elif is_open and compared.probability >= CLOSES_AT:
                is_open = False
    return drifts / weeks / judges


def delays(seed: int, judge: str, changed: int, *, runs: int, traces: int = 20) -> np.ndarray:
    """Return the hours until a drift is seen, after so many right verdicts have become wrong; infinite after 48."""
    chance, delays_h = np.random.default_rng(seed), []
    for _ in range(runs):
        rates = rates_of(chance, judge, traces)
        change = HISTORY_DAYS * 24 + int(chance.integers(24))
        right = np.flatnonzero(rates < 0.5)
        after = rates.copy()
        chosen = chance.choice(right, min(changed, len(right)), replace=False)
        after[chosen] = np.maximum(0.95, 1 - rates[chosen])
        draws = chance.random((change + 48, traces))
        misses = np.where(np.arange(len(draws))[:, None] < change, draws < rates, draws < after)
        seen = (place for place, hour in enumerate(hours(misses, change), start=1) if _is_drift(hour))
        delays_h.append(float(next(seen, np.inf)))
    return np.array(delays_h)


def _is_drift(hour: Hour) -> bool:
    compared = shift(*hour)
    return compared is not None and compared.probability <= OPENS_AT
