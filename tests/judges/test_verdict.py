"""Verdicts: ids and encoding, the verdict of several models, and of one model that is asked several times."""

import asyncio
import itertools
import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from judge_traces import SHORT, table, yes_no_text
from support.cases import each_case
from support.tables import check_golden
from support.virtual_time import run_virtually

from judges.agreement.effective_votes import effective_votes
from judges.calling.evaluation import evaluate
from judges.calling.samples import ask_repeatedly, join_samples
from judges.core.combine import Combine, combine, metrics_of
from judges.core.judge import Exploration, Judge, Limits, Metric
from judges.core.verdict import (
    FINAL_REASONS,
    PASSING_REASONS,
    REASONS,
    Assessment,
    Call,
    Reason,
    Score,
    Verdict,
    evaluation_id,
)
from judges.endpoints.client import LimitedModel
from judges.models.scripted import ScriptedModel, Step
from judges.registry import catalogue
from tracejudge import Trace

TABLES = table("verdict")
SCORE = Score("truth", 0.75, 4.0, "Good", passed=True, rationale="Almost all of it holds.")
CALL = Call(1.5, 0.25, "ok", 100, 20, "chatcmpl-1", "m-2", "stop")
FULL, SMALL = (msgspec.convert(TABLES[name], Verdict) for name in ("full", "small"))


class Parts(NamedTuple):
    """What an evaluation is named after."""

    trace_id: str = "1"
    span_id: str | None = "2"
    publication: str = "3"
    judge: str = "4"
    version: str = "5"
    judge_model: str = "6"
    repeat: int = 0

    @property
    def evaluation_id(self) -> str:
        trace = Trace(trace_id=self.trace_id, service="s", output="", span_id=self.span_id)
        return evaluation_id(trace, self.publication, **dict(list(self._asdict().items())[3:]))


class TestEvaluationId:
    def test_is_the_same_in_every_release(self) -> None:
        """Pinned: with another name, traces that were judged already would be judged again."""
        parts = Parts("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", "p-1", "safety", "v" * 32, "gpt-4.1-mini")
        assert parts.evaluation_id == "ebb9b28286814a10a46708581ef7852c"

    def test_differs_with_each_part_and_by_the_borders_between_them_and_by_no_text(self) -> None:
        changed = [Parts()._replace(**{part: 1 if part == "repeat" else "changed"}) for part in Parts._fields]
        assert len({each.evaluation_id for each in (Parts(), *changed)}) == 8
        for one, other in (
            (Parts("ab", ""), Parts("a", "b")),
            (Parts(judge_model="m1", repeat=0), Parts(judge_model="m", repeat=10)),
            (Parts(judge="j;1:v", version=""), Parts(judge="j", version="v")),
            (Parts(publication="c;1:j", judge=""), Parts(publication="c", judge="j")),
            (Parts("a", "b"), Parts("b", "a")),
        ):
            assert one.evaluation_id != other.evaluation_id, (one, other)
        traces = [Trace(trace_id="1", service=text, output=text, input=text) for text in "ab"]
        assert len({evaluation_id(trace, "p", judge="j", version="v", judge_model="m") for trace in traces}) == 1
        assert Parts(span_id=None).evaluation_id == Parts(span_id="").evaluation_id


def test_reasons_are_those_of_the_contract_each_final_or_passing() -> None:
    assert (set(TABLES["final"]), set(TABLES["passing"])) == (FINAL_REASONS, PASSING_REASONS)
    every = [name for part in get_args(Reason) for name in get_args(part)]
    assert sorted(REASONS) == sorted(every) == sorted([*FINAL_REASONS, *PASSING_REASONS])
    assert {reason for reason in REASONS if Assessment("unscored", reason).is_final} == FINAL_REASONS
    assert Assessment("scored").is_final
    assert Assessment("abstained").is_final


