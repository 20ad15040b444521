"""A judge that is asked several times: one assessment, by the majority or the median, with all calls and votes."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from judge_traces import SHORT, yes_no_text
from support.cases import each_case
from support.virtual_time import run_virtually

from judges.calling.evaluation import evaluate
from judges.calling.samples import ask_repeatedly, join_samples
from judges.core.exploration import Exploration, Limits
from judges.core.judge import Judge, Metric
from judges.core.model import ChatRequest
from judges.core.verdict import Assessment, Score
from judges.models.scripted import ScriptedModel, Step
from judges.registry import catalogue

GROUNDEDNESS = catalogue()["groundedness"]
THREE = replace(GROUNDEDNESS, samples=3)
YES, NO = (yes_no_text(result, f"Let's think step by step. So {result}.") for result in ("yes", "no"))
GRADE = Metric("tone", "1..5", "4 or more", pass_at=0.75)
KIND = Metric("kind", "good | fair | bad", "good or fair")
SHARE = Metric("share", "0..1", None)


def asking(metric: Metric, answer: Any, number: int) -> Assessment:
    """Build the assessment of an answer: a rating, a reason why there is none, or `?` for an abstention."""
    if answer == "?":
        return Assessment("abstained")
    if isinstance(answer, str) and len(answer) > 4:
        return Assessment("unscored", answer, note=f"{number}")  # type: ignore[arg-type] # a reason
    if metric is GRADE:
        score = Score("tone", (answer - 1) / 4, float(answer), passed=answer >= 4)
    elif metric is KIND:
        score = Score("kind", float(answer != "bad"), answer, answer, answer != "bad")
    else:
        score = Score("share", answer, answer)
    return Assessment("scored", scores=(score,), rationale=f"{number}")


@each_case(
    ("metric", "answers", "expected", "rationale"),
    [
        (GRADE, (5, 2, 4), (4.0, True), "2"),
        (GRADE, (1, 5, 3), (3.0, False), "2"),
        (GRADE, (4, 5), (4.5, True), "0"),
        (GRADE, (4, 3), "disagreement", None),
        (GRADE, (2, 4, 4, 5), (4.0, True), "1"),
        (GRADE, (2, 3, 4, 5), "disagreement", None),
        (GRADE, (5, "refusal", "refusal"), "refusal", None),
        (GRADE, (5, "refusal", "timeout", "timeout"), "timeout", None),
        (GRADE, (2, 3, "refusal", "timeout"), (2.5, False), "0"),
        (GRADE, (5, 1, "refusal"), "disagreement", None),
        (GRADE, (5, 1, "rate_limited"), "rate_limited", None),
        (GRADE, ("?", "?", 4), "abstained", None),
        (GRADE, ("?", 4, 4), (4.0, True), "1"),
        (GRADE, ("?", 4), "disagreement", None),
        (KIND, ("bad", "fair", "fair"), ("fair", True), "1"),
        (KIND, ("good", "fair", "bad"), "disagreement", None),
        (KIND, ("good", "good", "fair", "bad"), "disagreement", None),
        (SHARE, (0.2, 0.9, 0.5), (0.5, None), "2"),
        (SHARE, (0.2, 0.4, 0.9, 0.3), (pytest.approx(0.35), None), "1"),
    ],
)
def test_majority_median_and_what_has_none(
    metric: Metric, answers: Sequence[Any], expected: Any, rationale: str | None
) -> None:
    joined = join_samples([asking(metric, answer, number) for number, answer in enumerate(answers)], [metric])
    assert len(joined.details["samples"]) == len(answers)  # type: ignore[arg-type] # a list
    if isinstance(expected, str):
        assert expected in {joined.outcome, joined.reason}
        assert joined.scores == ()
    else:
        (score,) = joined.scores
        assert ((score.raw, score.passed), joined.rationale) == (expected, rationale)


def test_metrics_are_decided_one_by_one() -> None:
    """A metric without a value in most askings is left out; one without a majority leaves the verdict without a score."""
    both = [
        Assessment("scored", scores=(Score("tone", tone, passed=tone > 0.5), *share), rationale=f"{number}")
        for number, (tone, share) in enumerate([(1.0, ()), (0.0, (Score("share", 0.3),)), (1.0, (Score("share", 0.7),))])
    ]
    joined = join_samples(both, [GRADE, SHARE])
    assert ([score.value for score in joined.scores], joined.rationale) == ([1.0, 0.5], "2")
    assert joined.details["spread"] == {"tone": 1.0, "share": pytest.approx(0.4)}
    assert [score.metric for score in join_samples(both[:2], [GRADE, SHARE]).scores] == []
    assert [score.metric for score in join_samples([both[0], both[0], both[1]], [GRADE, SHARE]).scores] == ["tone"]


def test_one_model_is_asked_side_by_side_at_a_temperature_above_0() -> None:
    model = ScriptedModel([Step(NO, delay_s=1.0), Step("no JSON"), Step(YES, delay_s=2.0), Step(YES)])
    assessment, took_s = run_virtually(timed(THREE, model))
    assert (took_s, assessment.outcome, assessment.rationale) == (2.0, "scored", "So yes.")
    assert [score.passed for score in assessment.scores] == [True]
    # The unreadable answer is asked for once more, by its own asking.
    assert [len(model.requests), len(assessment.calls)] == [4, 4]
    assert {(request.temperature, bool(request.evaluation)) for request in model.requests} == {(1.0, True)}
    assert len({request.evaluation for request in model.requests}) == 1
    votes: Any = assessment.details["samples"]
    assert sorted(vote["scores"]["groundedness"]["passed"] for vote in votes) == [False, True, True]
    warm = ScriptedModel([YES])
    asyncio.run(evaluate(replace(THREE, temperature=0.4), SHORT, warm))
    asyncio.run(evaluate(GROUNDEDNESS, SHORT, warm))
    assert [request.temperature for request in warm.requests] == [0.4, 0.4, 0.4, 0.0]


async def timed(judge: Judge, model: ScriptedModel) -> tuple[Assessment, float]:
    begun = asyncio.get_running_loop().time()
    assessment = await evaluate(judge, SHORT, model, deadline_s=10.0)
    return assessment, asyncio.get_running_loop().time() - begun


def test_an_asking_that_takes_too_long_is_missing() -> None:
    model = ScriptedModel([Step(YES), Step(YES, delay_s=99.0), Step(YES)])
    assessment, took_s = run_virtually(timed(THREE, model))
    assert (took_s, assessment.outcome) == (10.0, "scored")
    assert sorted(call.status for call in assessment.calls) == ["ok", "ok", "timeout"]
    without = asyncio.run(evaluate(THREE, SHORT.__class__(trace_id="a", service="b", output="c"), model))
    assert (without.reason, without.calls) == ("missing_input", ())


def test_limits_of_an_exploration_hold_for_all_askings() -> None:
    explored = Exploration(lambda _: pytest.fail("not opened"), Limits(max_rounds=9, max_tokens=3_000, max_usd=0.6))
    asked = list[Judge]()

    async def ask(judge: Judge) -> Assessment:
        asked.append(judge)
        return Assessment("abstained")

    asyncio.run(ask_repeatedly(replace(THREE, exploration=explored), ask))
    limits = [judge.exploration and judge.exploration.limits for judge in asked]
    assert limits == [Limits(max_rounds=9, max_tokens=1_000, max_usd=pytest.approx(0.2))] * 3


def test_the_number_is_part_of_the_version() -> None:
    assert len({replace(GROUNDEDNESS, samples=samples).version for samples in (1, 2, 3)}) == 3
    assert replace(GROUNDEDNESS, samples=1).version == GROUNDEDNESS.version


def test_an_error_of_one_asking_ends_all() -> None:
    def fail(_: ChatRequest) -> str:
        raise RuntimeError

    with pytest.raises(ExceptionGroup):
        asyncio.run(evaluate(THREE, SHORT, ScriptedModel([fail])))
