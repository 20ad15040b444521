"""The Messages endpoint answers in that API's form, and takes no request that the real one refuses."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from support.messages import CachedUsage, MessagesEndpoint, limited, says
from support.replies import Behaviour, answers, failing, refuses, rejects, truncated

BODY = {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "is it so?"}]}


@pytest.fixture
def messages() -> Iterator[MessagesEndpoint]:
    with MessagesEndpoint(answers("Yes.")) as server:
        yield server


def ask(endpoint: MessagesEndpoint, body: dict[str, Any], version: str | None = "2023-06-01") -> httpx.Response:
    headers = {} if version is None else {"anthropic-version": version}
    return httpx.post(f"{endpoint.base_url}/v1/messages", json=body, headers=headers, trust_env=False, timeout=60)


def with_schema(schema: dict[str, Any]) -> dict[str, Any]:
    return {**BODY, "output_config": {"format": {"type": "json_schema", "schema": schema}}}


def an_object(**properties: object) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def test_answers_in_the_form_of_messages(messages: MessagesEndpoint) -> None:
    messages.behaviour = answers(lambda body: body["model"].upper(), model="m-2")
    assert ask(messages, BODY).json() == {
        "id": "msg_0",
        "type": "message",
        "role": "assistant",
        "model": "m-2",
        "content": [{"type": "text", "text": "M"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 100, "output_tokens": 20},
    }
    (call,) = messages.calls
    assert (call.body, call.status, call.text()) == (BODY, 200, "is it so?")


@pytest.mark.parametrize(
    ("behaviour", "stop_reason", "content"),
    [
        (truncated("{"), "max_tokens", [{"type": "text", "text": "{"}]),
        (refuses(), "refusal", []),
        (answers("", finish_reason="pause_turn"), "pause_turn", [{"type": "text", "text": ""}]),
        (says({"type": "thinking"}, stop_reason="tool_use"), "tool_use", [{"type": "thinking"}]),
        (limited(101, answers("Yes.")), "max_tokens", [{"type": "text", "text": "{"}]),
        (limited(100, answers("Yes.")), "end_turn", [{"type": "text", "text": "Yes."}]),
    ],
    ids=["cut off", "refusal", "stop reason as it is", "blocks as they are", "too few tokens", "enough tokens"],
)
def test_says_why_it_stopped(
    messages: MessagesEndpoint, behaviour: Behaviour, stop_reason: str, content: list[object]
) -> None:
    messages.behaviour = behaviour
    message = ask(messages, BODY).json()
    assert (message["stop_reason"], message["content"]) == (stop_reason, content)


def test_counts_what_was_cached(messages: MessagesEndpoint) -> None:
    messages.behaviour = answers("Yes.", usage=CachedUsage(1, 2, 3, 4))
    assert ask(messages, BODY).json()["usage"] == {
        "input_tokens": 1,
        "cache_creation_input_tokens": 2,
        "cache_read_input_tokens": 3,
        "output_tokens": 4,
    }


def test_failing_has_this_apis_error_form(messages: MessagesEndpoint) -> None:
    messages.behaviour = failing(529, "busy", kind="overloaded_error", retry_after=3)
    response = ask(messages, BODY)
    assert (response.status_code, response.headers["Retry-After"]) == (529, "3")
    assert response.json() == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "busy"},
        "request_id": "req_0",
    }


def test_rejects_a_parameter_only_where_it_is_given(messages: MessagesEndpoint) -> None:
    messages.behaviour = rejects("temperature", answers("Yes."))
    assert [ask(messages, {**BODY, "temperature": 0}).status_code, ask(messages, BODY).status_code] == [400, 200]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"model": "m", "messages": BODY["messages"]}, "max_tokens: Field required"),
        ({**BODY, "response_format": {}}, "response_format: Extra inputs are not permitted"),
        (
            {**BODY, "messages": [{"role": "system", "content": "x"}]},
            'messages.0.role: Input should be "user" or "assistant"',
        ),
        (
            {**BODY, "messages": [{"role": "user", "content": ""}]},
            "messages.0: all messages must have non-empty content",
        ),
        (
            with_schema({"type": "object", "properties": {}}),
            "output_config.format.schema: For 'object' type, 'additionalProperties' must be explicitly set to false",
        ),
        (
            with_schema(an_object(score={"type": "integer", "minimum": 1})),
            "output_config.format.schema.score: property 'minimum' is not supported",
        ),
        (
            with_schema(an_object(all={"type": "array", "items": {"type": "string", "maxLength": 9}})),
            "output_config.format.schema.all.items: property 'maxLength' is not supported",
        ),
        (
            with_schema(an_object(one={"anyOf": [{"type": "null"}, {"$ref": "#"}]})),
            "output_config.format.schema.one.anyOf.1: property '$ref' is not supported",
        ),
    ],
    ids=["no limit", "another API", "system", "nothing said", "open object", "bound", "length", "recursion"],
)
def test_what_the_real_api_refuses_is_refused(messages: MessagesEndpoint, body: dict[str, Any], message: str) -> None:
    response = ask(messages, body)
    assert response.status_code == 400
    assert response.json()["error"] == {"type": "invalid_request_error", "message": message}


def test_a_request_without_a_version_is_refused(messages: MessagesEndpoint) -> None:
    assert ask(messages, BODY, version=None).status_code == 400


def test_a_schema_as_ours_are_is_taken(messages: MessagesEndpoint) -> None:
    sentence = an_object(label={"type": "string", "enum": ["a", "b"]}, excerpt={"type": ["string", "null"]})
    body = with_schema(an_object(sentences={"type": "array", "items": sentence}, score={"enum": [1, 2]}))
    assert ask(messages, body).status_code == 200