class TestEncoding:
    def test_a_verdict_and_an_assessment_come_back_as_they_went(self) -> None:
        for verdict in (FULL, SMALL):
            for wire in (msgspec.json, msgspec.msgpack):
                assert wire.decode(wire.encode(verdict), type=Verdict) == verdict
        details = ("why", {"a": [1]}, (CALL,))
        assessment = Assessment("unscored", "rate_limited", (SCORE,), *details, note="wait", retry_after_s=2.5)
        assert msgspec.json.decode(msgspec.json.encode(assessment), type=Assessment) == assessment

    def test_absent_fields_are_not_written(self) -> None:
        assert msgspec.json.decode(msgspec.json.encode(SMALL)) == TABLES["small"]
        failed = msgspec.json.encode(Score("safety", 1.0, passed=False))
        assert failed == b'{"metric":"safety","value":1.0,"passed":false}'

    def test_a_field_of_a_later_version_is_passed_over_and_a_word_off_the_lists_refused(self) -> None:
        later = {**msgspec.to_builtins(SMALL), "colour": "blue"}
        assert msgspec.json.decode(msgspec.json.encode(later), type=Verdict) == SMALL
        for change in ({"outcome": "fine"}, {"reason": "tired"}, {"origin": "dream"}):
            with pytest.raises(msgspec.ValidationError):
                msgspec.convert({**msgspec.to_builtins(SMALL), **change}, Verdict)


def test_an_explanation_holds_the_reasons_of_all_sentences_that_do_not_pass() -> None:
    sentences = [{"label": "unsupported", "rationale": "No."}, {"label": "supported"}, {"rationale": "Neither."}, 7]
    score, own = Score("grounded", 0.0), Score("relevance", 1.0, rationale="Own.")
    failing = msgspec.structs.replace(FULL, rationale="1 of 3. Sentence 1: No.", details={"sentences": sentences})
    assert failing.explanation(score) == "1 of 3. Sentence 1: No.\nSentence 3: Neither."
    assert failing.explanation(own) == "Own."
    support = [{"response_sentence_key": "b", "explanation": "Too much."}, {"sentence_key": "D1_S2", "explanation": ""}]
    keyed = msgspec.structs.replace(FULL, rationale=None, details={"sentence_support": support, "sentences": "none"})
    assert keyed.explanation(score) == "Sentence b: Too much."
    assert msgspec.structs.replace(FULL, rationale=None, details={}).explanation(score) is None


YES_NO = Metric("safety", "0 or 1", "yes")
GRADED = Metric("relevance", "1..5", "4 or more", pass_at=0.75)
SHARE = Metric("supported_share", "0..1", None)
TONE = Metric("tone", "labels", "warm")
MODES: tuple[Combine, ...] = ("majority", "mean", "min", "max", "all")
ABSTAINED = Assessment("abstained")


def scored(*scores: Score) -> Assessment:
    return Assessment("scored", scores=scores)


def named(*assessments: Assessment) -> dict[str, Assessment]:
    return {f"m{number}": each for number, each in enumerate(assessments)}


SAFE = Score("safety", 1.0, label="yes", passed=True, rationale="So.")
UNSAFE = Score("safety", 0.0, label="no", passed=False, rationale="So.")
VOTES = {
    "y": scored(SAFE),
    "n": scored(UNSAFE),
    **{str(grade): scored(Score("relevance", (grade - 1) / 4, grade, passed=grade >= 4)) for grade in range(1, 6)},
    **{name: scored(Score("supported_share", share)) for name, share in (("l", 0.3), ("m", 0.6), ("h", 0.9))},
    # Labels may share a number, and the pass set hold one of them: of equal values a tie does not pass.
    "w": scored(Score("tone", 1.0, 5.0, "warm", passed=True)),
    "g": scored(Score("tone", 1.0, 5.0, "gushing", passed=False)),
    "Y": scored(SAFE, Score("supported_share", 1.0)),
    "Z": scored(SAFE, Score("supported_share", 0.0)),
    "N": scored(UNSAFE, Score("supported_share", 0.5)),
    "?": ABSTAINED,
    **{letter: Assessment("unscored", reason) for letter, reason in TABLES["unscored"].items()},
}


def described(score: Score) -> list[object]:
    return [round(part, 4) if isinstance(part, float) else part for part in msgspec.structs.astuple(score)]


