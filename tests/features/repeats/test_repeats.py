"""Second judgings: chosen with the first verdict, once, by the right models, and counted as pairs."""

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.judging import (
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
    verdicts,
)
from support.stages import Keyspace

from judges.core.model import ModelSettings, Price
from judges.core.verdict import repeat_id
from judges.endpoints.client import LimitedModel
from worker.base.doctor.lint import lint
from worker.base.monitor.feature import Monitor
from worker.core.config.loading import judge_names, rule_faults
from worker.core.config.settings import Rule, Settings
from worker.core.queue.batch import Session
from worker.features.budgets.feature import Budget, BudgetKeys

NO = YES.replace("yes", "no")
SECOND = ModelSettings(provider="scripted", model="other", price=Price(input=1.0, output=2.0))
MODELS = {"default": MODEL, "second": SECOND}


def rule(**fields: Any) -> tuple[Rule, ...]:
    return (Rule.from_keys(**{"name": "all", "judges": ("safety",), **fields}),)


def judge_all(keyspace: Keyspace, worker: JudgingWorker, count: int, **settings: Any) -> None:
    """Judge new traces, and what is judged again because of them."""
    worker.finish(*choose(keyspace, count, **{"models": MODELS, "rules": worker.settings.rules} | settings))


def test_a_share_is_judged_again_by_both_models(keyspace: Keyspace, new_worker: Workers) -> None:
    worker = new_worker(models=MODELS, rules=rule(repeat=0.25, second_model="second", rate=0.5))
    worker.say(NO, name="second")
    judge_all(keyspace, worker, 200)
    first = {verdict.evaluation_id: verdict for verdict in verdicts(keyspace, origin="live")}
    again = verdicts(keyspace, origin="repeat")
    by_model = Counter(verdict.judge_model for verdict in again)
    assert by_model["scripted"] == by_model["other"], by_model
    assert 0.1 < by_model["other"] / len(first) < 0.4, "a quarter, whatever the rate of the rule"
    for verdict in again:
        repeat: Any = verdict.details["repeat"]
        earlier = first[repeat["id"]]
        assert verdict.evaluation_id == repeat_id(earlier.evaluation_id, verdict.judge_model)
        of_trace = (earlier.trace_id, earlier.judge_version, None)
        assert (verdict.trace_id, verdict.judge_version, verdict.session_id) == of_trace
        assert (repeat["judge_model"], repeat["passed"]) == ("scripted", {"safety": True})
        assert (repeat["is_drawn"], repeat["is_failure"]) == (True, False)
        assert verdict.probability == 0.125
        assert verdict.scores[0].passed is (verdict.judge_model == "scripted")
    assert_settled(keyspace, scored=len(first) + len(again))


def test_every_failure_of_a_safety_judge_is_judged_by_the_second_model(keyspace: Keyspace, new_worker: Workers) -> None:
    def bad(request: Any) -> str:
        return NO if shown(request) in {output(3), output(7)} else YES

    rules = rule(second_model="second", budget="own")
    paid = {"limited": LimitedModel, "budgets": {"own": Budget(tokens_per_day=10**6)}}
    worker = new_worker(bad, models=MODELS, rules=rules, **paid)
    judge_all(keyspace, worker, 20)
    again = verdicts(keyspace, origin="repeat")
    failed = [verdict.trace_id for verdict in verdicts(keyspace, origin="live") if not verdict.scores[0].passed]
    assert sorted(verdict.trace_id for verdict in again) == sorted(failed)
    assert [verdict.judge_model for verdict in again] == ["other", "other"]
    marks: list[Any] = [verdict.details["repeat"] for verdict in again]
    assert [(mark["is_failure"], mark["is_drawn"]) for mark in marks] == [(True, False)] * 2
    assert_settled(keyspace, scored=22)
    worker.judging.stop(0.1)
    spent = int(keyspace.client.hget(BudgetKeys(keyspace.keys.prefix).budget("own")[0], "tokens:day"))
    tokens = sum(verdict.input_tokens + verdict.output_tokens for verdict in verdicts(keyspace))
    assert spent == tokens, "the budget of the rule pays for both judgings"


