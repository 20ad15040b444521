"""Calls of tools at a Messages endpoint: what is sent of them, and what is read.

The endpoint refuses what the real one refuses: results away from their calls, blocks without tools, blank texts.
"""

import json
from collections.abc import Iterator

import pytest
from model_client import PROMPT, REQUEST, asks, result, with_tools
from model_client import anthropic as client
from msgspec import Raw, structs
from support.messages import MessagesEndpoint, limited, says
from support.replies import Behaviour, Reply, calls_tools, rejects, yes_no
from support.replies import ToolCall as Wanted

from judges.core.model import ChatRequest, ChatResponse
from judges.core.prompt import Message, ToolCall

CACHED: dict[str, object] = {"cache_control": {"type": "ephemeral"}}
SYSTEM = [{"type": "text", "text": "Judge.", **CACHED}]
BEGINNING = {"role": "user", "content": PROMPT}
TOOLS = [
    {
        "name": "search",
        "description": "Find a text.",
        "input_schema": {"type": "object", "properties": {"text": {"type": "string"}}},
    },
    {"name": "root", "description": "Show the first step.", "input_schema": {"type": "object", "properties": {}}},
]
FORM = {"format": {"type": "json_schema", "schema": dict(REQUEST.schema)}}
LAST = with_tools(asks(ToolCall("t1", "root", "{}")), result("t1", "A"), may_call=False)


@pytest.fixture
def messages() -> Iterator[MessagesEndpoint]:
    with MessagesEndpoint() as server:
        yield server


def use(call_id: str, name: str, **arguments: object) -> dict[str, object]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def given(call_id: str, text: str) -> dict[str, object]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": text}


def word(text: str) -> dict[str, object]:
    return {"type": "text", "text": text}


def chat_response(**fields: object) -> ChatResponse:
    usual = {"text": "", "input_tokens": 100, "output_tokens": 20, "response_id": "msg_0", "model": "claude-test"}
    return ChatResponse(**{**usual, **fields})  # type: ignore[arg-type]


class TestRequest:
    @pytest.mark.parametrize(
        ("request_", "turns", "rest"),
        [
            (with_tools(), [], {"tools": TOOLS}),
            (
                with_tools(asks(ToolCall("t1", "search", '{"text": "x"}')), result("t1", "Found: x")),
                [
                    {"role": "assistant", "content": [use("t1", "search", text="x")]},
                    {"role": "user", "content": [{**given("t1", "Found: x"), **CACHED}]},
                ],
                {"tools": TOOLS},
            ),
            (
                with_tools(
                    asks(ToolCall("t1", "search", "{}"), ToolCall("t2", "root", "{}"), text="I look."),
                    result("t1", "nothing"),
                    result("t2", ""),
                    Message("user", "Go on."),
                    asks(ToolCall("t3", "root", "{}"), text=" "),
                    result("t3", "A"),
                ),
                [
                    {"role": "assistant", "content": [word("I look."), use("t1", "search"), use("t2", "root")]},
                    {"role": "user", "content": [given("t1", "nothing"), given("t2", ""), word("Go on.")]},
                    {"role": "assistant", "content": [use("t3", "root")]},
                    {"role": "user", "content": [{**given("t3", "A"), **CACHED}]},
                ],
                {"tools": TOOLS},
            ),
            (
                with_tools(
                    *LAST.messages[2:], Message("assistant", "Well."), Message("user", "Answer."), may_call=False
                ),
                [
                    {"role": "assistant", "content": [use("t1", "root")]},
                    {"role": "user", "content": [given("t1", "A")]},
                    {"role": "assistant", "content": "Well."},
                    {"role": "user", "content": "Answer."},
                ],
                {"tools": TOOLS, "tool_choice": {"type": "none"}, "output_config": FORM},
            ),
            (REQUEST, [], {"output_config": FORM}),
        ],
        ids=["offered", "called", "several turns", "none may be called", "no tools"],
    )
    def test_body_holds_calls_and_results_as_blocks(
        self, messages: MessagesEndpoint, request_: ChatRequest, turns: list[object], rest: dict[str, object]
    ) -> None:
        client(messages.base_url).ask(request_)
        assert [call.body for call in messages.calls] == [
            {
                "model": "claude-test",
                "max_tokens": 8192,
                "system": SYSTEM,
                "messages": [BEGINNING, *turns],
                "temperature": 0,
                **rest,
            }
        ]

    @pytest.mark.parametrize(
        "written", ['{"text": "x', "", '["x"]', "null", "[" * 100_000], ids=["cut off", "empty", "list", "null", "deep"]
    )
    def test_arguments_that_are_no_object_stand_in_one(self, messages: MessagesEndpoint, written: str) -> None:
        client(messages.base_url).ask(with_tools(asks(ToolCall("t1", "search", written)), result("t1", "What?")))
        assert messages.calls[0].body["messages"][1]["content"] == [use("t1", "search", unreadable=written)]

    def test_a_name_that_no_tool_can_have_is_fixed(self, messages: MessagesEndpoint) -> None:
        client(messages.base_url).ask(with_tools(asks(ToolCall("t1", "find it!", "{}")), result("t1", "No such tool.")))
        assert messages.calls[0].body["messages"][1]["content"] == [use("t1", "find_it_")]


