"""A judge that is asked several times: one assessment, by the majority or the median, and what its votes are worth."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from judge_traces import SHORT, yes_no_text
from support.cases import each_case
from support.virtual_time import run_virtually

from judges.agreement.effective_votes import effective_votes
from judges.calling.evaluation import evaluate
from judges.calling.samples import ask_repeatedly, join_samples
from judges.core.judge import Exploration, Judge, Limits, Metric
from judges.core.verdict import Assessment, Score
from judges.endpoints.client import LimitedModel
from judges.models.scripted import ScriptedModel, Step
from judges.registry import catalogue

GROUNDEDNESS = catalogue()["groundedness"]
THREE = replace(GROUNDEDNESS, samples=3)
YES, NO = (yes_no_text(result, f"Let's think step by step. So {result}.") for result in ("yes", "no"))
GRADE = Metric("m", "1..5", "4 or more", pass_at=0.75)
KIND = Metric("m", "good | fair | bad", "good or fair")
SHARE = Metric("m", "0..1", None)


def asking(answer: Any, number: int) -> Assessment:
    """Build the assessment of an answer: a grade, a share, a label, `?` for an abstention, or a reason."""
    score = Score("m", float(answer != "bad"), answer, answer, answer != "bad")
    if isinstance(answer, str) and answer not in KIND.scale:
        return Assessment("abstained") if answer == "?" else Assessment("unscored", answer)  # type: ignore[arg-type]
    if not isinstance(answer, str):
        score = Score("m", answer / 5, answer, passed=answer >= 4 if isinstance(answer, int) else None)
    return Assessment("scored", scores=(score,), rationale=f"{number}")


@each_case(
    ("metric", "answers", "expected", "rationale"),
    [
        (GRADE, (5, 2, 4), (4, True), "2"),
        (GRADE, (4, 5), (4.5, True), "0"),
        (GRADE, (2, 3, 4, 5), "disagreement", None),
        (GRADE, (5, "refusal", "timeout", "timeout"), "timeout", None),
        (GRADE, (2, 3, "refusal", "timeout"), (2.5, False), "0"),
        (GRADE, (5, 1, "refusal"), "disagreement", None),
        (GRADE, (5, 1, "rate_limited"), "rate_limited", None),
        (GRADE, ("?", "?", 4), "abstained", None),
        (GRADE, ("?", 4, 4), (4, True), "1"),
        (GRADE, ("?", 4), "disagreement", None),
        (KIND, ("bad", "fair", "fair"), ("fair", True), "1"),
        (KIND, ("good", "good", "fair", "bad"), "disagreement", None),
        (SHARE, (0.2, 0.4, 0.9, 0.3), (pytest.approx(0.35), None), "1"),
    ],
)
def test_majority_and_median(metric: Metric, answers: Sequence[Any], expected: Any, rationale: str | None) -> None:
    joined = join_samples([asking(answer, number) for number, answer in enumerate(answers)], [metric])
    assert len(joined.details["samples"]) == len(answers)  # type: ignore[arg-type] # a list
    rated = [(score.raw, score.passed) for score in joined.scores]
    assert (rated, rated and joined.rationale) == (([], []) if isinstance(expected, str) else ([expected], rationale))
    assert isinstance(expected, tuple) or expected in {joined.outcome, joined.reason}


def test_metrics_are_decided_one_by_one_and_all_must_be() -> None:
    """A metric without a value in most askings is left out."""
    values = ((1.0, ()), (0.0, (Score("n", 0.3),)), (1.0, (Score("n", 0.7),)))
    three = [Assessment("scored", scores=(Score("m", tone, passed=tone > 0), *others)) for tone, others in values]
    metrics = GRADE, replace(SHARE, name="n")
    for askings, expected in ((three, [1.0, 0.5]), (three[:2], []), ([*three[:2], three[0]], [1.0])):
        assert [score.value for score in join_samples(askings, metrics).scores] == expected
    assert join_samples(three, metrics).details["spread"] == {"m": 1.0, "n": pytest.approx(0.4)}


def test_one_model_is_asked_side_by_side_at_a_temperature_above_0() -> None:
    model = ScriptedModel([Step(NO, delay_s=1.0), Step("no JSON"), Step(YES, delay_s=2.0), Step(YES)])
    assessment, took_s = run_virtually(timed(THREE, model))
    assert (took_s, assessment.rationale, assessment.scores[0].passed) == (2.0, "So yes.", True)
    # The unreadable answer is asked for once more, by its own asking.
    assert [len(model.requests), len(assessment.calls)] == [4, 4]
    assert {request.temperature for request in model.requests} == {1.0}
    assert len({request.evaluation for request in model.requests} - {""}) == 1
    votes: Any = assessment.details["samples"]
    assert sorted(vote["scores"]["groundedness"]["passed"] for vote in votes) == [False, True, True]
    warm = ScriptedModel([YES])
    for judge in (replace(THREE, temperature=0.4), GROUNDEDNESS):
        asyncio.run(evaluate(judge, SHORT, warm))
    assert [request.temperature for request in warm.requests] == [0.4, 0.4, 0.4, 0.0]
    assert len({replace(GROUNDEDNESS, samples=samples).version for samples in (1, 2, 3)}) == 3
    assert replace(THREE, samples=1).version == GROUNDEDNESS.version


async def timed(judge: Judge, model: ScriptedModel) -> tuple[Assessment, float]:
    assessment = await evaluate(judge, SHORT, LimitedModel(model), deadline_s=10.0)
    return assessment, asyncio.get_running_loop().time()


def test_limits_of_time_hold_for_each_asking_and_those_of_an_exploration_for_all() -> None:
    model = ScriptedModel([Step(YES), Step(YES, delay_s=99.0), Step(YES)])
    assessment, took_s = run_virtually(timed(THREE, model))
    assert (took_s, assessment.outcome) == (10.0, "scored")
    assert sorted(call.status for call in assessment.calls) == ["ok", "ok", "timeout"]
    limits = list[Limits | None]()

    async def ask(judge: Judge) -> Assessment:
        limits.append(judge.exploration and judge.exploration.limits)
        return Assessment("abstained")

    explored = Exploration(lambda _: pytest.fail("not opened"), Limits(max_rounds=9, max_tokens=3_000, max_usd=0.6))
    asyncio.run(ask_repeatedly(replace(THREE, exploration=explored), ask))
    assert limits == [Limits(max_rounds=9, max_tokens=1_000, max_usd=pytest.approx(0.2))] * 3


def test_effective_votes_are_those_of_the_formula() -> None:
    """Two members that agree on 80 of 100 traces, and pass half, have a correlation of .6; a constant one has none."""
    known = {2 / 1.6: {"11": 40, "00": 40, "10": 10, "01": 10}, 1.0: {"111": 30, "001": 30}, 2.0: {"10": 20, "01": 20}}
    for expected, traces in known.items():
        votes = effective_votes(traces)
        assert votes is not None
        assert votes.value == pytest.approx(expected), traces
        assert votes.low <= votes.value <= votes.high > 1.04, "few traces do not make it certain"
    for unknown in ({}, {"11": 20, "00": 9}, {"111": 900}, {"0": 90, "1": 9}, {"10": 90}):
        assert effective_votes(unknown) is None, unknown


@each_case(("number", "share", "same"), [(2, 0.8, 0.3), (3, 0.9, 0.5), (5, 0.7, 0.1), (3, 0.5, 0.9)])
def test_the_interval_covers_the_truth(number: int, share: float, same: float) -> None:
    """Each vote is the common one with the probability ``same ** 0.5``, which makes the correlation ``same``."""
    chance, truth, covered = random.Random(39), number / (1 + (number - 1) * same), 0
    for _ in range(300):
        traces: Counter[str] = Counter()
        for _ in range(100):
            common = chance.random() < share
            votes = (common if chance.random() < same**0.5 else chance.random() < share for _ in range(number))
            traces["".join(str(int(vote)) for vote in votes)] += 1
        limits = effective_votes(traces)
        covered += limits is None or limits.low <= truth <= limits.high
    assert covered > 0.92 * 300
