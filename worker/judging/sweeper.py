"""Look after what no word came for: a message was lost, a holder is dead, a parking or a closed gate's time is over."""

from typing import Final

from worker.judging.judging import Judging
from worker.stage import Stage

__all__ = ["Sweeper"]

_EVERY_S: Final = 1.0


class Sweeper(Stage):
    """Gives the process's judging a turn every second."""

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
        self.stopping.wait(_EVERY_S)
