"""Groundedness: question and answer against all that was retrieved."""

import msgspec
from judge_traces import LONG, SHORT, parse
from support.cases import each_case

from judges.catalog.groundedness import JUDGE
from judges.core.prompt import Block, render
from tracejudge import Document, Trace


def grounded(output: str, *context: Document | str) -> Trace:
    return Trace(trace_id="1", service="s", input="How long is it?", output=output, context=list(context))


class TestPrompt:
    def test_shows_question_answer_and_document(self) -> None:
        (prompt,) = JUDGE.prompts(SHORT)
        assert parse(render(prompt)[1].content) == (
            Block("question", "How long is the warranty?"),
            Block("answer", "The warranty runs for two years."),
            Block("document", "All devices come with a warranty of two years."),
        )

    def test_shows_each_document_in_a_block_with_its_rank(self) -> None:
        (prompt,) = JUDGE.prompts(LONG)
        assert [block.name for block in prompt.blocks] == [
            "earlier messages",
            "question",
            "answer",
            "document 1",
            "document 3",
            "document 4",
        ]

    def test_has_one_fixed_part_that_trusts_the_document_only(self) -> None:
        (fixed,) = JUDGE.fixed_parts
        assert "Use the document only." in fixed
        assert "Assume nothing and round nothing" in fixed
        assert "The rationale then names each statement that lacks support." in fixed


@each_case("field", ["input", "output", "context"])
def test_each_input_is_needed(field: str) -> None:
    blank = [" ", Document("\n")] if field == "context" else "\t"
    assert JUDGE.missing(SHORT) is None
    assert JUDGE.missing(msgspec.structs.replace(SHORT, **{field: blank})) == f"the trace has no {field}"


@each_case(
    ("trace", "result", "reason"),
    [
        (
            grounded("The warranty runs for 2 years.", "Devices have a warranty.", Document("It runs 2 years.")),
            "yes",
            "Every sentence shares most of its words and all of its numbers with the document.",
        ),
        (
            grounded("The warranty runs for 2 years. It ends after 5.", "The warranty runs 2 years."),
            "no",
            "Sentence 2 contains a number that the document does not.",
        ),
        (
            grounded("Batteries are never covered.", "The warranty runs 2 years."),
            "no",
            "Only 0% of the words of sentence 1 appear in the document.",
        ),
        (
            grounded("I'm sorry, but I can't help with that. I don't know.", "The warranty runs 2 years."),
            "yes",
            "Every sentence shares most of its words and all of its numbers with the document.",
        ),
        (
            grounded("I don't know. Batteries are never covered.", "The warranty runs 2 years."),
            "no",
            "Only 0% of the words of sentence 2 appear in the document.",
        ),
    ],
    ids=["all there", "another number", "other words", "a refusal states nothing", "a refusal and a statement"],
)
def test_the_heuristic_compares_sentence_by_sentence(trace: Trace, result: str, reason: str) -> None:
    (prompt,) = JUDGE.prompts(trace)
    assert JUDGE.heuristic(trace, prompt) == {"rationale": f"Let's think step by step. {reason}", "result": result}
