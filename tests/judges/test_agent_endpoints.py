"""An exploration at endpoints that demand more of messages than others, over HTTP: as their documentation says.

None of this was tried against the real servers.
"""

import itertools
from collections.abc import Callable
from typing import Any

from explorations import TRACE, exploring
from judge_traces import yes_no_text
from model_client import anthropic, openai, reply_of
from support.endpoint import ChatEndpoint
from support.messages import MessagesEndpoint
from support.messages import says as says_blocks
from support.replies import Behaviour, Call, Reply, failing, sequence, yes_no

from judges.core.judge import Limits
from judges.core.verdict import Assessment
from judges.registry import catalogue

YES = yes_no_text("yes")
LIMITS = Limits(max_rounds=2)
UNREADABLE = "It seems fine."
Messages = list[dict[str, Any]]
Rule = Callable[[Messages], str | None]


def says(**message: object) -> Reply:
    return reply_of({"body": {"choices": [{"message": message}]}})


def used(number: int, **extra: object) -> dict[str, object]:
    return {"id": f"c{number}", "type": "function", "function": {"name": "read", "arguments": "{}"}, **extra}


def after_tools(messages: Messages) -> str | None:
    """Complain as Mistral's servers do."""
    follows = {"system": {"user"}, "user": {"assistant"}, "assistant": {"user", "tool"}, "tool": {"tool", "assistant"}}
    roles = [message["role"] for message in messages]
    for before, role in itertools.pairwise(roles):
        if role not in follows[before]:
            return f"Unexpected role '{role}' after role '{before}'"
    return None if roles[-1] in {"user", "tool"} else "Expected last role User or Tool"


def answers_of(messages: Messages) -> list[tuple[int, dict[str, Any]]]:
    return [(number, message) for number, message in enumerate(messages) if message["role"] == "assistant"]


def signature(call_id: str) -> dict[str, object]:
    return {"google": {"thought_signature": f"sign+{call_id}=="}}


def details(number: int) -> list[dict[str, object]]:
    return [{"type": "reasoning.encrypted", "data": f"e{number}", "index": 0.50, "format": None}]


def pieces(number: int, text: str) -> list[dict[str, object]]:
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": f"Thought {number}."}], "closed": True}
    return [thought, {"type": "text", "text": text}]


def of_answers(complaint: str, is_right: Callable[[int, dict[str, Any]], bool]) -> Rule:
    """Complain about the first message of the model that is not as the server wrote it."""

    def rule(messages: Messages) -> str | None:
        wrong = (number for number, message in answers_of(messages) if not is_right(number, message))
        return next((complaint.format(number) for number in wrong), None)

    return rule


MISSING_THOUGHTS = "Missing `reasoning_content` field in the assistant message at message index {}."
# As DeepSeek does in thinking mode, models behind OpenRouter, and Gemini.
with_thoughts = of_answers(
    MISSING_THOUGHTS,
    lambda number, message: (
        message.get("reasoning_content") == f"Thought {number}."
        and message.get("reasoning_details") == details(number)
        and all(call.get("extra_content") == signature(call["id"]) for call in message.get("tool_calls", ()))
    ),
)
# As Mistral's reasoning models.
with_pieces = of_answers(
    "the thoughts must be given unchanged", lambda number, message: message["content"][0] == pieces(number, "")[0]
)
# As Groq does.
without_thoughts = of_answers(
    "'messages.{0}' : for 'role:assistant' the following must be satisfied[('messages.{0}' :"
    " property 'reasoning_content' is unsupported)]",
    lambda _, message: "reasoning_content" not in message,
)


def thinking(call: Call) -> Reply:
    """Ask for calls until none may be made, then be unreadable once; with all that servers put beside an answer."""
    messages, number = call.body["messages"], len(call.body["messages"])
    beside = {"reasoning_content": f"Thought {number}.", "reasoning_details": details(number)}
    if "tools" in call.body:
        return says(content=None, tool_calls=[used(number, extra_content=signature(f"c{number}"))], **beside)
    return says(content=UNREADABLE if messages[-1]["role"] == "tool" else YES, **beside)


def in_pieces(call: Call) -> Reply:
    messages, number = call.body["messages"], len(call.body["messages"])
    if "tools" in call.body:
        return says(content=pieces(number, ""), tool_calls=[used(number)])
    return says(content=pieces(number, UNREADABLE if messages[-1]["role"] == "tool" else YES))


def demanding(*rules: Rule, then: Behaviour = thinking) -> Behaviour:
    def behave(call: Call) -> Behaviour:
        complaint = next(filter(None, (rule(call.body["messages"]) for rule in rules)), None)
        return then if complaint is None else failing(400, complaint)

    return behave


def explored(endpoint: ChatEndpoint, behaviour: Behaviour) -> Assessment:
    endpoint.forget()
    endpoint.behaviour = behaviour
    return openai(endpoint.base_url).judge(exploring(LIMITS), TRACE)


