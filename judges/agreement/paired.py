"""Agreement of two versions of a judge on the same labelled traces, and preferences, with 95 % intervals.

The agreement is the balanced accuracy: the mean of the shares of right verdicts among the traces that should pass and
among those that should fail. A judge that gives every trace the more frequent verdict gains nothing by it. A share has
Wilson's interval, a difference of two shares of the same traces that of Newcombe (Statistics in Medicine 17, 1998,
method 10), and the two label groups are joined by adding the squares of their distances to the limits (MOVER).
"""

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from judges.agreement.intervals import Interval, Z, wilson
from judges.agreement.labelled import Judged, Labelled, says_yes

_OUTCOMES: Final = ("win", "tie", "loss")
_HALF: Final = 0.5
_Z_POWER: Final = 0.84  # The deviation that keeps a figure above its limit four times out of five.


class Halves(NamedTuple):
    """Labelled traces, divided into those to learn from and those to measure with."""

    train: Sequence[Labelled]
    held_out: Sequence[Labelled]


def halves(labelled: Iterable[Labelled]) -> Halves:
    """Divide traces by a hash of their session, or of their id."""
    # The half of a trace does not depend on the others. With more labels, or a judge that was aligned before, no trace
    # moves from the half that was learnt from to the one that is measured.
    both: tuple[list[Labelled], list[Labelled]] = [], []
    for case in labelled:
        unit = (case.trace.session_id or case.trace.trace_id).encode("utf-8", "surrogatepass")
        both[hashlib.blake2b(unit, digest_size=1, key=b"tracejudge align").digest()[0] % 2].append(case)
    return Halves(*both)


class Cells(NamedTuple):
    """Traces with one label, by whether the verdicts before and after are right."""

    both: float = 0
    after: float = 0  # Only the verdict after is right.
    before: float = 0  # Only the verdict before is right.
    neither: float = 0

    @property
    def difference(self) -> Interval:
        """The share of right verdicts after, less that before."""
        total = sum(self)
        after, before = (wilson((self.both + only) / total, total) for only in (self.after, self.before))
        value = after.value - before.value
        margins = math.prod((self.both + self.after, self.before + self.neither))
        margins *= math.prod((self.both + self.before, self.after + self.neither))
        product = self.both * self.neither - self.after * self.before
        # Half a trace for continuity; a negative correlation stays as it is.
        product = max(0.0, product - total / 2) if product > 0 else product
        phi = product / math.sqrt(margins) if margins else 0.0

        def distance(near: float, far: float) -> float:
            return math.sqrt(max(0.0, near * near - 2 * phi * near * far + far * far))

        low = value - distance(after.value - after.low, before.high - before.value)
        high = value + distance(after.high - after.value, before.value - before.low)
        return Interval(value, max(-1.0, low), min(1.0, high))


def is_right(case: Judged) -> bool:
    """Return whether a verdict agrees with its label; a trace without a verdict agrees with none."""
    return case.passed is says_yes(case.label)


def balanced(judged: Sequence[Judged]) -> Interval:
    """Return the agreement; both labels must occur."""
    groups = [[is_right(case) for case in judged if says_yes(case.label) is label] for label in (True, False)]
    return _joined([wilson(sum(group) / len(group), len(group)) for group in groups])


def improvement(before: Sequence[Judged], after: Sequence[Judged]) -> Interval:
    """Return the agreement after, less that before, of verdicts on the same traces in the same order."""
    return _joined([cells.difference for cells in _cells(before, after)])


def _cells(before: Sequence[Judged], after: Sequence[Judged]) -> Iterator[Cells]:
    for label in (True, False):
        pairs = [
            (is_right(earlier), is_right(later))
            for earlier, later in zip(before, after, strict=True)
            if says_yes(earlier.label) is label
        ]
        kinds = ((True, True), (False, True), (True, False), (False, False))
        yield Cells(*(pairs.count(kind) for kind in kinds))


def _joined(groups: Sequence[Interval]) -> Interval:
    value = sum(group.value for group in groups) / len(groups)
    below, above = (
        math.sqrt(sum(distance**2 for distance in distances)) / len(groups)
        for distances in ([group.value - group.low for group in groups], [group.high - group.value for group in groups])
    )
    return Interval(value, value - below, value + above)


def least_shown(passing: int, failing: int, before: float) -> float | None:
    """Return the smallest improvement that would be shown four times out of five; None if not even the largest.

    Of traces that should pass, and that should fail; ``before`` is the agreement without the improvement.
    """
    # In steps of one point. The verdicts before and after are taken to be independent, which is on the safe side.
    for points in range(1, round((1 - before) * 100) + 1):
        after = min(1.0, before + points / 100)
        shares = (before * after, (1 - before) * after, before * (1 - after), (1 - before) * (1 - after))
        difference = _joined([Cells(*(share * count for share in shares)).difference for count in (passing, failing)])
        if difference.value > (difference.value - difference.low) * (1 + _Z_POWER / Z):
            return points / 100
    return None


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
