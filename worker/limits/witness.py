"""Who is told when an endpoint is left alone, when it is back, and when a call waits."""

from typing import Protocol

import structlog

from judges.models.model import ModelError

__all__ = ["CircuitLog", "Witness"]

log = structlog.get_logger("tracejudge.judging")


class Witness(Protocol):
    """Is told by a gate, in its event loop, and must be quick."""

    def opened(self, error: ModelError, seconds: float) -> None:
        """Hear that the circuit opened, why, and when the first probe is due."""
        ...

    def closed(self, seconds: float) -> None:
        """Hear that the circuit closed after so long."""
        ...

    def waits(self, error: ModelError, seconds: float) -> None:
        """Hear why calls begin again only after so long."""
        ...


class CircuitLog:
    """Writes the circuit's changes into the worker's log."""

    def __init__(self, judge_model: str) -> None:
        """Take the name of whose circuit it is."""
        self._judge_model = judge_model

    def opened(self, error: ModelError, seconds: float) -> None:
        """Log why; the error's text is ours."""
        log.warning(
            "circuit opened",
            judge_model=self._judge_model,
            reason=error.reason,
            note=str(error),
            seconds=round(seconds, 1),
        )

    def closed(self, seconds: float) -> None:
        """Log how long it was open."""
        log.info("circuit closed", judge_model=self._judge_model, seconds=round(seconds, 1))

    def waits(self, error: ModelError, seconds: float) -> None:
        """Log nothing: under a rate limit that happens all the time."""
