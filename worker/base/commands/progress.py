"""How far a command is: a bar at a terminal, elsewhere a line every five seconds, so that long work is never silent."""

import os
import stat
import threading
import time
from typing import IO, Any, Final, Self

from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

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
        self._noun = noun
        self._hidden = hidden
        columns = (TextColumn("{task.description}"), BarColumn(20), _State(self), TimeElapsedColumn())
        self._bar = Progress(*columns, console=NOTES, disable=hidden or not NOTES.is_terminal)
        self._id = self._bar.add_task(task, total=total)
        self._ended = threading.Event()
        self.begin(task, total)

    def begin(self, task: str, total: float | None = None) -> None:
        """Begin a further part of the work."""
        self._task, self._total, self._count, self._done = task, total, 0, 0.0
        self._cost_usd: float | None = None
        self._remark = ""
        self._began_s = time.monotonic()
        self._bar.reset(self._id, description=task, total=total)

    def update(
        self,
        count: int,
        *,
        done: float | None = None,
        total: float | None = None,
        cost_usd: float | None = None,
        remark: str = "",
    ) -> None:
        """Set the number of items, how much of ``total`` they are unless it counts items, the cost, and a remark."""
        self._count, self._done, self._remark = count, float(count) if done is None else done, remark
        self._total = self._total if total is None else total
        self._cost_usd = self._cost_usd if cost_usd is None else cost_usd
        self._bar.update(self._id, completed=self._done, total=self._total)

    def advance(self, cost_usd: float | None) -> None:
        """Count one item, with the cost of all so far."""
        self.update(self._count + 1, cost_usd=cost_usd)

    def describe(self) -> str:
        """Return the count, rate, cost, time left and remark."""
        seconds = max(time.monotonic() - self._began_s, 0.001)
        rate = self._count / seconds
        parts = [amount(self._count, self._noun), f"{rate:,.1f}/s" if rate < 100 else f"{rate:,.0f}/s"]  # noqa: PLR2004
        parts += [f"{self._cost_usd:.4f} USD"] if self._cost_usd else []
        if self._total and self._done > 0:
            left_s = max(0.0, self._total - self._done) * seconds / self._done
            parts.append(f"{left_s:,.0f} s left" if left_s < 120 else f"{left_s / 60:,.0f} min left")  # noqa: PLR2004
        return ", ".join(filter(None, (*parts, self._remark)))

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


class _State(ProgressColumn):
    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self._meter = meter

    def render(self, _: Task) -> Text:
        return Text(self._meter.describe())
