"""What the operator reads when an endpoint is left alone, and when it is back."""

from structlog.testing import capture_logs

from judges.models.model import ModelRejectedError
from worker.limits.witness import CircuitLog


def test_the_log_says_whose_circuit_opened_why_and_for_how_long() -> None:
    with capture_logs() as lines:
        witness = CircuitLog("gpt")
        witness.opened(ModelRejectedError("the endpoint rejects us: HTTP 401"), 0.96)
        witness.waits(ModelRejectedError("the endpoint rejects us: HTTP 401"), 2.0)
        witness.closed(12.34)
    assert lines == [
        {
            "event": "circuit opened",
            "log_level": "warning",
            "judge_model": "gpt",
            "reason": "judge_rejected",
            "note": "the endpoint rejects us: HTTP 401",
            "seconds": 1.0,
        },
        {"event": "circuit closed", "log_level": "info", "judge_model": "gpt", "seconds": 12.3},
    ]
