"""Templates whose answers name sentences by keys (RAGBench), and templates that are filled inline."""

import asyncio
import json

import pytest
from template_parts import asking, judge, yaml

from judges.calling.evaluation import evaluate
from judges.core.judge import Judge
from judges.core.model import ModelSettings
from judges.core.prompt import Block, Message, render
from judges.core.verdict import Assessment
from judges.custom import DefinitionError
from judges.models.lexical import LexicalModel
from judges.models.scripted import ScriptedModel
from judges.registry import catalogue
from tracejudge import Trace

TRACE = Trace(
    trace_id="1",
    service="s",
    input="How long is the warranty?",
    output="Two years. Ask the shop.",
    context=["A warranty runs for two years. It begins with the sale.", "Shops open at nine."],
)
BODY = {
    "relevance_explanation": "The first.",
    "all_relevant_sentence_keys": ["0a"],
    "overall_supported_explanation": "Half.",
    "overall_supported": False,
    "all_utilized_sentence_keys": ["0a"],
}
RAGBENCH = {
    **BODY,
    "sentence_support_information": [
        {"response_sentence_key": "a", "explanation": "", "supporting_sentence_keys": ["0a"], "fully_supported": True},
        {"response_sentence_key": "b", "explanation": "", "supporting_sentence_keys": [], "fully_supported": False},
    ],
}
SOURCES = {
    **BODY,
    "all_relevant_sentence_keys": ["D1_S1"],
    "all_utilized_sentence_keys": ["D1_S1"],
    "sentence_support_information": [{"sentence_key": "D1_S1", "is_supported": True, "explanation": "so"}],
}
INLINE = {"fill": "inline", "answer": {"form": "template"}}


def run(made: Judge, answer: object, trace: Trace = TRACE) -> tuple[Assessment, ScriptedModel]:
    model = ScriptedModel([json.dumps(answer)])
    return asyncio.run(evaluate(made, trace, model)), model


def test_ragbench_forms_show_sentences_with_keys_and_score_as_the_built_in_judges() -> None:
    for name, answer, first, text in (
        ("ragbench", RAGBENCH, "0a. A warranty runs for two years.", "a. Two years.\nb. Ask the shop."),
        ("ragbench_sources", SOURCES, "D1_S1: A warranty runs for two years.", TRACE.output),
    ):
        for form in ("ours", "template"):
            made = asking("documents", "question", "answer", answer={"as": name, "form": form})
            (prompt,) = made.prompts(TRACE)
            documents, question, output = prompt.blocks
            assert documents.value.splitlines()[0] == first, name
            assert (question, output) == (Block("question", TRACE.input or ""), Block("answer", text)), name
            result, _ = run(made, answer)
            theirs, _ = run(catalogue()[name], answer)
            assert (result.scores, result.details) == (theirs.scores, theirs.details), name
            assert made.needs == ("context", "input", "output"), name
            assert ("all_relevant_sentence_keys" in made.fixed_parts[0]) == (form == "ours"), name
            assert "divided into sentences, one a line" in made.fixed_parts[0], name
            assert asyncio.run(evaluate(made, TRACE, LexicalModel())).outcome == "scored", name
    with pytest.raises(DefinitionError, match="looks into the output"):
        asking("documents", "question", answer={"as": "ragbench"})


def test_a_template_filled_inline_is_sent_to_the_letter() -> None:
    planted = "Two {{ question }} years.\u200b"
    trace = Trace(trace_id="1", service="s", input="How long?", output=planted, context=["A.", "B."])
    text = 'Grade {{answer}} to {{ question }} ({{answer}}) by {{ documents }}. Answer {"result": "yes"}.'
    made = judge(yaml(text, ["documents", "question", "answer"]), INLINE)
    shown = "Two {{ question }} years.[U+200B]"
    expected = f'Grade {shown} to How long? ({shown}) by A.\n\nB.. Answer {{"result": "yes"}}.'
    assessment, model = run(made, {"result": "yes"}, trace)
    assert [request.messages for request in model.requests] == [(Message("user", expected),)]
    assert (assessment.outcome, made.settings.fill) == ("scored", "inline")  # type: ignore[attr-defined]
    assert made.version != judge(yaml(text, ["documents", "question", "answer"]), {"answer": INLINE["answer"]}).version


def test_messages_of_an_inline_template_keep_their_roles_and_documents_their_requests() -> None:
    parts = [
        {"role": "system", "content": "Be exact."},
        {"role": "user", "content": "Is {{ doc }} about {{ question }}?"},
    ]
    made = judge(yaml(parts, ["doc", "question"]), INLINE)
    assert [render(prompt) for prompt in made.prompts(TRACE)] == [
        (Message("system", "Be exact."), Message("user", f"Is {text} about How long is the warranty??"))
        for text in TRACE.context or ()
    ]


def test_an_inline_template_is_cut_by_what_it_really_sends() -> None:
    made = judge(yaml("{{ documents }} " * 20, ["documents"]), INLINE)
    trace = Trace(trace_id="1", service="s", output="", context=["a " * 100, "b " * 100])
    model = ScriptedModel(['{"result": "yes"}'], ModelSettings("scripted", max_input_tokens=2000))
    assert asyncio.run(evaluate(made, trace, model)).details == {"left_out": {"context": 1}}


def test_an_inline_template_must_say_itself_how_to_answer() -> None:
    for text, table, message in (
        (yaml("{{ answer }}", ["answer"]), {"fill": "inline"}, "sends the template to the letter"),
        (yaml([{"role": "system", "content": "{{ answer }}"}], ["answer"]), INLINE, "needs a message of the role user"),
    ):
        with pytest.raises(DefinitionError, match=message) as caught:
            judge(text, table)
        assert caught.value.key == "fill"
