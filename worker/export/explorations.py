"""Count how explorations went: how many rounds they took, what ended them, how often a tool gave nothing."""

from collections.abc import Mapping

from judges.verdict import Verdict
from worker.metrics import EXPLORATION_ENDS, Metrics

__all__ = ["Explorations"]


class Explorations:
    """Turns what verdicts say of their explorations into metrics."""

    def __init__(self, metrics: Metrics) -> None:
        """Count nothing yet."""
        self._metrics = metrics

    def count(self, verdict: Verdict) -> None:
        """Count one final verdict, of whatever origin; one without an exploration is passed over."""
        course = verdict.details.get("exploration")
        if not isinstance(course, Mapping):
            return
        counters = {end: self._metrics.explorations.labels(verdict.judge, end) for end in EXPLORATION_ENDS}
        ended_by = course.get("ended_by")
        counters[ended_by if isinstance(ended_by, str) and ended_by in counters else "nothing"].inc()
        self._metrics.exploration_rounds.labels(verdict.judge).observe(_amount(course, "rounds"))
        self._metrics.exploration_tool_errors.labels(verdict.judge).inc(_amount(course, "tool_errors"))


def _amount(course: Mapping[str, object], name: str) -> int:
    """Read a count out of what another version may have written."""
    found = course.get(name)
    return found if isinstance(found, int) and found > 0 else 0
