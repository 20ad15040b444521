"""Each judge as decision models are asked: what its answers mean, and what becomes of those that cannot be used."""

import asyncio

import pytest
from deciding import DECIDES, DecisionModel, sure
from judge_traces import ASKING, LONG, SHORT, served
from msgspec import structs
from support.decision_endpoint import MODEL, DecisionEndpoint

from judges.calling.evaluation import evaluate
from judges.core.decision import Calibration, Decision
from judges.core.judge import Judge
from judges.core.model import ModelSettings
from judges.core.verdict import Assessment
from judges.custom import define
from judges.endpoints.client import DelayNotes, offline_model
from judges.models.registry import build, decides, judge_for
from judges.registry import catalogue
from tracejudge import Trace

FORMS = {name: judge for name, judge in catalogue().items() if judge.decision_form is not None}


def judged(judge: Judge, model: DecisionModel, trace: Trace = SHORT) -> Assessment:
    return asyncio.run(evaluate(judge_for(judge, model.settings), served(judge, trace), model))


def rated(judge: Judge) -> str:
    """Name the first metric that passes or fails."""
    return next(metric.name for metric in judge.metrics if metric.pass_rule is not None)


def test_each_judge_passes_and_fails_by_the_probabilities() -> None:
    for name, judge in FORMS.items():
        for share, passes in ((0.9, True), (0.05, False)):
            assessment = judged(judge, DecisionModel(sure(share)))
            assert assessment.outcome == "scored", name
            score = next(result for result in assessment.scores if result.metric == rated(judge))
            assert score.passed is passes, (name, share)
            assert score.probability is not None, name
            assert 0 <= score.value <= 1, name
            # Completeness has no value where no sentence is relevant.
            assert {result.metric for result in assessment.scores} | {"completeness"} >= {*judge.metric_names}, name


def test_a_calibration_moves_the_threshold_and_makes_another_version() -> None:
    for name, judge in FORMS.items():
        calibration = Calibration(threshold=0.95, platt=(1.0, 1.0))
        strict = judge.for_decisions({rated(judge): calibration})
        model = DecisionModel(sure(0.9))
        assessment = asyncio.run(evaluate(strict, served(judge, SHORT), model))
        score = next(result for result in assessment.scores if result.metric == rated(judge))
        raw = assessment.details["uncalibrated"][rated(judge)]
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
            assessment = judged(judge, DecisionModel(lambda _question, problem=problem: Decision(problem=problem)))
            assert (assessment.outcome, assessment.reason) == ("unscored", problem), (name, problem)
            assert assessment.calls[0].status == "ok", name
        assessment = judged(judge, DecisionModel(lambda _question: None))
        assert (assessment.outcome, assessment.reason) == ("unscored", "incomplete"), name


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
    for name, judge in ASKING.items():
        if name in pairs:
            form = judge_for(judge, classifier)
            questions = [each for prompt in form.prompts(served(judge, SHORT)) for each in prompt.questions]
            assert all(question.pair and all(question.pair) for question in questions), name
        else:
            with pytest.raises(ValueError, match=f"{name} cannot be asked of a"):
                judge_for(judge, classifier)
    assert {name for name, judge in catalogue().items() if judge.unit == "session"}.isdisjoint(FORMS)
    assert judge_for(catalogue()["safety"], ModelSettings(model="chat")) is catalogue()["safety"]
    assert decides(DECIDES)


def test_judges_in_words_are_asked_by_their_result() -> None:
    text = "Is {{ outputs }} polite?"
    labels = {"labels": ["formal", "casual"], "pass": ["formal"]}
    worth = {"good": 3.0, "fair": 2.0, "bad": 1.0}
    cases: list[tuple[object, str, float, tuple[float, object, str | None, bool | None]]] = [
        ("yes/no", "predicate", 0.9, (1.0, 1.0, "yes", True)),
        ("boolean", "predicate", 0.2, (0.0, 0.0, "false", False)),
        (labels, "choice", 0.8, (1.0, "formal", "formal", True)),
        ({"labels": worth, "pass": ["good"]}, "choice", 0.8, (0.85, 3.0, "good", True)),
        ({"integer": [1, 3], "pass_at": 3}, "score", 0.8, (0.85, 2.7, None, True)),
        ({"integer": [1, 3], "pass_at": 1, "direction": "lower"}, "score", 0.8, (0.15, 2.7, None, False)),
        ({"integer": [1, 3]}, "score", 0.8, (0.85, 2.7, None, None)),
    ]
    for result, kind, share, (value, raw, label, passed) in cases:
        judge = define("tone", {"instructions": text, "result": result})
        model = DecisionModel(sure(share))
        assessment = judged(judge, model)
        (score,) = assessment.scores
        assert [question.kind for question in model.requests[0].questions] == [kind], result
        assert text in model.requests[0].questions[0].instructions, result
        assert (score.value, score.raw) == (pytest.approx(value), pytest.approx(raw) if kind == "score" else raw), (
            result
        )
        assert (score.label, score.passed) == (label, passed), result
        assert (score.probability is None) is (passed is None), result
    for result in ("text", {"number": [0.0, 1.0]}, {"integer": [0, 100]}):
        assert define("tone", {"instructions": text, "result": result}).forms == ("chat",), result
    assert define("tone", {"instructions": "Did {{ trace }} loop?"}).forms == ("chat",)
    chosen = define("tone", {"custom_prompt": "Is {{ outputs }} [[good]] or [[bad]]?", "pass": ["good"]})
    assert chosen.forms == ("chat", "decisions")


