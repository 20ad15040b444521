"""Second judgings: chosen with the first verdict, once, by the right models, and counted as pairs."""

import itertools
from collections import Counter
from typing import Any

import msgspec
import pytest
from support.cases import each_case
from support.judging_parts import (
    MODEL,
    YES,
    JudgingWorker,
    Workers,
    assert_settled,
    choose,
    failing,
    output,
    rewrite,
    shown,
)
from support.stage_parts import Keyspace

from judges.core.model import ModelSettings, Price
from judges.core.verdict import Verdict, repeat_id
from judges.endpoints.client import LimitedModel
from worker.base.monitor.feature import Monitor
from worker.core.config.loading import judge_names, rule_faults
from worker.core.config.settings import Rule, Settings
from worker.core.queue.batch import Session
from worker.core.queue.ledger import Ledger
from worker.core.storage.client import StoreError
from worker.features.budgets.feature import Budget, BudgetKeys

NO = YES.replace("yes", "no")
SECOND = ModelSettings(provider="scripted", model="other", price=Price(input=1.0, output=2.0))
MODELS = {"default": MODEL, "second": SECOND}


def rule(**fields: Any) -> tuple[Rule, ...]:
    return (Rule.from_keys(**{"name": "all", "judges": ("safety",), **fields}),)


def verdicts(keyspace: Keyspace, origin: str) -> list[Verdict]:
    judged = [msgspec.convert(entry, Verdict) for entry in keyspace.outbox("j")]
    return [verdict for verdict in judged if verdict.origin == origin]


def judge_all(keyspace: Keyspace, worker: JudgingWorker, count: int, **settings: Any) -> None:
    """Judge new traces, and what is judged again because of them."""
    worker.run(*choose(keyspace, count, **{"models": MODELS} | settings))
    while keyspace.batches():
        worker.sweep()


def test_a_share_is_judged_again_by_both_models(keyspace: Keyspace, new_worker: Workers) -> None:
    rules = rule(repeat=0.25, second_model="second", rate=0.5)
    worker = new_worker(models=MODELS, rules=rules)
    worker.models["second"]._steps = itertools.cycle([NO])
    judge_all(keyspace, worker, 200, rules=rules)
    first = {verdict.evaluation_id: verdict for verdict in verdicts(keyspace, "live")}
    again = verdicts(keyspace, "repeat")
    by_model = Counter(verdict.judge_model for verdict in again)
    assert by_model["scripted"] == by_model["other"], by_model
    assert 0.1 < by_model["other"] / len(first) < 0.4, "a quarter, whatever the rate of the rule"
    for verdict in again:
        repeat = verdict.details["repeat"]
        assert isinstance(repeat, dict)
        earlier = first[repeat["id"]]
        assert verdict.evaluation_id == repeat_id(earlier.evaluation_id, verdict.judge_model)
        assert (verdict.trace_id, verdict.judge_version, verdict.session_id) == (
            earlier.trace_id,
            earlier.judge_version,
            None,
        )
        assert repeat["judge_model"] == "scripted"
        assert repeat["passed"] == {"safety": True}
        assert (repeat["is_drawn"], repeat["is_failure"]) == (True, False)
        assert verdict.probability == 0.125
        assert verdict.scores[0].passed is (verdict.judge_model == "scripted")
    assert_settled(keyspace, scored=len(first) + len(again))


def test_every_failure_of_a_safety_judge_is_judged_by_the_second_model(keyspace: Keyspace, new_worker: Workers) -> None:
    rules = rule(second_model="second")

    def bad(request: Any) -> str:
        return NO if shown(request) in {output(3), output(7)} else YES

    worker = new_worker(bad, models=MODELS, rules=rules)
    judge_all(keyspace, worker, 20, rules=rules)
    again = verdicts(keyspace, "repeat")
    assert {verdict.trace_id for verdict in again} == {
        verdict.trace_id for verdict in verdicts(keyspace, "live") if not verdict.scores[0].passed
    }
    assert [verdict.judge_model for verdict in again] == ["other", "other"]
    assert all(
        verdict.details["repeat"]["is_failure"] and not verdict.details["repeat"]["is_drawn"] for verdict in again
    )  # type: ignore[index]
    assert_settled(keyspace, scored=22)


