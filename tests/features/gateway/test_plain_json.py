"""Plain JSON: how it is read, what a real gateway stores of it, refuses, drops and logs once a minute."""

import base64
import json
import os
import signal
import socket
from http import HTTPStatus
from typing import Any

import msgspec
import pytest
from gateway_parts import GatewayProcess, Start, Stored, gzipped
from structlog.testing import capture_logs
from support.cases import each_case
from support.processes import wait_until
from support.stages import Keyspace, settings_of
from support.tables import as_bytes, read_table

from tracejudge.delivery.buffer import Entry, Kind
from tracejudge.dialects import builtin
from tracejudge.dialects.unread import Unread
from worker.base.input.unusable import UnreadRecord, UnusableInput, read_invalid, read_unread
from worker.cli import main
from worker.core.config.settings import Settings
from worker.core.storage.client import Store
from worker.core.storage.keys import Keys
from worker.features.gateway.admission import Client, Form, GatewayMetrics, Instrumentations, Loss, Losses, RefusedError
from worker.features.gateway.intake import Encoder, Intake, read_intake, sdk_settings
from worker.features.gateway.publishing import Capacity


def intake(
    body: str | bytes, form: Form = Form.JSON, *, service: str | None = None, key: str | None = None, now_s: float = 1.0
) -> Intake:
    content = body if isinstance(body, bytes) else body.encode()
    encoder = Encoder(sdk_settings(Settings()))
    return read_intake(content, form, encoder, service=service, repeat_key=key, now_s=now_s)


def arrived(intake_result: Intake) -> list[dict[str, Any]]:
    return [json.loads(entry.payload) for entry in intake_result.entries]


TABLES = read_table(__file__, "plain_json")
SECRET = "a text of the user"  # noqa: S105 - a text, also of the tables


def test_other_names_and_a_wrong_field_are_no_reason_to_reject() -> None:
    many = {"service": "bot", "output": "a", **{f"own_{number}": 1 for number in range(200)}}
    read = intake(json.dumps([*TABLES["read"]["sent"], many]))
    traces, reply = arrived(read), read.reply()
    assert [trace["service"] for trace in traces] == ["bot"] * 7, "a service may be an object with a name"
    assert (traces[0]["input"], traces[0]["output"], traces[0]["trace_id"]) == ("q", "a", "A" * 32)
    assert (traces[1]["started_at"], reply["accepted"]) == (1_700_000_000, 7)
    assert reply["left_out"] == TABLES["read"]["left_out"]
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


def test_invalid_bodies_are_rejected_with_their_reasons_and_are_few_losses() -> None:
    for body, reason in TABLES["rejected"].items():
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


def test_each_partition_has_its_own_room(keyspaces: list[Keyspace]) -> None:
    capacity = Capacity(settings_of(keyspaces[0], max_stream=100), [keyspace.store for keyspace in keyspaces])
    capacity.take([Entry(Kind.TRACE, b"{}", place) for place in range(1, 300, 3)])
    with pytest.raises(RefusedError):
        capacity.take([Entry(Kind.TRACE, b"{}", 301)])
    capacity.take([Entry(Kind.TRACE, b"{}", place) for place in (300, 302)])
    assert capacity.room == 99


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
    # The ledger finds an evaluation by the hour of its trace, so another time would be sampled again.
    text, without = '{"service": "bot", "traceId": "t", "output": "a"}', '{"service": "bot", "output": "a"}'
    for body, key in ((text, None), (without, "k")):
        nine, ten = (intake(body, key=key, now_s=hour * 3600.0).entries for hour in (9, 10))
        assert nine == ten, key
    own = arrived(intake('{"service": "bot", "id": "0123456789abcdef", "trace_id": "t", "output": "a"}'))[0]
    assert own["id"] == "0123456789abcdef"
    assert arrived(intake(without))[0]["id"] != arrived(intake(without))[0]["id"]


@pytest.mark.usefixtures("redis")
def test_losses_are_logged_once_a_minute_with_their_count(redis_url: str, prefix: str) -> None:
    now = [0.0]
    store = Store(redis_url, Keys(prefix))
    losses = Losses(UnusableInput(store), GatewayMetrics(Settings()), lambda: now[0])
    error = RefusedError(HTTPStatus.UNAUTHORIZED, "unauthorized", "send a token")
    with capture_logs() as logs:
        for now[0] in (0.0, 1.0, 59.0):
            losses.refuse(error, "/v1/traces")
            losses.drop([Loss("no_ids", 2, "", ("gen_ai.system", SECRET), SECRET)])
            kinds = [Unread("acme", ("acme.prompt",), 1), Unread("flask", (), 2)]
            losses.drop_unread({"acme": 1, "flask": 2}, SECRET, kinds)
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
    assert SECRET not in repr(logs)
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


