"""The TRACe formulas: ten examples calculated by hand, through parsing and scoring, and the definition of a word."""

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cases import each_case
from support_answers import answer, scored, trace

from judges.catalog import ragbench, ragbench_sources
from judges.core.verdict import Score
from judges.forms.document_support import Shares, scores, shares, weights


class Example(NamedTuple):
    """An answer about documents, and what was worked out on paper."""

    documents: Sequence[str]
    relevant: Sequence[str]
    utilized: Sequence[str]
    relevance: Fraction
    utilization: Fraction
    completeness: Fraction | None
    fabricated: int = 0
    lengths: bool = False


def lines(count: int) -> str:
    """Write a document of so many sentences."""
    return " ".join(f"Line {number} ends here." for number in range(count))


FOUR = ["One is here. Two is here.", "Three is here. Four is here."]
# 27 sentences in document 0 (0a..0z, 0aa), one each in 1 to 48, 28 in document 49 (49a..49z, 49aa, 49ab): T = 103.
FIFTY = [lines(27), *["Only this."] * 48, lines(28)]
# 2, 3 and 5 words: T = 10.
UNEVEN = ["Two words. Now three words. Here are five words then."]

EXAMPLES = {
    # T = 4, R = {0a, 1a, 1b}, U = {0a, 0b}, common {0a}
    "both lists, in part the same": Example(
        FOUR, ["0a", "1a", "1b"], ["0a", "0b"], Fraction(3, 4), Fraction(1, 2), Fraction(1, 3)
    ),
    # T = 4, R = {}, U = {0a}: a share of nothing has no value
    "nothing relevant": Example(FOUR, [], ["0a"], Fraction(0), Fraction(1, 4), None),
    # T = 4, R = {0a, 0b}, U = {}
    "nothing utilized": Example(FOUR, ["0a", "0b"], [], Fraction(1, 2), Fraction(0), Fraction(0)),
    # T = 4, R = {0a}, U = {1a, 1b}, nothing in common
    "nothing in common": Example(FOUR, ["0a"], ["1a", "1b"], Fraction(1, 4), Fraction(1, 2), Fraction(0)),
    # T = 4, R = {0a, 0b}, U = {0b}: written five and three times, in several ways
    "named repeatedly": Example(
        FOUR,
        ["0a", "0A", "0a.", "0b", " '0a' "],
        ["0b", "0b:", "0B"],
        Fraction(1, 2),
        Fraction(1, 4),
        Fraction(1, 2),
    ),
    # T = 4, R = {1b}, U = {1b}; 0c, 2a and 7z exist nowhere, `general` is no key and `a` is one of the answer: 5
    "keys that do not exist": Example(
        FOUR, ["1b", "0c", "2a"], ["general", "1b", "a", "7z"], Fraction(1, 4), Fraction(1, 4), Fraction(1), 5
    ),
    # T = 1, R = U = {0a}
    "one document of one sentence": Example(
        ["Only this."], ["0a"], ["0a"], Fraction(1), Fraction(1), Fraction(1)
    ),
    # T = 103, R = {0z, 0aa, 7a, 49ab}, U = {0aa, 49aa, 49ab}, common {0aa, 49ab}; 0ab and 49ac are one too far
    "fifty documents, keys beyond z": Example(
        FIFTY,
        ["0z", "0aa", "7a", "49ab", "0ab"],
        ["0aa", "49aa", "49ab", "49ac"],
        Fraction(4, 103),
        Fraction(3, 103),
        Fraction(1, 2),
        2,
    ),
    # T = 10, R = {0a, 0c} = 7, U = {0b, 0c} = 8, common {0c} = 5
    "words instead of sentences": Example(
        UNEVEN, ["0a", "0c"], ["0b", "0c"], Fraction(7, 10), Fraction(8, 10), Fraction(5, 7), lengths=True
    ),
    # T = 2, the blank document has no sentence and keeps its index: R = {0a, 2a}, U = {2a}; 1a does not exist
    "a blank document between": Example(
        ["One is here.", " \n", "Three is here."], ["0a", "2a"], ["2a", "1a"], Fraction(1), Fraction(1, 2),
        Fraction(1, 2), 1,
    ),
}  # fmt: skip


