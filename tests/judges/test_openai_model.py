"""An OpenAI-compatible endpoint on the loopback: what is sent, what is read, and what each failure is called."""

import asyncio
import email.utils
import time
from collections.abc import Callable
from typing import NamedTuple

import httpx
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judge_traces import LONG, SHORT
from raw_server import RawServer
from support.endpoint import ChatEndpoint
from support.processes import free_port, wait_until
from support.replies import (
    Behaviour,
    Reply,
    Usage,
    answers,
    cuts,
    failing,
    filtered,
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

from judges.catalog import catalogue
from judges.evaluate import evaluate
from judges.judge import Judge
from judges.models.model import (
    BadModelRequestError,
    ChatRequest,
    ChatResponse,
    ContentFilteredError,
    InputTooLongError,
    ModelError,
    ModelRejectedError,
    ModelSettings,
    ModelTimeoutError,
    ModelUnavailableError,
    RateLimitedError,
)
from judges.models.openai import OpenAIModel, _retry_after_s
from judges.prompt import Message, render
from tracejudge import Trace

KEY = "sk-test-5ecret"
PROMPT = "the-prompt-5ecret"
WORDS = "the-endpoint-5ecret"
REQUEST = ChatRequest(
    (Message("system", "Judge."), Message("user", PROMPT)),
    "groundedness",
    {"type": "object", "properties": {"result": {"type": "string"}}},
    dict,
)
GROUNDEDNESS = catalogue()["groundedness"]

every_judge = pytest.mark.parametrize("judge", catalogue().values(), ids=catalogue())


class Client(NamedTuple):
    """A model whose every use has an event loop of its own, and its connections closed in the end."""

    model: OpenAIModel

    def ask(self, request: ChatRequest = REQUEST) -> ChatResponse:
        return self.ask_often(1, request)[0]

    def ask_often(self, count: int, request: ChatRequest = REQUEST) -> list[ChatResponse]:
        """Ask at the same time."""

        async def all_at_once() -> list[ChatResponse]:
            try:
                return await asyncio.gather(*(self.model.complete(request) for _ in range(count)))
            finally:
                await self.model.aclose()

        return asyncio.run(all_at_once())

    def fails(self) -> ModelError:
        """Ask, and give the error; none of the secrets may be in its text."""
        with pytest.raises(ModelError) as caught:
            self.ask()
        shown = f"{caught.value!s} {caught.value!r}"
        assert not [secret for secret in (KEY, PROMPT, WORDS, "5ecret") if secret in shown]
        return caught.value


def client(base_url: str, **settings: object) -> Client:
    fields = {"base_url": base_url, "model": "gpt-test", "timeout_s": 10.0, **settings}
    return Client(OpenAIModel(msgspec.convert(fields, ModelSettings), KEY))


def said(text: str, **fields: object) -> ChatResponse:
    """Give the response that the endpoint's first reply should become."""
    usual = {"input_tokens": 100, "output_tokens": 20, "response_id": "chatcmpl-0", "model": "gpt-test"}
    return ChatResponse(text, **{**usual, **fields})  # type: ignore[arg-type]


class TestRequest:
    @every_judge
    @pytest.mark.parametrize("trace", [SHORT, LONG], ids=["short", "long"])
    def test_body_holds_the_prompt_and_the_judges_schema_and_no_limit(
        self, endpoint: ChatEndpoint, judge: Judge, trace: Trace
    ) -> None:
        async def judged() -> str:
            model = client(endpoint.base_url).model
            try:
                return (await evaluate(judge, trace, model)).outcome
            finally:
                await model.aclose()

        assert asyncio.run(judged()) == "scored"
        (prompt,) = judge.prompts(trace)
        (call,) = endpoint.calls
        assert call.body == {
            "model": "gpt-test",
            "messages": [message._asdict() for message in render(prompt)],
            "temperature": 0,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": judge.name, "strict": True, "schema": judge.schema},
            },
        }
        properties = call.body["response_format"]["json_schema"]["schema"]["properties"]
        assert list(properties) == judge.schema["required"]

    def test_headers_hold_the_key_and_the_type(self, endpoint: ChatEndpoint) -> None:
        client(endpoint.base_url).ask()
        headers = endpoint.calls[0].headers
        assert (headers["authorization"], headers["content-type"]) == (f"Bearer {KEY}", "application/json")

    def test_without_a_key_there_is_no_such_header(self, endpoint: ChatEndpoint) -> None:
        Client(OpenAIModel(ModelSettings(base_url=endpoint.base_url, model="m"), None)).ask()
        assert "authorization" not in endpoint.calls[0].headers

    def test_a_slash_at_the_end_of_the_address_does_not_matter(self, endpoint: ChatEndpoint) -> None:
        assert client(f"{endpoint.base_url}/").ask().finish_reason == "stop"

    def test_a_query_in_the_address_stays_behind_the_path(self, endpoint: ChatEndpoint) -> None:
        """Azure's addresses bear their version so."""
        assert client(f"{endpoint.base_url}?api-version=2024-10-21").ask().finish_reason == "stop"

    def test_a_model_serves_one_event_loop_after_the_other(self, endpoint: ChatEndpoint) -> None:
        one = client(endpoint.base_url)
        assert [one.ask().response_id, one.ask().response_id] == ["chatcmpl-0", "chatcmpl-1"]

    def test_connections_are_kept(self) -> None:
        async def twice() -> list[str]:
            one = client(server.base_url).model
            try:
                return [(await one.complete(REQUEST)).text for _ in range(2)]
            finally:
                await one.aclose()

        body = b'{"choices": [{"message": {"content": "Yes."}}]}'
        with RawServer(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body), closes=False) as server:
            assert asyncio.run(twice()) == ["Yes.", "Yes."]
            assert server.connections == 1


