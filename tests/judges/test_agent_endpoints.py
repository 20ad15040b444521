"""An exploration at endpoints that demand more of messages than others, over HTTP: as their documentation says.

None of this was tried against the real servers.
"""

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from explorations import TRACE, exploring
from judge_traces import yes_no_text
from model_client import anthropic, openai
from support.endpoint import ChatEndpoint
from support.messages import MessagesEndpoint
from support.messages import says as says_blocks
from support.replies import Behaviour, Call, Reply, failing, yes_no

from judges.core.exploration import Limits
from judges.core.verdict import Assessment
from judges.registry import catalogue

YES = yes_no_text("yes")
LIMITS = Limits(max_rounds=2)
UNREADABLE = "It seems fine."

Rule = Callable[[list[dict[str, Any]]], str | None]


def says(message: dict[str, object]) -> Reply:
    return Reply(raw=json.dumps({"choices": [{"message": message}]}))


def used(number: int, **extra: object) -> dict[str, object]:
    return {"id": f"c{number}", "type": "function", "function": {"name": "read", "arguments": "{}"}, **extra}


def after_tools(messages: list[dict[str, Any]]) -> str | None:
    """Complain as Mistral's servers do."""
    follows = {"system": {"user"}, "user": {"assistant"}, "assistant": {"user", "tool"}, "tool": {"tool", "assistant"}}
    roles = [message["role"] for message in messages]
    for before, role in itertools.pairwise(roles):
        if role not in follows[before]:
            return f"Unexpected role '{role}' after role '{before}'"
    return None if roles[-1] in {"user", "tool"} else "Expected last role User or Tool"


def with_thoughts(messages: list[dict[str, Any]]) -> str | None:
    """Complain as DeepSeek does in thinking mode."""
    for number, message in enumerate(messages):
        if message["role"] == "assistant" and message.get("reasoning_content") != f"Thought {number}.":
            return f"Missing `reasoning_content` field in the assistant message at message index {number}."
    return None


def with_signatures(messages: list[dict[str, Any]]) -> str | None:
    """Complain as Gemini does."""
    for message in messages:
        for call in message.get("tool_calls", ()):
            if call.get("extra_content") != {"google": {"thought_signature": f"sign+{call['id']}=="}}:
                return "Function call is missing a thought_signature in functionCall parts."
    return None


def with_details(messages: list[dict[str, Any]]) -> str | None:
    """Complain as models behind OpenRouter do."""
    for number, message in enumerate(messages):
        if message["role"] == "assistant" and message.get("reasoning_details") != details(number):
            return "reasoning_details must be given unchanged"
    return None


def details(number: int) -> list[dict[str, object]]:
    return [{"type": "reasoning.encrypted", "data": f"e{number}", "index": 0.50, "format": None}]


def with_pieces(messages: list[dict[str, Any]]) -> str | None:
    """Complain where Mistral's reasoning models do not find their thoughts as they wrote them."""
    for number, message in enumerate(messages):
        if message["role"] == "assistant" and message["content"][0] != pieces(number, "")[0]:
            return "the thoughts must be given unchanged"
    return None


def pieces(number: int, text: str) -> list[dict[str, object]]:
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": f"Thought {number}."}], "closed": True}
    return [thought, {"type": "text", "text": text}]


def without_thoughts(messages: list[dict[str, Any]]) -> str | None:
    """Complain as Groq does."""
    for number, message in enumerate(messages):
        if "reasoning_content" in message:
            return (
                f"'messages.{number}' : for 'role:assistant' the following must be satisfied[('messages.{number}' :"
                " property 'reasoning_content' is unsupported)]"
            )
    return None


def thinking(call: Call) -> Reply:
    """Ask for calls until none may be made, then be unreadable once; with all that servers put beside an answer."""
    messages, number = call.body["messages"], len(call.body["messages"])
    beside = {"reasoning_content": f"Thought {number}.", "reasoning_details": details(number)}
    if "tools" in call.body:
        extra = {"google": {"thought_signature": f"sign+c{number}=="}}
        return says({"content": None, "tool_calls": [used(number, extra_content=extra)], **beside})
    is_first = messages[-1]["role"] == "tool"
    return says({"content": UNREADABLE if is_first else YES, **beside})


def demanding(rule: Rule) -> Behaviour:
    def behave(call: Call) -> Reply:
        complaint = rule(call.body["messages"])
        return thinking(call) if complaint is None else failing(400, complaint)

    return behave


def explored(endpoint: ChatEndpoint, behaviour: Behaviour) -> Assessment:
    endpoint.behaviour = behaviour
    return openai(endpoint.base_url).judge(exploring(LIMITS), TRACE)


@pytest.mark.parametrize(
    "rule",
    [after_tools, with_thoughts, with_signatures, with_details],
    ids=["roles", "thoughts", "signatures", "details"],
)
def test_two_rounds_the_last_call_and_a_repair_are_in_form(endpoint: ChatEndpoint, rule: Rule) -> None:
    assessment = explored(endpoint, demanding(rule))
    assert (assessment.outcome, assessment.note) == ("scored", None)
    assert [call.status for call in endpoint.calls] == [200] * 4


def test_an_answer_in_pieces_is_read_and_goes_back_as_it_came(endpoint: ChatEndpoint) -> None:
    def behave(call: Call) -> Reply:
        messages = call.body["messages"]
        complaint = after_tools(messages) or with_pieces(messages)
        if complaint is not None:
            return failing(400, complaint)
        if "tools" in call.body:
            return says({"content": pieces(len(messages), ""), "tool_calls": [used(len(messages))]})
        return says({"content": pieces(len(messages), UNREADABLE if messages[-1]["role"] == "tool" else YES)})

    assert explored(endpoint, behave).outcome == "scored"
    assert [call.status for call in endpoint.calls] == [200] * 4


