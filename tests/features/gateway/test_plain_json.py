"""Plain JSON through a real gateway: what arrives in the stream, what is refused, and in which words."""

import base64
import json
import os
import signal
import socket
import time
from typing import Any

import httpx
import pytest
from gateway_parts import GatewayProcess, Start, Stored, gzipped
from support.processes import wait_until
from support.tables import read_table

from worker.cli import main
from worker.features.gateway.admission import Client

TRACE = {"service": "bot", "input": "When?", "output": "At nine.", "trace_id": "a" * 32}
IMAGE = f"data:image/png;base64,{base64.b64encode(bytes(range(256)) * 12).decode()}"
TOKEN = "0123456789abcdef-bot"  # noqa: S105 - of this test
OTHER = "0123456789abcdef-any"
TOKENS = {"bot": {"token_env": "BOT_TOKEN", "service": "support-bot", "rate": 5}, "any": {"token_env": "ANY_TOKEN"}}
ENV = {"BOT_TOKEN": TOKEN, "ANY_TOKEN": OTHER}


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


def test_a_repeat_has_the_same_ids_and_two_equal_answers_without_ids_have_not(start: Start, stored: Stored) -> None:
    gateway = start()
    without = {name: value for name, value in TRACE.items() if name != "trace_id"}
    for value, headers in ((TRACE, {}), (without, {"Idempotency_Key": "k1"}), (without, {})):
        assert gateway.publish(value, **headers).json()["trace_ids"]
        gateway.publish(value, **headers)
    ids = [(entry["trace_id"], entry["span_id"], entry["id"]) for entry in stored.entries()]
    assert ids[0] == ids[1]
    assert ids[2] == ids[3]
    assert len({ids[0], ids[2], ids[4], ids[5]}) == 4
    assert all(len(each[0]) == 32 and len(each[1]) == len(each[2]) == 16 for each in ids)


NO_CONTENT = "no content: give output, input, messages or error"


def logged(gateway: GatewayProcess, event: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in gateway.program.output.splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == event]


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
    assert gateway.scrape().total("tracejudge_gateway_dropped_total", reason="no_service") == 2
    listed = [(entry.reason, entry.detail, entry.keys, entry.producer) for entry in stored.invalid(6)]
    assert listed == [
        ("invalid", "no object", (), "anonymous"),
        ("no_service", "no service", ("output",), "anonymous"),
        *2 * [("invalid", NO_CONTENT, ("service",), "anonymous")],
        ("no_service", "no service", ("a",), "anonymous"),
        ("invalid", "not JSON", (), "anonymous"),
    ]
    wait_until(lambda: len(logged(gateway, "items dropped")) >= 2, what="the lines of the log")
    dropped = [line for line in logged(gateway, "items dropped") if line["count"] == 1]
    assert {line["reason"] for line in dropped} == {"invalid", "no_service"}, "each reason once within a minute"
    assert len(dropped) == 2


def test_refusals_tell_status_and_reason(start: Start, stored: Stored) -> None:
    gateway = start(max_body_bytes=100_000)
    bomb = gzipped(bytes(30_000_000))
    refused = {
        "no JSON": (gateway.post("/v1/tracejudge", "{bro"), 400),
        "form": (gateway.post("/v1/tracejudge", "a=b", "application/x-www-form-urlencoded"), 415),
        "brotli": (gateway.post("/v1/tracejudge", "{}", Content_Encoding="br"), 415),
        "no gzip": (gateway.post("/v1/tracejudge", "{}", Content_Encoding="gzip"), 400),
        "cut gzip": (gateway.post("/v1/tracejudge", gzipped(b"{}" * 99)[:-4], Content_Encoding="gzip"), 400),
        "large": (gateway.post("/v1/tracejudge", b" " * 100_001), 413),
        "chunked": (gateway.http.post("/v1/tracejudge", content=iter([b" " * 60_000] * 3), headers=JSON), 413),
        "bomb": (gateway.post("/v1/tracejudge", bomb, Content_Encoding="gzip"), 413),
        "path": (gateway.post("/v1/metrics", "{}"), 404),
        "no redirect": (gateway.post("/v1/tracejudge/", "{}", Host="elsewhere.example"), 404),
        "method": (gateway.http.get("/v1/tracejudge"), 405),
    }
    assert {name: reply.status_code for name, (reply, _) in refused.items()} == {
        name: status for name, (_, status) in refused.items()
    }
    for name, (reply, _) in refused.items():
        assert set(reply.json()) == {"code", "message"}, name
    assert gateway.publish(TRACE).status_code == 200
    assert len(stored.entries()) == 1
    expected = [(reason, "/v1/tracejudge", 1) for reason in ("malformed", "content_type", "encoding", "too_large")]
    # The log is written by a thread of its own.
    wait_until(lambda: len(logged(gateway, "requests refused")) >= len(expected), what="the lines of the log")
    reasons = [(line["reason"], line["path"], line["count"]) for line in logged(gateway, "requests refused")]
    assert reasons == expected, "each reason is logged once within a minute"
    assert "Traceback" not in gateway.program.output


