"""An event loop with virtual time: when all coroutines wait, its clock jumps to the next timer."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["VirtualLoop", "run_virtually"]

T = TypeVar("T")
Busy = Callable[[], bool]
_LOOK_S = 0.001


def _never() -> bool:
    return False


class _Jumping(selectors.DefaultSelector):
    """Records the requested timeout instead of waiting."""

    def __init__(self, is_busy: Busy) -> None:
        super().__init__()
        self.now = 0.0
        self._is_busy = is_busy

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        busy = True
        while busy and (timeout is None or timeout > 0):
            busy = self._is_busy()  # read before the events, so that the last event of a thread is seen
            if ready := super().select(_LOOK_S if busy else 0):
                return ready
        if timeout is None:
            raise RuntimeError("everything waits, and for no time")
        self.now += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its time begins at 0 and moves only when nothing else is to do. For coroutines without connections.

    It stands still while `is_busy` returns true, because a thread then works for a coroutine.
    """

    def __init__(self, is_busy: Busy = _never) -> None:
        self._jumping = _Jumping(is_busy)
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run_virtually(main: Coroutine[Any, Any, T], is_busy: Busy = _never) -> T:
    """Run a coroutine to its end in virtual time."""
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(is_busy)) as runner:
        return runner.run(main)
