"""The requests to bring everything accepted so far into Redis, between who asks and the sender."""

from typing import NamedTuple

from tracejudge.native import reentrant_lock
from tracejudge.wakeup import Wakeup


class Flush(NamedTuple):
    """A numbered request: `target` items, counted since the start, are to be confirmed."""

    ticket: int
    target: int


class _Waiter(NamedTuple):
    ticket: int
    wakeup: Wakeup


class Flushes:
    """Requests in order. An answer to one answers all before it, so only the latest is kept."""

    def __init__(self) -> None:
        self._lock = reentrant_lock()
        self._latest = Flush(ticket=0, target=0)
        self._answered = 0
        self._waiters: list[_Waiter] = []

    def ask(self, target: int) -> int:
        """Request a flush and get its ticket. Targets never fall, whatever the order of threads."""
        with self._lock:
            self._latest = Flush(self._latest.ticket + 1, max(target, self._latest.target))
            return self._latest.ticket

    def answer(self, ticket: int) -> None:
        """Let those go on who wait for this ticket or an earlier one."""
        with self._lock:
            self._answered = max(self._answered, ticket)
            for waiter in self._waiters:
                if waiter.ticket <= self._answered:
                    waiter.wakeup.open()

    def wait(self, ticket: int, timeout_s: float) -> None:
        """Wait until a ticket is answered, or for the timeout in seconds."""
        waiter = _Waiter(ticket, Wakeup())
        with self._lock:
            if self._answered >= ticket:
                return
            self._waiters.append(waiter)
        try:
            waiter.wakeup.wait_in_host(max(timeout_s, 0.0))
        finally:
            with self._lock:
                self._waiters.remove(waiter)

    @property
    def latest(self) -> Flush:
        """The last request."""
        return self._latest

    @property
    def answered(self) -> int:
        """The ticket up to which all requests are answered."""
        return self._answered

    @property
    def waiting(self) -> bool:
        """Whether a request is not answered yet."""
        return self._latest.ticket > self._answered
