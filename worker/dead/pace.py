"""How many dead letters of a judge model are taken up at a time: few at first, more while they succeed."""

from collections.abc import Collection
from typing import Final

__all__ = ["FIRST", "MOST", "Pace"]

FIRST: Final = 20
MOST: Final = 2_560
_FEW: Final = 0.1


class Pace:
    """The pace of one judge model, told at each look what became of those that were taken up."""

    def __init__(self) -> None:
        """Begin with few."""
        self.allowed = FIRST
        self._watched: set[str] = set()

    @property
    def watched(self) -> list[str]:
        """The evaluations that were taken up, and of which nothing was heard since."""
        return sorted(self._watched)

    def hear(self, died: Collection[str], ended: Collection[str]) -> None:
        """Take what has ended since the last look: given up again, or no dead letter any more.

        Where more than a few die again the cause is not gone: back to few. Twice as many are taken up once most of the
        last ones have ended well; a few may fail by themselves, and take hours to do it.
        """
        left = self._watched - {*died, *ended}
        if len(died) > len(ended) * _FEW:
            self.allowed = FIRST
        elif ended and len(left) <= self.allowed / 2:
            self.allowed = min(2 * self.allowed, MOST)
        self._watched = left

    def room(self) -> int:
        """Say how many more may be taken up now."""
        return max(0, self.allowed - len(self._watched))

    def take(self, evaluation_ids: Collection[str]) -> None:
        """Watch what is taken up now."""
        self._watched.update(evaluation_ids)