def test_evaluations_without_a_second_judge_model_are_not_repeated(keyspace: Keyspace, new_worker: Workers) -> None:
    cases: dict[str, tuple[tuple[Rule, ...], dict[str, Any]]] = {
        "no second model": (rule(), {}),
        "no safety judge": (rule(second_model="second"), {"monitor": Monitor(safety=())}),
        "a panel": (
            rule(model=("default", "fourth"), combine="majority", second_model="second"),
            {"models": MODELS | {"fourth": ModelSettings(provider="scripted", model="fourth")}},
        ),
        "another rule's egress": ((*rule(second_model="second"), Rule("own", ("safety",), egress=("default",))), {}),
    }
    for number, (name, (rules, more)) in enumerate(cases.items()):
        worker = new_worker(NO, **({"models": MODELS, "rules": rules} | more))
        judge_all(keyspace, worker, 2, rules=rules, first=2 * number, **{"models": MODELS} | more)
        assert verdicts(keyspace, "repeat") == [], name


def test_a_verdict_that_is_written_twice_is_repeated_once(
    keyspace: Keyspace, new_worker: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = rule(second_model="second", repeat=1.0)
    worker = new_worker(NO, models=MODELS, rules=rules)
    record, lost = Ledger.record, []

    def lossy(self: Ledger, finished: Any) -> Any:
        fresh = record(self, finished)
        if len(lost) < 2:
            lost.append(finished)
            raise StoreError("the answer was lost")
        return fresh

    monkeypatch.setattr(worker.ledger, "record", lossy.__get__(worker.ledger))
    judge_all(keyspace, worker, 4, rules=rules)
    assert len(lost) == 2
    assert Counter(verdict.judge_model for verdict in verdicts(keyspace, "repeat")) == {"scripted": 4, "other": 4}
    assert_settled(keyspace, scored=12)


def test_a_repeat_waits_while_its_model_is_unavailable(keyspace: Keyspace, new_worker: Workers) -> None:
    rules = rule(second_model="second")
    worker = new_worker(NO, models=MODELS, rules=rules)
    worker.models["second"]._steps = itertools.cycle([failing(0)])
    worker.run(*choose(keyspace, 1, models=MODELS, rules=rules))
    (batch_id,) = keyspace.batches()
    assert keyspace.batches()[batch_id].v == 3, "workers that do not know repeats leave it alone"
    worker.sweep()
    assert verdicts(keyspace, "repeat") == []
    worker.models["second"]._steps = itertools.cycle([NO])
    keyspace.make_due(batch_id)
    worker.sweep()
    assert_settled(keyspace, scored=2)


def test_the_budget_of_a_rule_pays_for_both_judgings(keyspace: Keyspace, new_worker: Workers) -> None:
    rules = rule(second_model="second", budget="own")
    worker = new_worker(
        NO, limited=LimitedModel, models=MODELS, rules=rules, budgets={"own": Budget(tokens_per_day=10**6)}
    )
    judge_all(keyspace, worker, 2, rules=rules)
    worker.judging.stop(0.1)
    spent = int(keyspace.client.hget(BudgetKeys(keyspace.keys.prefix).budget("own")[0], "tokens:day"))
    assert spent == sum(verdict.input_tokens + verdict.output_tokens for verdict in verdicts(keyspace, "live") * 2)


def test_conversations_are_judged_again_as_a_whole(keyspace: Keyspace, new_worker: Workers) -> None:
    rules = rule(second_model="second", repeat=1.0)
    worker = new_worker(models=MODELS, rules=rules)
    (batch_id,) = choose(keyspace, 1, models=MODELS, rules=rules)
    batch = keyspace.batches()[batch_id]
    session = Session(2, 1, (batch.items[0].trace.trace_id,))
    evaluation = msgspec.structs.replace(batch.items[0].evaluations[0], session=session)
    items = (msgspec.structs.replace(batch.items[0], evaluations=(evaluation,)),)
    rewrite(keyspace, batch_id, msgspec.structs.replace(batch, items=items))
    worker.run(batch_id)
    while keyspace.batches():
        worker.sweep()
    first, *again = (verdict.details for verdict in [*verdicts(keyspace, "live"), *verdicts(keyspace, "repeat")])
    assert [verdict["session"] for verdict in again] == [first["session"]] * 2


@each_case(
    ("fields", "message"),
    [
        ({"second_model": "secnd"}, "second_model: there is no [models.secnd]; did you mean"),
        ({"second_model": "default"}, "second_model: 'default' judges 'safety' the first time; name another model"),
        ({"second_model": "second", "egress": ("default",)}, "second_model: egress keeps 'second' out"),
        (
            {"second_model": "decider", "judges": ("user_frustration",), "unit": "session"},
            "judges: user_frustration cannot be asked of a decision model",
        ),
    ],
)
def test_wrong_second_models_stop_the_start(fields: dict[str, Any], message: str) -> None:
    decider = ModelSettings(provider="decisions", base_url="http://localhost:9/v1", model="decider")
    settings = Settings(models={**MODELS, "decider": decider}, rules=rule(**fields))
    assert message in " | ".join(map(str, rule_faults(settings, judge_names(settings))))
