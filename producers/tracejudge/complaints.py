"""The SDK's log: warnings that stay few whatever happens, and never quote a trace."""

import logging
from collections.abc import Callable

logger = logging.getLogger("tracejudge")

_INTERVAL_S = 60.0


class Complaints:
    """Warnings about one matter, at most one a minute. Only the sender and `shutdown` write them.

    The threads that publish never log, but for the one line that `init` is missing: a handler of the host may
    block or publish itself.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last_s: float | None = None

    def warn(self, message: str, *values: object) -> None:
        """Log a warning unless one of this matter was logged within the last minute."""
        now_s = self._clock()
        if self._last_s is None or now_s - self._last_s >= _INTERVAL_S:
            self._last_s = now_s
            logger.warning(message, *values)
