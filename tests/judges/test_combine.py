"""Combination of several models: each mode, and the disagreement of the models."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cases import each_case

from judges.core.combine import Combine, combine, metrics_of
from judges.core.judge import Metric
from judges.core.verdict import Assessment, Reason, Score

YES_NO = Metric("safety", "0 or 1", "yes")
GRADED = Metric("relevance", "1..5", "4 or more", pass_at=0.75)
SHARE = Metric("supported_share", "0..1", None)
MODES: tuple[Combine, ...] = ("majority", "mean", "min", "max", "all")
GIVEN_UP = Assessment("unscored", "invalid_answer")
ABSTAINED = Assessment("abstained")


def answers_of(results: str) -> dict[str, Assessment]:
    """Build the assessments of models that answer yes (`y`) or no (`n`)."""
    return {f"m{number}": yes_no(each) for number, each in enumerate(results)}


def yes_no(answer: str) -> Assessment:
    is_yes, label = answer == "y", {"y": "yes", "n": "no"}[answer]
    score = Score("safety", float(is_yes), label=label, passed=is_yes, rationale="So.")
    return Assessment("scored", scores=(score,))


def graded(*grades: int) -> dict[str, Assessment]:
    """Build the assessments of models that grade from 1 to 5, where 4 passes."""
    scores = [Score("relevance", (grade - 1) / 4, float(grade), passed=grade >= 4) for grade in grades]
    return {f"m{number}": Assessment("scored", scores=(score,)) for number, score in enumerate(scores)}


def shares(*values: float) -> dict[str, Assessment]:
    scores = [Score("supported_share", value, value) for value in values]
    return {f"m{number}": Assessment("scored", scores=(score,)) for number, score in enumerate(scores)}


def result(assessment: Assessment) -> Any:
    """Return value, pass and disagreement of a judge with one metric."""
    assert assessment.outcome == "scored"
    score, disagreement = assessment.scores
    assert (disagreement.metric, disagreement.passed) == ("disagreement", None)
    return score.value, score.passed, pytest.approx(disagreement.value)


# --- yes and no ---


@each_case(
    ("mode", "results", "passed", "disagreement"),
    [
        ("majority", "yyn", True, 2 / 3),
        ("majority", "ynn", False, 2 / 3),
        ("majority", "yn", False, 1),
        ("majority", "yynn", False, 4 / 6),
        ("majority", "yy", True, 0),
        ("min", "yyn", False, 2 / 3),
        ("min", "yy", True, 0),
        ("max", "nyn", True, 2 / 3),
        ("max", "nn", False, 0),
        ("all", "yyy", True, 0),
        ("all", "yyn", False, 2 / 3),
    ],
)
def test_yes_and_no(mode: Combine, results: str, *, passed: bool, disagreement: float) -> None:
    assessment = combine(mode, answers_of(results), (YES_NO,))
    assert result(assessment) == (float(passed), passed, disagreement)


def test_a_mean_of_yes_and_no_passes_as_their_majority_does() -> None:
    assert result(combine("mean", answers_of("yyn"), (YES_NO,))) == (pytest.approx(2 / 3), True, 2 / 3)
    assert result(combine("mean", answers_of("yn"), (YES_NO,))) == (0.5, False, 1.0), "a tie does not pass"


@each_case(("mode", "label"), [("majority", "pass"), ("all", "fail"), ("min", "no"), ("max", "yes")])
def test_the_combined_label_is_a_model_s_label_or_the_decision(mode: Combine, label: str) -> None:
    score, _ = combine(mode, answers_of("yyn"), (YES_NO,)).scores
    assert (score.label, score.rationale) == (label, None)


# --- grades ---


@each_case(
    ("mode", "grades", "value", "passed"),
    [
        ("mean", (5, 3), 0.75, True),
        ("mean", (5, 4, 2), (1 + 0.75 + 0.25) / 3, False),
        ("mean", (4, 4, 4), 0.75, True),
        ("mean", (5, 5, 1), 2 / 3, False),
        ("majority", (5, 5, 1), 1.0, True),
        ("min", (5, 4, 2), 0.25, False),
        ("max", (5, 2, 2), 1.0, True),
        ("all", (5, 4), 1.0, True),
        ("all", (5, 3), 0.0, False),
    ],
)
def test_grades(mode: Combine, grades: tuple[int, ...], value: float, *, passed: bool) -> None:
    assessment = combine(mode, graded(*grades), (GRADED,))
    assert result(assessment)[:2] == (pytest.approx(value), passed)


def test_the_lowest_and_the_highest_keep_the_raw_rating() -> None:
    assert combine("min", graded(5, 2), (GRADED,)).scores[0] == Score("relevance", 0.25, 2.0, passed=False)
    assert combine("max", graded(5, 2), (GRADED,)).scores[0] == Score("relevance", 1.0, 5.0, passed=True)


@each_case("mode", ["majority", "min", "max", "all"])
def test_of_equal_values_of_which_one_passes_the_other_stands(mode: Combine) -> None:
    """Labels may share a number, and the pass set hold one of them: a tie does not pass."""
    scores = {"a": Score("tone", 1.0, 5.0, "warm", passed=True), "b": Score("tone", 1.0, 5.0, "gushing", passed=False)}
    assessment = {model: Assessment("scored", scores=(score,)) for model, score in scores.items()}
    assert combine(mode, assessment, (Metric("tone", "labels", "warm"),)).scores[0].passed is False


@each_case(("mode", "value"), [("majority", 0.6), ("mean", 0.6), ("min", 0.3), ("max", 0.9), ("all", 0.3)])
def test_without_a_pass_rule_nothing_passes_or_fails(mode: Combine, value: float) -> None:
    assessment = combine(mode, shares(0.3, 0.6, 0.9), (SHARE,))
    assert result(assessment) == (pytest.approx(value), None, pytest.approx(0.4))


# --- who did not score ---


@each_case(
    ("mode", "results", "others", "value"),
    [
        ("majority", "yy", [GIVEN_UP], 1.0),
        ("majority", "yy", [ABSTAINED], 1.0),
        ("mean", "yn", [GIVEN_UP], 0.5),
        ("max", "yn", [GIVEN_UP], 1.0),
        ("all", "n", [GIVEN_UP, GIVEN_UP], 0.0),
        ("all", "yn", [ABSTAINED], 0.0),
    ],
)
def test_enough_have_scored(mode: Combine, results: str, others: list[Assessment], value: float) -> None:
    assessment = combine(mode, beside(answers_of(results), others), (YES_NO,))
    assert (assessment.outcome, assessment.scores[0].value) == ("scored", value)


def test_a_single_rating_has_no_disagreement() -> None:
    (score,) = combine("all", beside(answers_of("n"), [GIVEN_UP]), (YES_NO,)).scores
    assert (score.metric, score.passed) == ("safety", False)


@each_case("mode", MODES)
@each_case(
    ("others", "outcome", "reason"),
    [
        ([GIVEN_UP], "unscored", "invalid_answer"),
        ([ABSTAINED], "abstained", None),
        ([ABSTAINED, GIVEN_UP], "abstained", None),
        ([ABSTAINED, GIVEN_UP, GIVEN_UP], "unscored", "invalid_answer"),
    ],
    ids=["one unscored", "one abstained", "as many", "more unscored"],
)
def test_too_few_have_scored(mode: Combine, others: list[Assessment], outcome: str, reason: str | None) -> None:
    assessment = combine(mode, beside(answers_of("y"), others), (YES_NO,))
    assert (assessment.outcome, assessment.reason, assessment.scores) == (outcome, reason, ())
    assert assessment.note == f"1 of {1 + len(others)} models gave a score, which are too few to combine"


@pytest.mark.parametrize("mode", ["min", "all"])
def test_combining_all_is_unscored_if_one_model_is_unscored(mode: Combine) -> None:
    assessment = combine(mode, beside(answers_of("yy"), [GIVEN_UP]), (YES_NO,))
    assert (assessment.outcome, assessment.reason) == ("unscored", "invalid_answer")


def test_the_reason_is_the_most_frequent_one_and_then_the_first_by_name() -> None:
    def why(*reasons: Reason) -> str | None:
        others = [Assessment("unscored", reason) for reason in reasons]
        return combine("majority", beside({}, others), (YES_NO,)).reason

    assert why("truncated", "refusal", "refusal") == "refusal"
    assert why("truncated", "refusal", "bad_request") == "bad_request"


def beside(assessments: dict[str, Assessment], others: list[Assessment]) -> dict[str, Assessment]:
    return assessments | {f"n{number}": other for number, other in enumerate(others)}


# --- several metrics ---


def test_each_metric_is_combined_by_itself_and_has_its_own_disagreement() -> None:
    def both(grounded: str, share: float) -> Assessment:
        return Assessment("scored", scores=(*yes_no(grounded).scores, Score("supported_share", share)))

    assessment = combine("majority", {"b": both("y", 1.0), "a": both("n", 0.5), "c": both("y", 0.0)}, (YES_NO, SHARE))
    assert {score.metric: score.passed for score in assessment.scores if score.passed is not None} == {"safety": True}
    assert {score.metric: score.value for score in assessment.scores} == pytest.approx(
        {"safety": 1.0, "supported_share": 0.5, "safety_disagreement": 2 / 3, "supported_share_disagreement": 2 / 3}
    )
    assert assessment.rationale == "safety: 2 of 3 models pass\nsupported_share: 3 models rate"
    assert [score.metric for score in assessment.scores] == [metric.name for metric in metrics_of((YES_NO, SHARE))]


def test_a_metric_that_too_few_have_rated_is_left_out() -> None:
    only_one = answers_of("yy") | {
        "m0": Assessment("scored", scores=(*yes_no("y").scores, Score("supported_share", 1)))
    }
    assessment = combine("majority", only_one, (YES_NO, SHARE))
    assert [score.metric for score in assessment.scores] == ["safety", "safety_disagreement"]


def test_the_details_hold_the_answer_of_each_model() -> None:
    assessment = combine("majority", {"b": yes_no("y"), "a": yes_no("y"), "c": GIVEN_UP}, (YES_NO,))
    assert assessment.details == {
        "models": {
            "a": {"outcome": "scored", "scores": {"safety": {"value": 1.0, "label": "yes", "passed": True}}},
            "b": {"outcome": "scored", "scores": {"safety": {"value": 1.0, "label": "yes", "passed": True}}},
            "c": {"outcome": "unscored", "reason": "invalid_answer"},
        }
    }
    assert (assessment.rationale, assessment.calls) == ("2 of 2 models pass", ())


def test_disagreement_is_a_descriptive_metric_of_its_own() -> None:
    assert metrics_of((YES_NO,)) == (YES_NO, Metric("disagreement", "0..1", None, descriptive=True))


# --- whatever the models say ---

VALUES = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])
RATED = st.builds(lambda value: Assessment("scored", scores=(Score("relevance", value, passed=value >= 0.75),)), VALUES)
UNSCORED = [Assessment("unscored", "refusal"), Assessment("unscored", "truncated")]
ANY = RATED | st.just(ABSTAINED) | st.sampled_from(UNSCORED)
METRICS = st.sampled_from([(GRADED,), (Metric("relevance", "1..5", "4 or more"),)])


@given(st.sampled_from(MODES), st.lists(ANY, min_size=2, max_size=5), METRICS, st.randoms())
def test_the_order_of_the_models_changes_nothing(mode: Combine, each: list[Assessment], metrics: Any, by: Any) -> None:
    rows = [(f"m{number}", item) for number, item in enumerate(each)]
    shuffled = by.sample(rows, len(rows))
    assert combine(mode, dict(rows), metrics) == combine(mode, dict(shuffled), metrics)


@given(st.sampled_from(MODES), st.lists(ANY, min_size=2, max_size=9), METRICS)
def test_combined_values_stay_within_the_values_of_the_models(
    mode: Combine, each: list[Assessment], metrics: Any
) -> None:
    assessment = combine(mode, {f"m{number}": item for number, item in enumerate(each)}, metrics)
    values = [score.value for item in each for score in item.scores]
    for score in assessment.scores:
        assert 0 <= score.value <= 1
        if mode in {"mean", "min", "max"} and score.metric == "relevance":
            assert min(values) <= score.value <= max(values)
    assert (assessment.outcome == "scored") == bool(assessment.scores)
    assert (assessment.outcome == "unscored") == (assessment.reason is not None)


@given(st.lists(VALUES, min_size=2, max_size=9))
def test_disagreement_is_nothing_exactly_where_all_agree(values: list[float]) -> None:
    _, disagreement = combine("mean", shares(*values), (SHARE,)).scores
    assert (disagreement.value == 0) == (len(set(values)) == 1)
    pairs = list(itertools.combinations(values, 2))
    assert disagreement.value == pytest.approx(sum(abs(each - other) for each, other in pairs) / len(pairs))


@given(st.sampled_from(["majority", "mean", "all"]), st.text("yn", min_size=2, max_size=9))
def test_models_that_agree_decide_the_combined_score(mode: Combine, results: str) -> None:
    assessment = combine(mode, answers_of(results), (YES_NO,))
    if len(set(results)) == 1:
        assert result(assessment) == (float(results[0] == "y"), results[0] == "y", 0)
