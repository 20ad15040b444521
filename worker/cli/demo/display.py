"""Where the demo shows itself: on a screen of its own in a terminal, else in a line every few seconds."""

import sys
from contextlib import AbstractContextManager
from typing import Final, Protocol, Self

from rich.console import Console
from rich.live import Live

from worker.cli.demo.screen import View, page, percent, status
from worker.cli.demo.traffic import DROP
from worker.cli.options import NOTES, OUT

__all__ = ["Display", "LinesDisplay", "LiveDisplay", "out"]

_PLAIN_WIDTH: Final = 112
_FIRST_LINE_S: Final = 1.0
_LINE_EVERY_S: Final = 5.0


class Display(AbstractContextManager["Display"], Protocol):
    """Shows views while the demo runs."""

    def show(self, view: View) -> None:
        """Show a view, unless it is too early for another."""


class LiveDisplay:
    """Draws the scoreboard over and over on a screen of its own, which goes when the block is left."""

    def __init__(self) -> None:
        self._live = Live(console=OUT, screen=True, auto_refresh=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def show(self, view: View) -> None:
        """Draw the view."""
        self._live.update(page(view, OUT.width), refresh=True)


class LinesDisplay:
    """Tells on standard error every few seconds how far it is."""

    def __init__(self) -> None:
        self._next_s = _FIRST_LINE_S

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def show(self, view: View) -> None:
        """Print a line when it is time for one."""
        if view.elapsed_s < self._next_s:
            return
        self._next_s += _LINE_EVERY_S
        series = view.board.series(DROP.service, DROP.judge)
        NOTES.print(
            f"{view.elapsed_s:3.0f} s  {status(view)} | {DROP.service} {DROP.judge} {percent(series.now)}",
            highlight=False,
            soft_wrap=True,
        )


def out() -> Console:
    """Give standard output: as wide as the terminal is, or wide enough for the table where there is none."""
    return OUT if sys.stdout.isatty() else Console(width=_PLAIN_WIDTH, highlight=False)