def test_a_model_that_is_told_to_read_first_gets_messages_in_form(endpoint: ChatEndpoint) -> None:
    def behave(call: Call) -> Reply:
        complaint = after_tools(call.body["messages"])
        if complaint is not None:
            return failing(400, complaint)
        return says({"content": None, "tool_calls": [used(1)]}) if len(endpoint.calls) == 2 else yes_no()

    assert explored(endpoint, behave).outcome == "scored"


def test_a_server_that_takes_no_thoughts_gets_none_from_then_on(endpoint: ChatEndpoint) -> None:
    assert explored(endpoint, demanding(without_thoughts)).outcome == "scored"
    assert [call.status for call in endpoint.calls] == [200, 400, 200, 200, 200]
    assert all("response_format" in call.body for call in endpoint.calls[-2:])


def test_a_server_that_misses_thoughts_is_not_taken_for_one_that_refuses_them(endpoint: ChatEndpoint) -> None:
    complaint = failing(400, "Missing `reasoning_content` field in the assistant message at message index 2.")
    endpoint.behaviour = lambda call: complaint if len(call.body["messages"]) > 2 else thinking(call)
    client = openai(endpoint.base_url)
    assert client.judge(exploring(LIMITS), TRACE).reason == "bad_request"
    endpoint.forget()
    endpoint.behaviour = demanding(with_thoughts)
    assert client.judge(exploring(LIMITS), TRACE).outcome == "scored"


@pytest.mark.parametrize("chars", [200_000, 300_000], ids=["long", "too long"])
def test_thoughts_are_kept_up_to_a_size(endpoint: ChatEndpoint, chars: int) -> None:
    def behave(call: Call) -> Reply:
        if len(call.body["messages"]) > 2:
            return yes_no()
        return says({"content": None, "tool_calls": [used(1)], "reasoning_content": "x" * chars})

    assert explored(endpoint, behave).outcome == "scored"
    (sent,) = (message for message in endpoint.calls[-1].body["messages"] if message["role"] == "assistant")
    assert ("reasoning_content" in sent) == (chars == 200_000)


def test_a_judge_without_tools_sends_none_back(endpoint: ChatEndpoint) -> None:
    endpoint.behaviour = lambda call: says(
        {"content": YES if len(call.body["messages"]) > 2 else UNREADABLE, "reasoning_content": "?"}
    )
    assert openai(endpoint.base_url).judge(catalogue()["groundedness"], TRACE).outcome == "scored"
    assert not any("reasoning_content" in message for message in endpoint.calls[-1].body["messages"])


@pytest.fixture
def messages() -> Iterator[MessagesEndpoint]:
    with MessagesEndpoint() as server:
        yield server


THOUGHT = {"type": "thinking", "thinking": "Where to look?", "signature": "Eo8B+/=="}
HIDDEN = {"type": "redacted_thinking", "data": "EmwK"}
USE = {"type": "tool_use", "id": "t1", "name": "read", "input": {"a": 1}}
WORD = {"type": "text", "text": "I look."}


class TestMessages:
    """What Anthropic's models think."""

    @pytest.mark.parametrize(
        "blocks",
        [
            [THOUGHT, WORD, USE],
            [THOUGHT, HIDDEN, USE, {**USE, "id": "t2"}],
            [WORD, THOUGHT, USE, HIDDEN, {**USE, "id": "t2"}],
        ],
        ids=["before a word", "hidden", "between"],
    )
    def test_comes_back_in_its_place(self, messages: MessagesEndpoint, blocks: list[dict[str, Any]]) -> None:
        messages.behaviour = lambda call: (
            yes_no() if len(call.body["messages"]) > 1 else says_blocks(*blocks, stop_reason="tool_use")(call)
        )
        assert anthropic(messages.base_url).judge(exploring(LIMITS), TRACE).outcome == "scored"
        assert messages.calls[-1].body["messages"][1] == {"role": "assistant", "content": blocks}

    def test_comes_back_with_an_unreadable_answer(self, messages: MessagesEndpoint) -> None:
        text = [THOUGHT, {"type": "text", "text": UNREADABLE}]
        steps = [says_blocks(USE, stop_reason="tool_use"), says_blocks(*text), yes_no()]
        messages.behaviour = lambda _: steps[len(messages.calls) - 1]
        assert anthropic(messages.base_url).judge(exploring(LIMITS), TRACE).outcome == "scored"
        assert messages.calls[-1].body["messages"][-2] == {"role": "assistant", "content": text}

    def test_the_newest_results_are_marked_for_caching_while_more_may_be_asked(
        self, messages: MessagesEndpoint
    ) -> None:
        def use(number: int) -> Behaviour:
            return says_blocks({**USE, "id": f"t{number}"}, {**USE, "id": f"u{number}"}, stop_reason="tool_use")

        messages.behaviour = lambda call: yes_no() if "output_config" in call.body else use(len(messages.calls))
        assert anthropic(messages.base_url).judge(exploring(LIMITS), TRACE).outcome == "scored"
        marked = [
            [
                each["tool_use_id"]
                for message in call.body["messages"]
                for each in blocks(message)
                if "cache_control" in each
            ]
            for call in messages.calls
        ]
        assert marked == [[], ["u1"], []]
        assert all("cache_control" in call.body["system"][-1] for call in messages.calls)


def blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    return [] if isinstance(message["content"], str) else message["content"]
