"""An OpenAI-compatible endpoint on the loopback: what is sent, what is read, and what each failure is called."""

import asyncio
from collections.abc import Callable

import pytest
from judge_traces import LONG, SHORT, served
from model_client import KEY, PROMPT, REQUEST, WORDS, Client, by_heuristic, requests_of
from model_client import openai as client
from raw_server import RawServer
from support.endpoint import ChatEndpoint
from support.replies import (
    Behaviour,
    Reply,
    Usage,
    answers,
    failing,
    filtered,
    no_choices,
    not_json,
    refuses,
    rejects,
    sequence,
    slow,
    truncated,
    yes_no,
)

from judges.core.judge import MIN_OUTPUT_TOKENS, Judge
from judges.core.model import (
    BadModelRequestError,
    ChatResponse,
    ContentFilteredError,
    InputTooLongError,
    ModelError,
    ModelRejectedError,
    ModelSettings,
    ModelUnavailableError,
    RateLimitedError,
)
from judges.models.openai import OpenAIModel
from judges.registry import catalogue
from tracejudge import Trace

every_judge = pytest.mark.parametrize("judge", catalogue().values(), ids=catalogue())


def said(text: str, **fields: object) -> ChatResponse:
    """Return the response that the endpoint's first reply should become."""
    usual = {"input_tokens": 100, "output_tokens": 20, "response_id": "chatcmpl-0", "model": "gpt-test"}
    return ChatResponse(text, **{**usual, **fields})  # type: ignore[arg-type]


class TestRequest:
    @every_judge
    @pytest.mark.parametrize("trace", [SHORT, LONG], ids=["short", "long"])
    def test_body_holds_the_prompt_the_judges_schema_and_a_bound(
        self, endpoint: ChatEndpoint, judge: Judge, trace: Trace
    ) -> None:
        trace = served(judge, trace)
        endpoint.behaviour = by_heuristic(judge, trace)
        assert client(endpoint.base_url).judge(judge, trace).outcome != "unscored"
        bodies = sorted((call.body for call in endpoint.calls), key=lambda body: body["messages"][-1]["content"])
        assert bodies == [
            {
                "model": "gpt-test",
                "messages": [{"role": message.role, "content": message.content} for message in messages],
                "temperature": 0,
                "max_tokens": body["max_tokens"],
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": judge.name, "strict": True, "schema": judge.schema},
                },
            }
            for messages, body in zip(requests_of(judge, trace), bodies, strict=True)
        ]
        assert all(body["max_tokens"] >= MIN_OUTPUT_TOKENS for body in bodies)
        for body in bodies:
            sent = body["response_format"]["json_schema"]["schema"]
            assert list(sent["properties"]) == list(judge.schema["properties"]) == sent["required"]

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
            (answers("", finish_reason="tool_calls"), said("")),
            (answers("Yes.", finish_reason=None), said("Yes.")),
            (not_json('{"choices": [{"message": {"content": "Yes."}}]}'), ChatResponse("Yes.")),
            (
                not_json(
                    '{"choices": [{"message": {"content": [{"type": "thinking", "thinking": [{"text": "No?"}]},'
                    ' {"type": "text", "text": "Y"}, {"text": null}, {"type": "text", "text": "es."}]}}]}'
                ),
                ChatResponse("Yes."),
            ),
            (not_json('{"choices": [{"message": {"content": ["Yes\\ud800."]}}]}'), ChatResponse("Yes\ufffd.")),
        ],
        ids=[
            "all fields", "no usage", "letters", "length", "content filter", "refusal", "null", "tool calls",
            "no finish reason", "as little as possible", "pieces", "half a surrogate pair",
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
            ('{"choices": [{}]}', "the reply is no chat completion"),
            ('{"choices": []}', "the reply holds no choice"),
        ],
        ids=[
            "html", "empty", "list", "choices of a wrong type", "no message", "no choices",
        ],
    )  # fmt: skip
    def test_that_is_no_chat_completion_means_unavailable(self, endpoint: ChatEndpoint, raw: str, error: str) -> None:
        endpoint.behaviour = not_json(raw)
        failure = client(endpoint.base_url).fails()
        kind = (
            ""
            if error.endswith("no choice")
            else ": this is not a chat endpoint, it answers with text/html; check base_url"
        )
        assert (type(failure), str(failure)) == (ModelUnavailableError, f"{error}{kind}")
        if not kind or raw:
            endpoint.behaviour = not_json(raw, content_type="application/json")
            assert str(client(endpoint.base_url).fails()) == error

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
    "json_schema of a newer version only": (
        lambda then: without_param(
            "response_format", then, "response_format value as json_schema is enabled only for api versions 2024-08-01"
        ),
        {"response_format"},
    ),
    "a type that is away": (
        lambda then: without_param("response_format", then, "This response_format type is unavailable now"),
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
        str(status): (failing(status, WORDS), ModelRejectedError, f"the endpoint rejects the request: HTTP {status}")
        for status in (401, 402, 403)
    },
    "404": (failing(404, WORDS), ModelRejectedError, "HTTP 404 from {}/chat/completions; check base_url and model"),
    "quota used up": (
        failing(429, WORDS, kind="insufficient_quota", code="insufficient_quota", retry_after=1),
        ModelRejectedError,
        "the endpoint rejects the request: HTTP 429",
    ),
    "quota in the type only": (
        failing(429, WORDS, kind="insufficient_quota"),
        ModelRejectedError,
        "the endpoint rejects the request: HTTP 429",
    ),
    "hard limit of the account": (
        failing(400, WORDS, code="billing_hard_limit_reached"),
        ModelRejectedError,
        "the endpoint rejects the request: HTTP 400",
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
    "a plain word of a message that is no complaint": (
        failing(400, "the temperature of the room was asked for"),
        BadModelRequestError,
        "the endpoint does not take this request: HTTP 400",
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
    ContentFilteredError: "content_filter",
}


class TestFailures:
    @pytest.mark.parametrize(("reply", "error", "text"), FAILING.values(), ids=FAILING)
    def test_have_a_name_and_a_text_of_ours(
        self, endpoint: ChatEndpoint, reply: Reply, error: type[ModelError], text: str
    ) -> None:
        endpoint.behaviour = reply
        failure = client(endpoint.base_url).fails()
        assert (type(failure), str(failure), failure.reason) == (error, text.format(endpoint.base_url), REASONS[error])
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
