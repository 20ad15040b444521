"""The sweeper's rhythm: it looks, then waits for a second at most, also after what failed."""

import threading
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from worker.judging.sweeper import Sweeper
from worker.store import StoreError

LOOKS = 50


class Diary(threading.Event):
    """Notes each look and each wait, which takes no time; the last look ends the sweeper's thread."""

    def __init__(self, error: Exception | None) -> None:
        super().__init__()
        self.looks = 0
        self.waits: list[list[float]] = []
        self._error = error

    def sweep(self) -> None:
        self.looks += 1
        self.waits.append([])
        if self.looks == LOOKS:
            self.set()
        if self._error is not None and self.looks == 1:
            raise self._error

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits[-1].append(timeout)
        return self.is_set()


@pytest.mark.parametrize(
    "error", [None, StoreError("away"), KeyError("bug")], ids=["all is well", "store", "unforeseen"]
)
def test_it_looks_at_least_once_a_second(error: Exception | None) -> None:
    diary = Diary(error)
    sweeper = Sweeper(SimpleNamespace(sweep=diary.sweep))
    sweeper.stopping = diary
    with capture_logs():
        sweeper.start()
        sweeper._thread.join(60)
    assert (sweeper.pulse.begun, diary.looks) == (True, LOOKS)
    assert all(len(between) == 1 and 0 < between[0] <= 1.0 for between in diary.waits)


def test_two_of_them_are_not_in_step() -> None:
    """Of two workers the same one would always be first, also at what only the other can judge."""
    diary = Diary(None)
    sweeper = Sweeper(SimpleNamespace(sweep=diary.sweep))
    sweeper.stopping = diary
    for _ in range(LOOKS):
        sweeper.turn()
    assert len({wait for between in diary.waits for wait in between}) > 1
