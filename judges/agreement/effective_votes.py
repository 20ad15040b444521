"""How many independent votes the votes of a panel, or of several askings of one judge, are worth."""

import math
from collections import defaultdict
from collections.abc import Mapping
from itertools import combinations
from typing import Final

from judges.agreement.intervals import Interval
from judges.agreement.shares import student

LEAST_TRACES: Final = 30
_STEP: Final = 1e-4  # By how much a weight is raised for a derivative.


def effective_votes(traces: Mapping[str, int]) -> Interval | None:
    """Estimate N / (1 + (N - 1) r), for N votes with the mean correlation r (Kish, Survey Sampling, 1965, section 5.4).

    ``traces`` is the number of traces by their votes, as ``110``. The result is None with fewer than 30, or if no two
    members both vary. The limits are from the infinitesimal jackknife (Efron, The Jackknife, 1982, chapter 6) on
    Fisher's scale. Two traces are added for it, one on which a single vote differs, and only split votes are degrees of
    freedom, because few of them tell little.
    """
    # Votes of another number are from before the panel or `samples` changed.
    of_length = {length: sum(n for votes, n in traces.items() if len(votes) == length) for length in map(len, traces)}
    number = max(of_length, key=lambda length: of_length[length], default=0)
    traces = {votes: count for votes, count in traces.items() if len(votes) == number}
    middle = _correlation(traces) if sum(traces.values()) >= LEAST_TRACES else None
    if middle is None:
        return None
    weights = defaultdict[str, float](float, traces)
    for vote, other in ("01", "10"):
        weights[vote * number] += 0.5
        for place in range(number):
            weights[other * place + vote + other * (number - 1 - place)] += 0.5 / number
    center, variance = _correlation(weights) or 0.0, 0.0
    for votes, weight in weights.items():
        raised = _correlation({**weights, votes: weight + _STEP}) or 0.0
        variance += weight * ((raised - center) / _STEP) ** 2
    split = sum(count for votes, count in traces.items() if len(set(votes)) > 1)
    half = student(split + 2) * math.sqrt(variance) / (1 - center**2)
    low, high = (math.tanh(math.atanh(center) + side * half) for side in (-1, 1))
    clipped = (min(1.0, max(0.0, r)) for r in (middle, max(middle, high), min(middle, low)))
    return Interval(*(number / (1 + (number - 1) * r) for r in clipped))


def _correlation(traces: Mapping[str, float]) -> float | None:
    """Return the mean correlation of the pairs whose votes both vary; None without such a pair."""
    total, members = sum(traces.values()), range(max(map(len, traces)))
    shares = [sum(weight for votes, weight in traces.items() if votes[i] == "1") / total for i in members]
    correlations = []
    for i, j in combinations(members, 2):
        if variances := shares[i] * (1 - shares[i]) * shares[j] * (1 - shares[j]):
            both = sum(weight for votes, weight in traces.items() if votes[i] == votes[j] == "1") / total
            correlations.append((both - shares[i] * shares[j]) / math.sqrt(variances))
    return math.fsum(correlations) / len(correlations) if correlations else None
