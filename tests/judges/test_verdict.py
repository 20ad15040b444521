"""Verdicts: ids and encoding, the verdict of several models, and of one model that is asked several times."""

import asyncio
import itertools
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judge_traces import SHORT, table, yes_no_text
from support.cases import each_case
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


names = st.text(st.sampled_from("a1:;0"), max_size=4)
any_parts = st.builds(Parts, names, names, names, names, names, names, st.integers(0, 20))


class TestEvaluationId:
    def test_is_the_same_in_every_release(self) -> None:
        """Pinned: with another name, traces that were judged already would be judged again."""
        parts = Parts("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", "p-1", "safety", "v" * 32, "gpt-4.1-mini")
        assert parts.evaluation_id == "ebb9b28286814a10a46708581ef7852c"

    def test_does_not_depend_on_the_texts_of_the_trace(self) -> None:
        traces = [Trace(trace_id="1", service=text, output=text, input=text) for text in "ab"]
        one, other = (evaluation_id(trace, "p", judge="j", version="v", judge_model="m") for trace in traces)
        assert one == other
        assert Parts(span_id=None).evaluation_id == Parts(span_id="").evaluation_id

    def test_differs_with_each_part_and_by_the_borders_between_them(self) -> None:
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

    @given(any_parts, any_parts)
    @settings(deadline=None)
    def test_no_choice_of_texts_makes_two_evaluations_one(self, one: Parts, other: Parts) -> None:
        assert (one.evaluation_id == other.evaluation_id) == (one == other)
        assert re.fullmatch("[0-9a-f]{32}", one.evaluation_id)


class TestReasons:
    def test_are_those_of_the_contract_each_final_or_passing(self) -> None:
        assert (set(TABLES["final"]), set(TABLES["passing"])) == (FINAL_REASONS, PASSING_REASONS)
        assert len(REASONS) == len(set(REASONS))
        every = {name for part in get_args(Reason) for name in get_args(part)}
        assert set(REASONS) == FINAL_REASONS | PASSING_REASONS == every
        assert not FINAL_REASONS & PASSING_REASONS

    def test_only_final_ones_or_an_answer_end_an_evaluation(self) -> None:
        for reason in REASONS:
            assert Assessment("unscored", reason).is_final == (reason in FINAL_REASONS)
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

    raw = st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
    text = st.none() | st.text()

    @given(st.builds(Score, st.text(), st.floats(0, 1), raw, text, st.none() | st.booleans(), text))
    @settings(deadline=None)
    def test_any_score_comes_back_as_it_went(self, score: Score) -> None:
        assert msgspec.json.decode(msgspec.json.encode(score), type=Score) == score

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


COMBINED = table("agreement")
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
    for mode, results, passed, disagreement in COMBINED["yes and no"]:
        combined = combine(mode, answers_of(results), (YES_NO,))
        assert result(combined) == (float(passed), passed, disagreement), (mode, results)
    assert result(combine("mean", answers_of("yyn"), (YES_NO,))) == (pytest.approx(2 / 3), True, 2 / 3)
    assert result(combine("mean", answers_of("yn"), (YES_NO,))) == (0.5, False, 1.0), "a tie does not pass"
    modes: dict[Combine, str] = {"majority": "pass", "all": "fail", "min": "no", "max": "yes"}
    for of, label in modes.items():
        score, _ = combine(of, answers_of("yyn"), (YES_NO,)).scores
        assert (score.label, score.rationale) == (label, None), "a model's label or the decision"


def test_grades() -> None:
    for mode, grades, value, passed in COMBINED["grades"]:
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
        (SHARE_OF_M, (0.2, 0.4, 0.9, 0.3), (pytest.approx(0.35), None), "1"),
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
    for _ in range(300):
        traces: Counter[str] = Counter()
        for _ in range(100):
            common = chance.random() < share
            votes = (common if chance.random() < same**0.5 else chance.random() < share for _ in range(number))
            traces["".join(str(int(vote)) for vote in votes)] += 1
        limits = effective_votes(traces)
        covered += limits is None or limits.low <= truth <= limits.high
    assert covered > 0.92 * 300
