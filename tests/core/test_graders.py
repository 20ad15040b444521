"""Which judge, in which form and version, is asked of which model, and the ids of what is chosen."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from support.judging import Workers, assert_settled, choose
from support.stages import HOUR, Keyspace, make_trace

from judges.core.decision import Calibration, Decision
from judges.core.judge import Judge
from judges.core.model import ChatRequest, ChatResponse, ModelSettings, Price
from judges.core.verdict import Assessment, Call, evaluation_id
from judges.registry import catalogue
from tracejudge import Trace
from worker.core.config.graders import Graders
from worker.core.config.loading import load
from worker.core.config.settings import COMBINE, JudgeCalibration, Rule, Settings
from worker.core.queue.batch import Evaluation, Item, make_verdict
from worker.core.selection.evaluations import EvaluationFactory
from worker.core.selection.sampling import Choice
from worker.core.selection.stream_entry import TraceEntry

DECIDER = ModelSettings(provider="decisions", base_url="http://localhost:9/v1", model="decider")
STRICT = JudgeCalibration(judge="safety", model="decider", threshold=0.95)
PRICE = Price(input=1.0, output=2.0)
# Lengths stand in what is hashed: signs of several bytes, digits and separators must not make two ids one.
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(["1:a;", "é;1:", "🙂", "1"])
LABELS = st.lists(TEXTS.filter(bool), min_size=2, max_size=3, unique=True)
JUDGES = {name: catalogue()[name] for name in ("safety", "relevance_to_query")}


def graders_of(labels: list[str], judges: Mapping[str, Judge] = JUDGES) -> Graders:
    models = {f"m{number}": ModelSettings(provider="lexical", label=label) for number, label in enumerate(labels)}
    rule = COMBINE.with_value(Rule(name="together", judges=("safety",), model=tuple(models)), "majority")
    return Graders(Settings(models=models, rules=(rule,)), judges)


def entry(trace_id: str, span_id: str | None, publication: str | None, payload: bytes = b"{}") -> TraceEntry:
    trace = Trace(trace_id=trace_id, service="shop", output="It is.", id=publication, span_id=span_id)
    return TraceEntry("1-0", None, trace, payload)


@given(
    trace_entry=st.builds(entry, TEXTS, st.none() | TEXTS, st.none() | TEXTS, st.binary()), scoring=TEXTS, labels=LABELS
)
def test_ids_are_those_of_the_verdicts(trace_entry: TraceEntry, scoring: str, labels: list[str]) -> None:
    """Ingest, late feedback and replays give the ids of `judges.core.verdict.evaluation_id`."""
    judge = replace(catalogue()["safety"], scoring=scoring)
    graders, version = graders_of(labels, {"safety": judge}), judge.version
    (panel,) = graders.panels
    names = [*(f"m{number}" for number in range(len(labels))), panel]
    chosen = EvaluationFactory(graders).make(trace_entry, [Choice("safety", name, 0.5) for name in names], "live")

    def named(judge_model: str) -> str:
        of_judge = {"judge": "safety", "version": version, "judge_model": judge_model}
        return evaluation_id(trace_entry.trace, trace_entry.publication_id, **of_judge)

    assert [evaluation.id for _, evaluation in chosen] == [named(name) for name in (*labels, panel)]
    members = [(member.judge_model, member.id) for member in chosen[-1].evaluation.members]
    assert members == [(name, named(name)) for name in sorted(labels)]
    assert [evaluation.version for _, evaluation in chosen] == [version] * len(chosen)


def test_a_factory_caches_judge_and_version_and_not_the_trace() -> None:
    """The judge, its version and who judges are remembered; trace, probability and origin are each one's own."""
    factory = EvaluationFactory(graders_of(["a", "b"]))
    first, second = entry("1" * 32, "2" * 16, "3" * 16), entry("4" * 32, None, None)
    choices = [Choice("safety", "m0", 1.0), Choice("relevance_to_query", "m0", 1.0), Choice("safety", "m1", 1.0)]
    of_first = factory.make(first, choices, "live")
    (again,) = factory.make(second, [choices[0]._replace(probability=0.25)], "replay")
    assert factory.make(first, choices, "live") == of_first
    assert len({choice.evaluation.id for choice in (*of_first, again)}) == 4
    assert [(choice.evaluation.judge, choice.evaluation.version, choice.evaluation.keep) for choice in of_first] == [
        (name, JUDGES[name].version, name == "safety") for name in ("safety", "relevance_to_query", "safety")
    ]
    other = {"id": again.evaluation.id, "probability": 0.25, "origin": "replay"}
    assert again.evaluation == msgspec.structs.replace(of_first[0].evaluation, **other)