def test_verdicts_of_any_panel_are_those_of_the_golden_file() -> None:
    """A letter is a model; in the golden file are scores, or the reason why too few have scored."""
    written = []
    for metrics, panels in (
        ((YES_NO,), "yyn ynn yn yynn yy nyn nn yyy yyi yy? yni nii yn? ni yi y? y?i y?ii yyii yn?? tri trb"),
        ((GRADED,), "53 542 444 551 522 54 52"),
        ((SHARE,), "lmh"),
        ((TONE,), "wg gw"),
        ((YES_NO, SHARE), "YNZ YNy Yyy"),
    ):
        written.append(f"## {metrics_of(metrics)}")
        for panel, mode in itertools.product(panels.split(), MODES):
            combined = combine(mode, named(*map(VOTES.__getitem__, panel)), metrics)
            scores = [described(each) for each in combined.scores]
            assert not combined.calls
            why = combined.rationale or f"{combined.outcome} {combined.reason}: {combined.note}"
            written.append(f"{panel} {mode}: {json.dumps(scores)} {why!r}")
        written.append(json.dumps(combined.details))
    check_golden(Path(__file__).with_name("golden_combined.txt"), "\n".join(written) + "\n")


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
        shares = (scored(Score("supported_share", value, value)) for value in values)
        _, disagreement = combine("mean", named(*shares), (SHARE,)).scores
        assert (disagreement.value == 0) == (len(set(values)) == 1)
        pairs = list(itertools.combinations(values, 2))
        assert disagreement.value == pytest.approx(sum(abs(each - other) for each, other in pairs) / len(pairs))


GROUNDEDNESS = catalogue()["groundedness"]
THREE = replace(GROUNDEDNESS, samples=3)
YES, NO = (yes_no_text(result, f"Let's think step by step. So {result}.") for result in ("yes", "no"))
GRADE = Metric("m", "1..5", "4 or more", pass_at=0.75)
KIND = Metric("m", "good | fair | bad", "good or fair")
SHARE_OF_M = Metric("m", "0..1", None)


def asking(answer: Any, number: int) -> Assessment:
    """Build the assessment of an answer: a grade, a share, a label, `?` for an abstention, or a reason."""
    score = Score("m", float(answer != "bad"), answer, answer, answer != "bad")
    if isinstance(answer, str) and answer not in KIND.scale:
        return Assessment("abstained") if answer == "?" else Assessment("unscored", answer)  # type: ignore[arg-type]
    if not isinstance(answer, str):
        score = Score("m", answer / 5, answer, passed=answer >= 4 if isinstance(answer, int) else None)
    return Assessment("scored", scores=(score,), rationale=f"{number}")


def test_majority_and_median() -> None:
    metrics = {"grade": GRADE, "kind": KIND, "share": SHARE_OF_M}
    for name, answers, expected, rationale in TABLES["samples"]:
        joined = join_samples([asking(answer, number) for number, answer in enumerate(answers)], [metrics[name]])
        assert len(joined.details["samples"]) == len(answers)  # type: ignore[arg-type] # a list
        if isinstance(expected, str):
            assert (joined.scores, expected in {joined.outcome, joined.reason}) == ((), True), answers
        else:
            (score,) = joined.scores
            raw = score.raw if isinstance(score.raw, str) else pytest.approx(score.raw)
            assert ([raw, score.passed], joined.rationale) == (expected, rationale), answers


def test_metrics_are_decided_one_by_one_and_all_must_be() -> None:
    """A metric without a value in most askings is left out."""
    values = ((1.0, ()), (0.0, (Score("n", 0.3),)), (1.0, (Score("n", 0.7),)))
    three = [Assessment("scored", scores=(Score("m", tone, passed=tone > 0), *others)) for tone, others in values]
    metrics = GRADE, replace(SHARE_OF_M, name="n")
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
    for _ in range(120):
        traces: Counter[str] = Counter()
        for _ in range(100):
            common = chance.random() < share
            votes = (common if chance.random() < same**0.5 else chance.random() < share for _ in range(number))
            traces["".join(str(int(vote)) for vote in votes)] += 1
        limits = effective_votes(traces)
        covered += limits is None or limits.low <= truth <= limits.high
    assert covered > 0.92 * 120
