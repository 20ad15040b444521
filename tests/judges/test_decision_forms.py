"""Each judge as decision models are asked: what its answers mean, and what becomes of those that cannot be used."""

import asyncio

import pytest
from deciding import DECIDES, DecisionModel, sure
from judge_traces import LONG, SHORT, served

from judges.core.decision import Calibration, Decision
from judges.core.judge import Judge
from judges.core.model import ModelSettings
from judges.core.verdict import Assessment
from judges.evaluation import evaluate
from judges.registry import catalogue
from tracejudge import Trace

FORMS = {name: judge for name, judge in catalogue().items() if judge.decision_form is not None}


def judged(judge: Judge, model: DecisionModel, trace: Trace = SHORT) -> Assessment:
    return asyncio.run(evaluate(judge.for_model(model.settings), served(judge, trace), model))


def rated(judge: Judge) -> str:
    """Name the first metric that passes or fails."""
    return next(metric.name for metric in judge.metrics if metric.pass_rule is not None)


def test_each_judge_passes_and_fails_by_the_probabilities() -> None:
    for name, judge in FORMS.items():
        for share, passes in ((0.9, True), (0.05, False)):
            found = judged(judge, DecisionModel(sure(share)))
            assert (found.outcome, found.rationale) == ("scored", None), name
            score = next(one for one in found.scores if one.metric == rated(judge))
            assert score.passed is passes, (name, share)
            assert score.probability is not None, name
            assert 0 <= score.value <= 1, name
            assert [one.metric for one in found.scores] == list(judge.metric_names), name


def test_a_calibration_moves_the_threshold_and_makes_another_version() -> None:
    for name, judge in FORMS.items():
        calibration = Calibration(threshold=0.95, platt=(1.0, 1.0))
        strict = judge.for_decisions({rated(judge): calibration})
        model = DecisionModel(sure(0.9))
        found = asyncio.run(evaluate(strict, served(judge, SHORT), model))
        score = next(one for one in found.scores if one.metric == rated(judge))
        raw = found.details["uncalibrated"][rated(judge)]
        assert score.probability == pytest.approx(calibration.apply(raw)), name
        assert score.passed is (score.probability >= 0.95), name
        versions = {judge.version, judge.for_decisions({}).version, strict.version}
        versions.add(judge.for_decisions({rated(judge): Calibration(threshold=0.6)}).version)
        assert len(versions) == 4, name
        assert judge.for_decisions({}).version == judge.for_decisions({}).version, name


def test_answers_that_cannot_be_used_leave_the_trace_unscored() -> None:
    problems = ("refusal", "incomplete", "invalid_answer", "out_of_range")
    for name, judge in FORMS.items():
        for problem in problems:
            found = judged(judge, DecisionModel(lambda _question, problem=problem: Decision(problem=problem)))
            assert (found.outcome, found.reason) == ("unscored", problem), (name, problem)
            assert found.calls[0].status == "ok", name
        found = judged(judge, DecisionModel(lambda _question: None))
        assert (found.outcome, found.reason) == ("unscored", "incomplete"), name


def test_requests_show_the_material_and_hold_no_more_questions_than_endpoints_take() -> None:
    for name, judge in FORMS.items():
        for trace in (SHORT, LONG):
            model = DecisionModel(sure(0.9))
            judged(judge, model, trace)
            for request in model.requests:
                assert 1 <= len(request.questions) <= 400, name
                assert request.messages[1].content.startswith("The key of this request is"), name
                assert all(question.instructions for question in request.questions), name


def test_only_forms_of_pairs_are_for_classifiers() -> None:
    classifier = ModelSettings(provider="classifier", base_url="http://localhost", model="nli")
    pairs = {name for name, judge in FORMS.items() if "classifier" in judge.forms}
    assert {"groundedness", "correctness", "context_sufficiency"} <= pairs
    for name, judge in catalogue().items():
        if name in pairs:
            form = judge.for_model(classifier)
            questions = [one for prompt in form.prompts(served(judge, SHORT)) for one in prompt.questions]
            assert all(question.pair and all(question.pair) for question in questions), name
        else:
            with pytest.raises(ValueError, match=f"{name} cannot be asked of a"):
                judge.for_model(classifier)
    assert {name for name, judge in catalogue().items() if judge.unit == "session"}.isdisjoint(FORMS)
    assert catalogue()["safety"].for_model(ModelSettings(model="chat")) is catalogue()["safety"]
    assert DECIDES.decides
