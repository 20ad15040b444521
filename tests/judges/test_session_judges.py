"""Conversations: joining the traces of a session, and the three judges of conversations."""

import pytest
from judge_traces import parse
from support.cases import each_case

from judges.core.prompt import Block, render
from judges.core.sessions import in_order, join, part, transcript, turns
from judges.custom import DefinitionError, define
from judges.registry import catalogue
from tracejudge import Document, Message, Trace

JUDGES = ("conversation_completeness", "knowledge_retention", "user_frustration")


def session_trace(question: str | None, answer: str, *history: Message, **fields: object) -> Trace:
    return Trace(
        trace_id=answer or "none",
        service="bot",
        input=question,
        output=answer,
        messages=list(history) or None,
        **fields,
    )


def lines(*traces: Trace) -> list[str]:
    return transcript(join(traces)).split("\n")


def user(text: str) -> Message:
    return Message("user", text)


def assistant(text: str) -> Message:
    return Message("assistant", text)


def test_turns_stand_in_order_each_once() -> None:
    system = Message("system", "Be kind.")
    alike = [
        "[system] Be kind.",
        "[user] Hi",
        "[assistant] Hello",
        "[user] yes",
        "[assistant] ok",
        "[user] yes",
        "[assistant] ok",
    ]
    cases = {
        "no history": (session_trace("Hi", "Hello", system), session_trace("yes", "ok"), session_trace("yes", "ok")),
        "whole history": (
            session_trace("Hi", "Hello", system),
            session_trace("yes", "ok", system, user("Hi"), assistant("Hello\n")),
            session_trace("yes", "ok", system, user("Hi"), assistant("Hello"), user("yes"), assistant("ok")),
        ),
        "the newest messages": (
            session_trace("Hi", "Hello", system),
            session_trace("yes", "ok", assistant("Hello")),
            session_trace("yes", "ok", user("yes"), assistant("ok")),
        ),
        "the query as the last message": (
            session_trace("Hi", "Hello", system, user("Hi")),
            session_trace("yes", "ok", system, user("Hi"), assistant("Hello"), user("yes")),
            session_trace("yes", "ok", user("yes"), assistant("ok"), user(" yes ")),
        ),
        "query and answer as the last messages": (
            session_trace("Hi", "Hello", system, user("Hi"), assistant("Hello")),
            session_trace("yes", "ok", system, user("Hi"), assistant("Hello"), user("yes"), assistant("ok")),
            session_trace("yes", "ok"),
        ),
        "other names of roles": (
            session_trace("Hi", "Hello", system, Message("human", "Hi")),
            session_trace("yes", "ok", system, Message("Human", "Hi"), Message("ai", "Hello"), Message("human", "yes")),
            session_trace("yes", "ok"),
        ),
        "messages without a query": (
            session_trace(None, "Hello", system, user("Hi")),
            session_trace(None, "ok", user("Hi"), assistant("Hello"), user("yes")),
            session_trace("yes", "ok"),
        ),
    }
    for name, traces in cases.items():
        assert lines(*traces) == alike, name


def test_messages_before_and_between_the_traces_are_kept() -> None:
    first = session_trace("C?", "D", user("A?"), assistant("B"))
    second = session_trace("G?", "H", user("C?"), assistant("D"), user("E?"), assistant("F"))
    assert lines(first, second) == [
        *("[user] A?", "[assistant] B", "[user] C?", "[assistant] D"),
        *("[user] E?", "[assistant] F", "[user] G?", "[assistant] H"),
    ]


def test_the_joined_trace_is_the_last_one_without_fields_of_one_answer() -> None:
    first = session_trace("A?", "B", started_at=1_700_000_000.0)
    last = session_trace(
        "C?", "", user_id="u", context=[Document("d")], expected_facts=["f"], error="timeout", ended_at=1_700_000_009.0
    )
    joined = join([first, last])
    assert joined == Trace(
        trace_id="none", service="bot", input="C?", output="", messages=[user("A?"), assistant("B")], user_id="u",
        error="timeout", started_at=1_700_000_000.0, ended_at=1_700_000_009.0,
    )  # fmt: skip
    assert turns(joined) == [user("A?"), assistant("B"), user("C?")]
    assert join([first]) == part(first)


def test_traces_are_sorted_by_time_where_all_have_one() -> None:
    late, early, timeless = (
        session_trace("1", "1", started_at=3.0),
        session_trace("2", "2", ended_at=2.0),
        session_trace("3", "3"),
    )
    assert in_order([late, early]) == [early, late]
    assert in_order([late, timeless, early]) == [late, timeless, early]


