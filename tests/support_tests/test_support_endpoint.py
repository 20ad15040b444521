"""The chat endpoint behaves as it is told, and remembers what it was asked."""

import asyncio
import json
import time

import aiohttp
import httpx
import pytest
from support.endpoint import ChatEndpoint
from support.loopback import LoopbackServer
from support.processes import free_port, wait_until
from support.replies import (
    Reply,
    ToolCall,
    answers,
    calls_tools,
    cuts,
    failing,
    hangs,
    no_choices,
    not_json,
    refuses,
    rejects,
    sequence,
    slow,
    truncated,
    yes_no,
)

BODY = {"model": "m", "messages": [{"role": "user", "content": "is it so?"}]}


def ask(endpoint: ChatEndpoint, **fields: object) -> httpx.Response:
    return httpx.post(
        f"{endpoint.base_url}/chat/completions",
        json={**BODY, **fields},
        headers={"Authorization": "Bearer k"},
        trust_env=False,
        timeout=60,
    )


def first_choice(endpoint: ChatEndpoint) -> dict:
    return ask(endpoint).json()["choices"][0]


async def ask_many(endpoint: ChatEndpoint, count: int) -> list[int]:
    async def one(session: aiohttp.ClientSession) -> int:
        async with session.post(f"{endpoint.base_url}/chat/completions", json=BODY) as response:
            await response.read()
            return response.status

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        return await asyncio.gather(*(one(session) for _ in range(count)))


class LoopbackOnly(LoopbackServer):
    def routes(self) -> list:
        return []


def test_answers_in_the_form_of_chat_completions(endpoint: ChatEndpoint) -> None:
    endpoint.behaviour = yes_no("no", "because", model="m-2")
    completion = ask(endpoint).json()
    assert completion.pop("created") > 0
    assert completion == {
        "id": "chatcmpl-0",
        "object": "chat.completion",
        "model": "m-2",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": '{"rationale": "because", "result": "no"}',
                    "refusal": None,
                },
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120},
    }


def test_records_what_came(endpoint: ChatEndpoint) -> None:
    endpoint.behaviour = slow(0.05, answers(lambda body: body["model"].upper()))
    assert first_choice(endpoint)["message"]["content"] == "M"
    (call,) = endpoint.calls
    assert (call.body, call.status) == (BODY, 200)
    assert call.headers["authorization"] == "Bearer k"
    assert call.text() == "is it so?"
    assert call.ended_at is not None
    assert call.in_flight_s >= 0.05
    endpoint.forget()
    assert (endpoint.calls, endpoint.max_in_flight) == ((), 0)


def test_holds_500_slow_requests_at_once(endpoint: ChatEndpoint) -> None:
    """A busy machine needs a while to send them, so that they must last."""
    for each_s in (1.0, 4.0, 16.0):
        endpoint.forget()
        endpoint.behaviour = slow(each_s)
        began = time.monotonic()
        assert set(asyncio.run(ask_many(endpoint, 500))) == {200}
        if endpoint.max_in_flight == 500 and time.monotonic() - began < 10 * each_s:
            break
    assert endpoint.max_in_flight == 500
    assert time.monotonic() - began < 10 * each_s
    wait_until(lambda: endpoint.in_flight == 0, what="the last handler's end")


def test_failing_has_openais_error_form(endpoint: ChatEndpoint) -> None:
    endpoint.behaviour = failing(429, "slow down", code="rate_limit_exceeded", retry_after=3)
    response = ask(endpoint)
    assert (response.status_code, response.headers["Retry-After"]) == (429, "3")
    assert response.json()["error"] == {
        "message": "slow down",
        "type": "invalid_request_error",
        "param": None,
        "code": "rate_limit_exceeded",
    }


def test_rejects_a_parameter_only_where_it_is_given(endpoint: ChatEndpoint) -> None:
    endpoint.behaviour = rejects("response_format", rejects("temperature", answers("x")))
    assert ask(endpoint, response_format={}, temperature=0).json()["error"]["param"] == "response_format"
    refused = ask(endpoint, temperature=0)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "temperature")
    assert ask(endpoint).status_code == 200


