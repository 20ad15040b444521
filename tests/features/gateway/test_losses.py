"""What the gateway refuses and drops is logged once a minute, and listed without a text."""

from http import HTTPStatus

import pytest
from structlog.testing import capture_logs

from tracejudge.dialects.unread import Unread
from worker.base.input.unusable import UnreadRecord, UnusableInput, read_invalid, read_unread
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
            losses.drop([Loss("no_ids", 2, "", ("gen_ai.system", secret), secret)])
            kinds = [Unread("acme", ("acme.prompt",), 1), Unread("flask", (), 2)]
            losses.drop_unread({"acme": 1, "flask": 2}, secret, kinds)
            losses.write()
        for now[0] in (61.0, 62.0):
            losses.write()
        losses.refuse(error, "/v1/traces")
        losses.write(at_end=True)
    log_lines = [(line["event"], line["reason"], line["count"]) for line in logs]
    assert log_lines == [
        ("requests refused", "unauthorized", 1),
        ("items dropped", "no_ids", 2),
        ("items dropped", "no_model_call", 3),
        ("requests refused", "unauthorized", 2),
        ("items dropped", "no_ids", 4),
        ("items dropped", "no_model_call", 6),
        ("requests refused", "unauthorized", 1),
    ]
    listed = [(entry.reason, entry.keys, entry.trace_id) for entry in read_invalid(store)]
    assert sorted(listed, key=str) == [
        *3 * [("no_ids", ("gen_ai.system", "(another)"), None)],
        ("no_model_call", ("acme.prompt",), None),
        ("no_model_call", (), None),
    ]
    (kind,) = read_unread(store)
    assert kind == UnreadRecord("acme", ("acme.prompt",), 3, at=kind.at)
    assert secret not in repr(logs)
    store.close()
