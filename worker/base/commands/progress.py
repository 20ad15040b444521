"""How far a command is: a bar at a terminal, elsewhere a line every five seconds, so that long work is never silent."""

import os
import stat
import threading
import time
from typing import IO, Any, Final, Self

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from worker.base.commands.options import NOTES, amount, note

LINE_S: Final = 5.0


def file_size(file: IO[Any]) -> int | None:
    """Return the bytes of a regular file, None of a pipe."""
    status = os.fstat(file.fileno())
    return status.st_size if stat.S_ISREG(status.st_mode) else None


class Meter:
    """Counts items; shows their rate, the cost so far and the time left while it is open."""

    def __init__(self, task: str, noun: str, *, total: float | None = None, hidden: bool = False) -> None:
        """Name the work and the items; ``total`` is what ``update`` reaches at the end, if it is known."""
        self._noun, self._hidden, self._ended = noun, hidden, threading.Event()
        columns = (TextColumn("{task.description}"), BarColumn(20), TextColumn("{task.fields[state]}"))
        self._bar = Progress(*columns, TimeElapsedColumn(), console=NOTES, disable=hidden or not NOTES.is_terminal)
        self._id = self._bar.add_task(task, state="")
        self.begin(task, total)

    def begin(self, task: str, total: float | None = None) -> None:
        """Begin a further part of the work."""
        self._task, self._total, self._began_s = task, total, time.monotonic()
        self._count, self._done, self._cost_usd = 0, 0.0, 0.0
        self._bar.reset(self._id, description=task, total=total)

    def update(
        self, count: int, *, done: float | None = None, total: float | None = None, cost_usd: float | None = None
    ) -> None:
        """Set the number of items, how much of ``total`` they are unless it counts items, and the cost."""
        self._count, self._done = count, float(count) if done is None else done
        self._total, self._cost_usd = total or self._total, cost_usd or self._cost_usd
        self._bar.update(self._id, completed=self._done, total=self._total, state=self.describe())

    def advance(self, cost_usd: float | None) -> None:
        """Count one item, with the cost of all so far."""
        self.update(self._count + 1, cost_usd=cost_usd)

    def describe(self) -> str:
        """Return the count, rate, cost and time left."""
        seconds = max(time.monotonic() - self._began_s, 0.001)
        cost = f", {self._cost_usd:.4f} USD" if self._cost_usd else ""
        left_s = max(0.0, self._total - self._done) * seconds / self._done if self._total and self._done else None
        left = "" if left_s is None else f", {left_s:,.0f} s left"
        return f"{amount(self._count, self._noun)}, {self._count / seconds:,.1f}/s{cost}{left}"

    def _print_lines(self) -> None:
        began_s = time.monotonic()
        while not self._ended.wait(LINE_S):
            note(f"{time.monotonic() - began_s:3.0f} s  {self._task}: {self.describe()}")

    def __enter__(self) -> Self:
        self._bar.start()
        if not (self._hidden or NOTES.is_terminal):
            # A thread, because the first call may be the one that takes long.
            threading.Thread(target=self._print_lines, name="tracejudge-progress", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._bar.stop()
