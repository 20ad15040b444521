"""Judges on decision models in the worker: their forms, versions and calibrations, and rules that cannot be kept."""

import json
from typing import Any

import pytest
from support.cases import each_case
from support.judging_parts import Workers, assert_settled, choose
from support.stage_parts import Keyspace

from judges.core.decision import Calibration, Decision
from judges.core.model import ChatRequest, ChatResponse, ModelSettings
from judges.registry import catalogue
from worker.core.config.graders import Graders
from worker.core.config.loading import load
from worker.core.config.settings import COMBINE, JudgeCalibration, Rule, Settings, SettingsError

DECIDER = ModelSettings(provider="decisions", base_url="http://localhost:9/v1", model="decider")
STRICT = JudgeCalibration(judge="safety", model="decider", threshold=0.95)
MODELS = {
    "default": {"provider": "lexical"},
    "cheap": {"provider": "decisions", "base_url": "http://localhost:9/v1", "model": "decider"},
}


def loaded(
    judges: list[str] | None = None, *, calibrations: object = (), models: object = MODELS, **others: Any
) -> Settings:
    rules = [{"name": "all", "judges": judges or ["safety"], "model": "cheap", **others}]
    tables = {"MODELS": models, "RULES": rules, "CALIBRATIONS": calibrations}
    return load({f"TRACEJUDGE_{name}": json.dumps(value) for name, value in tables.items()})


def test_a_worker_asks_typed_questions_and_the_threshold_of_the_calibration_decides(
    keyspace: Keyspace, new_worker: Workers
) -> None:
    for calibrations, passed in (((), True), ((STRICT,), False)):
        defaults = {"models": {"default": DECIDER}, "calibrations": calibrations}
        (batch_id,) = choose(keyspace, 1, first=len(calibrations), **defaults)
        worker = new_worker(**defaults)

        async def complete(request: ChatRequest) -> ChatResponse:
            assert [question.kind for question in request.questions] == ["predicate"]
            return ChatResponse("", input_tokens=10, output_tokens=1, decisions=(Decision((0.9,)),))

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
    chat = ModelSettings(provider="lexical", label="words")
    rule = COMBINE.with_value(Rule(name="all", judges=("safety",), model=("cheap", "words")), "mean")
    safety = catalogue()["safety"]
    versions = {}
    for name, calibrations in (("plain", ()), ("strict", (STRICT,))):
        settings = Settings(models={"cheap": DECIDER, "words": chat}, rules=(rule,), calibrations=calibrations)
        graders = Graders(settings, catalogue())
        (panel,) = graders.panels
        versions[name] = {model: graders.version("safety", model) for model in ("decider", "words", panel)}
        assert versions[name]["words"] == safety.version == graders.version("safety", "of another configuration")
        assert graders.versions("safety") == {safety.version, *versions[name].values()}
        assert graders.judge_form("user_frustration", "decider") is None
    assert len({*versions["plain"].values(), *versions["strict"].values()}) == 5
    both = Settings(models={"a": chat, "b": ModelSettings(provider="lexical", label="more")})
    assert Graders(both, catalogue()).versions("safety") == {safety.version}


def test_calibrations_are_read() -> None:
    rows = [
        {"judge": "safety", "model": "decider", "threshold": 0.7, "platt": [1.5, -0.2]},
        {
            "judge": "relevance_truth_completeness",
            "model": "decider",
            "metric": "truth",
            "isotonic": [[0, 0.1], [1, 0.9]],
        },
    ]
    calibration, other = loaded(calibrations=rows).calibrations
    assert calibration.calibration == Calibration(0.7, (1.5, -0.2))
    assert (other.metric_of(catalogue()[other.judge]), other.isotonic) == ("truth", ((0.0, 0.1), (1.0, 0.9)))


@each_case(
    ("row", "message"),
    [
        ({"judge": "safty"}, "calibrations[0].judge: there is no judge 'safty'; did you mean safety?"),
        ({"model": "decidr"}, "calibrations[0].model: no model that returns probabilities is called 'decidr'; did you"),
        ({"metric": "safe"}, "calibrations[0].metric: safety has no metric 'safe' that passes or fails; did you mean"),
        ({"threshold": 1.5}, "calibrations[0].threshold: must be a probability, from 0 to 1"),
        ({"platt": [-1, 0]}, "calibrations[0].platt: must be a rising map"),
        ({"platt": [1]}, "calibrations[0].platt: must be a list of 2, each a number"),
        ({"isotonic": [[0.5, 0.5], [0.4, 0.6]]}, "calibrations[0].isotonic: must be points [p, p']"),
        ({"isotonic": [["a", 1]]}, "calibrations[0].isotonic[0][0]: must be a number"),
        ({"treshold": 0.5}, "calibrations[0].treshold: unknown key; did you mean threshold?"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_calibration_that_cannot_be_applied_stops_the_start(row: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        loaded(calibrations=[{"judge": "safety", "model": "decider", **row}])
    assert message in str(caught.value)


def test_two_calibrations_of_one_metric_stop_the_start() -> None:
    row = {"judge": "safety", "model": "decider"}
    with pytest.raises(SettingsError, match="another one for this judge, model and metric"):
        loaded(calibrations=[row, {**row, "metric": "safety"}])


def test_a_judge_without_such_a_form_stops_the_start() -> None:
    fix = "name a model that writes text in place of [models.cheap], or take the judge out"
    with pytest.raises(SettingsError) as caught:
        loaded(["user_frustration"], unit="session")
    asked = "user_frustration cannot be asked of a decision model: it has no form of typed questions"
    assert str(caught.value) == f"TRACEJUDGE_RULES: rules[0].judges: {asked}; {fix}"


def test_a_judge_with_more_options_than_the_model_takes_stops_the_start() -> None:
    models = {**MODELS, "cheap": {**MODELS["cheap"], "max_options": 2}}
    with pytest.raises(SettingsError) as caught:
        loaded(["safety", "answer_relevance"], models=models)
    assert "answer_relevance asks for one of 5 options, more than max_options = 2 of decider; name a model" in str(
        caught.value
    )
    assert loaded(["safety"], models=models).rules
