"""Drift of a judge: its agreement with the labels of the canary, and whether it fell below its own earlier level.

The same traces are judged again and again, so the number of observations is the number of traces, not of verdicts, and
each trace is compared with its own earlier verdicts. A judge that errs about a trace as before does not count as
changed, whatever its agreement.
"""

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from judges.agreement.intervals import Interval, wilson

LEAST_BEFORE: Final = 12  # A trace with fewer earlier verdicts is not compared.
RECENT: Final = 6  # Judgings that are compared with the earlier ones.
OPENS_AT: Final = 1e-4
CLOSES_AT: Final = 1e-2


class Verdicts(NamedTuple):
    """How many verdicts about a trace there were, and how many agreed with its labels."""

    total: int = 0
    agreed: int = 0

    @property
    def missed(self) -> int:
        """How many did not agree."""
        return self.total - self.agreed

    def add(self, more: "Verdicts") -> "Verdicts":
        """Add other verdicts about the same trace."""
        return Verdicts(self.total + more.total, self.agreed + more.agreed)


class Shift(NamedTuple):
    """Recent verdicts beside earlier ones of the same traces."""

    # Of so many recent disagreements by a judge that has not changed, without the trace that fell most.
    probability: float
    before: float  # The earlier agreement.
    now: float  # The recent agreement.
    fallen: tuple[str, ...]  # The traces whose agreement fell, the one that fell most first.


def agreement(traces: Mapping[str, Verdicts]) -> Interval | None:
    """Return the mean agreement of traces with Wilson's interval on their number, None without a verdict."""
    shares = [verdicts.agreed / verdicts.total for verdicts in traces.values() if verdicts.total]
    return wilson(sum(shares) / len(shares), len(shares)) if shares else None


def shift(recent: Mapping[str, Verdicts], before: Mapping[str, Verdicts]) -> Shift | None:
    """Compare recent verdicts with earlier ones by trace; None until two traces have enough verdicts.

    Each trace has its own rate of disagreement, estimated from its earlier verdicts. With Jeffreys' prior the number
    of its recent disagreements has a beta-binomial distribution, and their sum over traces the convolution of these.
    The trace that fell most is left out, because a single trace may lie on the border of the judge's decision.
    """
    pairs = {
        name: (now, then)
        for name, now in recent.items()
        if now.total and (then := before.get(name, Verdicts())).total >= LEAST_BEFORE
    }
    if len(pairs) < 2:  # noqa: PLR2004
        return None
    falls = {name: then.agreed / then.total - now.agreed / now.total for name, (now, then) in pairs.items()}
    order = sorted(falls, key=lambda name: falls[name], reverse=True)
    others = (pairs[name] for name in order[1:])
    counts = sorted((now.total, now.missed, then.total, then.missed) for now, then in others)
    earlier = sum(then.agreed / then.total for _, then in pairs.values()) / len(pairs)
    latest = earlier - sum(falls.values()) / len(falls)
    return Shift(_tail(tuple(counts)), earlier, latest, tuple(name for name in order if falls[name] > 0))


@lru_cache(maxsize=1024)
def _tail(counts: tuple[tuple[int, int, int, int], ...]) -> float:
    """Return the probability of at least as many recent disagreements over all traces.

    Of each trace recent verdicts and disagreements, earlier verdicts and disagreements.
    """
    seen = sum(missed for _, missed, _, _ in counts)
    if seen <= sum(total * (past_missed + 0.5) / (past + 1) for total, _, past, past_missed in counts):
        return 1.0
    # Probability of each sum below the observed sum; the last place collects all others.
    sums = [1.0] + [0.0] * seen
    for total, _, past, past_missed in counts:
        a, b = past_missed + 0.5, past - past_missed + 0.5
        rest = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) - math.lgamma(a + b + total)
        chances = [
            math.comb(total, number) * math.exp(math.lgamma(a + number) + math.lgamma(b + total - number) + rest)
            for number in range(total + 1)
        ]
        added = [0.0] * (seen + 1)
        for place, probability in enumerate(sums):
            for more, chance in enumerate(chances):
                added[min(seen, place + more)] += probability * chance
        sums = added
    return sums[seen]
