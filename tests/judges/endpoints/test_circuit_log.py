"""What the operator reads when an endpoint is left alone, and when it is back."""

from structlog.testing import capture_logs

from judges.core.model import ModelRejectedError, ModelUnavailableError
from judges.endpoints.circuit_log import CircuitLog


def test_the_log_names_model_reason_and_duration_of_an_open_circuit() -> None:
    with capture_logs() as lines:
        events = CircuitLog("gpt")
        events.circuit_opened(ModelRejectedError("the endpoint rejects the request: HTTP 401"), 0.96)
        events.calls_delayed(ModelRejectedError("the endpoint rejects the request: HTTP 401"), 2.0)
        events.circuit_closed(12.34)
    assert lines == [
        {
            "event": "circuit opened",
            "log_level": "warning",
            "judge_model": "gpt",
            "reason": "judge_rejected",
            "note": "the endpoint rejects the request: HTTP 401",
            "seconds": 1.0,
        },
        {"event": "circuit closed", "log_level": "info", "judge_model": "gpt", "seconds": 12.3},
    ]


def test_an_endpoint_error_is_logged_once_a_minute_for_each_reason() -> None:
    now, error = 0.0, ModelRejectedError("the endpoint rejects the request: HTTP 403")
    error.status, error.message = 403, "You may not."
    other = ModelUnavailableError("the endpoint fails: HTTP 425")
    other.status = 425
    with capture_logs() as lines:
        events = CircuitLog("gpt", lambda: now)
        for now in (0.0, 1.0, 59.0, 61.0):  # noqa: B007 - read by the clock
            events.endpoint_error(error)
            events.endpoint_error(other)
    line = {"event": "endpoint error", "log_level": "warning", "judge_model": "gpt"}
    expected = [
        line | {"reason": each.reason, "note": str(each), "status": each.status, "said": each.message}
        for each in (error, other)
    ]
    assert lines == expected * 2