class TestResponse:
    @pytest.mark.parametrize(
        ("reply", "response"),
        [
            (
                answers("Yes.", usage=Usage(7, 3), model="gpt-test-2026"),
                said("Yes.", input_tokens=7, output_tokens=3, model="gpt-test-2026"),
            ),
            (answers("Yes.", usage=None), said("Yes.", input_tokens=0, output_tokens=0)),
            (answers("„Ja“ \U0001f600"), said("„Ja“ \U0001f600")),
            (truncated("{"), said("{", finish_reason="length")),
            (filtered(), said("", finish_reason="content_filter")),
            (refuses("Never."), said("", refusal=True)),
            (answers(None), said("")),
            (answers("", finish_reason="tool_calls"), said("", finish_reason="other")),
            (answers("Yes.", finish_reason=None), said("Yes.")),
            (not_json('{"choices": [{"message": {"content": "Yes."}}]}'), ChatResponse("Yes.")),
        ],
        ids=[
            "all fields", "no usage", "letters", "length", "content filter", "refusal", "null", "tool calls",
            "no finish reason", "as little as possible",
        ],
    )  # fmt: skip
    def test_is_read(self, endpoint: ChatEndpoint, reply: Reply, response: ChatResponse) -> None:
        endpoint.behaviour = reply
        assert client(endpoint.base_url).ask() == response

    @pytest.mark.parametrize(
        ("raw", "error"),
        [
            (f"<html>{WORDS}</html>", "the reply is no chat completion"),
            ("", "the reply is no chat completion"),
            (f'["{WORDS}"]', "the reply is no chat completion"),
            (f'{{"choices": "{WORDS}"}}', "the reply is no chat completion"),
            (f'{{"error": {{"message": "{WORDS}"}}}}', "the reply is no chat completion"),
            ('{"choices": [{}]}', "the reply is no chat completion"),
            ('{"choices": [{"message": {"content": ["Yes."]}}]}', "the reply is no chat completion"),
            ('{"choices": [{"message": {"content": "\\ud800"}}]}', "the reply is no chat completion"),
            ('{"choices": []}', "the reply holds no choice"),
        ],
        ids=[
            "html", "empty", "list", "choices of a wrong type", "error with status 200", "no message",
            "content in parts", "half a surrogate pair", "no choices",
        ],
    )  # fmt: skip
    def test_that_is_no_chat_completion_means_unavailable(self, endpoint: ChatEndpoint, raw: str, error: str) -> None:
        endpoint.behaviour = not_json(raw)
        failure = client(endpoint.base_url).fails()
        assert (type(failure), str(failure)) == (ModelUnavailableError, error)

    def test_without_a_choice_means_unavailable(self, endpoint: ChatEndpoint) -> None:
        endpoint.behaviour = no_choices()
        assert str(client(endpoint.base_url).fails()) == "the reply holds no choice"