@each_case("example", EXAMPLES.values(), ids=EXAMPLES)
def test_worked_examples(example: Example) -> None:
    judge = ragbench.make(ragbench.Settings(lengths=example.lengths))
    text = answer(all_relevant_sentence_keys=list(example.relevant), all_utilized_sentence_keys=list(example.utilized))
    reading = scored(judge, trace(example.documents), text)
    shares_by_hand = (example.relevance, example.utilization, example.completeness)
    assert [score.value for score in reading.scores] == [*(float(x) for x in shares_by_hand if x is not None), 1.0]
    assert reading.details["fabricated_evidence"] == example.fabricated


def test_the_other_judge_computes_the_same_from_its_own_keys() -> None:
    text = answer(
        all_relevant_sentence_keys=["D1_S1", "d2_s1", "D2_S2", "D3_S1"], all_utilized_sentence_keys=["D1_S1:", "D1_S2"]
    )
    reading = scored(ragbench_sources.JUDGE, trace(FOUR), text)
    assert [score.value for score in reading.scores] == [3 / 4, 1 / 2, 1 / 3, 1.0]
    assert reading.details["fabricated_evidence"] == 1


def test_lengths_count_in_the_other_judge_too() -> None:
    judge = ragbench_sources.JUDGE.configured({"lengths": True})
    text = answer(all_relevant_sentence_keys=["D1_S1", "D1_S3"], all_utilized_sentence_keys=["D1_S2", "D1_S3"])
    assert [score.value for score in scored(judge, trace(UNEVEN), text).scores] == [7 / 10, 8 / 10, 5 / 7, 1.0]


@each_case(
    ("sentence", "words"),
    [
        ("Two words.", 2),
        ("It's well-known, e.g. 1,000.50!", 4),
        ("Größe: пять слов здесь", 4),
        ("保証は二年です。", 8),
        ("保証 warranty です", 5),
        ("\u200b", 1),
    ],
    ids=["blanks", "signs inside", "other letters", "no blanks between words", "both", "invisible"],
)
def test_a_word_stands_between_blanks_or_is_a_character_of_a_script_without_them(sentence: str, words: int) -> None:
    assert weights({"a": sentence}, lengths=True) == {"a": words}
    assert weights({"a": sentence}, lengths=False) == {"a": 1}


def test_no_sentence_at_all_divides_nothing_by_zero() -> None:
    assert shares({}, (), ()) == Shares(0.0, 0.0, None)


@pytest.mark.parametrize(
    ("supported", "adherence"),
    [
        (True, Score("adherence", 1.0, 1.0, "supported", passed=True)),
        (False, Score("adherence", 0.0, 0.0, "unsupported", passed=False)),
    ],
    ids=["supported", "unsupported"],
)
def test_only_adherence_passes_or_fails(supported: bool, adherence: Score) -> None:  # noqa: FBT001 - a parameter
    assert scores(Shares(0.25, 0.5, 0.75), "Because.", supported=supported) == (
        Score("relevance", 0.25, 0.25, rationale="Because."),
        Score("utilization", 0.5, 0.5),
        Score("completeness", 0.75, 0.75),
        adherence,
    )


@given(
    st.dictionaries(st.integers(0, 30).map(str), st.integers(1, 50)).flatmap(
        lambda expected: st.tuples(
            st.just(expected),
            st.lists(st.sampled_from(sorted(expected))) if expected else st.just([]),
            st.lists(st.sampled_from(sorted(expected))) if expected else st.just([]),
        )
    )
)
def test_shares_lie_between_0_and_1(drawn: tuple[dict[str, int], list[str], list[str]]) -> None:
    expected, relevant, utilized = drawn
    result = shares(expected, relevant, utilized)
    assert all(0.0 <= share <= 1.0 for share in result if share is not None)
    assert (result.completeness is None) == (not drawn[1])
    assert result == shares(expected, set(relevant), set(utilized))
