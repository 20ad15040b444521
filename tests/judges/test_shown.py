"""What a judge is shown besides its own fields: earlier messages, retrieved context, and what a cut leaves of them."""

import asyncio
import json

import msgspec
from judge_traces import SHORT, yes_no_text
from support.cases import each_case

from judges.calling.evaluation import evaluate
from judges.core.model import ModelSettings
from judges.core.prompt import with_earlier_messages
from judges.core.verdict import Assessment
from judges.custom import define
from judges.models.scripted import ScriptedModel
from judges.parsing.retrievals import has_context, with_context
from judges.registry import catalogue, load_judges
from tracejudge import Document, Message, Span, ToolCall, Trace

ASKED, ANSWERED = Message("user", "Is it open?"), Message("assistant", "Yes.")
BEFORE = (Message("user", "Hello."), Message("assistant", "Hello!"))
CALLING, RESULT = Message("assistant"), Message("tool", "open=1")
LOOKING = Message("assistant", "I am looking it up.")

MESSAGES = {
    "nothing repeated": ([*BEFORE], [*BEFORE]),
    "no messages": ([], []),
    "the query": ([*BEFORE, ASKED], [*BEFORE]),
    "the query with other blanks": ([*BEFORE, Message("user", " Is it\nopen? ")], [*BEFORE]),
    "query and answer": ([*BEFORE, ASKED, ANSWERED], [*BEFORE]),
    "the query and its tool calls": ([*BEFORE, ASKED, CALLING, RESULT], [*BEFORE]),
    "the query, a remark and tool calls": ([*BEFORE, ASKED, LOOKING, RESULT, ANSWERED], [*BEFORE]),
    "the query asked before, with its own answer": ([ASKED, Message("assistant", "No.")],) * 2,
    "the query asked before and sent again": (
        [ASKED, Message("assistant", "No."), ASKED],
        [ASKED, Message("assistant", "No.")],
    ),
    "the same answer to another question": ([Message("user", "Is it near?"), ANSWERED],) * 2,
    "tool messages and blank ones": ([*BEFORE, CALLING, RESULT, Message("user", " ")], [*BEFORE]),
}


def test_query_and_answer_are_not_shown_again_as_earlier_messages() -> None:
    trace = Trace(trace_id="1", service="s", input="Is it open?", output="Yes.")
    for name, (messages, kept) in MESSAGES.items():
        parts = with_earlier_messages(msgspec.structs.replace(trace, messages=messages)).messages
        assert parts == kept, name


def test_a_conversation_of_a_judge_in_words_holds_query_and_answer_once() -> None:
    judge = define("polite", {"instructions": "Is {{ conversation }} polite?"})
    trace = Trace(trace_id="1", service="s", input="Is it open?", output="Yes.", messages=[*BEFORE, ASKED, ANSWERED])
    (prompt,) = judge.prompts(judge.prepare(trace))
    assert prompt.blocks[0].value.splitlines() == [
        *(f"[{message.role}] {message.content}" for message in (*BEFORE, ASKED, ANSWERED))
    ]


def retriever(outputs: object, span_id: str = "a", parent: str | None = None) -> Span:
    return Span(span_id, "search", parent, "RETRIEVER", outputs=outputs)


def tool(result: object, name: str = "kb_search") -> ToolCall:
    return ToolCall(name, {}, result)


CONTEXTS: dict[str, tuple[dict[str, object], list[str]]] = {
    "the trace's own": ({"context": ["Own."], "spans": [retriever(["Other."])]}, ["Own."]),
    "blank, so that of spans": ({"context": [" "], "spans": [retriever(["Tea."])]}, ["Tea."]),
    "two retrievals, a document in both": (
        {"spans": [retriever(["Tea.", "Milk."]), retriever(["Milk.", "Water."], "b")]},
        ["Tea.", "Milk.", "Water."],
    ),
    "spans before tools": ({"spans": [retriever(["Tea."])], "tool_calls": [tool("Milk.")]}, ["Tea."]),
    "a tool": ({"tool_calls": [tool("Milk."), tool("Sent.", "send_mail")]}, ["Milk."]),
    "a tool that returns documents": ({"tool_calls": [tool([{"text": "A."}, {"content": "B."}])]}, ["A.", "B."]),
    "documents as JSON": ({"tool_calls": [tool('{"documents": ["A.", "B."]}')]}, ["A.", "B."]),
    "another object": ({"tool_calls": [tool({"größe": 3})]}, ['{"größe": 3}']),
    "a call and its span": (
        {"tool_calls": [tool("Milk.")], "spans": [Span("a", "kb_search", kind="TOOL", outputs='"Milk."')]},
        ["Milk."],
    ),
    "a span of the GenAI conventions": (
        {"spans": [Span("a", "execute_tool kb_search", attributes={"gen_ai.tool.call.result": "Milk."})]},
        ["Milk."],
    ),
    "a span with the tool's name as attribute": (
        {"spans": [Span("a", "step", outputs="Milk.", attributes={"gen_ai.tool.name": "kb_search", "x": [1]})]},
        ["Milk."],
    ),
    "no result": ({"tool_calls": [tool(None), tool(""), tool([]), tool({})]}, []),
    "nothing": ({}, []),
}


