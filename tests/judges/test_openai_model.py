"""An OpenAI-compatible endpoint on the loopback: what is sent, what is read, and what each failure is called."""

import asyncio
import itertools
import json

import msgspec
import pytest
from judge_traces import ASKING, LONG, SHORT, served
from model_client import KEY, PROMPT, REQUEST, WORDS, Client, by_heuristic, requests_of, with_tools
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
    ModelTimeoutError,
    ModelUnavailableError,
    RateLimitedError,
)
from judges.models.openai import OpenAIModel
from tracejudge import Trace

every_judge = pytest.mark.parametrize("judge", ASKING.values(), ids=ASKING)


def chat_response(text: str, **fields: object) -> ChatResponse:
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
        client_model = client(endpoint.base_url)
        assert [client_model.ask().response_id, client_model.ask().response_id] == ["chatcmpl-0", "chatcmpl-1"]

    def test_connections_are_kept(self) -> None:
        async def twice() -> list[str]:
            client_model = client(server.base_url).model
            try:
                return [(await client_model.complete(REQUEST)).text for _ in range(2)]
            finally:
                await client_model.aclose()

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
                chat_response("Yes.", input_tokens=7, output_tokens=3, model="gpt-test-2026"),
            ),
            (answers("Yes.", usage=None), chat_response("Yes.", input_tokens=0, output_tokens=0)),
            (answers("„Ja“ \U0001f600"), chat_response("„Ja“ \U0001f600")),
            (truncated("{"), chat_response("{", finish_reason="length")),
            (filtered(), chat_response("", finish_reason="content_filter")),
            (refuses("Never."), chat_response("", refusal=True)),
            (answers(None), chat_response("")),
            (answers("", finish_reason="tool_calls"), chat_response("")),
            (answers("Yes.", finish_reason=None), chat_response("Yes.")),
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


MESSAGES: dict[str, str] = {
    "in the message": "Invalid parameter: 'response_format' of type 'json_schema'",
    "of a newer version": "json_schema mode needs a newer version",
    "of a newer version, by name": "response_format value as json_schema is enabled only for api versions 2024-08-01",
    "away": "This response_format type is unavailable now",
    "in words of nobody": "that is more than we can do",
}
BOUNDED = msgspec.structs.replace(REQUEST, max_output_tokens=1500)
SENT = {"response_format", "max_tokens", "max_completion_tokens", "temperature"}
SUBSETS = [set(names) for size in range(5) for names in itertools.combinations(sorted(SENT), size)]


def refusing(fields: set[str], reply: Reply, required: set[str] | None = None) -> Behaviour:
    """Refuse requests with any of these fields, or without one that is required, always by the same reply."""
    return lambda call: reply if fields & call.body.keys() or (required or set()) - call.body.keys() else yes_no()


