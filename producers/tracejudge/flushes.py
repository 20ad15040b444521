"""The requests to bring everything accepted so far into Redis, between who asks and the sender."""

import threading
from typing import NamedTuple


class Flush(NamedTuple):
    """A numbered request: `target` items, counted since the start, are to be confirmed."""

    ticket: int
    target: int


class Flushes:
    """Requests in order. An answer to one answers all before it, so only the latest is kept."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._latest = Flush(ticket=0, target=0)
        self._answered = 0

    def ask(self, target: int) -> int:
        """Request a flush and get its ticket. Targets never fall, whatever the order of threads."""
        with self._changed:
            self._latest = Flush(self._latest.ticket + 1, max(target, self._latest.target))
            return self._latest.ticket

    def answer(self, ticket: int) -> None:
        """Let those go on who wait for this ticket or an earlier one."""
        with self._changed:
            self._answered = max(self._answered, ticket)
            self._changed.notify_all()

    def wait(self, ticket: int, timeout_s: float) -> None:
        """Wait until a ticket is answered, or for the timeout in seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._answered >= ticket, max(timeout_s, 0.0))

    @property
    def latest(self) -> Flush:
        """The last request."""
        return self._latest

    @property
    def waiting(self) -> bool:
        """Whether a request is not answered yet."""
        return self._latest.ticket > self._answered