def without_param(name: str, then: Behaviour, message: str) -> Behaviour:
    """Refuse a parameter as endpoints do that name it only in the message."""
    return lambda call: failing(400, message) if name in call.body else then


REFUSING: dict[str, tuple[Callable[[Behaviour], Behaviour], set[str]]] = {
    "response_format": (lambda then: rejects("response_format", then), {"response_format"}),
    "response_format with 422": (lambda then: rejects("response_format", then, status=422), {"response_format"}),
    "response_format named in the message only": (
        lambda then: without_param(
            "response_format", then, "Invalid parameter: 'response_format' of type 'json_schema'"
        ),
        {"response_format"},
    ),
    "json_schema named in the message only": (
        lambda then: without_param("response_format", then, "json_schema mode needs a newer version"),
        {"response_format"},
    ),
    "temperature": (lambda then: rejects("temperature", then), {"temperature"}),
    "temperature named in the message only": (
        lambda then: without_param("temperature", then, "Only the default temperature (1) is supported."),
        {"temperature"},
    ),
    "one after the other": (
        lambda then: rejects("response_format", rejects("temperature", then)),
        {"response_format", "temperature"},
    ),
}


class TestOptionsOfTheEndpoint:
    @pytest.mark.parametrize(("refusing", "refused"), REFUSING.values(), ids=REFUSING)
    def test_are_found_out_once_and_remembered(
        self, endpoint: ChatEndpoint, refusing: Callable[[Behaviour], Behaviour], refused: set[str]
    ) -> None:
        endpoint.behaviour = refusing(yes_no())
        one = client(endpoint.base_url)
        assert [one.ask().finish_reason for _ in range(3)] == ["stop"] * 3
        tried = [{"temperature", "response_format"} & set(call.body) for call in endpoint.calls]
        assert tried[0] == {"temperature", "response_format"}
        assert tried[len(refused) :] == [{"temperature", "response_format"} - refused] * 3
        assert [call.status for call in endpoint.calls[len(refused) :]] == [200] * 3

    def test_are_found_out_by_requests_under_way_together(self, endpoint: ChatEndpoint) -> None:
        endpoint.behaviour = slow(0.05, rejects("response_format", rejects("temperature", yes_no())))
        one = client(endpoint.base_url)
        assert len(one.ask_often(20)) == 20
        endpoint.forget()
        one.ask()
        (call,) = endpoint.calls
        assert set(call.body) == {"model", "messages"}

    def test_that_are_refused_although_they_were_left_out_end_as_a_bad_request(self, endpoint: ChatEndpoint) -> None:
        endpoint.behaviour = failing(400, "response_format and temperature are not supported here")
        assert isinstance(client(endpoint.base_url).fails(), BadModelRequestError)
        assert [set(call.body) >= {"temperature", "response_format"} for call in endpoint.calls] == [True, False]

    def test_that_are_refused_with_another_status_stay(self, endpoint: ChatEndpoint) -> None:
        endpoint.behaviour = sequence(failing(500, "temperature"), failing(429, "response_format"), yes_no())
        one = client(endpoint.base_url)
        assert isinstance(one.fails(), ModelUnavailableError)
        assert isinstance(one.fails(), RateLimitedError)
        one.ask()
        assert {"temperature", "response_format"} <= set(endpoint.calls[-1].body)