def test_a_sequence_keeps_its_last_behaviour(endpoint: ChatEndpoint) -> None:
    endpoint.behaviour = sequence(failing(500), slow(0.01, failing(401)), answers("x"))
    assert [ask(endpoint).status_code for _ in range(4)] == [500, 401, 200, 200]


@pytest.mark.parametrize(
    ("reply", "part", "expected"),
    [
        (refuses("never"), ("message", "refusal"), "never"),
        (truncated(), ("finish_reason",), "length"),
        (calls_tools(ToolCall("f", "{}")), ("message", "tool_calls", 0, "function", "name"), "f"),
    ],
    ids=["refusal", "truncated", "tool call"],
)
def test_choices_that_are_no_answer(endpoint: ChatEndpoint, reply: Reply, part: tuple, expected: str) -> None:
    endpoint.behaviour = reply
    found = first_choice(endpoint)
    for step in part:
        found = found[step]
    assert found == expected


def test_completions_without_choices_or_usage(endpoint: ChatEndpoint) -> None:
    endpoint.behaviour = sequence(no_choices(), answers("x", usage=None))
    assert ask(endpoint).json()["choices"] == []
    assert "usage" not in ask(endpoint).json()


def test_a_body_that_is_no_json(endpoint: ChatEndpoint) -> None:
    endpoint.behaviour = not_json(status=502)
    response = ask(endpoint)
    assert (response.status_code, response.headers["Content-Type"][:9]) == (502, "text/html")
    with pytest.raises(json.JSONDecodeError):
        response.json()


def test_a_request_that_is_no_json_is_a_bad_request(endpoint: ChatEndpoint) -> None:
    assert (
        httpx.post(f"{endpoint.base_url}/chat/completions", content=b"{", trust_env=False, timeout=60).status_code
        == 400
    )


@pytest.mark.parametrize(("share", "error"), [(0.5, "complete message body"), (0, "a response")], ids=["half", "none"])
def test_a_cut_connection(endpoint: ChatEndpoint, share: float, error: str) -> None:
    endpoint.behaviour = cuts(share)
    with pytest.raises(httpx.RemoteProtocolError, match=error):
        ask(endpoint)
    wait_until(lambda: endpoint.in_flight == 0, what="the handler's end")
    assert endpoint.calls[0].status is None


def test_a_hanging_request_ends_with_its_client_or_the_server() -> None:
    async def give_up() -> None:
        asked = asyncio.create_task(ask_many(endpoint, 3))
        await asyncio.to_thread(wait_until, lambda: endpoint.in_flight == 3)
        asked.cancel()
        await asked

    with ChatEndpoint(hangs()) as endpoint:
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(give_up())
        wait_until(lambda: endpoint.in_flight == 0, what="the handlers' end")
        assert endpoint.max_in_flight == 3
        assert {call.status for call in endpoint.calls} == {None}


def test_goes_down_with_requests_in_flight_and_comes_back_on_its_port() -> None:
    async def ask_and_close() -> None:
        asked = asyncio.create_task(ask_many(endpoint, 1))
        await asyncio.to_thread(wait_until, lambda: endpoint.in_flight)
        await asyncio.to_thread(endpoint.close)
        with pytest.raises(aiohttp.ClientError):
            await asked

    endpoint = ChatEndpoint(hangs(), port=free_port()).start()
    asyncio.run(ask_and_close())
    endpoint.behaviour = answers("again")
    with endpoint:
        assert ask(endpoint).status_code == 200


def test_a_behaviours_own_mistake_is_raised_at_the_end() -> None:
    endpoint = ChatEndpoint(lambda call: call.body["absent"]).start()
    assert ask(endpoint).status_code == 500
    with pytest.raises(KeyError, match="absent"):
        endpoint.close()


def test_a_taken_port_is_an_error(endpoint: ChatEndpoint) -> None:
    with pytest.raises(OSError, match="in use"):
        LoopbackOnly(port=endpoint.port).start()