# --- a real gateway ---


TRACE = {"service": "bot", "input": "When?", "output": "At nine.", "trace_id": "a" * 32}
IMAGE = f"data:image/png;base64,{base64.b64encode(bytes(range(256)) * 12).decode()}"
TOKEN = "0123456789abcdef-bot"  # noqa: S105 - of this test
OTHER = "0123456789abcdef-any"
TOKENS = {"bot": {"token_env": "PYTEST_BOT", "service": "support-bot", "rate": 5}, "any": {"token_env": "PYTEST_ANY"}}
ENV = {"PYTEST_BOT": TOKEN, "PYTEST_ANY": OTHER}


def test_a_trace_a_list_lines_and_feedback_are_stored_before_the_reply(start: Start, stored: Stored) -> None:
    gateway = start()
    lines = "\n".join(json.dumps({**TRACE, "output": f"line {number}"}) for number in range(3))
    replies = [
        gateway.publish(TRACE),
        gateway.publish([{**TRACE, "output": "b"}, {**TRACE, "output": "c", "input": IMAGE}]),
        gateway.post("/v1/tracejudge", lines, "application/x-ndjson"),
        gateway.post("/v1/tracejudge", gzipped(json.dumps({**TRACE, "output": "z"}).encode()), Content_Encoding="gzip"),
        gateway.publish({"trace_id": "a" * 32, "score": -1, "comment": "wrong"}),
    ]
    # No waiting: a reply of 200 means that Redis has it.
    outputs = [entry["output"] for entry in stored.entries()]
    assert [(reply.status_code, reply.json()["accepted"]) for reply in replies] == [
        (200, 1), (200, 2), (200, 3), (200, 1), (200, 1),
    ]  # fmt: skip
    assert outputs == ["At nine.", "b", "c", "line 0", "line 1", "line 2", "z"]
    assert stored.entries()[2]["input"] == "[image 3 kB]"
    assert stored.entries("f") == [{"trace_id": "a" * 32, "score": -1, "comment": "wrong"}]


def refusals(gateway: GatewayProcess) -> list[dict[str, Any]]:
    """Read the lines of the log about refused requests."""
    lines = [json.loads(line) for line in gateway.program.output.splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == "requests refused"]


def test_invalid_traces_are_rejected_by_index_and_the_rest_is_kept(start: Start, stored: Stored) -> None:
    gateway = start()
    reply = gateway.publish([TRACE, 7, {"output": "no service"}, {"service": "s"}, {**TRACE, "output": "last"}])
    assert reply.status_code == 200
    assert reply.json()["accepted"] == 2
    assert [error["index"] for error in reply.json()["errors"]] == [1, 2, 3]
    assert gateway.publish([{"service": "s"}]).status_code == 400
    broken = gateway.post("/v1/tracejudge", '{"a": 1}\n{bro\n' + json.dumps(TRACE), "application/x-ndjson")
    assert (broken.json()["accepted"], [error["index"] for error in broken.json()["errors"]]) == (1, [0, 1])
    assert [entry["output"] for entry in stored.entries()] == ["At nine.", "last", "At nine."]
    assert gateway.total("dropped_total", reason="no_service") == 2
    listed = [[entry.reason, entry.detail, [*entry.keys], entry.producer] for entry in stored.invalid(6)]
    assert listed == TABLES["listed"]


def test_refusals_tell_status_and_reason(start: Start, stored: Stored) -> None:
    gateway, path = start(max_body_bytes=100_000), "/v1/tracejudge"
    cases: list[tuple[str, str, Any, dict[str, str], int]] = [
        *((method, at, as_bytes(content), *rest) for method, at, content, *rest in TABLES["refusals"]),
        ("POST", path, gzipped(b"{}" * 99)[:-4], {"Content-Encoding": "gzip"}, 400),
    ]
    for number, (method, at, content, headers, status) in enumerate(cases):
        named = {"Content-Type": "application/json", **headers}
        reply = gateway.http.request(method, at, content=content, headers=named)
        assert (reply.status_code, set(reply.json())) == (status, {"code", "message"}), number
    assert gateway.publish(TRACE).status_code == 200
    assert len(stored.entries()) == 1
    expected = [(reason, path, 1) for reason in ("malformed", "encoding", "too_large")]
    # The log is written by a thread of its own.
    wait_until(lambda: len(refusals(gateway)) >= len(expected), what="the lines of the log")
    reasons = [(line["reason"], line["path"], line["count"]) for line in refusals(gateway)]
    assert reasons == expected, "each reason is logged once within a minute"
    assert "Traceback" not in gateway.program.output
    assert admitted(gateway, "https://app.example.com") is None, "no browser is admitted"