JSON = {"Content-Type": "application/json"}


def test_tokens_are_required_and_bind_service_and_rate(start: Start, stored: Stored) -> None:
    gateway = start(tokens=TOKENS, env=ENV)
    assert gateway.publish(TRACE).status_code == 401
    for wrong in ("Bearer wrong", f"Basic {TOKEN}", "Bearer", f"Bearer {TOKEN}x", "Bearer \xfc"):
        assert gateway.publish(TRACE, Authorization=wrong.encode("latin-1")).status_code == 401, wrong
    assert stored.entries() == []
    own = {"Authorization": f"Bearer {TOKEN}"}
    assert gateway.publish(TRACE, **own).status_code == 200
    assert gateway.publish([TRACE] * 10, **own).status_code == 200
    over = gateway.publish(TRACE, **own)
    assert (over.status_code, int(over.headers["Retry-After"]) >= 1) == (429, True)
    assert gateway.publish(TRACE, Authorization=f"Bearer {OTHER}").status_code == 200
    assert [entry["service"] for entry in stored.entries()] == ["support-bot"] * 11 + ["bot"]
    assert TOKEN not in gateway.program.output
    now = [0.0]
    client = Client("a", None, 10.0, lambda: now[0])
    assert [client.wait_s(30), round(client.wait_s(1), 2)] == [0.0, 2.1]
    now[0] = 1.9
    assert client.wait_s(1) > 0
    now[0] = 2.2
    assert client.wait_s(1) == 0, "it refills with time"


def test_a_wrong_configuration_stops_the_start_in_one_line(
    start: Start, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = read_table(__file__, "wrong_gateways")
    with pytest.raises(AssertionError) as raised:
        start(host="0.0.0.0")  # noqa: S104
    assert "no token is required" in str(raised.value)
    assert "Traceback" not in str(raised.value)
    for table, env, words in wrong:
        with monkeypatch.context() as patch:
            patch.setenv("TRACEJUDGE_REDIS_URL", "redis://127.0.0.1:1")
            patch.setenv("TRACEJUDGE_GATEWAY", json.dumps({"port": 0, **table}))
            for name, value in env.items():
                patch.setenv(name, value)
            with pytest.raises(SystemExit) as ended:
                main(["gateway"])
        output = capsys.readouterr().err
        assert (ended.value.code, words in output, output.count("\n")) == (2, True, 1), (table, output)


def test_browsers_are_admitted_from_listed_origins_only(start: Start) -> None:
    none, listed = start(), start(cors_origins=["https://app.example.com"])
    for gateway, origin, admitted in (
        (none, "https://app.example.com", None),
        (listed, "https://app.example.com", "https://app.example.com"),
        (listed, "https://other.example.com", None),
    ):
        asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        reply = gateway.http.options("/v1/tracejudge", headers=asked)
        assert reply.headers.get("Access-Control-Allow-Origin") == admitted, origin


def test_slow_and_many_clients_leave_room_for_others(start: Start) -> None:
    gateway = start(max_connections=20)
    port = int(gateway.url.rsplit(":", 1)[1])
    gateway.http.close()
    # The reply of a connection over the bound is 503; each of the others stays open.
    wait_until(lambda: gateway.scrape().total("tracejudge_gateway_connections") == 0, what="the connections to end")
    idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
    wait_until(lambda: gateway.scrape().total("tracejudge_gateway_connections") == 20, what="20 connections")
    for number in range(200):
        # The server closes without reading the request: the answer arrives whole even where a reset follows it.
        with httpx.Client(base_url=gateway.url) as further:
            reply = further.post("/v1/tracejudge", json=TRACE)
            assert (reply.status_code, reply.headers["Retry-After"]) == (503, "5"), number
    began = time.monotonic()
    for connection in idle:
        connection.sendall(b"POST /v1/tracejudge HTTP/1.1\r\nHost: a\r\n")
    # Half a head: closed after ten seconds.
    assert idle[0].recv(10) == b""
    assert 5 < time.monotonic() - began < 60
    for connection in idle:
        connection.close()
    wait_until(lambda: gateway.scrape().total("tracejudge_gateway_connections") == 0, what="the connections to end")
    with httpx.Client(base_url=gateway.url) as again:
        assert again.post("/v1/tracejudge", json=TRACE).status_code == 200


def test_a_stop_answers_open_requests_first(start: Start, stored: Stored) -> None:
    gateway = start()
    port = int(gateway.url.rsplit(":", 1)[1])
    body = json.dumps(TRACE).encode()
    with socket.create_connection(("127.0.0.1", port)) as client:
        head = (
            f"POST /v1/tracejudge HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        )
        client.sendall(head.encode() + b"\r\n\r\n" + body[:10])
        wait_until(lambda: gateway.scrape().total("tracejudge_gateway_body_bytes") == 10, what="a part of the body")
        os.kill(gateway.program.pid, signal.SIGTERM)
        client.sendall(body[10:])
        assert b" 200 " in client.recv(1000)
    assert gateway.program.wait() == 0
    assert len(stored.entries()) == 1
