"""Equivalence: the same meaning and the expected form."""

import msgspec
import pytest
from judge_traces import SHORT, parse
from support.cases import each_case

from judges.catalog.equivalence import JUDGE
from judges.core.prompt import Block, render
from judges.parsing.sentences import shape


def compared(expected: int, other: int, numbers: str) -> str:
    shares = f"{expected}% of the expected words appear in the answer, {other}% the other way round"
    return f"Meaning: {shares}, and the numbers {numbers}."


def test_shows_both_answers_and_not_the_question() -> None:
    (prompt,) = JUDGE.prompts(SHORT)
    assert parse(render(prompt)[1].content) == (
        Block("expected answer", "Two years."),
        Block("answer", "The warranty runs for two years."),
    )


def test_has_one_fixed_part_that_asks_for_meaning_and_form() -> None:
    (fixed,) = JUDGE.fixed_parts
    assert "they mean the same, and the answer has the form that was expected." in fixed
    assert "- The rationale always speaks of both, first of the meaning and then of the form" in fixed


@pytest.mark.parametrize("field", ["output", "expected_response"])
def test_each_input_is_needed(field: str) -> None:
    assert JUDGE.missing(msgspec.structs.replace(SHORT, input=None)) is None
    assert JUDGE.missing(msgspec.structs.replace(SHORT, **{field: " "})) == f"the trace has no {field}"


@each_case(
    ("expected", "output", "result", "reason"),
    [
        (
            "The warranty runs 2 years.",
            "The warranty runs for 2 years.",
            "yes",
            compared(100, 100, "are the same") + " Form: both are plain text.",
        ),
        (
            "The warranty runs 2 years.",
            "The warranty runs 3 years.",
            "no",
            compared(75, 75, "differ") + " Form: both are plain text.",
        ),
        (
            "- tea\n- milk",
            "Tea, milk.",
            "no",
            compared(100, 100, "are the same") + " Form: a list was expected, the answer is plain text.",
        ),
        ("Two years.", "Paris is large.", "no", compared(0, 0, "are the same") + " Form: both are plain text."),
        (
            "+ +",
            "+  -",
            "no",
            "Meaning: neither contains a word, so that the signs were compared. Form: both are plain text.",
        ),
    ],
    ids=["same", "another number", "another form", "another meaning", "signs only"],
)
def test_the_heuristic_speaks_of_meaning_and_form(expected: str, output: str, result: str, reason: str) -> None:
    trace = msgspec.structs.replace(SHORT, expected_response=expected, output=output)
    (prompt,) = JUDGE.prompts(trace)
    assert JUDGE.heuristic(trace, prompt) == {"rationale": f"Let's think step by step. {reason}", "result": result}


@each_case(
    ("text", "named"),
    [
        ('{"a": 1}', "a JSON object"),
        (" [1, 2]\n", "a JSON array"),
        ('"a"', "plain text"),
        ("[1, 2", "plain text"),
        ("[" * 100_000, "plain text"),
        ("\ud800", "plain text"),
        ("", "plain text"),
        ("- a\n- b", "a list"),
        ("1. a\n\n2) b", "a list"),
        ("These:\n- a\n* b\n\u2022 c", "a list"),
        ("These:\n- a", "plain text"),
        ("-5 degrees\n-6 degrees", "plain text"),
    ],
    ids=[
        "object",
        "array",
        "JSON string",
        "broken JSON",
        "deep JSON",
        "half a surrogate pair",
        "nothing",
        "hyphens",
        "numbers",
        "with a line before",
        "half of the lines",
        "minus signs",
    ],
)
def test_the_shape_of_a_text(text: str, named: str) -> None:
    assert shape(text) == named