class TestOptionsOfTheEndpoint:
    def test_are_found_out_by_requests_under_way_together(self) -> None:
        """Whichever are refused, whatever is said, with whichever status: all is answered, with at most 4 more."""
        replies = {
            "unknown words": failing(400, 'json: unknown field "response_schema"'),
            "a fault": failing(500, "guided decoding backend not found"),
            "nothing": not_json("", status=422),
        }
        for (said_, reply), refused, required in itertools.product(replies.items(), SUBSETS, (set(), {"max_tokens"})):
            if refused & required:
                continue
            case = said_, refused, required
            with ChatEndpoint(slow(0.01, refusing(refused, reply, required))) as server:
                client_model = client(server.base_url)
                assert len(client_model.ask_often(64, BOUNDED)) == 64, case
                assert len(server.calls) <= 64 + 4, (case, len(server.calls))
                server.forget()
                client_model.ask(BOUNDED)
                (last,) = server.calls
                usual = {"response_format", "max_tokens", "temperature"}
                kept = usual - refused
                if "max_tokens" in refused and "max_completion_tokens" not in refused and len(refused) < 3:
                    kept.add("max_completion_tokens")
                assert last.body.keys() & SENT == kept, case

    @pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
    @pytest.mark.parametrize("field", ["response_format", "temperature"])
    def test_are_found_out_once_and_remembered(self, endpoint: ChatEndpoint, message: str, field: str) -> None:
        endpoint.behaviour = refusing({field}, failing(400, message))
        client_model = client(endpoint.base_url)
        assert [client_model.ask(BOUNDED).finish_reason for _ in range(6)] == ["stop"] * 6
        assert [call.status for call in endpoint.calls].count(400) <= 3
        assert [call.status for call in endpoint.calls[-3:]] == [200] * 3
        assert endpoint.calls[-1].body.keys() & SENT == {"response_format", "max_tokens", "temperature"} - {field}

    def test_that_are_named_cost_one_request_each(self, endpoint: ChatEndpoint) -> None:
        endpoint.behaviour = rejects("response_format", rejects("temperature", yes_no()), status=422)
        client_model = client(endpoint.base_url)
        assert [client_model.ask().finish_reason for _ in range(3)] == ["stop"] * 3
        assert [call.status for call in endpoint.calls] == [422, 400, 200, 200, 200]

    def test_that_are_named_may_be_required_by_another_name(self, endpoint: ChatEndpoint) -> None:
        """The bound has a new name, structured output is refused in words of nobody, and some bound is required."""
        unnamed = refusing({"response_format"}, failing(400, MESSAGES["in words of nobody"]), {"max_completion_tokens"})
        renamed = failing(400, "Use 'max_completion_tokens' instead of 'max_tokens'.", param="max_tokens")
        endpoint.behaviour = lambda call: renamed if "max_tokens" in call.body else unnamed(call)
        client_model = client(endpoint.base_url)
        assert [client_model.ask(BOUNDED).finish_reason for _ in range(3)] == ["stop"] * 3
        assert [call.status for call in endpoint.calls] == [400, 400, 200, 400, 200, 200]
        assert endpoint.calls[-1].body.keys() & SENT == {"max_completion_tokens", "temperature"}

    def test_that_one_judge_alone_is_refused_with_stay_with_the_others(self, endpoint: ChatEndpoint) -> None:
        endpoint.behaviour = lambda call: (
            failing(400, "grammar too deep") if "odd" in json.dumps(call.body.get("response_format")) else yes_no()
        )
        client_model = client(endpoint.base_url)
        odd = msgspec.structs.replace(REQUEST, schema_name="odd")
        for request in (REQUEST, odd, odd, odd, odd, REQUEST):
            client_model.ask(request)
        assert len(endpoint.calls) <= 6 + 2
        assert ["response_format" in call.body for call in endpoint.calls[-2:]] == [False, True]
        assert "temperature" in endpoint.calls[-2].body

    def test_are_not_doubted_for_a_bad_request_among_good_ones(self, endpoint: ChatEndpoint) -> None:
        endpoint.behaviour = lambda call: failing(400, WORDS) if call.index % 2 else yes_no()
        client_model = client(endpoint.base_url)
        for number in range(10):
            assert isinstance(
                client_model.fails() if number % 2 else client_model.ask(), ChatResponse | BadModelRequestError
            )
        assert len(endpoint.calls) == 10
        assert all({"temperature", "response_format"} <= call.body.keys() for call in endpoint.calls)

    def test_are_learnt_anew_where_an_endpoint_changes(self, endpoint: ChatEndpoint) -> None:
        client_model = client(endpoint.base_url)
        client_model.ask()
        endpoint.behaviour = refusing({"temperature"}, failing(400, WORDS))
        assert [isinstance(client_model.fails(), BadModelRequestError) for _ in range(2)] == [True, True]
        assert [client_model.ask().finish_reason for _ in range(3)] == ["stop"] * 3
        assert endpoint.calls[-1].body.keys() & SENT == {"response_format"}

    def test_cost_at_most_4_requests_at_an_endpoint_that_refuses_all(self, endpoint: ChatEndpoint) -> None:
        endpoint.behaviour = failing(400, "response_format and temperature are not supported here")
        client_model = client(endpoint.base_url)
        assert [isinstance(client_model.fails(), BadModelRequestError) for _ in range(9)] == [True] * 9
        assert len(endpoint.calls) <= 9 + 4

    def test_of_a_failing_endpoint_stay(self, endpoint: ChatEndpoint) -> None:
        client_model = client(endpoint.base_url)
        endpoint.behaviour = failing(500, "temperature")
        assert [isinstance(client_model.fails(), ModelUnavailableError) for _ in range(9)] == [True] * 9
        assert len(endpoint.calls) <= 9 + 2
        endpoint.behaviour = failing(429, "response_format")
        assert isinstance(client_model.fails(), RateLimitedError)
        other = client(endpoint.base_url)
        endpoint.behaviour = sequence(yes_no(), yes_no(), yes_no(), yes_no(), failing(500, "overloaded"), yes_no())
        for asked in (client_model, other):
            for _ in range(4):
                asked.ask()
            assert {"temperature", "response_format"} <= set(endpoint.calls[-1].body)

    def test_are_left_out_while_they_are_learnt_about(self, endpoint: ChatEndpoint) -> None:
        """Refusals come at once, and answers after longer than a request waits for its turn."""
        good = slow(2.3, yes_no())
        endpoint.behaviour = lambda call: failing(400, WORDS) if "response_format" in call.body else good
        assert len(client(endpoint.base_url).ask_often(64)) == 64
        assert len(endpoint.calls) <= 64 + 4

    def test_do_not_wait_for_a_request_that_hangs(self, endpoint: ChatEndpoint) -> None:
        endpoint.behaviour = lambda call: Reply(hangs=True) if call.index == 0 else yes_no()
        client_model = client(endpoint.base_url, timeout_s=3.0)
        with pytest.raises(ModelTimeoutError):
            client_model.ask_often(8)
        assert len(endpoint.calls) == 8

    def test_demanded_by_a_refusal_are_sent_from_then_on(self, endpoint: ChatEndpoint) -> None:
        """What today's small models of OpenAI say to tools, and how other servers ask for a value."""
        cases: list[tuple[str, str | None, str]] = [
            ("To use function tools, use /v1/responses or set reasoning_effort to 'none'.", None, "none"),
            (
                "Function tools with reasoning_effort are not supported. Please use /v1/responses instead.",
                "low",
                "none",
            ),
            (
                "'reasoning_effort' does not support 'none'. Supported values are: 'minimal', 'low', and 'high'.",
                "none",
                "minimal",
            ),
            (
                "Unsupported value: 'reasoning_effort' supports 'low', 'medium' and 'high', not 'xhigh'.",
                "xhigh",
                "high",
            ),
            ("Use /v1/responses or set reasoning_effort to none.", None, "none"),
            ("Set reasoning_effort=none for tools.", "high", "none"),
            ("reasoning_effort does not support none; supported values are low, medium and high", "none", "low"),
            ("reasoning_effort must be one of [minimal|low|max]: this one is too high.", "xhigh", "max"),
        ]
        for message, effort, expected in cases:
            endpoint.forget()
            refusal = failing(
                400, f"Function tools with reasoning_effort are not supported. {message}", param="reasoning_effort"
            )
            endpoint.behaviour = lambda call, wanted=expected, refusal=refusal: (
                refusal if call.body.get("reasoning_effort") != wanted and "tools" in call.body else yes_no()
            )
            client_model = client(endpoint.base_url, reasoning_effort=effort)
            for request in (with_tools(), with_tools(), REQUEST):
                client_model.ask(request)
            efforts = [call.body.get("reasoning_effort") for call in endpoint.calls]
            assert efforts == [effort, expected, expected, effort], message
            assert endpoint.calls[-1].body.keys() >= {"temperature", "response_format"}
        endpoint.behaviour = lambda call: (
            yes_no()
            if call.body.get("enable_thinking") is False
            else failing(400, "parameter.enable_thinking must be set to false for non-streaming calls")
        )
        endpoint.forget()
        client_model = client(endpoint.base_url)
        assert [client_model.ask().finish_reason for _ in range(2)] == ["stop"] * 2
        assert len(endpoint.calls) == 3