def test_evaluations_without_a_second_judge_model_are_not_repeated(keyspace: Keyspace, new_worker: Workers) -> None:
    fourth = {"models": MODELS | {"fourth": ModelSettings(provider="scripted", model="fourth")}}
    cases: dict[str, tuple[tuple[Rule, ...], dict[str, Any]]] = {
        "no second model": (rule(), {}),
        "no safety judge": (rule(second_model="second"), {"monitor": Monitor(safety=())}),
        "a panel": (rule(model=("default", "fourth"), combine="majority", second_model="second"), fourth),
        "another rule's egress": ((*rule(second_model="second"), Rule("own", ("safety",), egress=("default",))), {}),
    }
    for name, (rules, more) in cases.items():
        keyspace.next_case(name)
        judge_all(keyspace, new_worker(NO, **{"models": MODELS, "rules": rules} | more), 2, **more)
        assert verdicts(keyspace)
        assert verdicts(keyspace, origin="repeat") == []


def test_a_verdict_that_is_written_twice_is_repeated_once(
    keyspace: Keyspace, new_worker: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = new_worker(NO, models=MODELS, rules=rule(second_model="second", repeat=1.0))
    lost = worker.lose_answers(monkeypatch)
    judge_all(keyspace, worker, 4)
    assert len(lost) == 2
    by_model = Counter(verdict.judge_model for verdict in verdicts(keyspace, origin="repeat"))
    assert by_model == {"scripted": 4, "other": 4}
    assert_settled(keyspace, scored=12)


def test_a_repeat_waits_while_its_model_is_unavailable(keyspace: Keyspace, new_worker: Workers) -> None:
    rules = rule(second_model="second")
    worker = new_worker(NO, models=MODELS, rules=rules)
    worker.say(failing(0), name="second")
    worker.run(*choose(keyspace, 1, models=MODELS, rules=rules))
    (batch_id,) = keyspace.batches()
    assert keyspace.batches()[batch_id].v == 3, "workers that do not know repeats leave it alone"
    worker.sweep()
    assert verdicts(keyspace, origin="repeat") == []
    worker.say(NO, name="second")
    keyspace.make_due(batch_id)
    worker.sweep(scored=2)


def test_conversations_are_judged_again_as_a_whole(keyspace: Keyspace, new_worker: Workers) -> None:
    rules = rule(second_model="second", repeat=1.0)
    worker = new_worker(models=MODELS, rules=rules)
    (batch_id,) = choose(keyspace, 1, models=MODELS, rules=rules)
    batch = keyspace.batches()[batch_id]
    session = Session(2, 1, (batch.items[0].trace.trace_id,))
    evaluation = msgspec.structs.replace(batch.items[0].evaluations[0], session=session)
    items = (msgspec.structs.replace(batch.items[0], evaluations=(evaluation,)),)
    rewrite(keyspace, batch_id, msgspec.structs.replace(batch, items=items))
    worker.finish(batch_id)
    (first,) = verdicts(keyspace, origin="live")
    again = [verdict.details["session"] for verdict in verdicts(keyspace, origin="repeat")]
    assert again == [first.details["session"]] * 2


def test_wrong_second_models_stop_the_start() -> None:
    decider = ModelSettings(provider="decisions", base_url="http://localhost:9/v1", model="decider")
    sessions = {"judges": ("user_frustration",), "unit": "session"}
    cases: dict[str, dict[str, Any]] = {
        "second_model: there is no [models.secnd]; did you mean": {"second_model": "secnd"},
        "second_model: 'default' judges 'safety' the first time; name another model": {"second_model": "default"},
        "second_model: egress keeps 'second' out": {"second_model": "second", "egress": ("default",)},
        "judges: user_frustration cannot be asked of a decision model": {"second_model": "decider", **sessions},
    }
    for message, fields in cases.items():
        settings = Settings(models={**MODELS, "decider": decider}, rules=rule(**fields))
        assert message in " | ".join(map(str, rule_faults(settings, judge_names(settings)))), message


def test_a_rule_that_judges_more_than_the_one_before_it_has_an_effect(tmp_path: Path) -> None:
    text, path = (Path(__file__).parent / "data/repeats.toml").read_text(encoding="utf-8"), tmp_path / "repeats.toml"
    for more, never_wins in (("", True), ("repeat = 0.1", False), ('second_model = "spare"', False)):
        path.write_text(text + more, encoding="utf-8")
        assert ("TJ102" in {finding.code for finding in lint({}, str(path))}) is never_wins, more
