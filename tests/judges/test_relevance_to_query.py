"""Relevance to the query: does the answer speak to what was asked?"""

import msgspec
import pytest
from judge_traces import SHORT, parse
from support.cases import each_case

from judges.catalog.relevance_to_query import JUDGE
from judges.core.prompt import Block, render


def test_shows_question_and_answer_and_nothing_else() -> None:
    (prompt,) = JUDGE.prompts(SHORT)
    assert parse(render(prompt)[1].content) == (
        Block("question", "How long is the warranty?"),
        Block("answer", "The warranty runs for two years."),
    )


def test_has_one_fixed_part_for_which_only_relevance_counts() -> None:
    (fixed,) = JUDGE.fixed_parts
    assert "whether the answer, or at least some part of it, deals with what was asked." in fixed
    assert "A wrong, outdated or incomplete answer on the subject is still relevant" in fixed
    assert "The rationale then says what the answer is about instead." in fixed


@pytest.mark.parametrize("field", ["input", "output"])
def test_each_input_is_needed(field: str) -> None:
    assert JUDGE.missing(SHORT) is None
    assert JUDGE.missing(msgspec.structs.replace(SHORT, **{field: ""})) == f"the trace has no {field}"


@each_case(
    ("output", "result", "share"),
    [
        ("The warranty runs for two years.", "yes", 50),
        ("It is long gone: a long warranty.", "yes", 100),
        ("We ship to 40 countries.", "no", 0),
    ],
    ids=["in part", "in full", "beside it"],
)
def test_the_heuristic_looks_for_the_words_of_the_question(output: str, result: str, share: int) -> None:
    trace = msgspec.structs.replace(SHORT, output=output)
    (prompt,) = JUDGE.prompts(trace)
    text = f"Let's think step by step. {share}% of the words of the question appear in the answer."
    assert JUDGE.heuristic(trace, prompt) == {"rationale": text, "result": result}
