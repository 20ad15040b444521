"""Context sufficiency: the documents against the answer that was expected; the answer given plays no part."""

import asyncio

import msgspec
from judge_traces import LONG, SHORT, parse, yes_no_text
from support.cases import each_case

from judges.calling.evaluation import evaluate
from judges.catalog import correctness
from judges.catalog.context_sufficiency import JUDGE
from judges.core.model import ModelSettings
from judges.core.prompt import Block, render
from judges.core.verdict import Assessment
from judges.models.scripted import ScriptedModel


class TestPrompt:
    def test_shows_question_expected_answer_and_documents_but_not_the_answer(self) -> None:
        (prompt,) = JUDGE.prompts(SHORT)
        assert parse(render(prompt)[1].content) == (
            Block("question", "How long is the warranty?"),
            Block("expected answer", "Two years."),
            Block("document", "All devices come with a warranty of two years."),
        )

    def test_does_not_change_with_the_answer(self) -> None:
        for trace in (SHORT, LONG):
            assert JUDGE.prompts(msgspec.structs.replace(trace, output="Something else.")) == JUDGE.prompts(trace)

    def test_shows_facts_one_a_line(self) -> None:
        (prompt,) = JUDGE.prompts(LONG)
        assert [block.name for block in prompt.blocks] == [
            "earlier messages",
            "question",
            "expected answer",
            "document 1",
            "document 3",
            "document 4",
        ]
        assert prompt.blocks[2].value == "- Doubled braces stand for one brace\n- The f-string fills in `answer`"

    def test_the_reference_chooses_the_fixed_part(self) -> None:
        assert [JUDGE.prompts(trace)[0].fixed for trace in (SHORT, LONG)] == list(JUDGE.fixed_parts)
        assert len(set(JUDGE.fixed_parts) - set(correctness.JUDGE.fixed_parts)) == 2


class TestNeeds:
    @each_case(
        ("changes", "note"),
        [
            ({"output": ""}, None),
            ({"input": None}, "the trace has no input"),
            ({"context": [" "]}, "the trace has no context"),
            ({"expected_response": ""}, "the trace has no expected_response or expected_facts"),
            ({"expected_facts": ["a"]}, "expected_response and expected_facts exclude each other: give one"),
        ],
        ids=["no output", "no input", "blank context", "no reference", "both references"],
    )
    def test_are_question_context_and_one_reference(self, changes: dict[str, object], note: str | None) -> None:
        assert JUDGE.missing(msgspec.structs.replace(SHORT, **changes)) == note

    def test_no_document_may_be_left_out(self) -> None:
        model = ScriptedModel([yes_no_text("no")], ModelSettings(provider="scripted", max_input_tokens=2000))
        long = msgspec.structs.replace(SHORT, context=["Two years.", "Devices come with paper. " * 1000])
        note = "the trace is longer than the model takes"
        assert asyncio.run(evaluate(JUDGE, long, model)) == Assessment("unscored", "input_too_long", note=note)
        assert model.requests == []


@each_case(
    ("context", "result", "reason"),
    [
        (
            ["Paper.", "The card costs 4 euros.", "Bring a passport to the desk."],
            "yes",
            "Every statement shares most of its words and all of its numbers with the document.",
        ),
        (["The card costs 4 euros."], "no", "Statement 2: 0% of its words appear in the document."),
        (
            ["The card costs 5 euros, 4th floor. Bring a passport to the desk."],
            "yes",
            "Every statement shares most of its words and all of its numbers with the document.",
        ),
        (["The card costs 5 euros."], "no", "Statement 1 contains a number that the document does not."),
    ],
    ids=["over several documents", "a statement lacks", "numbers from elsewhere deceive it", "another number"],
)
def test_the_heuristic_compares_line_by_line(context: list[str], result: str, reason: str) -> None:
    expected = "The card costs 4 euros.\n\nBring your passport."
    trace = msgspec.structs.replace(SHORT, context=context, expected_response=expected)
    (prompt,) = JUDGE.prompts(trace)
    assert JUDGE.heuristic(trace, prompt) == {"rationale": f"Let's think step by step. {reason}", "result": result}
