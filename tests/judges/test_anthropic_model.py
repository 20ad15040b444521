"""A Messages endpoint on the loopback: what is sent, what is read, and what is asked for twice."""

from collections.abc import Iterator

import msgspec
import pytest
from judge_traces import ASKING, LONG, SHORT, served
from model_client import KEY, REQUEST, WORDS, Client, by_heuristic, requests_of
from model_client import anthropic as client
from support.messages import CachedUsage, MessagesEndpoint, says
from support.replies import Behaviour, Usage, answers, failing, not_json, refuses, sequence, truncated, yes_no

from judges.core.judge import MIN_OUTPUT_TOKENS, Judge
from judges.core.model import ChatResponse, ModelSettings, ModelUnavailableError
from judges.core.prompt import Message, ToolCall
from judges.models.anthropic import AnthropicModel
from judges.registry import catalogue
from tracejudge import Trace

every_judge = pytest.mark.parametrize("judge", ASKING.values(), ids=ASKING)


@pytest.fixture
def messages() -> Iterator[MessagesEndpoint]:
    with MessagesEndpoint() as server:
        yield server


def chat_response(text: str, **fields: object) -> ChatResponse:
    """Return the response that the endpoint's first reply should become."""
    usual = {"input_tokens": 100, "output_tokens": 20, "response_id": "msg_0", "model": "claude-test"}
    return ChatResponse(text, **{**usual, **fields})  # type: ignore[arg-type]


def fixed(text: str) -> list[dict[str, object]]:
    return [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]


class TestRequest:
    @every_judge
    @pytest.mark.parametrize("trace", [SHORT, LONG], ids=["short", "long"])
    def test_body_holds_the_prompt_and_the_judges_schema(
        self, messages: MessagesEndpoint, judge: Judge, trace: Trace
    ) -> None:
        """The endpoint takes no schema that the real one refuses."""
        trace = served(judge, trace)
        messages.behaviour = by_heuristic(judge, trace)
        assert client(messages.base_url).judge(judge, trace).outcome != "unscored"
        bodies = sorted((call.body for call in messages.calls), key=lambda body: body["messages"][-1]["content"])
        assert bodies == [
            {
                "model": "claude-test",
                "max_tokens": body["max_tokens"],
                "system": fixed(system.content),
                "messages": [{"role": "user", "content": user.content}],
                "temperature": 0,
                "output_config": {"format": {"type": "json_schema", "schema": judge.schema}},
            }
            for (system, user), body in zip(requests_of(judge, trace), bodies, strict=True)
        ]
        for body in bodies:
            assert body["max_tokens"] >= MIN_OUTPUT_TOKENS
            sent = body["output_config"]["format"]["schema"]
            assert list(sent["properties"]) == list(judge.schema["properties"]) == sent["required"]

    def test_a_repair_request_shows_the_answer_as_the_models_own(self, messages: MessagesEndpoint) -> None:
        judge = catalogue()["groundedness"]
        messages.behaviour = sequence(answers("Yes, indeed."), yes_no())
        assert client(messages.base_url).judge(judge, SHORT).outcome == "scored"
        first, second = messages.calls
        assert second.body["system"] == first.body["system"]
        assert second.body["messages"][:2] == [
            *first.body["messages"],
            {"role": "assistant", "content": "Yes, indeed."},
        ]
        assert [message["role"] for message in second.body["messages"]] == ["user", "assistant", "user"]

    def test_headers_hold_the_key_the_version_and_the_type(self, messages: MessagesEndpoint) -> None:
        client(messages.base_url).ask()
        headers = messages.calls[0].headers
        names = ("x-api-key", "anthropic-version", "content-type", "authorization")
        assert [headers.get(name) for name in names] == [KEY, "2023-06-01", "application/json", None]

    def test_without_a_key_there_is_no_such_header(self, messages: MessagesEndpoint) -> None:
        settings = ModelSettings(provider="anthropic", base_url=messages.base_url, model="m")
        Client(AnthropicModel(settings, None)).ask()
        assert "x-api-key" not in messages.calls[0].headers

    def test_without_a_fixed_part_there_is_no_system(self, messages: MessagesEndpoint) -> None:
        client(messages.base_url).ask(msgspec.structs.replace(REQUEST, messages=(Message("user", "Is it so?"),)))
        assert "system" not in messages.calls[0].body

    @pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/", "?beta=true", "/v1?beta=true"])
    def test_the_address_may_hold_the_version_a_slash_or_a_query(self, messages: MessagesEndpoint, end: str) -> None:
        assert client(f"{messages.base_url}{end}").ask().finish_reason == "stop"

    def test_max_tokens_are_those_of_the_settings(self, messages: MessagesEndpoint) -> None:
        client(messages.base_url, max_output_tokens=500).ask()
        assert messages.calls[0].body["max_tokens"] == 500


THINKING = {"type": "thinking", "thinking": WORDS, "signature": "s"}
HIDDEN = {"type": "a type to come", "text": WORDS}
TOOL = {"type": "tool_use", "id": "toolu_0", "name": "f", "input": {}}
CALL = ToolCall("toolu_0", "f", "{}")


def text(content: str) -> dict[str, object]:
    return {"type": "text", "text": content}


