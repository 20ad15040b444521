"""What the gateway refuses and drops is logged once a minute, and listed without a text."""

from http import HTTPStatus

import pytest
from structlog.testing import capture_logs

from worker.base.input.unusable import UnusableInput, read_invalid
from worker.core.config.settings import Settings
from worker.core.storage.client import Store
from worker.core.storage.keys import Keys
from worker.features.gateway.admission import GatewayMetrics, Loss, Losses, RefusedError


@pytest.mark.usefixtures("redis")
def test_losses_are_logged_once_a_minute_with_their_count(redis_url: str, prefix: str) -> None:
    now = [0.0]
    store = Store(redis_url, Keys(prefix))
    losses = Losses(UnusableInput(store), GatewayMetrics(Settings()), lambda: now[0])
    secret = "the user's own text"  # noqa: S105 - a text
    error = RefusedError(HTTPStatus.UNAUTHORIZED, "unauthorized", "send a token")
    with capture_logs() as logs:
        for now[0] in (0.0, 1.0, 59.0):
            losses.refuse(error, "/v1/traces")
            losses.drop([Loss("no_ids", 2, "", ("gen_ai.system", secret), secret), Loss("no_model_call")])
            losses.write()
        for now[0] in (61.0, 62.0):
            losses.write()
        losses.refuse(error, "/v1/traces")
        losses.write(at_end=True)
    log_lines = [(line["event"], line["reason"], line["count"]) for line in logs]
    assert log_lines == [
        ("requests refused", "unauthorized", 1),
        ("items dropped", "no_ids", 2),
        ("items dropped", "no_model_call", 1),
        ("requests refused", "unauthorized", 2),
        ("items dropped", "no_ids", 4),
        ("items dropped", "no_model_call", 2),
        ("requests refused", "unauthorized", 1),
    ]
    listed = [(entry.reason, entry.keys, entry.trace_id) for entry in read_invalid(store)]
    assert sorted(listed, key=str) == [
        *3 * [("no_ids", ("gen_ai.system", "(another)"), None)],
        ("no_model_call", (), None),
    ]
    assert secret not in repr(logs)
    store.close()
