"""The log of one endpoint: when its circuit opens and closes, and its errors."""

import time
from collections.abc import Callable

import structlog

from judges.core.model import ModelError
from judges.endpoints.availability import LimiterEvents
from tracejudge.log import Once

log = structlog.get_logger("tracejudge.judging")


class CircuitLog(LimiterEvents):
    """Logs the changes of a circuit, and the endpoint's errors, each reason once a minute."""

    def __init__(self, judge_model: str, steady: Callable[[], float] = time.monotonic) -> None:
        self._judge_model = judge_model
        self._minute = Once(steady)

    def circuit_opened(self, error: ModelError, seconds: float) -> None:
        """Log the cause; the text of a ModelError is ours and quotes nothing."""
        fields = {"reason": error.reason, "note": str(error), "seconds": round(seconds, 1)}
        log.warning("circuit opened", judge_model=self._judge_model, **fields)

    def circuit_closed(self, seconds: float) -> None:
        """Log how long it was open."""
        log.info("circuit closed", judge_model=self._judge_model, seconds=round(seconds, 1))

    def endpoint_error(self, error: ModelError) -> None:
        """Log status and message, once a minute for each reason."""
        if self._minute.take(error.reason):
            fields = {"reason": error.reason, "note": str(error), "status": error.status, "said": error.message}
            log.warning("endpoint error", judge_model=self._judge_model, **fields)
