"""How the sender sleeps, and how others end its sleep."""

from contextlib import suppress
from queue import Empty

from tracejudge.native import has_greenlets, original, poll


class Wakeup:
    """A latch at which one thread waits and which any code may open.

    A SimpleQueue holds it because its `put` is reentrant: an Event's lock would hang a thread whose signal
    handler or finalizer publishes while the thread itself is opening the latch.
    """

    def __init__(self) -> None:
        self._tokens = original("_queue", "SimpleQueue")()

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

    def wait_in_host(self, timeout_s: float) -> bool:
        """Wait like `wait`, in a thread of the host: where these are greenlets, others run meanwhile."""
        if has_greenlets() and not poll(lambda: not self._tokens.empty(), timeout_s):
            return False
        return self.wait(timeout_s)

    def _close(self) -> None:
        with suppress(Empty):
            while True:
                self._tokens.get_nowait()