BAD_STATUS = {400, 406, 411, 414, 415, 416, 417, 422, 431, 494}
OWN_STATUS = {401, 402, 403, 404, 405, 407, 410, 413, 421, 429, 451}
FAILING: dict[str, tuple[Reply, type[ModelError], str]] = {
    **{
        str(status): (failing(status, WORDS), ModelRejectedError, f"the endpoint rejects the request: HTTP {status}")
        for status in (401, 402, 403, 407, 421, 451)
    },
    **{
        str(status): (
            failing(status, WORDS),
            ModelRejectedError,
            f"HTTP {status} from {{}}/chat/completions; check base_url and model",
        )
        for status in (404, 405, 410)
    },
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
        for status in (*sorted({*range(400, 500)} - OWN_STATUS - BAD_STATUS), 500, 502, 503, 504, 529)
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
        for status in sorted(BAD_STATUS)
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
        # What may be about an optional part is asked once more without any.
        may_be_ours = (reply.status in {400, 422} and error is BadModelRequestError) or reply.status == 500
        sent = [call.body.keys() & SENT for call in endpoint.calls]
        assert (len(sent) > 1, len(sent) <= 3, not sent[-1]) == (may_be_ours, True, may_be_ours)

    def test_may_quote_the_prompt_without_our_doing_so(self, endpoint: ChatEndpoint) -> None:
        endpoint.behaviour = lambda call: failing(400, f"{call.text()} {call.headers['authorization']}", code=PROMPT)
        assert str(client(endpoint.base_url).fails()) == "the endpoint does not take this request: HTTP 400"
