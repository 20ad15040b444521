"""The estimate of a day's judging: probabilities in place of draws, scaled to the day, and near to what happens."""

import dataclasses
import itertools
import json
import time
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec import structs
from support.commands import SAMPLES, Run
from support.decision_endpoint import Asked, DecisionEndpoint
from support.endpoint import ChatEndpoint
from support.pipeline import Pipeline
from support.replies import Call as ModelCall
from support.replies import Reply, Usage, answers
from support.stages import Keyspace, encoded, make_traces, make_verdict

import tracejudge
from benchmarks.cascade_runs import calibrated, simulate
from judges.core.decision import Question
from judges.core.judge import MIN_OUTPUT_TOKENS
from judges.core.model import ChatRequest, ModelSettings, Price
from judges.core.prompt import Message
from judges.core.verdict import Call
from judges.models.registry import most_tokens
from judges.registry import load_judges
from judges.requests.request import BYTES_PER_TOKEN
from worker.base.monitor.series import DAY_S
from worker.core.config.graders import Graders
from worker.core.config.settings import Rule, Settings
from worker.core.selection.sampling import Rules
from worker.core.storage.client import Store
from worker.features.cascades.feature import Cascade
from worker.features.demo.command import rules
from worker.features.demo.sample_traffic import Traffic, load_samples, make_plan
from worker.features.report import workload
from worker.features.report.plan import probabilities

SECONDS = 16


def estimated(settings: Settings, store: Store, *, traces: float) -> workload.Estimate:
    now_s = store.now_ms() / 1000
    history = workload.read_history(settings, store, now_s - DAY_S, now_s + 1)
    rules = Rules(settings, Graders(settings, load_judges(settings.judges)))
    estimator = workload.Estimator(settings, history)
    return estimator.estimate(
        "test", rules, lambda entry: probabilities(rules, entry.trace), period_s=DAY_S, traces=traces
    )


def priced(*rules: Rule, **price: float) -> Settings:
    model = ModelSettings(provider="scripted", model="scripted", price=Price(**{"input": 1.0, "output": 2.0, **price}))
    return Settings(models={"default": model}, rules=rules)


def test_rates_and_sessions_are_probabilities_and_the_sample_stands_for_the_day(keyspace: Keyspace) -> None:
    keyspace.append("p1", make_traces(range(200)))
    settings = priced(Rule.from_keys(name="all", judges=("safety",), rate=0.25, repeat=0.1))
    plan = estimated(settings, keyspace.store, traces=10_000)
    (row,) = plan.rows
    assert (plan.traces, row.judgements) == (pytest.approx(10_000), pytest.approx(10_000 * 0.25 * 1.1))
    assert row.calls == pytest.approx(row.judgements)
    # A share of 90 % from 2,500 judgements.
    assert row.half_width == pytest.approx(1.96 * (0.9 * 0.1 / 2500) ** 0.5, rel=0.02)
    assert [any(words in text for text in plan.notes) for words in ("no past verdicts", "90%")] == [True, True]