TEXT, USE = word("I look."), use("toolu_9", "search", text="x")


class TestResponse:
    @pytest.mark.parametrize(
        ("reply", "response"),
        [
            (
                calls_tools(Wanted("search", '{"text": "x"}'), Wanted("root", "{}")),
                chat_response(
                    tool_calls=(ToolCall("toolu_0_0", "search", '{"text":"x"}'), ToolCall("toolu_0_1", "root", "{}"))
                ),
            ),
            (
                says({"type": "thinking", "thinking": "?"}, TEXT, USE, stop_reason="tool_use"),
                ChatResponse(
                    "I look.",
                    response_id="msg_0",
                    tool_calls=(ToolCall("toolu_9", "search", '{"text":"x"}'),),
                    provider_state=Raw(
                        b'[["thinking",{"type": "thinking", "thinking": "?"}],["text",null],["tool_use",null]]'
                    ),
                ),
            ),
            (
                says({"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}, TEXT),
                ChatResponse("I look.", response_id="msg_0"),
            ),
            (
                Reply(
                    raw=json.dumps(
                        {
                            "content": [
                                {"type": "tool_use", "name": "f"},
                                {"type": "tool_use", "id": "", "input": '{"a": '},
                                {"type": "tool_use", "id": "t", "name": "f", "input": None},
                            ]
                        }
                    )
                ),
                ChatResponse(
                    "",
                    tool_calls=(
                        ToolCall("call00000", "f", "{}"),
                        ToolCall("call00001", "", '{"a": '),
                        ToolCall("t", "f", "{}"),
                    ),
                ),
            ),
        ],
        ids=["two calls", "thought and word before it", "tool of the server", "parts left out"],
    )
    def test_is_read(self, messages: MessagesEndpoint, reply: Behaviour, response: ChatResponse) -> None:
        messages.behaviour = reply
        assert client(messages.base_url).ask(with_tools()) == response
        assert len(messages.calls) == 1


class TestCallThatIsCutOff:
    def test_may_be_twice_as_long_in_the_next_request(self, messages: MessagesEndpoint) -> None:
        messages.behaviour = limited(10_000, calls_tools(Wanted("root", "{}")))
        client_model = client(messages.base_url)
        assert client_model.ask(with_tools()).finish_reason == "length"
        response = client_model.ask(structs.replace(with_tools(), output_factor=2))
        assert response.tool_calls == (ToolCall("toolu_1_0", "root", "{}"),)
        assert [call.body["max_tokens"] for call in messages.calls] == [8192, 16384]


class TestGatewayWithoutAChoiceOfTools:
    @pytest.mark.parametrize(
        "complaint",
        [
            None,
            "tool_choice: Input tag 'none' found using 'type' does not match any of the expected tags: 'auto', 'any'",
        ],
        ids=["named", "as the tag"],
    )
    def test_is_asked_without_it_from_then_on(self, messages: MessagesEndpoint, complaint: str | None) -> None:
        messages.behaviour = rejects("tool_choice", yes_no(), message=complaint)
        client_model = client(messages.base_url)
        assert [client_model.ask(LAST).finish_reason for _ in range(2)] == ["stop"] * 2
        assert ["tool_choice" in call.body for call in messages.calls] == [True, False, False]
        assert all(call.body["tools"] == TOOLS and call.body["output_config"] == FORM for call in messages.calls)
