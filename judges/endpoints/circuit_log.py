"""The log of one endpoint: when its circuit opens and closes, and its errors."""

import time
from collections.abc import Callable
from typing import Final

import structlog

from judges.core.model import ModelError
from judges.endpoints.availability import LimiterEvents

log = structlog.get_logger("tracejudge.judging")
_ERROR_LOG_INTERVAL_S: Final = 60.0


class CircuitLog(LimiterEvents):
    """Logs the changes of a circuit, and the endpoint's errors, each reason once a minute."""

    def __init__(self, judge_model: str, steady: Callable[[], float] = time.monotonic) -> None:
        self._judge_model = judge_model
        self._steady = steady
        self._logged_at: dict[str, float] = {}

    def circuit_opened(self, error: ModelError, seconds: float) -> None:
        """Log the cause; the text of a ModelError is ours and quotes nothing."""
        fields = {"reason": error.reason, "note": str(error), "seconds": round(seconds, 1)}
        log.warning("circuit opened", judge_model=self._judge_model, **fields)

    def circuit_closed(self, seconds: float) -> None:
        """Log how long it was open."""
        log.info("circuit closed", judge_model=self._judge_model, seconds=round(seconds, 1))

    def endpoint_error(self, error: ModelError) -> None:
        """Log status and message, once a minute for each reason."""
        now = self._steady()
        if now >= self._logged_at.get(error.reason, now - _ERROR_LOG_INTERVAL_S) + _ERROR_LOG_INTERVAL_S:
            self._logged_at[error.reason] = now
            fields = {"reason": error.reason, "note": str(error), "status": error.status, "said": error.message}
            log.warning("endpoint error", judge_model=self._judge_model, **fields)