FAILING: dict[str, tuple[Reply, type[ModelError], str]] = {
    **{
        str(status): (failing(status, WORDS), ModelRejectedError, f"the endpoint rejects us: HTTP {status}")
        for status in (401, 402, 403, 404)
    },
    "quota used up": (
        failing(429, WORDS, kind="insufficient_quota", code="insufficient_quota", retry_after=1),
        ModelRejectedError,
        "the endpoint rejects us: HTTP 429",
    ),
    "quota in the type only": (
        failing(429, WORDS, kind="insufficient_quota"),
        ModelRejectedError,
        "the endpoint rejects us: HTTP 429",
    ),
    "hard limit of the account": (
        failing(400, WORDS, code="billing_hard_limit_reached"),
        ModelRejectedError,
        "the endpoint rejects us: HTTP 400",
    ),
    "429": (
        failing(429, WORDS, code="rate_limit_exceeded"),
        RateLimitedError,
        "the endpoint asks for fewer requests: HTTP 429",
    ),
    **{
        str(status): (failing(status, WORDS), ModelUnavailableError, f"the endpoint fails: HTTP {status}")
        for status in (408, 500, 502, 503, 504, 529)
    },
    "html with 502": (
        not_json(f"<html>{WORDS}</html>", status=502),
        ModelUnavailableError,
        "the endpoint fails: HTTP 502",
    ),
    "201": (answers(WORDS, status=201), ModelUnavailableError, "the endpoint fails: HTTP 201"),
    **{
        str(status): (
            failing(status, WORDS),
            BadModelRequestError,
            f"the endpoint does not take this request: HTTP {status}",
        )
        for status in (400, 405, 409, 422, 451)
    },
    "400 without json": (
        not_json(WORDS, status=400),
        BadModelRequestError,
        "the endpoint does not take this request: HTTP 400",
    ),
    "400 with a text as error": (
        not_json(f'{{"error": "{WORDS}"}}', status=400),
        BadModelRequestError,
        "the endpoint does not take this request: HTTP 400",
    ),
    "400 with a number as code": (
        not_json(f'{{"error": {{"message": "{WORDS}", "code": 400}}}}', status=400),
        BadModelRequestError,
        "the endpoint does not take this request: HTTP 400",
    ),
    "context full": (
        failing(400, WORDS, code="context_length_exceeded", param="messages"),
        InputTooLongError,
        "the endpoint finds the request too long: HTTP 400",
    ),
    "context full, in words and without a wrapper": (
        not_json('{"message": "maximum context length is 4096", "code": 400}', status=400),
        InputTooLongError,
        "the endpoint finds the request too long: HTTP 400",
    ),
    "filtered before the model saw it": (
        failing(400, WORDS, code="content_filter"),
        ContentFilteredError,
        "the endpoint's filter refuses the request: HTTP 400",
    ),
    "a long complaint that quotes the prompt": (
        failing(400, f"unsupported: {'temperature ' * 100}"),
        BadModelRequestError,
        "the endpoint does not take this request: HTTP 400",
    ),
    "413": (failing(413, WORDS), InputTooLongError, "the endpoint finds the request too long: HTTP 413"),
}

REASONS = {
    ModelRejectedError: "judge_rejected",
    RateLimitedError: "rate_limited",
    ModelUnavailableError: "judge_unavailable",
    BadModelRequestError: "bad_request",
    InputTooLongError: "input_too_long",
    ModelTimeoutError: "timeout",
    ContentFilteredError: "content_filter",
}


