"""Bodies of requests, responses and events that the loopback server of `test_wrap` does not send."""

from typing import Any

import msgspec
from support.cases import each_case

from tracejudge.dialects.provider_calls import StreamedAnswer, call_fields, json_data, request_data

MCP = {"type": "mcp_call", "id": "mcp_1", "name": "search", "arguments": '{"query":"tea"}', "output": "Hot."}
SAID = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]}
CALL = {"name": "search", "arguments": {"query": "tea"}}
CUSTOM = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "call_1", "name": "run", "input": "print(1)"}

CASES = {
    "a call that the provider made": (
        {"input": "Hot?"},
        {"output": [MCP, SAID]},
        {"input": "Hot?", "output": "Yes.", "tool_calls": {"mcp_1": {**CALL, "result": "Hot."}}},
    ),
    "a call of a tool in its own language": (
        {
            "input": [
                {"role": "user", "content": "Run"},
                CUSTOM,
                {"type": "custom_tool_call_output", "call_id": "call_1", "output": "1"},
            ]
        },
        {"output": [SAID]},
        {
            "input": "Run",
            "output": "Yes.",
            "tool_calls": {"call_1": {"name": "run", "arguments": "print(1)", "result": "1"}},
        },
    ),
    "a tool of Anthropic's server": (
        {"messages": [{"role": "user", "content": "Hot?"}]},
        {
            "content": [
                {"type": "server_tool_use", "id": "srv_1", "name": "search", "input": {"query": "tea"}},
                {"type": "text", "text": "Yes."},
            ]
        },
        {"input": "Hot?", "output": "Yes.", "tool_calls": {"srv_1": CALL}},
    ),
    "a spoken answer": (
        {"messages": [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hot?"}]},
        {"choices": [{"message": {"content": None, "audio": {"id": "a", "transcript": "Yes."}}}]},
        {"input": "Hot?", "messages": [{"role": "developer", "content": "Be brief."}], "output": "Yes."},
    ),
    "several choices": (
        {"messages": [{"role": "user", "content": "Hot?"}]},
        {"choices": [{"message": {"content": "Yes."}}, {"message": {"content": "No."}}]},
        {"input": "Hot?", "output": "Yes."},
    ),
    "a failed response": (
        {"input": "Hot?"},
        {"status": "failed", "error": {"code": "server_error", "message": "Sorry"}, "output": []},
        {"input": "Hot?", "error": "server_error: Sorry"},
    ),
    "two questions": (
        {
            "messages": [
                {"role": "user", "content": "Hot?"},
                {"role": "assistant", "content": "Yes."},
                {"role": "user", "content": "Hot?"},
            ]
        },
        {"content": [{"type": "text", "text": "Still."}]},
        {
            "input": "Hot?",
            "messages": [{"role": "user", "content": "Hot?"}, {"role": "assistant", "content": "Yes."}],
            "output": "Still.",
        },
    ),
    "no choice": ({"messages": None, "model": "m"}, {"choices": []}, {"model": "m"}),
    "other shapes": ({"messages": [7, {"role": 7}], "metadata": 7, "conversation": 7}, {"output": 7, "usage": 7}, {}),
}


@each_case("name", CASES)
def test_a_call_becomes_fields(name: str) -> None:
    request, response, expected = CASES[name]
    assert msgspec.to_builtins(call_fields(request_data(request), response)) == expected


def chunk(**delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta}]}


EVENTS = {
    "a function of older models": (
        [
            chunk(function_call={"name": "search", "arguments": ""}),
            chunk(function_call={"arguments": '{"query":"tea"}'}),
        ],
        {"tool_calls": {"0 search": CALL}},
    ),
    "two calls at once": (
        [
            chunk(tool_calls=[{"index": 0, "id": "a", "function": {"name": "search", "arguments": '{"query":'}}]),
            chunk(tool_calls=[{"index": 1, "id": "b", "function": {"name": "search", "arguments": '{"query":"tea"}'}}]),
            chunk(tool_calls=[{"index": 0, "function": {"arguments": '"tea"}'}}]),
        ],
        {"tool_calls": {"a": CALL, "b": CALL}},
    ),
    "a stream cut within a call": (
        [
            {
                "type": "content_block_start",
                "index": 0,
                "content_block": {"type": "tool_use", "id": "a", "name": "search", "input": {}},
            },
            {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"qu'}},
        ],
        {"tool_calls": {"a": {"name": "search", "arguments": '{"qu'}}},
    ),
    "an answer without text": (
        [chunk(role="assistant", content=""), {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}],
        {},
    ),
    "another choice": (
        [{"choices": [{"index": 1, "delta": {"content": "No."}}]}, chunk(content="Yes.")],
        {"output": "Yes."},
    ),
    "unknown events": ([{"type": "tea"}, {"type": "response.tea", "delta": "x"}, {}, {"type": 7}], {}),
}


@each_case("name", EVENTS)
def test_events_become_a_response(name: str) -> None:
    events, expected = EVENTS[name]
    answer = StreamedAnswer()
    for event in events:
        answer.add(event)
    assert msgspec.to_builtins(call_fields({}, answer.response())) == expected


def test_a_stream_is_bounded() -> None:
    answer = StreamedAnswer()
    for _ in range(30):
        answer.add(chunk(content="x" * 100_000))
    assert len(call_fields({}, answer.response())["output"]) == 1_000_000


def test_a_request_is_a_copy_of_plain_values() -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "Hot?"}]}]
    copied = request_data({"messages": messages, "tools": ["tea"], "user": None, "seed": 1})
    messages[0]["content"][0]["text"] = "changed"
    content = [{"type": "text", "text": "Hot?"}]
    assert copied == {"messages": [{"role": "user", "content": content}], "tools": ["tea"]}
    endless: list[Any] = []
    endless.append(endless)
    assert json_data(endless) is not None
    assert (json_data(object()), request_data(object())) == (None, {})