def test_typed_questions_are_asked_and_the_calibration_decides(keyspace: Keyspace, new_worker: Workers) -> None:
    async def complete(request: ChatRequest) -> ChatResponse:
        assert [question.kind for question in request.questions] == ["predicate"]
        return ChatResponse("", input_tokens=10, output_tokens=1, decisions=(Decision((0.9,)),))

    for calibrations, passed in (((), True), ((STRICT,), False)):
        settings = {"models": {"default": DECIDER}, "calibrations": calibrations}
        (batch_id,) = choose(keyspace, 1, first=len(calibrations), **settings)
        worker = new_worker(**settings)
        worker.model.complete = complete  # type: ignore[method-assign]
        worker.run(batch_id)
        verdict = keyspace.outbox("j")[-1]
        (score,) = verdict["scores"]
        assert (score["passed"], score["probability"], score["value"]) == (passed, 0.9, float(passed))
        assert verdict["probability"] == 1.0, "that of sampling"
        by_metric = {"safety": STRICT.calibration} if calibrations else {}
        assert verdict["judge_version"] == catalogue()["safety"].for_decisions(by_metric).version
    assert_settled(keyspace, scored=2)


def test_versions_are_those_of_judge_and_model() -> None:
    chat, safety = ModelSettings(provider="lexical", label="words"), catalogue()["safety"]
    rule = COMBINE.with_value(Rule(name="all", judges=("safety",), model=("cheap", "words")), "mean")
    versions: list[str] = []
    for calibrations in ((), (STRICT,)):
        settings = Settings(models={"cheap": DECIDER, "words": chat}, rules=(rule,), calibrations=calibrations)
        graders = Graders(settings, catalogue())
        (panel,) = graders.panels
        by_model = {model: graders.version("safety", model) for model in ("decider", "words", panel)}
        assert by_model["words"] == safety.version == graders.version("safety", "of another configuration")
        assert graders.versions("safety") == {safety.version, *by_model.values()}
        assert graders.judge_form("user_frustration", "decider") is None
        versions += by_model.values()
    assert len(set(versions)) == 5
    both = Settings(models={"a": chat, "b": ModelSettings(provider="lexical", label="more")})
    assert Graders(both, catalogue()).versions("safety") == {safety.version}
    # Calibrations are read; what cannot be applied stops the start: data/mistakes.json.
    rows: list[dict[str, Any]] = [
        {"judge": "safety", "threshold": 0.7, "platt": [1.5, -0.2]},
        {"judge": "relevance_truth_completeness", "metric": "truth", "isotonic": [[0, 0.1], [1, 0.9]]},
    ]
    cheap = {"provider": "decisions", "base_url": DECIDER.base_url, "model": "decider", "max_options": 2}
    tables = {
        "MODELS": {"default": {"provider": "lexical"}, "cheap": cheap},
        "RULES": [{"name": "all", "judges": ["safety"], "model": "cheap"}],
        "CALIBRATIONS": [row | {"model": "decider"} for row in rows],
    }
    calibration, other = load({f"TRACEJUDGE_{name}": json.dumps(row) for name, row in tables.items()}).calibrations
    assert calibration.calibration == Calibration(0.7, (1.5, -0.2))
    assert (other.metric_of(catalogue()[other.judge]), other.isotonic) == ("truth", ((0.0, 0.1), (1.0, 0.9)))


def test_usage_that_an_endpoint_does_not_report_is_absent_and_never_zero() -> None:
    answered, failed, silent = Call(1.0, 0.1, "ok", 10**6, 500_000), Call(1.0, 0.1, "timeout"), Call(1.0, 0.1, "ok")
    no_input, free = Call(1.0, 0.1, "ok", 0, 500_000), Call(1.0, 0.1, "ok", 10**6, 0)
    rows: list[tuple[tuple[Call, ...], Price | None, tuple[int, int, float | None]]] = [
        ((answered,), PRICE, (10**6, 500_000, 2.0)),
        ((answered, failed), PRICE, (10**6, 500_000, 2.0)),
        ((answered,), None, (10**6, 500_000, None)),
        ((silent,), PRICE, (0, 0, None)),
        ((answered, silent), PRICE, (0, 0, None)),
        ((no_input,), PRICE, (0, 500_000, None)),
        ((free,), Price(input=1.0, output=0.0), (10**6, 0, 1.0)),
        ((failed,), PRICE, (0, 0, 0.0)),
        ((), PRICE, (0, 0, 0.0)),
    ]
    evaluation = Evaluation("e1", HOUR, "safety", "v1", 1.0)
    item = Item(make_trace(1), (evaluation,))
    judged: dict[str, Any] = {"metrics": ("safety",), "judge_model": "m", "user_key": ""}
    times = {"started_at": 1.0, "duration_s": 0.1}
    for calls, price, expected in rows:
        assessment = Assessment("abstained", calls=calls)
        verdict, _ = make_verdict(assessment, item, evaluation, price=price, **judged, **times)
        assert (verdict.input_tokens, verdict.output_tokens, verdict.cost_usd) == expected, calls
        assert verdict.attempts == len(calls)
