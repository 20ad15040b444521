"""Plain JSON is read by the converter that SDK and worker share; what is refused or dropped is logged once a minute."""

import json
from http import HTTPStatus
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs
from support.cases import each_case

from tracejudge.dialects import builtin
from tracejudge.dialects.unread import Unread
from worker.base.input.unusable import UnreadRecord, UnusableInput, read_invalid, read_unread
from worker.core.config.settings import Settings
from worker.core.storage.client import Store
from worker.core.storage.keys import Keys
from worker.features.gateway.admission import Form, GatewayMetrics, Instrumentations, Loss, Losses, RefusedError
from worker.features.gateway.intake import Encoder, Intake, read_intake, sdk_settings

IDS = ("trace_id", "span_id", "id", "service")


def intake(body: str | bytes, form: Form = Form.JSON, *, service: str | None = None, key: str | None = None) -> Intake:
    content = body if isinstance(body, bytes) else body.encode()
    encoder = Encoder(sdk_settings(Settings()))
    return read_intake(content, form, encoder, service=service, repeat_key=key, now_s=1.0)


def arrived(intake_result: Intake) -> list[dict[str, Any]]:
    return [json.loads(entry.payload) for entry in intake_result.entries]


SECRET = "a text of the user"  # noqa: S105 - a text


def test_other_names_and_a_wrong_field_are_no_reason_to_reject() -> None:
    read = intake(
        json.dumps(
            [
                {"serviceName": "bot", "traceId": "A" * 32, "prompt": "q", "answer": "a", "sessionId": None},
                {"app": "bot", "output": "b", "startTime": "2023-11-14T22:13:20", "documents": [{"text": "d"}, 7.5]},
                {"service": "bot", "output": "c", "usage": SECRET, "feedback": SECRET, "trace_id": {"a": SECRET}},
                {"service": "bot", "output": "d", "usage": [SECRET]},
                {"service": "bot", "outptu": "a"},
                {"service": {"name": "bot", "version": "1"}, "output": "a", "tenant": "t", SECRET: "b"},
                {"service": "bot", "output": "a", **{f"own_{number}": 1 for number in range(200)}},
            ]
        )
    )
    traces, reply = arrived(read), read.reply()
    assert [trace["service"] for trace in traces] == ["bot"] * 7, "a service may be an object with a name"
    assert (traces[0]["input"], traces[0]["output"], traces[0]["trace_id"]) == ("q", "a", "A" * 32)
    assert (traces[1]["started_at"], reply["accepted"]) == (1_700_000_000, 7)
    assert reply["left_out"] == [
        {"field": "feedback", "type": "string", "count": 1},
        {"field": "output", "type": "absent", "count": 1},
        {"field": "trace_id", "type": "object", "count": 1},
        {"field": "usage", "type": "array", "count": 1},
        {"field": "usage", "type": "string", "count": 1},
    ]
    unknown = reply["unknown"]
    assert isinstance(unknown, list)
    assert unknown[:2] == [{"name": "outptu", "did_you_mean": "output"}, {"name": "tenant"}]
    assert len(unknown) == 100
    assert SECRET not in json.dumps(reply)
    texts = '[{"traceId": "t1", "Score": "0.5", "reason": "ok"}, {"trace_id": "t2", "score": true, "tags": {}}]'
    ratings = [{"trace_id": "t1", "score": 0.5, "comment": "ok"}, {"trace_id": "t2", "score": 1.0}]
    assert arrived(intake(texts)) == ratings
    named = intake('[{"output": "a"}, {"app": "x", "output": "a"}, {"service": 7, "output": "a"}]', service="bot")
    assert [(trace["service"], trace.get("tags")) for trace in arrived(named)] == [("bot", None)] * 3, "a token's"


REJECTED = {
    '{"output": "a"}': "no service",
    '{"service": {"a": 1}, "output": "a"}': "no service",
    '{"service": "", "output": "a"}': "no service",
    '{"service": "bot", "model": "m"}': "no content: give output, input, messages or error",
    "[7]": "no object",
    '{"trace_id": "a", "score": "good"}': "no score from -1 to 1",
    '{"score": 1}': "no trace id",
    '{"resourceSpans": []}': "OTLP: send it to /v1/traces",
    '{"resourceLogs": []}': "OTLP: send it to /v1/logs",
}


