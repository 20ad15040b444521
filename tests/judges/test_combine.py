"""Combination of several models: each mode, and the disagreement of the models."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import table

from judges.core.combine import Combine, combine, metrics_of
from judges.core.judge import Metric
from judges.core.verdict import Assessment, Score

TABLES = table("agreement")
YES_NO = Metric("safety", "0 or 1", "yes")
GRADED = Metric("relevance", "1..5", "4 or more", pass_at=0.75)
SHARE = Metric("supported_share", "0..1", None)
MODES: tuple[Combine, ...] = ("majority", "mean", "min", "max", "all")
GIVEN_UP = Assessment("unscored", "invalid_answer")
ABSTAINED = Assessment("abstained")


def scored(*scores: Score) -> Assessment:
    return Assessment("scored", scores=scores)


def named(*assessments: Assessment) -> dict[str, Assessment]:
    return {f"m{number}": each for number, each in enumerate(assessments)}


def yes_no(answer: str) -> Assessment:
    is_yes, label = answer == "y", {"y": "yes", "n": "no"}[answer]
    return scored(Score("safety", float(is_yes), label=label, passed=is_yes, rationale="So."))


def answers_of(results: str, *others: Assessment) -> dict[str, Assessment]:
    """Build the assessments of models that answer yes (`y`) or no (`n`), and of others."""
    return named(*map(yes_no, results), *others)


def graded(*grades: int) -> dict[str, Assessment]:
    """Build the assessments of models that grade from 1 to 5, where 4 passes."""
    return named(*(scored(Score("relevance", (grade - 1) / 4, float(grade), passed=grade >= 4)) for grade in grades))


def shares(*values: float) -> dict[str, Assessment]:
    return named(*(scored(Score("supported_share", value, value)) for value in values))


def result(assessment: Assessment) -> Any:
    """Return value, pass and disagreement of a judge with one metric."""
    assert assessment.outcome == "scored"
    score, disagreement = assessment.scores
    assert (disagreement.metric, disagreement.passed) == ("disagreement", None)
    return score.value, score.passed, pytest.approx(disagreement.value)


def test_yes_and_no() -> None:
    for mode, results, passed, disagreement in TABLES["yes and no"]:
        combined = combine(mode, answers_of(results), (YES_NO,))
        assert result(combined) == (float(passed), passed, disagreement), (mode, results)
    assert result(combine("mean", answers_of("yyn"), (YES_NO,))) == (pytest.approx(2 / 3), True, 2 / 3)
    assert result(combine("mean", answers_of("yn"), (YES_NO,))) == (0.5, False, 1.0), "a tie does not pass"
    modes: dict[Combine, str] = {"majority": "pass", "all": "fail", "min": "no", "max": "yes"}
    for of, label in modes.items():
        score, _ = combine(of, answers_of("yyn"), (YES_NO,)).scores
        assert (score.label, score.rationale) == (label, None), "a model's label or the decision"


def test_grades() -> None:
    for mode, grades, value, passed in TABLES["grades"]:
        combined = combine(mode, graded(*grades), (GRADED,))
        assert result(combined)[:2] == (pytest.approx(value), passed), (mode, grades)
    assert combine("min", graded(5, 2), (GRADED,)).scores[0] == Score("relevance", 0.25, 2.0, passed=False)
    assert combine("max", graded(5, 2), (GRADED,)).scores[0] == Score("relevance", 1.0, 5.0, passed=True)


def test_of_equal_values_of_which_one_passes_the_other_stands() -> None:
    """Labels may share a number, and the pass set hold one of them: a tie does not pass."""
    tied = [Score("tone", 1.0, 5.0, "warm", passed=True), Score("tone", 1.0, 5.0, "gushing", passed=False)]
    for mode in MODES:
        if mode != "mean":
            combined = combine(mode, named(*map(scored, tied)), (Metric("tone", "labels", "warm"),))
            assert combined.scores[0].passed is False, mode


def test_without_a_pass_rule_nothing_passes_or_fails() -> None:
    for mode, value in zip(MODES, (0.6, 0.6, 0.3, 0.9, 0.3), strict=True):
        combined = combine(mode, shares(0.3, 0.6, 0.9), (SHARE,))
        assert result(combined) == (pytest.approx(value), None, pytest.approx(0.4)), mode


class TestWhoDidNotScore:
    def test_enough_have_scored(self) -> None:
        cases: list[tuple[Combine, str, list[Assessment], float]] = [
            ("majority", "yy", [GIVEN_UP], 1.0),
            ("majority", "yy", [ABSTAINED], 1.0),
            ("mean", "yn", [GIVEN_UP], 0.5),
            ("max", "yn", [GIVEN_UP], 1.0),
            ("all", "n", [GIVEN_UP, GIVEN_UP], 0.0),
            ("all", "yn", [ABSTAINED], 0.0),
        ]
        for mode, results, others, value in cases:
            combined = combine(mode, answers_of(results, *others), (YES_NO,))
            assert (combined.outcome, combined.scores[0].value) == ("scored", value), (mode, results)
        (score,) = combine("all", answers_of("n", GIVEN_UP), (YES_NO,)).scores
        assert (score.metric, score.passed) == ("safety", False), "a single rating has no disagreement"

    def test_too_few_have_scored(self) -> None:
        for others, outcome, reason in (
            ([GIVEN_UP], "unscored", "invalid_answer"),
            ([ABSTAINED], "abstained", None),
            ([ABSTAINED, GIVEN_UP], "abstained", None),
            ([ABSTAINED, GIVEN_UP, GIVEN_UP], "unscored", "invalid_answer"),
        ):
            for mode in MODES:
                combined = combine(mode, answers_of("y", *others), (YES_NO,))
                assert (combined.outcome, combined.reason, combined.scores) == (outcome, reason, ()), (mode, others)
                note = f"1 of {1 + len(others)} models gave a score, which are too few to combine"
                assert combined.note == note
        modes: tuple[Combine, ...] = ("min", "all")
        for mode in modes:
            combined = combine(mode, answers_of("yy", GIVEN_UP), (YES_NO,))
            assert (combined.outcome, combined.reason) == ("unscored", "invalid_answer"), "one is unscored of all"

    def test_the_reason_is_the_most_frequent_one_and_then_the_first_by_name(self) -> None:
        for last, why in (("refusal", "refusal"), ("bad_request", "bad_request")):
            reasons: Any = ("truncated", "refusal", last)
            others = [Assessment("unscored", reason) for reason in reasons]
            assert combine("majority", named(*others), (YES_NO,)).reason == why


class TestSeveralMetrics:
    def test_each_is_combined_by_itself_and_has_its_own_disagreement(self) -> None:
        def both(grounded: str, share: float) -> Assessment:
            return scored(*yes_no(grounded).scores, Score("supported_share", share))

        rows = {"b": both("y", 1.0), "a": both("n", 0.5), "c": both("y", 0.0)}
        combined = combine("majority", rows, (YES_NO, SHARE))
        assert {score.metric: score.passed for score in combined.scores if score.passed is not None} == {"safety": True}
        values = {"safety": 1.0, "supported_share": 0.5}
        values |= {"safety_disagreement": 2 / 3, "supported_share_disagreement": 2 / 3}
        assert {score.metric: score.value for score in combined.scores} == pytest.approx(values)
        assert combined.rationale == "safety: 2 of 3 models pass\nsupported_share: 3 models rate"
        assert [score.metric for score in combined.scores] == [metric.name for metric in metrics_of((YES_NO, SHARE))]
        only_one = {**rows, "b": yes_no("y"), "c": yes_no("y")}
        names = [score.metric for score in combine("majority", only_one, (YES_NO, SHARE)).scores]
        assert names == ["safety", "safety_disagreement"], "one that too few have rated is left out"

    def test_the_details_hold_the_answer_of_each_model(self) -> None:
        combined = combine("majority", {"b": yes_no("y"), "a": yes_no("y"), "c": GIVEN_UP}, (YES_NO,))
        yes = {"outcome": "scored", "scores": {"safety": {"value": 1.0, "label": "yes", "passed": True}}}
        given_up = {"outcome": "unscored", "reason": "invalid_answer"}
        assert combined.details == {"models": {"a": yes, "b": yes, "c": given_up}}
        assert (combined.rationale, combined.calls) == ("2 of 2 models pass", ())
        assert metrics_of((YES_NO,)) == (YES_NO, Metric("disagreement", "0..1", None, descriptive=True))


VALUES = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])
RATED = VALUES.map(lambda value: scored(Score("relevance", value, passed=value >= 0.75)))
UNSCORED = [Assessment("unscored", "refusal"), Assessment("unscored", "truncated")]
ANY = RATED | st.just(ABSTAINED) | st.sampled_from(UNSCORED)
METRICS = st.sampled_from([(GRADED,), (Metric("relevance", "1..5", "4 or more"),)])


class TestProperties:
    @given(st.sampled_from(MODES), st.lists(ANY, min_size=2, max_size=9), METRICS, st.randoms())
    def test_the_order_changes_nothing_and_values_stay_within_those_of_the_models(
        self, mode: Combine, each: list[Assessment], metrics: Any, by: Any
    ) -> None:
        rows = named(*each)
        combined = combine(mode, rows, metrics)
        assert combined == combine(mode, dict(by.sample(list(rows.items()), len(rows))), metrics)
        values = [score.value for item in each for score in item.scores]
        for score in combined.scores:
            assert 0 <= score.value <= 1
            if mode in {"mean", "min", "max"} and score.metric == "relevance":
                assert min(values) <= score.value <= max(values)
        assert (combined.outcome == "scored") == bool(combined.scores)
        assert (combined.outcome == "unscored") == (combined.reason is not None)

    @given(st.lists(VALUES, min_size=2, max_size=9))
    def test_disagreement_is_nothing_exactly_where_all_agree(self, values: list[float]) -> None:
        _, disagreement = combine("mean", shares(*values), (SHARE,)).scores
        assert (disagreement.value == 0) == (len(set(values)) == 1)
        pairs = list(itertools.combinations(values, 2))
        assert disagreement.value == pytest.approx(sum(abs(each - other) for each, other in pairs) / len(pairs))

    @given(st.sampled_from(["majority", "mean", "all"]), st.sampled_from("yn"), st.integers(2, 9))
    def test_models_that_agree_decide_the_combined_score(self, mode: Combine, answer: str, count: int) -> None:
        combined = combine(mode, answers_of(answer * count), (YES_NO,))
        assert result(combined) == (float(answer == "y"), answer == "y", 0)
