"""Calls of tools at an OpenAI-compatible endpoint: what is sent of them, and what is read."""

import json
from typing import Any

import pytest
from model_client import PROMPT, REQUEST, asks, result, with_tools
from model_client import openai as client
from support.endpoint import ChatEndpoint
from support.replies import Behaviour, Reply, answers, calls_tools, failing, rejects, yes_no
from support.replies import ToolCall as Wanted

from judges.core.model import ChatRequest, ChatResponse
from judges.core.prompt import Message, ToolCall

BEGINNING: list[dict[str, Any]] = [{"role": "system", "content": "Judge."}, {"role": "user", "content": PROMPT}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Find a text.",
            "parameters": {"type": "object", "properties": {"text": {"type": "string"}}},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "root",
            "description": "Show the first step.",
            "parameters": {"type": "object", "properties": {}},
        },
    },
]
FORM = {"type": "json_schema", "json_schema": {"name": "groundedness", "strict": True, "schema": dict(REQUEST.schema)}}


def called(call_id: str, name: str, arguments: str) -> dict[str, object]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def chat_response(**fields: object) -> ChatResponse:
    usual = {"text": "", "input_tokens": 100, "output_tokens": 20, "response_id": "chatcmpl-0", "model": "gpt-test"}
    return ChatResponse(**{**usual, **fields})  # type: ignore[arg-type]


