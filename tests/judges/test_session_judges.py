"""Conversations: joining the traces of a session, and the three judges of conversations."""

from judge_traces import parse
from tables import table

from judges.core.prompt import Block, render
from judges.core.sessions import in_order, join, part, transcript, turns
from judges.custom import define
from judges.registry import catalogue
from tracejudge import Document, Message, Trace

TABLES = table("conversations")
JUDGES = ("conversation_completeness", "knowledge_retention", "user_frustration")


def turn(question: str | None, answer: str, *history: tuple[str, str], **fields: object) -> Trace:
    messages = [Message(role, text) for role, text in history] or None
    return Trace(trace_id=answer or "none", service="bot", input=question, output=answer, messages=messages, **fields)


def lines(*traces: Trace) -> list[str]:
    return transcript(join(traces)).split("\n")


TEMPLATE = """\
prompt:
  template: "Before: {{ history }} Last: {{ input }} {{ output }} Is the user happy?"
  template_variables: [history, input, output]
"""


class TestConversations:
    def test_turns_stand_in_order_each_once_however_much_history_a_trace_repeats(self) -> None:
        alike = ["[system] Be kind.", "[user] Hi", "[assistant] Hello", *["[user] yes", "[assistant] ok"] * 2]
        for name, traces in TABLES["alike"].items():
            assert lines(*(turn(question, answer, *history) for question, answer, history in traces)) == alike, name
        order = ("A?", "B", "C?", "D", "E?", "F", "G?", "H")
        first = turn("C?", "D", ("user", "A?"), ("assistant", "B"))
        second = turn("G?", "H", ("user", "C?"), ("assistant", "D"), ("user", "E?"), ("assistant", "F"))
        said = [f"[{role}] {text}" for role, text in zip(["user", "assistant"] * 4, order, strict=True)]
        assert lines(first, second) == said, "messages before and between the traces are kept"

    def test_the_joined_trace_is_the_last_one_without_fields_of_one_answer(self) -> None:
        first = turn("A?", "B", started_at=1_700_000_000.0)
        about_one = {"context": [Document("d")], "expected_facts": ["f"]}
        ends = {"user_id": "u", "error": "timeout", "ended_at": 1_700_000_009.0}
        joined = join([first, turn("C?", "", **about_one, **ends)])
        assert joined == turn("C?", "", ("user", "A?"), ("assistant", "B"), started_at=1_700_000_000.0, **ends)
        assert [message.content for message in turns(joined)] == ["A?", "B", "C?"]
        assert join([first]) == part(first)

    def test_traces_are_sorted_by_time_where_all_have_one(self) -> None:
        late, early, timeless = turn("1", "1", started_at=3.0), turn("2", "2", ended_at=2.0), turn("3", "3")
        assert in_order([late, early]) == [early, late]
        assert in_order([late, timeless, early]) == [late, timeless, early]

    def test_a_judge_shows_the_whole_conversation_and_cuts_its_beginning(self) -> None:
        assert [judge.name for judge in catalogue().values() if judge.unit == "session"] == list(JUDGES)
        trace = join([turn("A?", "B"), turn("C?", "D")])
        for name in JUDGES:
            judge = catalogue()[name]
            (prompt,) = judge.prompts(trace)
            shown = "[user] A?\n[assistant] B\n[user] C?\n[assistant] D"
            assert parse(render(prompt)[1].content) == (Block("conversation", shown),)
            assert (judge.unit, judge.cuts, judge.missing(trace)) == ("session", ("messages",), None)
            assert judge.missing(turn(None, "B")) == "the trace has no input or messages"

    def test_a_judge_in_words_judges_a_conversation(self) -> None:
        joined = join([turn("A?", "B", tags={"plan": "basic"}), turn("C?", "D", tags={"plan": "basic"})])
        choosing = "Is the user of {{ conversation }}, {{ tags.plan }}, [[happy]] or [[not]]?"
        for words, about in (
            (
                {"instructions": "Is the user of {{ conversation }}, a {{ tags.plan }} customer, happy?"},
                "on one conversation by",
            ),
            ({"custom_prompt": choosing, "pass": ["happy"]}, ""),
            ({"template": {"file": "happy.yaml", "text": TEMPLATE}}, ""),
        ):
            judge, of_traces = (define("happy", {**words, **unit}) for unit in ({"unit": "session"}, {}))
            assert (judge.unit, of_traces.unit) == ("session", "trace")
            assert judge.version != of_traces.version
            assert judge.missing(joined) is None
            (prompt,) = judge.prompts(judge.prepare(joined))
            shown = "\n".join(block.value for block in prompt.blocks)
            assert [shown.count(text) for text in ("A?", "B", "C?", "D")] == [1, 1, 1, 1], shown
            assert about in judge.fixed_parts[0]

    def test_the_heuristics_tell_plain_conversations_apart(self) -> None:
        for name, conversations in TABLES["plain"].items():
            judge = catalogue()[name]
            for conversation, expected in zip(conversations, ("yes", "no"), strict=True):
                trace = join([turn(*texts) for texts in conversation])
                (prompt,) = judge.prompts(trace)
                assert judge.heuristic(trace, prompt)["result"] == expected, (name, conversation)