def test_invalid_bodies_are_rejected_with_their_reasons_and_are_few_losses() -> None:
    for body, reason in REJECTED.items():
        rejected = intake(body)
        assert (rejected.entries, [each.reason.words for each in rejected.rejected]) == ([], [reason]), body
    losses = list(intake("[" + ",".join(['{"service":"bot","model":"m"}'] * 5_000) + "]").losses)
    assert (len(losses), sum(loss.count for loss in losses)) == (101, 5_000)
    for body in ("{bro", "[{]", "", b"\xff"):
        with pytest.raises(RefusedError):
            intake(body)


@each_case(
    "place", ["{names}", '"tags": {{{names}}}', '"tags": {{"a": 1}}, "metadata": {{{names}}}', '"input": {{{whole}}}']
)
def test_names_beyond_a_thousand_are_counted_and_left_out(place: str) -> None:
    """A field is read wherever it stands among them; the others cost far more than their bytes."""
    names = ", ".join(f'"a text {number}": 1' for number in range(3_000))
    body = place.format(names=names, whole=f'"input": "q", {names}, "answer": "a"')
    answer = "" if '"answer"' in body else ', "Model Output": "a"'
    intake_result = intake(f'{{"serviceName": "bot", {body}{answer}, "traceId": "t1"}}')
    (trace,) = arrived(intake_result)
    assert (trace["service"], trace["output"], trace["trace_id"]) == ("bot", "a", "t1")
    assert 999 <= len(trace["tags"]) <= 1_001
    assert intake_result.reply()["left_out"] == [{"field": "tags", "type": "object", "count": 1}]
    assert "a text" not in json.dumps(intake_result.reply())


def test_the_cause_of_a_refusal_names_no_unknown_name() -> None:
    def broken(_: str) -> str:
        raise RuntimeError(SECRET)

    encoder = Encoder(msgspec.structs.replace(sdk_settings(Settings()), redact=(broken,)))
    body = json.dumps({"service": "bot", "output": "a", SECRET: "b"}).encode()
    read = read_intake(body, Form.JSON, encoder, service=None, repeat_key=None, now_s=1.0)
    assert [each.reason.words for each in read.rejected] == ["redaction: trace RedactionError in redact"]


def test_json_that_only_some_parsers_accept_is_read() -> None:
    """A producer in Python writes NaN, and one in JavaScript halves of surrogate pairs."""
    for form, body in (
        (Form.JSON, '[{"service": "bot", "output": "a\\ud83d", "usage": NaN}]'),
        (Form.JSON, '{"service": "bot", "output": "a\\ud83d", "usage": NaN}'),
        (Form.JSON, b'{"service": "bot", "output": "a\xff"}'),
        (Form.LINES, '{"service": "bot", "output": "a\\ud83d", "usage": NaN}\n{bro\n'),
    ):
        read = intake(body, form)
        assert [trace["output"][0] for trace in arrived(read)] == ["a"], form
        assert len(read.rejected) == (form is Form.LINES)


def test_ids_derive_from_the_text_or_the_key() -> None:
    text = '{"service": "bot", "traceId": "t", "output": "a"}'
    first, second = (arrived(intake(text))[0] for _ in range(2))
    assert {name: first[name] for name in IDS} == {name: second[name] for name in IDS}
    own = arrived(intake('{"service": "bot", "id": "0123456789abcdef", "trace_id": "t", "output": "a"}'))[0]
    assert own["id"] == "0123456789abcdef"
    without = '{"service": "bot", "output": "a"}'
    keyed = [arrived(intake(without, key="k"))[0]["id"] for _ in range(2)]
    assert keyed[0] == keyed[1]
    assert arrived(intake(without))[0]["id"] != arrived(intake(without))[0]["id"]


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
