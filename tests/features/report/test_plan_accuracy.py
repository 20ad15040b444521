"""The plan of a day's judging is near to what then happens."""

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from support.decision_endpoint import Asked, DecisionEndpoint
from support.endpoint import ChatEndpoint
from support.pipeline import Pipeline
from support.replies import Call, Reply, Usage, answers

import tracejudge
from judges.core.model import ModelSettings
from judges.registry import load_judges
from worker.base.monitor.series import DAY_S
from worker.core.config.graders import Graders
from worker.core.config.settings import Rule, Settings
from worker.core.selection.sampling import Rules
from worker.features.cascades.feature import Cascade
from worker.features.demo.command import rules
from worker.features.demo.sample_traffic import Traffic, load_samples, make_plan
from worker.features.report.plan import probabilities
from worker.features.report.workload import Estimator, read_history

SECONDS = 40


def test_a_plan_is_within_five_percent_of_the_actual_cost(pipeline: Pipeline) -> None:
    with ChatEndpoint(reply) as endpoint:
        models = {"default": chat(endpoint)}
        compare(pipeline, models, rules(), {})


@pytest.mark.slow("4 s of CPU; the plan of a chat model is short")
def test_plans_of_decision_models_and_cascades_are_within_five_percent(pipeline: Pipeline) -> None:
    turns = itertools.count()
    with ChatEndpoint(reply) as endpoint, DecisionEndpoint() as decisions:

        def answer(asked: Asked) -> Sequence[float]:
            # Three of five are in the band of the cascade.
            probability = (0.9, 0.5, 0.3, 0.95, 0.7)[next(turns) % 5]
            count = len(asked.options)
            return [probability, *[(1 - probability) / (count - 1)] * (count - 1)] if count else [probability]

        def use(values: dict[str, Any]) -> None:
            size = len(msgspec.json.encode(decisions.bodies[-1]))
            values["usage"] = {"input_tokens": size // 4, "output_tokens": 2}

        decisions.answer, decisions.change = answer, use
        cheap = {"provider": "decisions", "base_url": decisions.base_url, "price": {"input": 0.1, "output": 0.1}}
        models = {
            "default": chat(endpoint),
            "cheap": {**cheap, "model": "cheap"},
            "decider": {**cheap, "model": "decider", "max_questions": 2},
        }
        judged = (
            Rule(name="decided", judges=("groundedness", "facts_grounding"), model="decider"),
            Rule(name="checked", judges=("safety",), model="checked"),
        )
        compare(pipeline, models, judged, {"checked": {"first": "cheap", "then": "default", "uncertain": [0.2, 0.8]}})


def reply(call: Call) -> Reply:
    size = sum(len(message["content"]) for message in call.body["messages"])
    return replace(answers('{"rationale": "so", "result": "yes"}'), usage=Usage(size // 4, 20 + size % 7))


def chat(endpoint: ChatEndpoint) -> dict[str, Any]:
    return {"base_url": endpoint.base_url, "model": "judge", "price": {"input": 0.4, "output": 1.6}}


def compare(
    pipeline: Pipeline, models: Mapping[str, Any], judged: tuple[Rule, ...], cascades: Mapping[str, Any]
) -> None:
    """Plan from the first half of the demo's traffic, judge the second half, and compare."""
    pipeline.worker(models=models, rules=judged, cascades=cascades)
    traffic = Traffic(make_plan(load_samples(), SECONDS), time.time())
    tracejudge.init(service="tests", redis_url=pipeline.redis_url, prefix=pipeline.prefix)
    try:
        traffic.publish_due(SECONDS / 2)
        assert tracejudge.flush(60)
        first = traffic.published
        pipeline.settled(first)
        settings = Settings.from_keys(
            models=msgspec.convert(models, dict[str, ModelSettings]),
            rules=judged,
            cascades=msgspec.convert(cascades, dict[str, Cascade]),
        )
        before = pipeline.outbox()
        plan_of = len(make_plan(load_samples(), SECONDS)) - first
        now_s = pipeline.store.now_ms() / 1000
        rules = Rules(settings, Graders(settings, load_judges(settings.judges)))
        history = read_history(settings, pipeline.store, now_s - DAY_S, now_s + 1)
        estimated = Estimator(settings, history).estimate(
            "test", rules, lambda entry: probabilities(rules, entry.trace), period_s=DAY_S, traces=plan_of
        )
        traffic.publish_due(SECONDS)
        assert tracejudge.flush(60)
        pipeline.settled(first + plan_of)
    finally:
        tracejudge.shutdown()
    after = [entry.verdict for entry in pipeline.outbox()[len(before) :]]
    real = {
        "judgements": len(after),
        "input_tokens": sum(verdict.input_tokens for verdict in after),
        "output_tokens": sum(verdict.output_tokens for verdict in after),
        "usd": sum(verdict.cost_usd or 0.0 for verdict in after),
    }
    errors = {name: getattr(estimated, name) / expected - 1 for name, expected in real.items()}
    errors["calls"] = estimated.calls_per_s * DAY_S / sum(verdict.attempts for verdict in after) - 1
    by_model = {row.judge_model: 0.0 for row in estimated.rows}
    for row in estimated.rows:
        by_model[row.judge_model] += row.judgements
    for judge_model, planned in by_model.items():
        errors[judge_model] = planned / sum(verdict.judge_model == judge_model for verdict in after) - 1
    assert max(map(abs, errors.values())) < 0.05, errors