class TestRequest:
    @pytest.mark.parametrize(
        ("request_", "messages", "rest"),
        [
            (with_tools(), [], {"tools": TOOLS}),
            (
                with_tools(asks(ToolCall("a1", "search", '{"text":  "x"}')), result("a1", "Found: x")),
                [
                    {"role": "assistant", "content": None, "tool_calls": [called("a1", "search", '{"text":  "x"}')]},
                    {"role": "tool", "content": "Found: x", "tool_call_id": "a1"},
                ],
                {"tools": TOOLS},
            ),
            (
                with_tools(
                    asks(ToolCall("a1", "search", "{}"), ToolCall("a2", "root", "{}"), text="I look."),
                    result("a1", "nothing"),
                    result("a2", ""),
                ),
                [
                    {
                        "role": "assistant",
                        "content": "I look.",
                        "tool_calls": [called("a1", "search", "{}"), called("a2", "root", "{}")],
                    },
                    {"role": "tool", "content": "nothing", "tool_call_id": "a1"},
                    {"role": "tool", "content": "", "tool_call_id": "a2"},
                ],
                {"tools": TOOLS},
            ),
            (
                with_tools(
                    asks(ToolCall("a1", "root", "{}")), result("a1", "A"), Message("user", "Answer."), may_call=False
                ),
                [
                    {"role": "assistant", "content": None, "tool_calls": [called("a1", "root", "{}")]},
                    {"role": "tool", "content": "A", "tool_call_id": "a1"},
                    {"role": "user", "content": "Answer."},
                ],
                {"response_format": FORM},
            ),
            (REQUEST, [], {"response_format": FORM}),
        ],
        ids=["offered", "called", "two calls and a word", "none may be called", "no tools"],
    )
    def test_body_holds_calls_results_and_either_tools_or_the_answers_form(
        self, endpoint: ChatEndpoint, request_: ChatRequest, messages: list[object], rest: dict[str, object]
    ) -> None:
        client(endpoint.base_url).ask(request_)
        assert [call.body for call in endpoint.calls] == [
            {"model": "gpt-test", "messages": [*BEGINNING, *messages], "temperature": 0, **rest}
        ]

    @pytest.mark.parametrize(
        ("written", "sent"),
        [
            ('{"text": "x', {"unreadable": '{"text": "x'}),
            ("", {"unreadable": ""}),
            ('["x"]', {"unreadable": '["x"]'}),
            ("[" * 100_000, {"unreadable": "[" * 100_000}),
            ('{"n": NaN}', {"unreadable": '{"n": NaN}'}),
            ('{"text": "\\ud800"}', {"unreadable": '{"text": "\\ud800"}'}),
            (' {"n": 1e3, "n": 2} ', {"n": 2}),
        ],
        ids=["cut off", "empty", "list", "deep", "no number", "half a pair", "odd but an object"],
    )
    def test_arguments_are_an_object_whatever_the_model_wrote(
        self, endpoint: ChatEndpoint, written: str, sent: dict[str, object]
    ) -> None:
        """vLLM, SGLang and Ollama refuse the whole conversation otherwise."""
        client(endpoint.base_url).ask(with_tools(asks(ToolCall("a1", "search", written)), result("a1", "What?")))
        (call,) = endpoint.calls[0].body["messages"][2]["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == sent

    @pytest.mark.parametrize(
        ("written", "sent"),
        [("find it!", "find_it_"), ("", "unnamed"), ("n" * 100, "n" * 64), ("a-B_9", "a-B_9"), ("\u540d", "_")],
    )
    def test_names_are_such_as_endpoints_take(self, endpoint: ChatEndpoint, written: str, sent: str) -> None:
        client(endpoint.base_url).ask(with_tools(asks(ToolCall("a1", written, "{}")), result("a1", "No such tool.")))
        (call,) = endpoint.calls[0].body["messages"][2]["tool_calls"]
        assert call["function"]["name"] == sent


def raw(message: dict[str, object], finish_reason: str = "tool_calls") -> Reply:
    return Reply(raw=json.dumps({"choices": [{"message": message, "finish_reason": finish_reason}]}))


def bare(*calls: object) -> Reply:
    return raw({"content": None, "tool_calls": calls})


def found(*calls: ToolCall) -> ChatResponse:
    return ChatResponse("", tool_calls=calls)


class TestResponse:
    @pytest.mark.parametrize(
        ("reply", "response"),
        [
            (
                calls_tools(Wanted("search", '{"text": "x"}'), Wanted("root", "{}")),
                chat_response(
                    tool_calls=(ToolCall("call_0_0", "search", '{"text": "x"}'), ToolCall("call_0_1", "root", "{}"))
                ),
            ),
            (
                calls_tools(Wanted("root", "{}"), text="I look.", finish_reason="stop"),
                chat_response(text="I look.", tool_calls=(ToolCall("call_0_0", "root", "{}"),)),
            ),
            (calls_tools(Wanted("f", '{"a": ')), chat_response(tool_calls=(ToolCall("call_0_0", "f", '{"a": '),))),
            (
                calls_tools(Wanted("f", '{"a": '), finish_reason="length"),
                chat_response(finish_reason="length", tool_calls=(ToolCall("call_0_0", "f", '{"a": '),)),
            ),
            (answers("Yes.", finish_reason="function_call"), chat_response(text="Yes.")),
            (bare({"id": "a", "function": {"name": "f", "arguments": {"n": 1}}}), found(ToolCall("a", "f", '{"n":1}'))),
            (bare({"id": "a", "function": {"name": "f", "arguments": None}}), found(ToolCall("a", "f", "{}"))),
            (bare({"id": "a", "function": {"name": "f", "arguments": " "}}), found(ToolCall("a", "f", "{}"))),
            (
                bare({"id": "a", "function": {"name": "f", "arguments": '"{\\"n\\": 1}"'}}),
                found(ToolCall("a", "f", '{"n": 1}')),
            ),
            (bare({"id": "a", "function": {"name": "f", "arguments": '"n"'}}), found(ToolCall("a", "f", '"n"'))),
            (bare({"id": "a", "function": {"name": "f"}}), found(ToolCall("a", "f", "{}"))),
            (bare({"id": 7, "function": {"name": "f", "arguments": [1]}}), found(ToolCall("7", "f", "[1]"))),
            (
                bare({"function": {"name": "f"}}, {"id": "", "function": {"name": None}}, {"id": None}),
                found(*(ToolCall(f"call0000{number}", name, "{}") for number, name in enumerate(["f", "", ""]))),
            ),
            (raw({"content": "Yes.", "tool_calls": []}, "stop"), ChatResponse("Yes.")),
            (raw({"content": "Yes.", "tool_calls": None}, "stop"), ChatResponse("Yes.")),
        ],
        ids=[
            "two calls", "with a word and another reason", "broken arguments", "cut off", "finish of old servers",
            "object", "null", "blank", "JSON in JSON", "a text in JSON", "absent", "number and list",
            "no ids and no names", "no calls", "null for calls",
        ],
    )  # fmt: skip
    def test_is_read(self, endpoint: ChatEndpoint, reply: Behaviour, response: ChatResponse) -> None:
        endpoint.behaviour = reply
        assert client(endpoint.base_url).ask(with_tools()) == response

    def test_made_ids_do_not_come_twice_in_a_conversation(self, endpoint: ChatEndpoint) -> None:
        endpoint.behaviour = bare({"function": {"name": "f"}})
        client_model = client(endpoint.base_url)
        first = client_model.ask(with_tools()).tool_calls
        second = client_model.ask(with_tools(asks(*first), result(first[0].id, "x"))).tool_calls
        assert [call.id for call in (*first, *second)] == ["call00000", "call00001"]


WANTED = "litellm.UnsupportedParamsError: Anthropic doesn't support tool calling without `tools=` param specified."


def needs_tools(then: Behaviour) -> Behaviour:
    """Refuse requests that do not name the tools that their messages speak of, as LiteLLM does."""
    return lambda call: then if "tools" in call.body else failing(400, WANTED)


class TestEndpointThatWantsToolsNamed:
    LAST = with_tools(asks(ToolCall("a1", "root", "{}")), result("a1", "A"), may_call=False)

    def test_gets_them_and_none_may_be_called(self, endpoint: ChatEndpoint) -> None:
        endpoint.behaviour = needs_tools(yes_no())
        client_model = client(endpoint.base_url)
        client_model.ask_often(2, self.LAST)
        endpoint.forget()
        assert client_model.ask(self.LAST).finish_reason == "stop"
        (call,) = endpoint.calls
        assert {name: call.body[name] for name in call.body.keys() - {"messages"}} == {
            "model": "gpt-test", "temperature": 0, "response_format": FORM, "tools": TOOLS, "tool_choice": "none",
        }  # fmt: skip

    def test_gets_none_with_a_request_that_knows_none(self, endpoint: ChatEndpoint) -> None:
        endpoint.behaviour = needs_tools(yes_no())
        client_model = client(endpoint.base_url)
        client_model.ask(self.LAST)
        endpoint.behaviour = yes_no()
        client_model.ask()
        assert not {"tools", "tool_choice"} & endpoint.calls[-1].body.keys()

    def test_is_known_only_once_it_answered(self, endpoint: ChatEndpoint) -> None:
        """One that refuses both ways would be sent the tools for nothing, and may call them."""
        endpoint.behaviour = failing(400, WANTED)
        client_model = client(endpoint.base_url)
        client_model.fails(self.LAST)
        endpoint.forget()
        endpoint.behaviour = yes_no()
        client_model.ask(self.LAST)
        assert "tools" not in endpoint.calls[0].body

    def test_keeps_what_it_is_asked_for_otherwise(self, endpoint: ChatEndpoint) -> None:
        endpoint.behaviour = needs_tools(rejects("response_format", yes_no()))
        client(endpoint.base_url).ask(self.LAST)
        assert endpoint.calls[-1].body.keys() == {"model", "messages", "temperature", "tools", "tool_choice"}