def test_context_comes_from_trace_spans_or_tools() -> None:
    for name, (fields, texts) in CONTEXTS.items():
        trace = Trace(trace_id="1", service="s", output="o", **fields)  # type: ignore[arg-type]
        context = with_context(trace, ("kb_search",)).context or []
        assert [each.text if isinstance(each, Document) else each for each in context if each != " "] == texts, name
        assert has_context(trace, ("kb_search",)) == bool(texts), name
        assert has_context(trace) == bool(texts and ("context" in fields or "RETRIEVER" in repr(fields))), name


LONG_DOCUMENTS = ["All devices come with a warranty of two years.", "Devices come with paper. " * 1000]
TALK = [Message("user", "word " * 2000), Message("assistant", "I see.")]
CUT = msgspec.structs.replace(SHORT, context=LONG_DOCUMENTS)


SMALL = ModelSettings(provider="scripted", model="scripted", max_input_tokens=4_000)


def judged(name: str, trace: Trace, text: str, **settings: object) -> Assessment:
    model = ScriptedModel([text], SMALL)
    return asyncio.run(evaluate(catalogue()[name].configured(settings), trace, model))


def support(key: str, *, supported: bool) -> str:
    return json.dumps(
        {
            "relevance_explanation": "It helps.",
            "all_relevant_sentence_keys": [key],
            "overall_supported_explanation": "It was looked up.",
            "overall_supported": supported,
            "sentence_support_information": [],
            "all_utilized_sentence_keys": [key],
        }
    )


def facts(label: str, excerpt: str | None) -> str:
    return json.dumps({"sentence": SHORT.output, "label": label, "rationale": "So.", "excerpt": excerpt})


# Of each grounding judge a passing and a failing answer.
GROUNDING = {
    "groundedness": (yes_no_text("yes"), yes_no_text("no")),
    "faithfulness": ('{"justification": "So.", "score": 5}', '{"justification": "So.", "score": 2}'),
    "relevance": ('{"justification": "So.", "score": 5}', '{"justification": "So.", "score": 2}'),
    "facts_grounding": (facts("supported", "a warranty of two years"), facts("unsupported", None)),
    "ragbench": (support("0a", supported=True), support("0a", supported=False)),
    "ragbench_sources": (support("D1_S1", supported=True), support("D1_S1", supported=False)),
}


TALK_AND_DOCUMENTS = msgspec.structs.replace(CUT, messages=TALK)
CUT_FIELDS = {"parts": ["output", "context"]}
IN_WORDS = {"instructions": "{{ outputs }} {{ context }}"}


@each_case("name", GROUNDING)
def test_a_trace_with_left_out_documents_is_unscored_whatever_the_answer_or_scored_whatever_it_is(name: str) -> None:
    for answer in GROUNDING[name]:
        for trace in (CUT, TALK_AND_DOCUMENTS):
            assessment = judged(name, trace, answer)
            assert (assessment.outcome, assessment.reason, assessment.scores, assessment.calls) == (
                "unscored",
                "input_too_long",
                (),
                (),
            )
            assert assessment.details["left_out"]["context"] == 1  # type: ignore[index]
        kept = judged(name, CUT, answer, score_cut=True)
        assert (kept.outcome, kept.details["left_out"]) == ("scored", {"context": 1})
        assert judged(name, SHORT, answer).outcome == "scored"


def test_all_judges_that_show_documents_follow_one_rule() -> None:
    rules = msgspec.structs.replace(CUT, guidelines=["Be brief."])
    tables: dict[str, dict[str, object]] = {
        "guidelines": {},
        "safety": CUT_FIELDS,
        "words": IN_WORDS,
        "choices": {"custom_prompt": "{{ context }} is [[yes]] or [[no]]?"},
    }
    for scored in (False, True):
        judges = load_judges({name: {**table, "score_cut": scored} for name, table in tables.items()})
        plain = load_judges({**tables, "kept": {}})
        for name in tables:
            for answer in ("yes", "no"):
                model = ScriptedModel([yes_no_text(answer)], SMALL)
                assessment = asyncio.run(evaluate(judges[name], rules, model))
                assert assessment.outcome == ("scored" if scored else "unscored"), (name, assessment.note)
                assert assessment.details["left_out"] == {"context": 1}
            assert (judges[name].version == plain[name].version) is not scored


def test_where_only_old_messages_are_left_out_the_verdict_is_scored_with_a_mark() -> None:
    talked = msgspec.structs.replace(SHORT, messages=TALK)
    for name in ("groundedness", "relevance_to_query"):
        for answer, value in (("yes", 1.0), ("no", 0.0)):
            assessment = judged(name, talked, yes_no_text(answer))
            assert (assessment.outcome, assessment.scores[0].value) == ("scored", value)
            assert assessment.details == {"left_out": {"messages": 1}}
