"""The board: pages with shares, verdicts, losses and labels."""

from typing import Final

from worker.core.features import Command, Feature
from worker.features.board.settings import BOARD, board_faults

_COMMANDS: Final = {
    "board": Command("worker.features.board.command", "Serve pages with shares, verdicts, losses and labels")
}
FEATURE: Final = Feature(
    name="board", tables=(BOARD,), faults=board_faults, needs=("labels", "report"), commands=_COMMANDS
)
