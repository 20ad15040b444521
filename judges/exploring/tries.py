"""When an exploration is not tried again: each try pays for its rounds anew."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from judges.asking import UnscoredError
from judges.deadline import Deadline
from judges.exploration import Limits
from judges.verdict import FINAL_REASONS, Call

__all__ = ["Tries"]

_TIMES: Final = 2
_FAILED_CALLS: Final = 10
"""An endpoint that fails for a moment shall not use up the tries of a judge with few rounds."""


class Tries(NamedTuple):
    """What was spent on one evaluation.

    Attributes:
        limits: Those of a try.
        earlier_calls: Requests of the tries before this one.
        calls: Requests of this one.
        deadline: That of this one.
    """

    limits: Limits
    earlier_calls: int
    calls: Iterable[Call]
    deadline: Deadline | None

    def end(self, end: UnscoredError) -> UnscoredError:
        """Say how a try that failed ends: as it did where nothing was answered, which is not paid for."""
        statuses = [call.status for call in self.calls]
        if end.reason in FINAL_REASONS or "ok" not in statuses:
            return end
        if self.deadline is not None and self.deadline.has_passed:
            note = f"the exploration did not end within {self.deadline.limit_s:g} s"
        elif self.earlier_calls + len(statuses) >= _TIMES * self.limits.max_rounds + _FAILED_CALLS:
            note = f"all tries together used up the calls that max_rounds allows; the last ended with {end.reason}"
        else:
            return end
        return UnscoredError("over_budget", note)
