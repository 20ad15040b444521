"""The estimate of a day's judging: probabilities in place of draws, scaled to the day."""

from statistics import fmean

import numpy as np
import pytest
from msgspec import structs
from support.stage_parts import Keyspace, make_traces, make_verdict

from judges.core.decision import Question
from judges.core.model import ChatRequest, ModelSettings, Price
from judges.core.prompt import Message
from judges.core.verdict import Call
from judges.models.registry import most_tokens
from judges.registry import load_judges
from judges.requests.request import BYTES_PER_TOKEN
from tests.features.cascades.cascade_runs import calibrated, simulate
from worker.base.monitor.series import DAY_S
from worker.core.config.graders import Graders
from worker.core.config.settings import Rule, Settings
from worker.core.selection.sampling import Rules
from worker.core.storage.client import Store
from worker.features.cascades.feature import Cascade
from worker.features.report.plan import probabilities
from worker.features.report.workload import (
    Estimate,
    Estimator,
    NoTrafficError,
    assumed_probabilities,
    mean_second,
    planned_share,
    read_history,
)


def estimated(settings: Settings, store: Store, *, traces: float) -> Estimate:
    now_s = store.now_ms() / 1000
    history = read_history(settings, store, now_s - DAY_S, now_s + 1)
    graders = Graders(settings, load_judges(settings.judges))
    rules = Rules(settings, graders)
    return Estimator(settings, history).estimate(
        "test", rules, lambda entry: probabilities(rules, entry.trace), period_s=DAY_S, traces=traces
    )


def test_rates_and_sessions_are_probabilities_and_the_sample_stands_for_the_day(keyspace: Keyspace) -> None:
    for trace in make_traces(range(200)):
        keyspace.add(trace)
    settings = Settings(
        models={"default": ModelSettings(provider="scripted", model="scripted", price=Price(input=1.0, output=2.0))},
        rules=(Rule.from_keys(name="all", judges=("safety",), rate=0.25, repeat=0.1),),
    )
    plan = estimated(settings, keyspace.store, traces=10_000)
    (row,) = plan.rows
    assert (plan.traces, row.judgements) == (pytest.approx(10_000), pytest.approx(10_000 * 0.25 * 1.1))
    assert row.calls == pytest.approx(row.judgements)
    # A share of 90 % from 2,500 judgements.
    assert row.half_width == pytest.approx(1.96 * (0.9 * 0.1 / 2500) ** 0.5, rel=0.02)
    assert any("no past verdicts" in text for text in plan.notes), plan.notes
    assert any("90%" in text for text in plan.notes), plan.notes


def test_a_plan_counts_tokens_from_a_cache_as_past_verdicts_did(keyspace: Keyspace) -> None:
    for trace in make_traces(range(50)):
        keyspace.add(trace)
    price = Price(input=10.0, output=0.0, cached_input=1.0)
    settings = Settings(
        models={"default": ModelSettings(provider="scripted", model="scripted", price=price)},
        rules=(Rule(name="all", judges=("safety",)),),
    )
    (before,) = estimated(settings, keyspace.store, traces=50).rows
    call = Call(1.0, 0.1, "ok", 1000, 10, cached_tokens=600)
    verdict = make_verdict(
        1, judge="safety", judge_model="scripted", input_tokens=1000, output_tokens=10, calls=(call,)
    )
    keyspace.send(*(structs.replace(verdict, evaluation_id=str(number)) for number in range(20)))
    (after,) = estimated(settings, keyspace.store, traces=50).rows
    assert before.usd == pytest.approx(before.input_tokens * 10 / 1e6)
    assert after.usd == pytest.approx(after.input_tokens * (0.4 * 10 + 0.6 * 1) / 1e6)


def test_without_traces_there_is_nothing_to_plan_from(keyspace: Keyspace) -> None:
    with pytest.raises(NoTrafficError, match="publish traces first"):
        estimated(Settings(), keyspace.store, traces=1)


def test_requests_to_decision_models_hold_their_questions(keyspace: Keyspace) -> None:
    rules = ["Answer in one sentence.", "Name the source.", "Never promise a refund.", "Be polite.", "Use metres." * 90]
    for trace in make_traces(range(20)):
        keyspace.add(structs.replace(trace, guidelines=rules))
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
    for good, traces, rate, w in ((0.8, 3000, 0.2, 1.0), (0.95, 3000, 0.2, 1.0), (0.9, 1000, 0.1, 10.0)):
        days = simulate(7, good, traces, rate, 30, w=w)
        chance = np.random.default_rng(7)
        logits = calibrated(chance, chance.random(2000) < good, good)
        probabilities = [{"": float(1 / (1 + np.exp(-each)))} for each in logits]
        cascade = Cascade("first", "then", rate=rate)
        planned = planned_share(cascade, probabilities, traces, w)
        assert planned is not None
        assert planned.high - planned.low == pytest.approx(days.width, rel=0.08), (good, traces)
        assert mean_second(cascade, probabilities) == pytest.approx(rate, rel=1e-6)
    assert fmean(each[""] for each in assumed_probabilities(0.9)) == pytest.approx(0.9, abs=0.02)
