"""What the gateway refuses and drops is logged once a minute, and listed without a text."""

from http import HTTPStatus

import pytest
from structlog.testing import capture_logs

from tracejudge.dialects import builtin
from tracejudge.dialects.unread import Unread
from worker.base.input.unusable import UnreadRecord, UnusableInput, read_invalid, read_unread
from worker.core.config.settings import Settings
from worker.core.storage.client import Store
from worker.core.storage.keys import Keys
from worker.features.gateway.admission import GatewayMetrics, Instrumentations, Loss, Losses, RefusedError


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


def test_each_sender_is_told_once_a_minute_and_spans_are_examined_until_then() -> None:
    now = [0.0]
    instrumentations = Instrumentations(builtin(), lambda: now[0])
    unknown, call = {"acme.prompt": "1", "gen_ai.system": "1"}, {"gen_ai.operation.name": "chat"}

    def told(sender: str, attributes: dict[str, str], scope: str = "acme") -> tuple[bool, str]:
        if not instrumentations.is_open(scope, sender):
            return False, ""
        kind = instrumentations.examine(scope, attributes)
        return True, instrumentations.message({} if kind is None else {(scope, sender): kind})

    words = "spans of 'acme': no dialect reads acme.prompt; add a table, see "
    for now[0], sender, is_told in ((0, "a", True), (1, "a", False), (2, "b", True), (59, "a", False), (60, "a", True)):
        is_examined, message = told(sender, unknown)
        assert (is_examined, message.startswith(words)) == (is_told, is_told), (now, sender)
    assert told("c", call) == (True, ""), "a call that is read"
    assert told("d", unknown) == (False, "")
    examined = sum(told("a", {"http.route": "1"}, "web")[0] for _ in range(1_000))
    assert examined == 200, "spans of other programs"