class TestFailures:
    @pytest.mark.parametrize(("reply", "error", "text"), FAILING.values(), ids=FAILING)
    def test_have_a_name_and_a_text_of_ours(
        self, endpoint: ChatEndpoint, reply: Reply, error: type[ModelError], text: str
    ) -> None:
        endpoint.behaviour = reply
        failure = client(endpoint.base_url).fails()
        assert (type(failure), str(failure), failure.reason) == (error, text, REASONS[error])
        assert len(endpoint.calls) == 1

    def test_may_quote_the_prompt_without_our_doing_so(self, endpoint: ChatEndpoint) -> None:
        endpoint.behaviour = lambda call: failing(400, f"{call.text()} {call.headers['authorization']}", code=PROMPT)
        assert str(client(endpoint.base_url).fails()) == "the endpoint does not take this request: HTTP 400"

    def test_a_redirect_is_not_followed(self, endpoint: ChatEndpoint) -> None:
        """A judge endpoint has no business sending traces on; and it says nothing against this one request."""
        with ChatEndpoint() as elsewhere:
            target = f"{elsewhere.base_url}/chat/completions"
            endpoint.behaviour = answers("", status=307, headers={"Location": target})
            failure = client(endpoint.base_url).fails()
            assert (type(failure), str(failure)) == (ModelUnavailableError, "the endpoint fails: HTTP 307")
            assert elsewhere.calls == ()


class TestRetryAfter:
    @pytest.mark.parametrize(
        ("header", "seconds"),
        [
            ("2", 2.0),
            ("0.25", 0.25),
            ("0", 0.0),
            ("-3", 0.0),
            ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
            ("soon", None),
            ("", None),
            ("inf", None),
            ("nan", None),
        ],
    )
    def test_is_read_in_seconds(self, endpoint: ChatEndpoint, header: str, seconds: float | None) -> None:
        endpoint.behaviour = failing(429, retry_after=header)
        failure = client(endpoint.base_url).fails()
        assert isinstance(failure, RateLimitedError)
        assert failure.retry_after_s == seconds

    def test_is_read_as_a_date(self, endpoint: ChatEndpoint) -> None:
        endpoint.behaviour = failing(429, retry_after=email.utils.formatdate(time.time() + 90, usegmt=True))
        failure = client(endpoint.base_url).fails()
        assert isinstance(failure, RateLimitedError)
        assert failure.retry_after_s == pytest.approx(90, abs=5)

    def test_may_be_absent(self, endpoint: ChatEndpoint) -> None:
        endpoint.behaviour = failing(429)
        assert client(endpoint.base_url).fails().retry_after_s is None  # type: ignore[attr-defined]

    @given(
        st.text(st.characters(codec="latin-1")) | st.floats().map(str) | st.datetimes().map(email.utils.format_datetime)
    )
    @settings(deadline=None)
    def test_of_any_text_is_no_crash(self, value: str) -> None:
        seconds = _retry_after_s(httpx.Headers({"retry-after": value.encode("latin-1")}))
        assert seconds is None or 0 <= seconds < float("inf")


