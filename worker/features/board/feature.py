"""The board: pages with shares, verdicts, losses and labels."""

from typing import Final

from worker.core.features import Command, Feature

_COMMANDS: Final = {
    "board": Command("worker.features.board.command", "Serve pages with shares, verdicts, losses and labels")
}
FEATURE: Final = Feature(name="board", commands=_COMMANDS)