def test_guidance_is_part_of_the_questions_and_metrics_keep_the_name_of_the_judge() -> None:
    judge = define("strict", {"based_on": "groundedness", "guidance": ["Rounded figures fail."]})
    model = DecisionModel(sure(0.9))
    form = judge_for(judge, model.settings, {"strict": Calibration(threshold=0.95)})
    assessment = asyncio.run(evaluate(form, served(judge, SHORT), model))
    assert "Rounded figures fail." in model.requests[0].messages[0].content
    assert [(result.metric, result.passed) for result in assessment.scores] == [("strict", False)]
    assert assessment.details == {"uncalibrated": {"strict": 0.9}}


def test_many_questions_are_divided_into_several_requests() -> None:
    documents = [" ".join(f"Fact {number}-{place} holds." for place in range(10)) for number in range(45)]
    rules = [f"Rule number {number} is kept." for number in range(401)]
    trace = Trace(**{**structs.asdict(SHORT), "context": documents, "guidelines": rules, "expected_response": None})
    for name, questions in (("ragbench", 901), ("guidelines", 401)):
        model = DecisionModel(sure(0.9))
        assessment = judged(catalogue()[name], model, trace)
        sizes = [len(request.questions) for request in model.requests]
        assert (sum(sizes), max(sizes)) == (questions, 400), name
        assert assessment.outcome == "scored", name
        assert len(assessment.calls) == len(sizes), name


def test_grounding_is_that_of_the_least_grounded_sentence_with_a_passage_that_was_looked_up() -> None:
    trace = Trace(
        trace_id="1" * 32,
        service="shop",
        input="How long?",
        output="The warranty runs for two years. The moon is far.",
        context=["All devices come with a warranty of two years. Loans are free."],
    )
    answers = iter([Decision((0.9, 0.05, 0.0, 0.05)), Decision((0.1, 0.6, 0.2, 0.1))])
    assessment = judged(catalogue()["facts_grounding"], DecisionModel(lambda _question: next(answers)), trace)
    by_metric = {result.metric: result for result in assessment.scores}
    assert by_metric["grounded"].probability == pytest.approx(0.2)
    assert (by_metric["grounded"].passed, by_metric["supported_share"].value) == (False, 0.5)
    first, second = assessment.details["sentences"]
    assert first["passage"] == "All devices come with a warranty of two years."
    assert "passage" not in second
    assert "looked up" in assessment.details["passages"]


def test_precision_is_the_expected_share_and_passes_by_the_number_of_relevant_documents() -> None:
    judge = catalogue()["retrieval_relevance"].configured({"pass_at": 0.5})
    trace = Trace(**{**structs.asdict(SHORT), "context": ["One.", "Two."]})
    answers = iter([Decision((0.8,)), Decision((0.4,))])
    assessment = judged(judge, DecisionModel(lambda _question: next(answers)), trace)
    assert assessment.scores[0].value == pytest.approx(0.6)
    assert assessment.scores[0].probability == pytest.approx(1 - 0.2 * 0.6)
    assert [result["retrieval_relevance"] for result in assessment.details["documents"]] == [1, 0]


def test_each_judge_through_both_dialects_of_an_endpoint() -> None:
    with DecisionEndpoint() as server:
        for dialect in ("openai", "systemone"):
            settings = ModelSettings(provider="decisions", dialect=dialect, base_url=server.base_url, model=MODEL)

            async def judge_all(settings: ModelSettings = settings) -> dict[str, Assessment]:
                model = offline_model(build(settings, {}), DelayNotes(60.0, lambda *_: None, ""))
                try:
                    return {
                        name: await evaluate(judge_for(judge, settings), served(judge, LONG), model)
                        for name, judge in FORMS.items()
                    }
                finally:
                    await model.aclose()

            for name, result in asyncio.run(judge_all()).items():
                assert result.outcome == "scored", (dialect, name, result.note)
                assert all(call.status == "ok" and call.input_tokens for call in result.calls), (dialect, name)
