"""How often one of two systems is preferred to the other, with 95 % intervals.

A pair is a win, a tie or a loss; its points are 1, a half or 0. The mean of the points has Wilson's interval, for the
number of yes/no observations that would vary as much: m (1 - m) / V for a mean m of variance V. Half a pair is added to
each of the three outcomes for that number, so that twenty ties of twenty do not look certain.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from judges.agreement.intervals import Interval, wilson

_OUTCOMES: Final = ("win", "tie", "loss")
_HALF: Final = 0.5


@dataclass
class Preference:
    """Outcomes of pairs of answers, for B against A."""

    outcomes: Counter[str] = field(default_factory=Counter)  # Pairs by outcome: win, tie or loss of B.
    flipped: Counter[str] = field(default_factory=Counter)  # Pairs whose preference follows a position, by position.
    equal: int = 0  # Pairs of equal answers, which are ties without a request.

    @property
    def pairs(self) -> int:
        """Number of pairs with an outcome."""
        return self.outcomes.total()

    def share(self, outcome: str) -> Interval | None:
        """Return the share of an outcome; None without any pair."""
        return wilson(self.outcomes[outcome] / self.pairs, self.pairs) if self.pairs else None

    @property
    def points(self) -> Interval | None:
        """The share of wins and half of the ties; above one half B is preferred. None without any pair."""
        if not self.pairs:
            return None
        mean = self._mean(*(self.outcomes[name] for name in _OUTCOMES))
        counts = [self.outcomes[name] + _HALF for name in _OUTCOMES]
        smooth, total = self._mean(*counts), sum(counts)
        variance = (counts[0] + counts[1] * _HALF**2) / total - smooth**2
        return wilson(mean, self.pairs * smooth * (1 - smooth) / variance)

    @property
    def bias(self) -> Interval | None:
        """The share of the compared pairs whose preference follows a position; None if none was compared."""
        compared = self.pairs - self.equal
        return wilson(self.flipped.total() / compared, compared) if compared else None

    @staticmethod
    def _mean(wins: float, ties: float, losses: float) -> float:
        return (wins + ties * _HALF) / (wins + ties + losses)