@each_case("name", JUDGES)
def test_a_judge_shows_the_whole_conversation_and_cuts_its_beginning(name: str) -> None:
    judge = catalogue()[name]
    trace = join([session_trace("A?", "B"), session_trace("C?", "D")])
    (prompt,) = judge.prompts(trace)
    shown = "[user] A?\n[assistant] B\n[user] C?\n[assistant] D"
    assert parse(render(prompt)[1].content) == (Block("conversation", shown),)
    assert (judge.unit, judge.cuts) == ("session", ("messages",))
    assert judge.missing(trace) is None
    assert judge.missing(session_trace(None, "B")) == "the trace has no input or messages"
    assert [other.name for other in catalogue().values() if other.unit == "session"] == list(JUDGES)


TEMPLATE = """\
prompt:
  template: "Before: {{ history }} Last: {{ input }} {{ output }} Is the user happy?"
  template_variables: [history, input, output]
"""
WORDS = {
    "instructions": {"instructions": "Is the user of {{ conversation }}, a {{ tags.plan }} customer, happy?"},
    "custom_prompt": {"custom_prompt": "Is the user of {{ conversation }}, {{ tags.plan }}, [[happy]] or [[not]]?"},
    "template": {"template": {"file": "happy.yaml", "text": TEMPLATE}},
}
REST = {"custom_prompt": {"pass": ["happy"]}}


def test_a_judge_in_words_judges_a_conversation() -> None:
    joined = join([session_trace("A?", "B", tags={"plan": "basic"}), session_trace("C?", "D", tags={"plan": "basic"})])
    for kind, table in WORDS.items():
        rest = REST.get(kind, {})
        judge, of_traces = (define("happy", {**table, **rest, **unit}) for unit in ({"unit": "session"}, {}))
        assert (judge.unit, of_traces.unit) == ("session", "trace"), kind
        assert judge.version != of_traces.version, kind
        assert judge.missing(joined) is None, kind
        (prompt,) = judge.prompts(judge.prepare(joined))
        shown = "\n".join(block.value for block in prompt.blocks)
        assert [shown.count(text) for text in ("A?", "B", "C?", "D")] == [1, 1, 1, 1], (kind, shown)
        about = "on one conversation by" if kind == "instructions" else ""
        assert about in judge.fixed_parts[0], kind


def test_a_session_judge_in_words_refuses_fields_of_one_answer() -> None:
    words, text = 'with unit = "session" the text names {{ conversation }}', TEMPLATE.replace("history", "documents")

    def about_one(kind: str, name: str) -> str:
        return f"{kind}: {{{{ {name} }}}} is about one answer; {words}"

    mistakes = {
        "inputs": ({"instructions": "Is {{ inputs }} so?"}, about_one("instructions", "inputs")),
        "trace": ({"instructions": "Is {{ trace }} so?"}, about_one("instructions", "trace")),
        "context": (
            {"custom_prompt": "Is {{ tags.a }} {{ context }} [[yes]] or [[no]]?"},
            about_one("custom_prompt", "context"),
        ),
        "a tag alone": (
            {"instructions": "Is {{ tags.a }} so?"},
            f"instructions: lacks {{{{ conversation }}}}; {words}",
        ),
        "documents": (
            {"template": {"file": "f", "text": text}},
            "unit: a conversation has no context; the template may declare history, input and output",
        ),
        "another unit": ({"instructions": "{{ outputs }}?", "unit": "day"}, "unit: must be one of session, trace"),
        "in code": ({"code": "a:b"}, 'unit: belongs in the code, as @judge(unit="session")'),
    }
    for name, (table, said_) in mistakes.items():
        with pytest.raises(DefinitionError) as caught:
            define("happy", {"unit": "session", **table})
        assert str(caught.value) == said_, name


CONVERSATIONS = {
    "conversation_completeness": (
        ["How long is the warranty?|The warranty is two years.", "Thanks|You are welcome."],
        ["How long is the warranty?|Hello!", "And where is my parcel?|It is in Bonn."],
    ),
    "knowledge_retention": (
        ["My order number is 1729.|What is your name?", "Ada|Thanks, Ada."],
        ["My order number is 1729.|Noted.", "It broke.|What is your order number?"],
    ),
    "user_frustration": (
        ["This is useless.|Sorry, here is another way.", "That works, thanks|Good."],
        ["Where is it?|In Bonn.", "I already told you, not that one!!|Sorry."],
    ),
}


def test_the_heuristics_tell_plain_conversations_apart() -> None:
    for name, (good, bad) in CONVERSATIONS.items():
        judge = catalogue()[name]
        for turns_, expected in ((good, "yes"), (bad, "no")):
            trace = join([session_trace(*turn.split("|")) for turn in turns_])
            (prompt,) = judge.prompts(trace)
            assert judge.heuristic(trace, prompt)["result"] == expected, (name, turns_)
