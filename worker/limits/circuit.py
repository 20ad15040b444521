"""When an endpoint is left alone because it fails, and how it is found that it is back."""

import random
from collections.abc import Callable
from typing import Final

from judges.models.model import ModelError, ModelRejectedError

__all__ = ["Circuit"]

_FAILURES: Final = 10
_FIRST_S: Final = 1.0
_LONGEST_S: Final = 15.0
_LEAST_SHARE: Final = 0.75
"""Of an interval, by chance: many workers must not probe together."""


class Circuit:
    """Closed, or open with one probe at a time. Pure: times and call numbers are passed in.

    While it is open, what becomes of earlier calls changes nothing: they say what the endpoint was.
    """

    def __init__(self, draw: Callable[[float, float], float] = random.uniform) -> None:
        """Begin closed.

        Args:
            draw: A number between two bounds.
        """
        self._draw = draw
        self._failures = 0
        self._interval_s = 0.0
        self._valid_from = 0
        self.cause: ModelError | None = None
        """The failure that keeps it open; None while it is closed."""
        self.opened_at = 0.0
        self.opens_at = 0.0
        """From when on a probe may begin, while it is open."""

    @property
    def is_open(self) -> bool:
        """Tell whether calls are kept back; a probe may be due or under way."""
        return self.cause is not None

    def answered(self) -> None:
        """Note an answer of any kind but a failure, while closed."""
        self._failures = 0

    def failed(self, error: ModelError, number: int, next_number: int, older: int, now: float) -> bool:
        """Note a failure while closed, and tell whether it opened.

        It opens at once when only the operator can help, else after ten failures in a row.

        Args:
            error: A rejection, or a failure that may pass.
            number: That of the call.
            next_number: That of the next call to begin.
            older: Calls under way that began before this one. They may yet be answered, and failures are often
                quicker than answers: as many failures as them are awaited.
            now: The time.
        """
        if number < self._valid_from:
            return False
        self._failures += 1
        if not isinstance(error, ModelRejectedError) and self._failures < max(_FAILURES, older):
            return False
        self.opened_at = now
        self._interval_s = _FIRST_S
        self._keep_open(error, next_number, now)
        return True

    def probe_failed(self, error: ModelError, next_number: int, now: float) -> None:
        """Stay open for twice as long as before."""
        self._interval_s = min(_LONGEST_S, 2 * self._interval_s)
        self._keep_open(error, next_number, now)

    def close(self, next_number: int) -> None:
        """Let calls through again."""
        self.cause = None
        self._failures = 0
        self._valid_from = next_number

    def _keep_open(self, error: ModelError, next_number: int, now: float) -> None:
        self.cause = error
        self._valid_from = next_number
        self.opens_at = now + self._draw(_LEAST_SHARE * self._interval_s, self._interval_s)