def test_tokens_are_required_and_bind_service_rate_and_key(start: Start, stored: Stored) -> None:
    """That wrong ones are refused before the body: test_gateway_load.py."""
    gateway = start(tokens=TOKENS, env=ENV)
    for wrong in ({}, {"Authorization": f"Basic {TOKEN}"}, {"Authorization": "Bearer \xfc".encode("latin-1")}):
        assert gateway.publish(TRACE, **wrong).status_code == 401, wrong
    assert stored.entries() == []
    own, other = ({"Authorization": f"Bearer {token}"} for token in (TOKEN, OTHER))
    assert gateway.publish(TRACE, **own).status_code == 200
    assert gateway.publish([TRACE] * 10, **own).status_code == 200
    over = gateway.publish(TRACE, **own)
    assert (over.status_code, int(over.headers["Retry-After"]) >= 1) == (429, True)
    for _ in range(2):
        assert gateway.publish({"service": "bot", "output": "b"}, Idempotency_Key="1", **other).status_code == 200
    wait_until(lambda: gateway.publish({"output": "b"}, Idempotency_Key="1", **own).status_code == 200, what="the rate")
    entries = stored.entries()
    assert [entry["service"] for entry in entries] == ["support-bot"] * 11 + ["bot"] * 2 + ["support-bot"]
    ids = [(entry["trace_id"], entry["id"]) for entry in entries[11:]]
    assert ids[0] == ids[1] != ids[2], "the same key of another client is another request"
    assert TOKEN not in gateway.program.output
    now = [0.0]
    client = Client("a", None, 10.0, lambda: now[0])
    assert [client.wait_s(30), round(client.wait_s(1), 2)] == [0.0, 2.1]
    now[0] = 1.9
    assert client.wait_s(1) > 0
    now[0] = 2.2
    assert client.wait_s(1) == 0, "it refills with time"


def test_a_wrong_configuration_stops_the_start_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for table, env, words in read_table(__file__, "wrong_gateways"):
        with monkeypatch.context() as patch:
            patch.setenv("TRACEJUDGE_REDIS_URL", "redis://127.0.0.1:1")
            patch.setenv("TRACEJUDGE_GATEWAY", json.dumps({"port": 0, **table}))
            for name, value in env.items():
                patch.setenv(name, value)
            with pytest.raises(SystemExit) as ended:
                main(["gateway"])
        output = capsys.readouterr().err
        assert (ended.value.code, words in output, output.count("\n")) == (2, True, 1), (table, output)


def admitted(gateway: GatewayProcess, origin: str) -> str | None:
    """Ask as a browser does; return the origin that is admitted."""
    asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    reply = gateway.http.options("/v1/tracejudge", headers=asked)
    return reply.headers.get("Access-Control-Allow-Origin")


def test_a_stop_answers_open_requests_first_and_browsers_are_admitted_from_listed_origins_only(
    start: Start, stored: Stored
) -> None:
    gateway = start(cors_origins=["https://app.example.com"])
    origins = ("https://app.example.com", "https://other.example.com")
    assert [admitted(gateway, origin) for origin in origins] == [origins[0], None]
    port = int(gateway.url.rsplit(":", 1)[1])
    body = json.dumps(TRACE).encode()
    with socket.create_connection(("127.0.0.1", port)) as client:
        head = (
            f"POST /v1/tracejudge HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        )
        client.sendall(head.encode() + b"\r\n\r\n" + body[:10])
        wait_until(lambda: gateway.total("body_bytes") == 10, what="a part of the body")
        os.kill(gateway.program.pid, signal.SIGTERM)
        client.sendall(body[10:])
        assert b" 200 " in client.recv(1000)
    assert gateway.program.wait() == 0
    assert len(stored.entries()) == 1