def test_a_conversation_is_planned_as_one_call_and_past_verdicts_tell_tokens(keyspace: Keyspace) -> None:
    talks = (make_traces(range(4 * talk, 4 * talk + 4), session_id=f"s{talk}") for talk in range(50))
    traces = [trace for talk in talks for trace in talk]
    size = sum(len(encoded(trace)) for trace in traces) / len(traces)
    keyspace.append("p1", traces)
    settings = priced(Rule(name="talks", judges=("user_frustration",), unit="session", rate=0.5))
    (row,) = estimated(settings, keyspace.store, traces=10_000).rows
    assert (row.judge, row.judgements, row.calls) == ("user_frustration", *[pytest.approx(10_000 / 4 * 0.5)] * 2)
    assert row.input_tokens == pytest.approx(row.calls * 4 * size / BYTES_PER_TOKEN)
    assert row.output_tokens == row.calls * MIN_OUTPUT_TOKENS
    tokens = {"input_tokens": 900, "output_tokens": 70, "calls": (Call(1.0, 0.1, "ok", 900, 70, cached_tokens=540),)}
    for judge in ("user_frustration", "safety"):
        keyspace.send(*(make_verdict(n, judge=judge, judge_model="scripted", **tokens) for n in range(40)))
    (row,) = estimated(settings, keyspace.store, traces=10_000).rows
    assert (row.input_tokens, row.output_tokens) == pytest.approx((900 * row.calls, 70 * row.calls))
    # Those from a cache cost less.
    safety = priced(Rule(name="all", judges=("safety",)), input=10.0, output=0.0, cached_input=1.0)
    (row,) = estimated(safety, keyspace.store, traces=200).rows
    assert row.usd == pytest.approx(row.input_tokens * (0.4 * 10 + 0.6 * 1) / 1e6)


def test_requests_to_decision_models_hold_their_questions(keyspace: Keyspace) -> None:
    rules = ["Answer in one sentence.", "Name the source.", "Never promise a refund.", "Be polite.", "Use metres." * 90]
    keyspace.append("p1", make_traces(range(20), guidelines=rules))
    decider = ModelSettings(provider="decisions", base_url="http://127.0.0.1:9/v1", model="decider")
    plans = {}
    for limit in (None, 2):
        settings = Settings(
            models={"default": structs.replace(decider, max_questions=limit)},
            rules=(Rule(name="all", judges=("guidelines",)),),
        )
        (plans[limit],) = estimated(settings, keyspace.store, traces=20).rows
    assert (plans[None].calls, plans[2].calls) == (pytest.approx(20), pytest.approx(60))
    text = sum(map(len, rules)) / BYTES_PER_TOKEN
    assert plans[None].input_tokens > 20 * text, plans
    # The material is in each of the three requests.
    assert plans[2].input_tokens > plans[None].input_tokens + 2 * 20 * 50, plans


def test_reservations_count_questions_and_for_classifiers_the_pairs_alone() -> None:
    asked = tuple(Question("predicate", "Is it polite? " * 100, pair=("é" * 500, "claim")) for _ in range(3))
    request = ChatRequest((Message("user", "m" * 4000),), "judge", {}, heuristic=str, questions=asked)
    for provider, chars in (("decisions", 4000 + 3 * 1400), ("classifier", 3 * (2 * 500 + 5))):
        tokens, _ = most_tokens(request, ModelSettings(provider=provider))
        assert chars / BYTES_PER_TOKEN <= tokens < 1.2 * chars / BYTES_PER_TOKEN, (provider, tokens)


def test_the_width_of_a_planned_cascade_is_that_of_simulated_days() -> None:
    for good, traces, rate, w in ((0.8, 3000, 0.2, 1.0), (0.9, 1000, 0.1, 10.0)):
        days = simulate(7, good, traces, rate, 30, w=w)
        chance = np.random.default_rng(7)
        logits = calibrated(chance, chance.random(2000) < good, good)
        probabilities = [{"": float(1 / (1 + np.exp(-each)))} for each in logits]
        cascade = Cascade("first", "then", rate=rate)
        planned = workload.planned_share(cascade, probabilities, traces, w)
        assert planned is not None
        assert planned.high - planned.low == pytest.approx(days.width, rel=0.08), (good, traces)
        assert workload.mean_second(cascade, probabilities) == pytest.approx(rate, rel=1e-6)
    assert fmean(each[""] for each in workload.assumed_probabilities(0.9)) == pytest.approx(0.9, abs=0.02)


PAID = {"provider": "scripted", "script": "none.jsonl", "model": "paid", "price": {"input": 1.0, "output": 2.0}}