class TestConnection:
    def test_refused_means_unavailable(self) -> None:
        failure = client(f"http://127.0.0.1:{free_port()}/v1").fails()
        assert (type(failure), str(failure)) == (
            ModelUnavailableError,
            "no connection to the endpoint (ClientConnectorError)",
        )

    @pytest.mark.parametrize("share", [0, 0.5], ids=["before the reply", "in the reply"])
    def test_that_is_cut_means_unavailable(self, endpoint: ChatEndpoint, share: float) -> None:
        endpoint.behaviour = cuts(share, WORDS)
        failure = client(endpoint.base_url).fails()
        assert isinstance(failure, ModelUnavailableError)
        assert str(failure).startswith("no connection to the endpoint (")

    def test_to_an_endpoint_that_comes_back_serves_again(self) -> None:
        port = free_port()
        one = client(f"http://127.0.0.1:{port}/v1")
        assert isinstance(one.fails(), ModelUnavailableError)
        with ChatEndpoint(port=port):
            assert one.ask().finish_reason == "stop"

    @pytest.mark.parametrize(
        "reply",
        [
            b"SSH-2.0-" + WORDS.encode() + b"\r\n\r\n",
            b"HTTP/1.1 " + WORDS.encode() + b"\r\n\r\n",
            b"HTTP/1.1 200 OK\r\n" + WORDS.encode() + b"\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: " + WORDS.encode() + b"\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + WORDS.encode() + b"\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 19\r\n\r\n" + WORDS.encode(),
            b"HTTP/1.1 200 OK\r\nX: " + WORDS.encode() * 10_000 + b"\r\n\r\n",
        ],
        ids=["another protocol", "status", "header", "length", "chunks", "compression", "long header"],
    )
    def test_to_something_that_speaks_no_http_means_unavailable(self, reply: bytes) -> None:
        with RawServer(reply) as server:
            assert isinstance(client(server.base_url).fails(), ModelUnavailableError)

    def test_with_a_reply_without_end_is_given_up(self, endpoint: ChatEndpoint) -> None:
        endpoint.behaviour = not_json("x" * (8 * 1024 * 1024 + 1))
        failure = client(endpoint.base_url).fails()
        assert (type(failure), str(failure)) == (ModelUnavailableError, "the reply is longer than 8388608 bytes")

    @pytest.mark.parametrize("behaviour", [hangs(), slow(5)], ids=["hangs", "slow"])
    def test_without_a_reply_in_time_is_a_timeout(self, endpoint: ChatEndpoint, behaviour: Behaviour) -> None:
        endpoint.behaviour = behaviour
        began = time.monotonic()
        failure = client(endpoint.base_url, timeout_s=0.2).fails()
        assert (type(failure), str(failure)) == (ModelTimeoutError, "no answer within 0.2 s")
        assert 0.2 <= time.monotonic() - began < 2
        wait_until(lambda: endpoint.in_flight == 0, what="the end of the abandoned request")

    def test_with_a_reply_that_begins_and_never_ends_is_a_timeout(self) -> None:
        with RawServer(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", closes=False) as server:
            assert isinstance(client(server.base_url, timeout_s=0.2).fails(), ModelTimeoutError)

    def test_that_is_given_up_by_the_caller_ends(self, endpoint: ChatEndpoint) -> None:
        async def give_up() -> None:
            one = client(endpoint.base_url).model
            try:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(one.complete(REQUEST), 0.1)
            finally:
                await one.aclose()

        endpoint.behaviour = hangs()
        asyncio.run(give_up())
        wait_until(lambda: endpoint.in_flight == 0, what="the end of the abandoned request")


class TestConcurrency:
    def test_300_requests_of_half_a_second_are_under_way_together(self, endpoint: ChatEndpoint) -> None:
        """One of three tries is enough: what is measured is the client, not what else the machine does."""
        endpoint.behaviour = slow(0.5)
        one = client(endpoint.base_url, max_in_flight=300)
        for _ in range(3):
            began = time.monotonic()
            assert len(one.ask_often(300)) == 300
            duration_s = time.monotonic() - began
            assert endpoint.max_in_flight == 300
            if duration_s < 1.5:
                return
        pytest.fail(f"300 requests of 0.5 s took {duration_s:.1f} s")

    def test_no_more_connections_than_allowed(self, endpoint: ChatEndpoint) -> None:
        endpoint.behaviour = slow(0.02)
        assert len(client(endpoint.base_url, max_in_flight=3).ask_often(10)) == 10
        assert endpoint.max_in_flight == 3

    def test_each_gets_its_own_answer(self, endpoint: ChatEndpoint) -> None:
        async def ask_each() -> list[str]:
            one = client(endpoint.base_url).model
            requests = [msgspec.structs.replace(REQUEST, messages=(Message("user", str(n)),)) for n in range(50)]
            try:
                return [response.text for response in await asyncio.gather(*map(one.complete, requests))]
            finally:
                await one.aclose()

        endpoint.behaviour = answers(lambda body: f"answer to {body['messages'][0]['content']}")
        assert asyncio.run(ask_each()) == [f"answer to {number}" for number in range(50)]
