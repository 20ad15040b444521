"""Look after what no word came for: a message was lost, a holder is dead, a parking or a closed gate's time is over."""

import random
from typing import Final

from worker.judging.judging import Judging
from worker.stage import Stage

__all__ = ["Sweeper"]

_SHORTEST_S: Final = 0.5
_LONGEST_S: Final = 1.0


class Sweeper(Stage):
    """Gives the process's judging a turn at least once a second."""

    role = "judge"

    def __init__(self, judging: Judging) -> None:
        """Prepare the thread; ``start`` begins."""
        super().__init__("sweeper")
        self._judging = judging

    def prepare(self) -> None:
        """Nothing to prepare."""

    def turn(self) -> None:
        """Look once, then wait."""
        self._judging.sweep()
        # Not in step: of two workers the same one would always be first, also at what only the other can judge.
        self.stopping.wait(random.uniform(_SHORTEST_S, _LONGEST_S))  # noqa: S311 - no secret
