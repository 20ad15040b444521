"""Judges with published templates: what they send, what they need, how answers are read and scored."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from judge_traces import LONG, SHORT
from support.cases import each_case
from template_parts import FACTS, asking, judge, yaml

from judges.calling.evaluation import evaluate
from judges.core.judge import Judge, Metric
from judges.core.prompt import Block
from judges.core.verdict import Assessment, Score
from judges.custom import DefinitionError
from judges.custom.template import KNOWN, metadata_of
from judges.models.lexical import LexicalModel
from judges.models.scripted import ScriptedModel
from judges.registry import catalogue
from tracejudge import Document, Message, Trace

AS_FACTS = {"answer": {"as": "facts_grounding"}}
FULL = Trace(
    trace_id="4bf92f3577b34da6a3ce929d0e0e4736",
    service="support-bot",
    messages=[Message("user", "Hello."), Message("assistant", "Hello!")],
    input="How long is the warranty?",
    output="Two years.",
    context=["A warranty of two years.", " ", Document("Shops open at nine.", id="hours")],
    expected_response="It is two years.",
    guidelines=["Be brief.", "Be kind.\nAlways."],
)


def run(judge: Judge, *answers: object, trace: Trace = FULL) -> Assessment:
    texts = [answer if isinstance(answer, str) else json.dumps(answer) for answer in answers]
    return asyncio.run(evaluate(judge, trace, ScriptedModel(texts)))


def shown(judge: Judge, trace: Trace = FULL) -> tuple[Block, ...]:
    (prompt,) = judge.prompts(trace)
    return prompt.blocks


# --- what is sent ---


def test_the_template_stays_as_it_is_written_and_data_comes_behind_it() -> None:
    facts = judge(FACTS, AS_FACTS)
    (fixed,) = facts.fixed_parts
    template = FACTS[FACTS.index("Your job") : FACTS.index("  template_variables")]
    assert " ".join(template.split()) in " ".join(fixed.split())
    assert shown(facts) == (
        Block("user_request", "How long is the warranty?"),
        Block("context_document 1", "A warranty of two years."),
        Block("context_document 3", "Shops open at nine."),
        Block("response", "Two years."),
    )
    order = [fixed.index(part) for part in ("- `user_request`: ", "Your job is", "Here the task ends.", '"label"')]
    assert order == sorted(order)


def test_settings_for_endpoints_in_a_file_are_not_sent() -> None:
    (fixed,) = judge(FACTS, AS_FACTS).fixed_parts
    assert "temperature" not in fixed
    assert "author" not in fixed


@each_case(("role", "heading"), [("system", "your part"), ("user", "asked to do"), ("assistant", "before")])
def test_messages_are_told_apart_by_role(role: str, heading: str) -> None:
    messages = [{"role": role, "content": "Weigh {{answer}} well."}, {"role": "user", "content": ""}]
    (fixed,) = judge(yaml(messages, ["answer"])).fixed_parts
    before, _, _ = fixed.partition("Weigh {{answer}} well.")
    assert heading in before.splitlines()[-1]


def test_signs_that_cannot_be_seen_are_shown_in_the_template_too() -> None:
    (fixed,) = judge(yaml("Say\u200b yes to {{answer}}.", ["answer"])).fixed_parts
    assert "Say[U+200B] yes" in fixed


FILLED: Mapping[str, Sequence[Block]] = {
    **dict.fromkeys(("user_request", "userQuery", "question", "input", "request"), ("How long is the warranty?",)),
    **dict.fromkeys(("response", "modelResponse", "answer", "output", "content"), ("Two years.",)),
    **dict.fromkeys(
        ("context_document", "documents", "retrieval_context"),
        ((" 1", "A warranty of two years."), (" 3", "Shops open at nine.")),
    ),
    "history": ("[user] Hello.\n[assistant] Hello!",),
    **dict.fromkeys(("ground_truth", "expected_output"), ("It is two years.",)),
    "guidelines": ("1. Be brief.\n2. Be kind.\n   Always.",),
    "guidelines_context": (
        (" input", "How long is the warranty?"),
        (" output", "Two years."),
        (" context 1", "A warranty of two years."),
        (" context 3", "Shops open at nine."),
    ),
}


@each_case("name", FILLED)
def test_a_variable_stands_for_a_part_of_the_trace(name: str) -> None:
    expected = [each if isinstance(each, tuple) else ("", each) for each in FILLED[name]]
    assert shown(asking(name)) == tuple(Block(f"{name}{ending}", text) for ending, text in expected)


def test_every_variable_is_tested() -> None:
    assert {*FILLED, "doc"} == set(KNOWN)


def test_variables_are_shown_in_the_order_of_their_declaration() -> None:
    made = judge(yaml("{{ answer }} {{ question }}", ["question", "ground_truth", "answer"]))
    assert [block.name for block in shown(made)] == ["question", "ground_truth", "answer"]


def test_facts_stand_for_a_reference_too() -> None:
    trace = msgspec.structs.replace(FULL, expected_response=None, expected_facts=["Two years", "", "No\ncost"])
    assert shown(asking("ground_truth"), trace) == (Block("ground_truth", "- Two years\n- No cost"),)


def test_a_trace_without_history_says_so() -> None:
    assert shown(asking("history", "answer"), SHORT)[0] == Block("history", "No earlier messages.")


def test_fields_that_are_absent_are_left_out() -> None:
    bare = Trace(trace_id="1", service="s", output="Two years.")
    assert shown(asking("guidelines_context"), bare) == (Block("guidelines_context output", "Two years."),)


def test_a_value_that_holds_a_placeholder_stays_plain_text() -> None:
    trace = msgspec.structs.replace(FULL, input="{{ answer }}", output="{{ question }}")
    assert shown(asking("question", "answer"), trace) == (
        Block("question", "{{ answer }}"),
        Block("answer", "{{ question }}"),
    )


NEEDS: Mapping[tuple[str, ...], tuple[object, tuple[str, ...]]] = {
    ("user_request", "context_document", "response"): (("input", "context", "output"), ("context",)),
    ("history", "userQuery", "modelResponse"): (("input", "output"), ("messages",)),
    ("history",): (("messages",), ("messages",)),
    ("expected_output", "answer"): ((("expected_response", "expected_facts"), "output"), ()),
    ("guidelines", "guidelines_context"): (("guidelines", "output"), ("context",)),
    ("question", "doc"): (("input", "context"), ()),
    ("answer", "output"): (("output",), ()),
}


@each_case("variables", NEEDS, ids=" ".join)
def test_needs_and_cuts_follow_from_the_variables(variables: tuple[str, ...]) -> None:
    made = asking(*variables)
    assert (made.needs, made.cuts) == NEEDS[variables]


# --- answers ---

SUPPORTED = {
    "sentence": "Two years.",
    "label": "supported",
    "rationale": "So it says.",
    "excerpt": "A warranty of two years.",
}
INVENTED = {**SUPPORTED, "excerpt": "Ten years are what you get."}


def test_facts_are_read_scored_and_checked_as_the_built_in_judge_does() -> None:
    facts, built_in = judge(FACTS, AS_FACTS), catalogue()["facts_grounding"]
    assert (facts.metrics, facts.schema) == (built_in.metrics, built_in.schema)
    for line in (SUPPORTED, INVENTED):
        result, expected = run(facts, line), run(built_in, line)
        assert (result.scores, result.details, result.rationale) == (
            expected.scores,
            expected.details,
            expected.rationale,
        )
    assert [score.value for score in run(facts, SUPPORTED).scores] == [1.0, 1.0]
    assert [score.value for score in run(facts, INVENTED).scores] == [0.0, 0.0]
    assert run(facts, INVENTED).details["fabricated_evidence"] == 1


def test_facts_may_have_the_other_labels() -> None:
    made = judge(FACTS, {"answer": {"as": "facts_grounding", "labels": "v2"}})
    assert run(made, {**SUPPORTED, "label": "contradictory"}).reason == "out_of_range"
    assert "supported|not_supported|no_rad" in made.fixed_parts[0]


def test_a_result_is_declared_as_with_instructions() -> None:
    made = asking("answer", result={"integer": [0, 10], "pass_at": 7})
    assert run(made, {"rationale": "So.", "result": 8}).scores == (Score("mine", 0.8, 8.0, passed=True),)
    assert run(asking("answer"), {"rationale": "So.", "result": "no"}).scores == (Score("mine", 0.0, 0.0, "no", False),)  # noqa: FBT003


def test_grades_are_those_of_the_graded_judges() -> None:
    made = asking("answer", answer={"as": "graded", "pass_at": 3})
    assert run(made, {"justification": "So.", "score": 3}).scores == (Score("mine", 0.5, 3.0, passed=True),)
    assert run(made, "score: 2\njustification: So.").scores == (Score("mine", 0.25, 2.0, passed=False),)
    assert made.metrics == (Metric("mine", "1..5", "3 or more", pass_at=0.5),)


def test_three_grades_are_those_of_their_judge() -> None:
    made = asking("history", "userQuery", "modelResponse", answer={"as": "relevance_truth_completeness"})
    scores = run(made, {"relevance": 5, "truth": 3, "completeness": 4}).scores
    assert [(score.metric, score.value) for score in scores] == [
        ("relevance", 1),
        ("truth", 0.5),
        ("completeness", 0.75),
    ]
    assert made.metrics == catalogue()["relevance_truth_completeness"].metrics


OWN_FORM: Mapping[str, tuple[Mapping[str, Any], object, Score, str | None]] = {
    "only a result": ({}, {"result": "yes", "note": 1}, Score("mine", 1.0, 1.0, "yes", True), None),  # noqa: FBT003
    "keys of its own": (
        {"result_key": "verdict", "rationale_key": "why"},
        {"why": "So.", "verdict": "no"},
        Score("mine", 0.0, 0.0, "no", False),  # noqa: FBT003
        "So.",
    ),
    "grades": ({"as": "graded"}, "score: 5\njustification: So.", Score("mine", 1.0, 5.0, passed=True), "So."),
    "grades under other keys": (
        {"as": "graded", "result_key": "grade", "pass_at": 5},
        {"justification": "So.", "grade": 4},
        Score("mine", 0.75, 4.0, passed=False),
        "So.",
    ),
}


@each_case(("table", "answer", "score", "rationale"), OWN_FORM.values(), ids=OWN_FORM.keys())
def test_a_template_may_say_itself_how_to_answer(
    table: Mapping[str, Any], answer: object, score: Score, rationale: str | None
) -> None:
    made = asking("answer", answer={"form": "template", **table})
    assessment = run(made, answer)
    assert (assessment.scores, assessment.rationale) == ((score,), rationale)
    assert "no code fence" not in made.fixed_parts[0]
    assert (
        made.version != asking("answer", answer={key: table[key] for key in table if key in {"as", "pass_at"}}).version
    )


def test_keys_of_a_template_that_are_missing_are_asked_for_again_and_then_unscored() -> None:
    made = asking("answer", answer={"form": "template", "result_key": "verdict"})
    assessment = run(made, {"outcome": "yes"}, {"verdict": "yes"})
    assert (assessment.outcome, len(assessment.calls)) == ("scored", 2)
    assert run(made, {"outcome": "yes"}).reason == "invalid_answer"


def test_the_lexical_model_answers_every_form() -> None:
    model = LexicalModel()
    for name in ("result", "yes_no", "graded", "relevance_truth_completeness", "facts_grounding"):
        made = asking("question", "context_document", "answer", answer={"as": name})
        for trace in (FULL, LONG):
            assert asyncio.run(evaluate(made, trace, model)).outcome == "scored", name
    asyncio.run(model.aclose())


# --- one document ---


def answered(*results: object) -> Assessment:
    made = asking("question", "doc", result={"integer": [1, 5], "pass_at": 4})
    return run(made, *({"rationale": f"Is {result}.", "result": result} for result in results))


def test_a_template_about_one_document_is_asked_once_for_each() -> None:
    prompts = asking("question", "doc").prompts(FULL)
    assert [prompt.blocks for prompt in prompts] == [
        (Block("question", "How long is the warranty?"), Block("doc", text))
        for text in ("A warranty of two years.", "Shops open at nine.")
    ]
    assert len({prompt.fixed for prompt in prompts}) == 1


def test_the_value_is_the_mean_and_the_share_of_passes_decides() -> None:
    assessment = answered(5, 2)
    assert assessment.scores == (Score("mine", 0.625, 3.5, passed=True),)
    assert assessment.rationale == "Mean over 2 documents; not passed: rank 3."
    assert assessment.details["documents"] == [
        {"rank": 1, "value": 1.0, "raw": 5.0, "passed": True, "rationale": "Is 5."},
        {"rank": 3, "id": "hours", "value": 0.25, "raw": 2.0, "passed": False, "rationale": "Is 2."},
    ]
    assert answered(3, 2).scores[0].passed is False


def test_another_share_of_documents_may_be_needed() -> None:
    made = asking("question", "doc", answer={"pass_share": 0.75})
    scores = run(made, *({"rationale": "So.", "result": result} for result in ("yes", "no"))).scores
    assert scores == (Score("mine", 0.5, 0.5, passed=False),)
    rule = "yes, for at least 75% of the documents"
    assert made.metrics == (Metric("mine", "mean over documents of 0 or 1", rule),)


@each_case(("share", "shown"), [(0.995, "99.5%"), (0.07, "7%"), (1, "100%")])
def test_the_share_of_documents_is_shown_as_it_is(share: float, shown: str) -> None:
    (metric,) = asking("doc", answer={"pass_share": share}).metrics
    assert metric.pass_rule == f"yes, for at least {shown} of the documents"


def test_documents_that_the_model_leaves_open_are_in_no_figure() -> None:
    made = asking("question", "doc")
    some = run(made, *({"rationale": "So.", "result": result} for result in ("unknown", "yes")))
    assert (some.scores, some.rationale) == (
        (Score("mine", 1.0, 1.0, passed=True),),
        "Mean over 1 documents; left open: rank 1.",
    )
    assert run(made, {"rationale": "So.", "result": "unknown"}).outcome == "abstained"


def test_labels_without_numbers_have_the_mean_of_their_passes() -> None:
    made = asking("question", "doc", result={"labels": ["on topic", "off topic"], "pass": ["on topic"]})
    scores = run(made, *({"rationale": "So.", "result": result} for result in ("on topic", "off topic"))).scores
    assert scores == (Score("mine", 0.5, 0.5, passed=True),)


def test_more_documents_than_are_asked_about_are_counted() -> None:
    many = msgspec.structs.replace(FULL, context=[f"Document {number}" for number in range(103)])
    assessment = run(asking("question", "doc"), {"rationale": "So.", "result": "yes"}, trace=many)
    assert (len(assessment.calls), assessment.details["documents_left_out"]) == (100, 3)


# --- mistakes ---

YES = {"answer": {"form": "template"}}
MISTAKES: Mapping[str, tuple[Sequence[str], Mapping[str, Any], str]] = {
    "unknown key": (["answer"], {"resutl": "yes/no"}, "resutl: unknown key; did you mean result?"),
    "unknown key of the answer": (["answer"], {"answer": {"pas": 1}}, "answer.pas: unknown key; did you mean as?"),
    "two results": (
        ["answer"],
        {"result": "yes/no", "answer": {"as": "graded"}},
        'result: cannot be combined with answer.as = "graded", which has a result of its own; take one out',
    ),
    "a result that is none": (["answer"], {"result": {"integer": [5, 1]}}, "result.integer: the first bound must be"),
    "no such form": (["answer"], {"answer": {"as": "grade"}}, "answer.as: there is no such form; did you mean graded?"),
    "a judge of that form": (
        ["answer"],
        {"answer": {"as": "groundedness"}},
        'answer.as: the answers of groundedness have the form yes_no; write as = "yes_no"',
    ),
    "evidence without documents": (
        ["question", "answer"],
        AS_FACTS,
        (
            "answer.as: facts_grounding looks into the context, of which the template shows nothing; "
            "declare one of context_document, documents, retrieval_context in it"
        ),
    ),
    "evidence of one document": (
        ["answer", "doc"],
        AS_FACTS,
        "answer.as: is about all documents together, and the template declares doc, one document; declare a result",
    ),
    "labels of nothing": (
        ["answer"],
        {"answer": {"labels": "v2"}},
        "answer.labels: goes with as = facts_grounding alone; take it out",
    ),
    "a pass mark of nothing": (
        ["answer"],
        {"answer": {"pass_at": 3}},
        "answer.pass_at: goes with as = graded alone; take it out",
    ),
    "a pass mark off the scale": (
        ["answer"],
        {"answer": {"as": "graded", "pass_at": 6}},
        "answer.pass_at: must be a whole number from 1 to 5",
    ),
    "a pass mark that nothing fails": (
        ["answer"],
        {"answer": {"as": "graded", "pass_at": 1}},
        "answer.pass_at: is the bad end of the scale, so that nothing could fail; move the mark, or take it out",
    ),
    "a share that every trace has": (
        ["doc"],
        {"answer": {"pass_share": 0}},
        "answer.pass_share: lets no trace fail; raise it, or take it out",
    ),
    "a share of documents of which none passes": (
        ["doc"],
        {"answer": {"pass_share": 0.5}, "result": {"integer": [1, 5]}},
        "answer.pass_share: nothing passes or fails with this result; give it pass_at or pass, or take this out",
    ),
    "a share of no documents": (
        ["answer"],
        {"answer": {"pass_share": 0.5}},
        "answer.pass_share: is for templates about one document, which declare doc; take it out",
    ),
    "reasons without their codes": (
        ["input", "output"],
        {"answer": {"as": "relevance_truth_completeness", "reasoning": True}},
        'answer.reasoning: the template must explain the codes: add form = "template"',
    ),
    "a key of our form": (
        ["answer"],
        {"answer": {"result_key": "verdict"}},
        'answer.result_key: names a key of the template\'s form; add form = "template"',
    ),
    "one key twice": (
        ["answer"],
        {"answer": {"form": "template", "result_key": "a", "rationale_key": "a"}},
        "answer.result_key: is what the reasons are called too; give each a key of its own",
    ),
    "an unknown variable": (
        ["anwser"],
        {},
        "template: mine.yaml: prompt.template_variables: nothing of a trace is called anwser; did you mean answer?",
    ),
    "a description of many lines": (["answer"], {"asks": "a\nb"}, "asks: must be one line of at most 300 characters"),
}


@each_case(("variables", "table", "line"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_one_line(variables: Sequence[str], table: Mapping[str, Any], line: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        asking(*variables, **table)
    assert str(caught.value).startswith(line)
    assert str(caught.value).isprintable()


def test_a_template_that_is_too_long_names_its_file() -> None:
    with pytest.raises(DefinitionError) as caught:
        judge(yaml("{{answer}}" + "x" * 100_000, ["answer"]))
    assert str(caught.value) == "template: mine.yaml: must have at most 100000 characters"


# --- what is shown of it ---


def test_the_description_is_shown_unless_another_sentence_is_given() -> None:
    assert judge(FACTS, AS_FACTS).asks == "Does each sentence of the answer stand in its source?"
    assert judge(FACTS, {**AS_FACTS, "asks": "Is it so?"}).asks == "Is it so?"
    assert asking("answer").asks == "Asks what mine.yaml says."


def test_metadata_is_for_display_and_changes_no_version() -> None:
    other = FACTS.replace("version: 1.0", "version: 2.0").replace("temperature: 0", "temperature: 1")
    assert judge(other, AS_FACTS).version == judge(FACTS, AS_FACTS).version
    template = metadata_of({"template": {"file": "facts.yaml", "text": other}})
    assert template is not None
    assert (template["file"], dict(template["metadata"])["version"]) == ("facts.yaml", "2.0")  # type: ignore[call-overload]
    assert metadata_of({"instructions": "Is {{ outputs }} polite?"}) is None