def statuses(endpoint: ChatEndpoint) -> list[int | None]:
    return [call.status for call in endpoint.calls]


class TestMessages:
    def test_two_rounds_the_last_call_and_a_repair_are_in_form(self, endpoint: ChatEndpoint) -> None:
        for behaviour in (
            demanding(after_tools, with_thoughts),
            demanding(after_tools, with_pieces, then=in_pieces),
        ):
            assessment = explored(endpoint, behaviour)
            assert (assessment.outcome, assessment.note, statuses(endpoint)) == ("scored", None, [200] * 4)

    def test_a_model_that_is_told_to_read_first_gets_messages_in_form(self, endpoint: ChatEndpoint) -> None:
        calls_second = sequence(yes_no(), says(content=None, tool_calls=[used(1)]), yes_no())
        assert explored(endpoint, demanding(after_tools, then=calls_second)).outcome == "scored"

    def test_a_server_that_takes_no_thoughts_gets_none_from_then_on(self, endpoint: ChatEndpoint) -> None:
        assert explored(endpoint, demanding(without_thoughts)).outcome == "scored"
        assert statuses(endpoint) == [200, 400, 200, 200, 200]
        assert all("response_format" in call.body for call in endpoint.calls[-2:])

    def test_a_server_that_misses_thoughts_is_not_taken_for_one_that_refuses_them(self, endpoint: ChatEndpoint) -> None:
        complaint = failing(400, MISSING_THOUGHTS.format(2))
        endpoint.behaviour = lambda call: complaint if len(call.body["messages"]) > 2 else thinking(call)
        client = openai(endpoint.base_url)
        assert client.judge(exploring(LIMITS), TRACE).reason == "bad_request"
        endpoint.forget()
        endpoint.behaviour = demanding(with_thoughts)
        assert client.judge(exploring(LIMITS), TRACE).outcome == "scored"

    def test_thoughts_are_kept_up_to_a_size_and_only_for_judges_with_tools(self, endpoint: ChatEndpoint) -> None:
        for chars in (200_000, 300_000):
            long = says(content=None, tool_calls=[used(1)], reasoning_content="x" * chars)
            assert explored(endpoint, sequence(long, yes_no())).outcome == "scored"
            ((_, sent),) = answers_of(endpoint.calls[-1].body["messages"])
            assert ("reasoning_content" in sent) == (chars == 200_000)
        endpoint.behaviour = lambda call: says(
            content=YES if len(call.body["messages"]) > 2 else UNREADABLE, reasoning_content="?"
        )
        assert openai(endpoint.base_url).judge(catalogue()["groundedness"], TRACE).outcome == "scored"
        assert not any("reasoning_content" in message for message in endpoint.calls[-1].body["messages"])


THOUGHT = {"type": "thinking", "thinking": "Where to look?", "signature": "Eo8B+/=="}
HIDDEN = {"type": "redacted_thinking", "data": "EmwK"}
USE = {"type": "tool_use", "id": "t1", "name": "read", "input": {"a": 1}}
WORD = {"type": "text", "text": "I look."}


class TestBlocks:
    def test_blocks_come_back_in_their_place(self) -> None:
        other, unreadable = {**USE, "id": "t2"}, [THOUGHT, {"type": "text", "text": UNREADABLE}]
        for blocks, steps, place in (
            ([THOUGHT, WORD, USE], [], 1),
            ([THOUGHT, HIDDEN, USE, other], [], 1),
            ([WORD, THOUGHT, USE, HIDDEN, other], [], 1),
            (unreadable, [says_blocks(USE, stop_reason="tool_use"), says_blocks(*unreadable)], -2),
        ):
            order = sequence(*(steps or [says_blocks(*blocks, stop_reason="tool_use")]), yes_no())
            with MessagesEndpoint(order) as messages:
                assert anthropic(messages.base_url).judge(exploring(LIMITS), TRACE).outcome == "scored"
                sent = messages.calls[-1].body["messages"][place]
                assert sent == {"role": "assistant", "content": blocks}

    def test_the_newest_results_are_marked_for_caching_while_more_may_be_asked(self) -> None:
        def uses(call: Call) -> Behaviour:
            pair = ({**USE, "id": f"{name}{call.index}"} for name in "tu")
            return yes_no() if "output_config" in call.body else says_blocks(*pair, stop_reason="tool_use")

        with MessagesEndpoint(uses) as messages:
            assert anthropic(messages.base_url).judge(exploring(LIMITS), TRACE).outcome == "scored"
            contents = [[message["content"] for message in call.body["messages"]] for call in messages.calls]
            blocks = [
                [block for content in each if isinstance(content, list) for block in content] for each in contents
            ]
            marked = [[block["tool_use_id"] for block in each if "cache_control" in block] for each in blocks]
            assert marked == [[], ["u0"], []]
            assert all("cache_control" in call.body["system"][-1] for call in messages.calls)
