"""How the sender sleeps, and how others end its sleep."""

from contextlib import suppress
from queue import Empty, SimpleQueue


class Wakeup:
    """A latch at which one thread waits and which any code may open.

    A SimpleQueue holds it because its `put` is reentrant: an Event's lock would hang a thread whose signal
    handler or finalizer publishes while the thread itself is opening the latch.
    """

    def __init__(self) -> None:
        self._tokens: SimpleQueue[None] = SimpleQueue()

    def open(self) -> None:
        """End the current wait, or the next one at once. Never blocks."""
        self._tokens.put(None)

    def wait(self, timeout_s: float) -> bool:
        """Wait until the latch is opened, and close it again; False after the timeout in seconds."""
        try:
            self._tokens.get(timeout=max(timeout_s, 0.0))
        except Empty:
            return False
        self._close()
        return True

    def _close(self) -> None:
        with suppress(Empty):
            while True:
                self._tokens.get_nowait()