def test_the_plan_compares_rates_and_models_and_a_replay_is_estimated(
    served: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEJUDGE_MODELS", json.dumps({"default": {"provider": "lexical"}, "paid": PAID}))
    served("publish", SAMPLES / "summariser.jsonl")
    ended = served("plan", "--json", "--rate", "0.5", "--model", "paid")
    assert (ended.code, ended.err) == (0, "")
    present, halved, paid = ended.document["alternatives"]
    assert [verdict["name"] for verdict in (present, halved, paid)] == ["as configured", "rate 0.5", "model paid"]
    assert (present["sampled"], present["usd"], present["input_tokens"]) == (21, 0.0, 0.0)
    assert halved["judgements"] == pytest.approx(present["judgements"] / 2)
    assert paid["judgements"] == pytest.approx(present["judgements"])
    assert paid["usd"] == pytest.approx((paid["input_tokens"] + 2 * paid["output_tokens"]) / 1e6) != 0
    table = served("plan", "--model", "paid")
    assert [each in table.out for each in ("Expected work a day, model paid", "calls a second")] == [True, True]
    assert "no past verdicts" in table.err
    assert "there is no [models.cheap]" in served("plan", "--model", "cheap").err
    monkeypatch.setenv("TRACEJUDGE_MODELS", json.dumps({"default": PAID}))
    replay = ("replay", "--since", "1h", "--judge", "safety", "--dry-run")
    expected = served(*replay, "--json").document["expected"]
    assert (expected["traces"], expected["judgements"]) == (pytest.approx(21), pytest.approx(21))
    assert expected["usd"] > 0
    assert "Expected work in all, replay" in served(*replay).out


def test_a_cascade_is_planned_beside_a_plain_sample_at_the_same_cost(
    served: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    served("publish", SAMPLES / "summariser.jsonl")
    assert served("plan", "--json").document["source"].startswith("traces, taken for a day: the stream retains 0.")
    monkeypatch.setattr("worker.features.report.workload._LEAST_SPAN_S", 0.0)
    monkeypatch.setenv("TRACEJUDGE_CASCADES", '{"two": {"first": "cheap", "then": "default", "rate": 0.1}}')
    monkeypatch.setenv("TRACEJUDGE_RULES", '[{"name": "all", "judges": ["safety"]}]')
    strong = {**PAID, "model": "strong"}
    cheap = {"provider": "decisions", "dialect": "openai", "base_url": "http://127.0.0.1:9/v1", "model": "cheap"}
    cases = ((5.0, "prefer the plain sample unless every trace"), (0.01, "the cascade is narrower"), (None, None))
    for price, advice in cases:
        # Without the price of the first model nothing is known of the same cost.
        prices = {} if price is None else {"price": {"input": price, "output": price}}
        models = {"default": {**strong, "price": {"input": 10.0, "output": 10.0}}, "cheap": {**cheap, **prices}}
        monkeypatch.setenv("TRACEJUDGE_MODELS", json.dumps(models))
        ended = served("plan", "--json", "--cascade", "two")
        assert (ended.code, ended.err) == (0, ""), price
        first, then = ended.document["alternatives"][1]["rows"]
        assert (first["judge_model"], then["judge_model"]) == ("cheap", "strong")
        assert then["judgements"] == pytest.approx(0.1 * first["judgements"], rel=0.02)
        assert then["half_width"] > 0
        notes = ended.document["alternatives"][1]["notes"]
        assert any("sensitivity .85" in text for text in notes), notes
        beside = [text for text in notes if "on a plain sample of" in text]
        assert [advice in text for text in beside] == [True] * (advice is not None), (price, notes)
    # The rate was a tenth, so that this pays for a quarter of all.
    models["default"]["price"] = {"input": 1e-5, "output": 1e-5}
    monkeypatch.setenv("TRACEJUDGE_MODELS", json.dumps(models))
    usd = 10 * then["usd"] / 4 / 10**6
    paid = {"two": {"first": "cheap", "then": "default", "usd_per_day": usd}}
    monkeypatch.setenv("TRACEJUDGE_CASCADES", json.dumps(paid))
    ended = served("plan", "--json", "--cascade", "two")
    assert ended.code == 0, ended.err
    _, then = ended.document["alternatives"][1]["rows"]
    assert then["usd"] == pytest.approx(usd, rel=0.02)
    assert then["judgements"] == pytest.approx(first["judgements"] / 4, rel=0.03)
    assert "there is no [cascades.three]" in served("plan", "--cascade", "three").err


def reply(call: ModelCall) -> Reply:
    size = sum(len(message["content"]) for message in call.body["messages"])
    return dataclasses.replace(answers('{"rationale": "so", "result": "yes"}'), usage=Usage(size // 4, 20 + size % 7))


@pytest.fixture
def models() -> Iterator[dict[str, Any]]:
    """A chat model, and two decision models that return three of five probabilities in the band of the cascade."""
    turns = itertools.count()
    with ChatEndpoint(reply) as endpoint, DecisionEndpoint() as decisions:

        def answer(asked: Asked) -> Sequence[float]:
            probability = (0.9, 0.5, 0.3, 0.95, 0.7)[next(turns) % 5]
            count = len(asked.options)
            return [probability, *[(1 - probability) / (count - 1)] * (count - 1)] if count else [probability]

        def use(values: dict[str, Any]) -> None:
            size = len(msgspec.json.encode(decisions.bodies[-1]))
            values["usage"] = {"input_tokens": size // 4, "output_tokens": 2}

        decisions.answer, decisions.change = answer, use
        cheap = {"provider": "decisions", "base_url": decisions.base_url, "price": {"input": 0.1, "output": 0.1}}
        yield {
            "default": {"base_url": endpoint.base_url, "model": "judge", "price": {"input": 0.4, "output": 1.6}},
            "cheap": {**cheap, "model": "cheap"},
            "decider": {**cheap, "model": "decider", "max_questions": 2},
        }


@pytest.mark.slow("a plan and its worker")
def test_a_plan_is_within_five_percent_of_the_actual_cost(pipeline: Pipeline, models: dict[str, Any]) -> None:
    """It is made from the first half of the demo's traffic, and compared with the verdicts on the second half."""
    judged = (
        *rules(),
        Rule(name="decided", judges=("groundedness", "facts_grounding"), model="decider"),
        Rule(name="checked", judges=("safety",), model="checked"),
    )
    cascades = {"checked": {"first": "cheap", "then": "default", "uncertain": [0.2, 0.8]}}
    pipeline.worker(models=models, rules=judged, cascades=cascades)
    shots = make_plan(load_samples(), SECONDS)
    traffic = Traffic(shots, time.time())
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
        before = len(pipeline.outbox())
        planned = estimated(settings, pipeline.store, traces=len(shots) - first)
        traffic.publish_due(SECONDS)
        assert tracejudge.flush(60)
        pipeline.settled(len(shots))
    finally:
        tracejudge.shutdown()
    after = [entry.verdict for entry in pipeline.outbox()[before:]]
    real = {
        name: sum(getattr(verdict, name) or 0.0 for verdict in after)
        for name in ("input_tokens", "output_tokens", "cost_usd", "attempts")
    }
    expected = {name: real[name] for name in ("input_tokens", "output_tokens")}
    expected |= {"judgements": len(after), "usd": real["cost_usd"]}
    errors = {name: getattr(planned, name) / value - 1 for name, value in expected.items()}
    errors["calls"] = planned.calls_per_s * DAY_S / real["attempts"] - 1
    for name in {row.judge_model for row in planned.rows}:
        judgements = sum(row.judgements for row in planned.rows if row.judge_model == name)
        errors[name] = judgements / sum(verdict.judge_model == name for verdict in after) - 1
    assert max(map(abs, errors.values())) < 0.05, errors
