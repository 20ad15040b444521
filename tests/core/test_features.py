"""What is installed, and that nothing of it is on the way of a trace unless the configuration asks for it.

Which judge, in which form and version, is asked of which model, and the ids of what is chosen.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from support.judging import Workers, assert_settled, choose
from support.key_names import built_names, spaces_of_keys
from support.stages import HOUR, Keyspace, make_trace, rules_of, settings_of

import worker
from judges.core.decision import Calibration, Decision
from judges.core.judge import Judge
from judges.core.model import ChatRequest, ChatResponse, ModelSettings, Price
from judges.core.verdict import Assessment, Call, evaluation_id
from judges.registry import catalogue
from tracejudge import Trace
from worker.base.monitor.gauges import Watch
from worker.core import features
from worker.core.config.graders import Graders
from worker.core.config.loading import load
from worker.core.config.settings import COMBINE, JudgeCalibration, Rule, Settings
from worker.core.features import (
    Feature,
    IngestHook,
    TraceHookContext,
    VerdictHook,
    build_hooks,
    find_overrides,
    find_single,
    import_attribute,
    installed,
)
from worker.core.queue.batch import Evaluation, Item, make_verdict
from worker.core.queue.ledger import Ledger
from worker.core.selection.evaluations import EvaluationFactory
from worker.core.selection.sampling import Choice, CompiledRule, Sampler
from worker.core.selection.stream_entry import FeedbackEntry, TraceEntry
from worker.core.storage.client import script_sources
from worker.core.telemetry.metrics import MetricTable
from worker.installed import MODULES


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """Returns the names of what is installed if the folder of a feature is removed."""

    def names(removed: str) -> list[str]:
        with monkeypatch.context() as patch:
            patch.setattr(features, "find_spec", lambda name: None if name.endswith(removed) else find_spec(name))
            return [feature.name for feature in installed.__wrapped__()]

    return names


def test_every_row_is_the_module_of_a_feature(without: Callable[[str], list[str]]) -> None:
    folders = [name for name in MODULES if find_spec(name.rpartition(".")[0])]
    names = [name.split(".")[2] for name in folders]
    present = [import_module(name).FEATURE for name in folders]
    assert [feature.name for feature in present] == names
    assert [feature for feature in present if set(feature.needs) <= set(names)] == [*installed()]
    before = [feature.name for feature in installed()]
    assert without("dead_letters") == [name for name in before if name != "dead_letters"]
    assert {"board", "labels"}.isdisjoint(without("labels")), "nor one without those that it needs"
    assert all(issubclass(import_attribute(feature.metrics), MetricTable) for feature in installed() if feature.metrics)
    assert all(issubclass(import_attribute(feature.watch), Watch) for feature in installed() if feature.watch)
    names = [getattr(feature, hook) for feature in installed() for hook in ("warnings", "checks", "eraser", "estimate")]
    assert all(callable(import_attribute(name)) for name in names if name)
    names = [name for space in spaces_of_keys() for _, built in built_names(space) for name in built]
    assert sorted(set(names)) == sorted(names), "no two packages declare one key"
    # Every script is read, and names of files are unique.
    paths = list(Path(worker.__file__).parent.rglob("scripts/*.lua"))
    assert len({path.name for path in paths}) == len(paths)
    texts = [path.read_text(encoding="utf-8") for path in paths]
    names = [name for text in texts for name in re.findall("^-- @script (.+)$", text, re.MULTILINE)]
    assert sorted(names) == sorted(script_sources())


def test_guard_knows_each_command_that_a_script_declares_and_names_one_that_is_missing(keyspace: Keyspace) -> None:
    """Redis would say no more than "bad argument #1 to 'unpack'"."""
    guard = (Path(worker.__file__).parent / "core/storage/scripts/guard.lua").read_text(encoding="utf-8")
    (table,) = re.findall(r"^local HARMLESS = \{(.*?)^\}", guard, re.DOTALL | re.MULTILINE)
    known = {name.strip("[']") for name in re.findall(r"(\w+|\['[A-Z ]+'\]) = \{", table)}
    declared = r"(?:'(?:hash|zset|stream|string)'|false)((?:,\s*'[A-Z ]+')+)"
    lists = re.findall(declared, "".join(script_sources().values()))
    assert {command for commands in lists for command in re.findall("'(.+?)'", commands)} <= known
    for command in ("ZCOUNT", "LPUSH"):
        script = f"{guard}\nreturn guard({{{{KEYS[1], 'zset', 'ZCARD', '{command}'}}}})"
        with pytest.raises(redis.ResponseError, match=f"add {command} to HARMLESS in guard.lua"):
            keyspace.client.eval(script, 1, keyspace.keys.leases)


def test_hooks_of_ingest_with_one_method_are_refused_and_rates_are_adjusted_in_turn() -> None:
    class Hearing(IngestHook):
        def feedback(self, entry: FeedbackEntry) -> str | None:
            raise NotImplementedError

    class Halving(IngestHook):
        def adjust(self, rules: Sequence[CompiledRule], _: Trace) -> Any:
            halved = [match._replace(rule=structs.replace(match.rule, rate=match.rule.rate / 2)) for match in rules]
            return halved, lambda: [f"first {match.rule.rate}" for match in rules]

    with pytest.raises(ValueError, match="two features have an ingest hook with feedback"):
        find_single((Hearing(), IngestHook(), Hearing()), "feedback")
    matching = Sampler(rules_of(Settings()), (Halving(), IngestHook(), Halving()))._matching(make_trace(1))
    assert [match.rule.rate for match in matching.rules] == [0.25]
    assert [choose() for choose in matching.choosers] == [["first 1.0"], ["first 0.5"]]


def test_no_hooks_of_traces_are_built_by_default_and_only_overridden_methods_called(keyspace: Keyspace) -> None:
    settings = settings_of(keyspace)
    context = TraceHookContext(settings, None, Ledger(keyspace.store, settings), rules_of(settings))
    for hook in ("assess", "wrap_model", "after_verdict"):
        assert build_hooks((getattr(feature, hook) for feature in installed()), context) == (), hook
    hooks = build_hooks((feature.ingest for feature in installed()), context)
    assert len(find_overrides(hooks, "feedback")) == 0

    class Gathering(IngestHook):
        def close(self) -> None:
            """Do nothing."""

    gathering = Gathering()
    assert find_overrides((gathering, IngestHook()), "close") == (gathering.close,)
    assert find_overrides((gathering, IngestHook()), "before_read") == ()
    assert find_overrides((VerdictHook(),), "refresh") == (), "it would be awaited for every batch"
    assert build_hooks((Feature(name="none").ingest, lambda _: None, lambda _: gathering), None) == (gathering,)


# --- graders ---
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
    row = {"judge": "relevance_truth_completeness", "metric": "truth", "model": "decider", "threshold": 0.7}
    cheap = {"provider": "decisions", "base_url": DECIDER.base_url, "model": "decider", "max_options": 2}
    tables = {
        "MODELS": {"default": {"provider": "lexical"}, "cheap": cheap},
        "RULES": [{"name": "all", "judges": ["safety"], "model": "cheap"}],
        "CALIBRATIONS": [row | {"platt": [1.5, -0.2]}],
    }
    (read,) = load({f"TRACEJUDGE_{name}": json.dumps(row) for name, row in tables.items()}).calibrations
    assert (read.calibration, read.metric_of(catalogue()[read.judge])) == (Calibration(0.7, (1.5, -0.2)), "truth")


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