class TestResponse:
    @pytest.mark.parametrize(
        ("reply", "response"),
        [
            (answers("Yes.", usage=Usage(7, 3)), chat_response("Yes.", input_tokens=7, output_tokens=3)),
            (answers("Yes.", model="claude-test-2"), chat_response("Yes.", model="claude-test-2")),
            (
                answers("Yes.", usage=CachedUsage(7, 500, 2000, 3)),
                chat_response("Yes.", input_tokens=2507, output_tokens=3, written_tokens=500, cached_tokens=2000),
            ),
            (answers("Yes.", usage=None), chat_response("Yes.", input_tokens=0, output_tokens=0)),
            (answers("„Ja“ \U0001f600"), chat_response("„Ja“ \U0001f600")),
            (answers("Yes.", finish_reason="stop_sequence"), chat_response("Yes.")),
            (answers("{", finish_reason="model_context_window_exceeded"), chat_response("{", finish_reason="length")),
            (answers("", finish_reason="tool_calls"), chat_response("")),
            (answers("", finish_reason="pause_turn"), chat_response("", finish_reason="other")),
            (answers("Yes.", finish_reason=None), chat_response("Yes.")),
            (refuses("Never."), chat_response("", refusal=True)),
            (says(THINKING, HIDDEN, text('{"a'), text('": 1}')), ChatResponse('{"a": 1}', response_id="msg_0")),
            (
                says(TOOL, stop_reason="tool_use"),
                ChatResponse("", response_id="msg_0", tool_calls=(CALL,), elsewhere=(("tool_use", "{}"),)),
            ),
            (says(), ChatResponse("", response_id="msg_0")),
            (not_json('{"content": [{"type": "text", "text": "Yes."}]}'), ChatResponse("Yes.")),
            (
                not_json('{"content": [], "usage": {"input_tokens": 1.5, "cache_read_input_tokens": null}}'),
                ChatResponse("", invalid=("usage",)),
            ),
        ],
        ids=[
            "usage", "model", "cache", "no usage", "letters", "stop sequence", "context full", "tool", "pause",
            "no stop reason", "refusal", "thinking", "tool block", "no block", "as little as possible", "odd counts",
        ],
    )  # fmt: skip
    def test_is_read(self, messages: MessagesEndpoint, reply: Behaviour, response: ChatResponse) -> None:
        messages.behaviour = reply
        assert client(messages.base_url).ask() == response
        assert len(messages.calls) == 1

    @pytest.mark.parametrize(
        "raw",
        [f"<html>{WORDS}</html>", "", f'["{WORDS}"]', '{"content": "Yes."}'],
        ids=["html", "empty", "list", "content as text"],
    )
    def test_that_is_no_message_means_unavailable(self, messages: MessagesEndpoint, raw: str) -> None:
        messages.behaviour = not_json(raw)
        failure = client(messages.base_url).fails()
        note = "the reply is no message: this is not a chat endpoint, it answers with text/html; check base_url"
        assert (type(failure), str(failure)) == (ModelUnavailableError, note)


class TestBound:
    @staticmethod
    def sent(messages: MessagesEndpoint) -> list[int]:
        return [call.body["max_tokens"] for call in messages.calls]

    def test_an_answer_that_was_cut_off_may_be_twice_as_long(self, messages: MessagesEndpoint) -> None:
        longer = msgspec.structs.replace(REQUEST, output_factor=2)
        messages.behaviour = truncated("{")
        assert client(messages.base_url).ask().finish_reason == "length"
        client(messages.base_url).ask(longer)
        client(messages.base_url, max_output_tokens=512).ask(longer)
        assert self.sent(messages) == [8192, 16384, 1024]

    def test_thinking_has_an_allowance_until_an_answer_has_none(self, messages: MessagesEndpoint) -> None:
        bounded = msgspec.structs.replace(REQUEST, max_output_tokens=1500)
        messages.behaviour = says(THINKING, text("Yes."))
        client_model = client(messages.base_url)
        client_model.ask(bounded)
        messages.behaviour = says(text("Yes."))
        client_model.ask(bounded)
        client_model.ask(bounded)
        other = client(messages.base_url)
        other.ask(bounded)
        other.ask(bounded)
        assert self.sent(messages) == [9692, 9692, 9692, 9692, 1500]

    @pytest.mark.parametrize(
        ("message", "sent"),
        [
            (
                "max_tokens: 8192 > 4096, which is the maximum allowed number of output tokens for claude-3-20240307",
                [8192, 4096, 4096],
            ),
            ("input length and `max_tokens` exceed context limit: 195000 + 8192 > 200000", [8192, 5000, 8192]),
        ],
        ids=["of the model", "of the context"],
    )
    def test_a_limit_that_the_endpoint_names_is_kept(
        self, messages: MessagesEndpoint, message: str, sent: list[int]
    ) -> None:
        messages.behaviour = sequence(failing(400, message), answers("Yes."), answers("Yes."))
        client_model = client(messages.base_url)
        assert [client_model.ask().text, client_model.ask().text] == ["Yes.", "Yes."]
        assert self.sent(messages) == sent

    def test_a_bound_that_is_refused_twice_is_a_bad_request(self, messages: MessagesEndpoint) -> None:
        messages.behaviour = failing(400, "max_tokens: 8192 > 4096, which is the maximum allowed for this model")
        assert type(client(messages.base_url).fails()).__name__ == "BadModelRequestError"


def test_each_of_many_requests_gets_its_own_answer(messages: MessagesEndpoint) -> None:
    messages.behaviour = answers(lambda body: f"answer to {body['messages'][0]['content']}")
    assert client(messages.base_url).ask_fifty() == [f"answer to {number}" for number in range(50)]
