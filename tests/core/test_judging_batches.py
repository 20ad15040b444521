"""Judging on a real Redis: every evaluation is asked for as often as it must, and ends once."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs
from support.judging_parts import (
    HOUR_S,
    MODEL,
    SAFETY,
    YES,
    Workers,
    assert_settled,
    choose,
    failing,
    holders,
    ids,
    judged,
    letters,
    output,
    ready,
)
from support.processes import wait_until
from support.stage_parts import Keyspace

from judges.core.judge import Reading
from judges.core.model import CallTotals, ModelSettings, Price
from judges.core.prompt import ToolCall
from judges.core.verdict import Call, Score, Verdict
from judges.models.scripted import Step
from judges.registry import load_judges
from worker.base.accounting import read_account
from worker.core.config.settings import Rule
from worker.core.queue.leases import Leases
from worker.core.queue.ledger import DeadLetter

DEAR = ModelSettings(provider="scripted", model="other", price=Price(input=500.0, output=500.0))
GONE = ModelSettings(provider="scripted", model="gone")
ONLY_OURS = frozenset({"scripted"})
TABLES = {"mine": {"instructions": "Read {{ trace }}. Is {{ outputs }} borne out?", "max_rounds": 3}}
RULES = (Rule(name="all", judges=("mine",)),)
LOOK = Step(tool_calls=(ToolCall("look", "get_trace_info", "{}"),))
AWAY = Step(failure="judge_unavailable")
LABELS = ("", "other", "panel", "code", "-" * 99)


def secret(text: str, *, of: str) -> Any:
    """Score, or raise an error that quotes the text."""
    if text == of:
        raise KeyError(text)
    return Reading((Score("safety", 1.0),))


def away(*_: Any, **__: Any) -> None:
    """Fail with an error of ours, whose text is that of a trace."""
    raise ValueError(output(0))


def cost_usd(price: Price) -> float:
    """Return the cost of a call whose request and answer are those of the script."""
    return price.cost_usd(len(YES), len(YES))


def leave(keyspace: Keyspace, count: int, *, age_s: float = 7 * HOUR_S, first: int = 0) -> list[str]:
    """Leave batches of a judge model that the workers of these tests do not have."""
    return choose(keyspace, count, batch_size=1, age_s=age_s, first=first, models={"default": GONE})


def test_each_evaluation_gets_one_verdict_with_and_without_messages(keyspace: Keyspace, new_worker: Workers) -> None:
    worker = new_worker()
    batch_ids = choose(keyspace, 6, batch_size=4)
    worker.run(*batch_ids)
    assert sorted(worker.judged_texts) == [output(number) for number in range(6)]
    assert judged(keyspace) == ids(*range(6))
    assert_settled(keyspace, scored=6)
    worker.run(*batch_ids)
    assert len(worker.judged_texts) == 6, "a message for what is finished does nothing"
    keyspace.next_case("one message is enough for all ready batches")
    new_worker().run(choose(keyspace, 30, batch_size=1)[-1])
    assert_settled(keyspace, scored=30)
    keyspace.next_case("without a message the sweeper finds a ready batch and a task judges it")
    choose(keyspace, 3, batch_size=1)
    worker = new_worker()
    worker.sweep()
    assert worker.notified == ["scripted"]
    assert_settled(keyspace, scored=3)
    worker.sweep()
    assert worker.notified == ["scripted"], "nothing is ready"
    keyspace.next_case("a message for a model of another worker does nothing, nor one before the worker works")
    choose(keyspace, 1)
    before = keyspace.everything()
    worker = new_worker()
    assert [worker.judging.run(label) for label in LABELS] == [None] * 5
    assert keyspace.everything() == before
    worker.judging._started = False  # as before its thread runs
    worker.sweep()
    assert (len(ready(keyspace)), worker.judged_texts) == (1, [])
    keyspace.next_case("a task returns its counts")
    choose(keyspace, 5, batch_size=2)
    worker = new_worker(failing(1))
    report = worker.judging.run("scripted")
    length = len(YES)
    assert report == {
        "batches": 3,
        "evaluations": {"scored": 4, "unfinished": 1},
        "calls": 5,
        "tokens": 8 * length,
        "usd": pytest.approx(4 * 3 * length / 1e6, abs=1e-6),
    }
    keyspace.next_case("of many wake-ups at once each batch goes to one worker")
    batch_ids = choose(keyspace, 12, batch_size=4)
    workers = [new_worker() for _ in range(3)]
    with ThreadPoolExecutor(12) as pool:
        list(pool.map(lambda number: workers[number % 3].wake(batch_ids[number // 3 % 3]), range(36)))
    for worker in workers:
        worker.settle()
    assert sorted(text for worker in workers for text in worker.judged_texts) == sorted(
        output(number) for number in range(12)
    )
    assert_settled(keyspace, scored=12)


def test_a_verdict_holds_trace_user_judge_and_cost(keyspace: Keyspace, new_worker: Workers) -> None:
    (batch_id,) = choose(keyspace, 1)
    ((item,),) = (batch.items for batch in keyspace.batches().values())
    began = time.time()
    new_worker().run(batch_id)
    (verdict,) = (msgspec.convert(entry, Verdict) for entry in keyspace.outbox("j"))
    assert began <= verdict.started_at <= time.time()
    (call,) = verdict.calls
    length = len(YES)
    assert verdict == Verdict(
        evaluation_id=item.evaluations[0].id,
        outcome="scored",
        scores=(Score("safety", 1.0, 1.0, "yes", passed=True),),
        metrics=("safety",),
        rationale="It is fine.",
        trace_id=item.trace.trace_id,
        span_id=item.trace.span_id,
        service="shop",
        judge="safety",
        judge_version=SAFETY.version,
        judge_model="scripted",
        input_tokens=length,
        output_tokens=length,
        cost_usd=pytest.approx(3 * length / 1e6),
        attempts=1,
        calls=(Call(call.started_at, call.duration_s, "ok", length, length, None, "scripted", "stop"),),
        started_at=verdict.started_at,
        duration_s=verdict.duration_s,
    )


def test_final_reasons_and_late_failures_end_an_evaluation(keyspace: Keyspace, new_worker: Workers) -> None:
    cut = Step(finish_reason="length")  # An answer that was cut off is requested twice.
    new_worker(Step(refusal=True), cut, cut, Step(failure="bad_request")).run(*choose(keyspace, 3))
    account = read_account(keyspace.store)
    assert (account.unscored, account.waiting, account.lost) == (3, 0, 0)
    assert account.reasons == {"unscored:bad_request": 1, "unscored:refusal": 1, "unscored:truncated": 1}
    assert keyspace.batches() == {}
    keyspace.next_case("an evaluation that fails past give_up_after becomes a dead letter")
    (batch_id,) = choose(keyspace, 4, age_s=7 * HOUR_S)
    before = keyspace.batches()[batch_id]
    began = time.time()
    new_worker(failing(1, 2), give_up_after=6 * HOUR_S).run(batch_id)
    assert judged(keyspace) == ids(0, 3)
    dead_letters = letters(keyspace)
    doomed = [item for item in before.items if item.trace.trace_id in ids(1, 2)]
    assert dead_letters == {
        item.evaluations[0].id: DeadLetter(
            v=1,
            evaluation=item.evaluations[0],
            grader="default",
            judge_model="scripted",
            item=item,
            reason="judge_unavailable",
            attempts=1,
            chosen_at=before.created_at,
            given_up_at=dead_letters[item.evaluations[0].id].given_up_at,
            note="away",
            spent=CallTotals(1),
        )
        for item in doomed
    }
    assert all(began <= letter.given_up_at <= time.time() for letter in dead_letters.values())
    dead_verdicts = keyspace.outbox("d")
    assert {entry["evaluation_id"] for entry in dead_verdicts} == dead_letters.keys()
    assert {(entry["outcome"], entry["reason"]) for entry in dead_verdicts} == {("unscored", "judge_unavailable")}
    assert read_account(keyspace.store).reasons == {"dead:judge_unavailable": 2}
    assert_settled(keyspace, scored=2, dead=2)
    keyspace.next_case("a late try that succeeds is no dead letter")
    new_worker(give_up_after=HOUR_S).run(*choose(keyspace, 2, age_s=7 * HOUR_S))
    assert_settled(keyspace, scored=2)
    keyspace.next_case("the dead letter of an unknown version names that")
    new_worker(judges={}).run(*choose(keyspace, 1, age_s=7 * HOUR_S))
    assert read_account(keyspace.store).reasons == {"dead:unknown_judge_version": 1}
    (dead_verdict,) = keyspace.outbox("d")
    assert (dead_verdict["judge"], dead_verdict["metrics"], dead_verdict.get("attempts", 0)) == (
        "safety",
        ["safety"],
        0,
    )


def test_a_batch_that_cannot_be_judged_or_read_is_parked(keyspace: Keyspace, new_worker: Workers) -> None:
    another = {"safety": replace(SAFETY, scoring="another")}
    for missing, judges in (("version", another), ("judge", {}), ("model", None)):
        keyspace.next_case(f"unknown {missing}")
        (batch_id,) = choose(keyspace, 3)
        stranger = new_worker(judges=judges)
        if missing == "model":
            stranger.evaluations._models = {}
        stranger.run(batch_id)
        assert (stranger.judged_texts, holders(keyspace)) == ([], {batch_id: "parked"})
        assert keyspace.leases()[batch_id] == keyspace.soon(1.0, less_s=0.5, growth=0.25)
        assert read_account(keyspace.store).waiting == 3
        new_worker().sweep_due(scored=3)
    for payload in (b'{"v":9,"work":[]}', b'{"v":1}', b"{"):
        keyspace.next_case(f"unreadable: {payload!r}")
        strange, plain = choose(keyspace, 2, batch_size=1)
        keyspace.client.set(keyspace.keys.batch(strange), payload)
        worker = new_worker()
        worker.run(plain)
        assert (len(worker.judged_texts), holders(keyspace)) == (1, {strange: "parked"}), "it takes no other along"
        assert keyspace.leases()[strange] == keyspace.soon(1.0, less_s=0.5, growth=0.25)
        assert keyspace.client.get(keyspace.keys.batch(strange)) == payload


def test_an_error_of_a_judge_parks_its_evaluation_alone(keyspace: Keyspace, new_worker: Workers) -> None:
    (batch_id,) = choose(keyspace, 3)
    worker = new_worker(judges={"safety": replace(SAFETY, score=lambda trace, _: secret(trace.output, of=output(1)))})
    with capture_logs() as lines:
        worker.run(batch_id)
    assert judged(keyspace) == ids(0, 2)
    assert (read_account(keyspace.store).waiting, holders(keyspace)) == (1, {batch_id: "parked"})
    assert [line["error"] for line in lines if line["event"] == "unexpected error"] == ["KeyError"]
    assert [line["reasons"] for line in lines if line["event"] == "batch parked"] == [["internal_error"]]
    assert output(1) not in str(lines)
    assert keyspace.leases()[batch_id] == keyspace.soon(60, growth=1.0), "a fault of ours hardly passes by itself"
    new_worker().sweep_due(scored=3)
    keyspace.next_case("an evaluation that cancels itself takes no sibling along, and is not judged over and over")
    (batch_id,) = choose(keyspace, 3)

    def score(trace: Any, _: Any) -> Any:
        if trace.output == output(1):
            raise asyncio.CancelledError
        return Reading((Score("safety", 1.0),))

    worker = new_worker(judges={"safety": replace(SAFETY, score=score)})
    worker.run(batch_id)
    assert (judged(keyspace), holders(keyspace)) == (ids(0, 2), {batch_id: "parked"})
    assert keyspace.leases()[batch_id] == keyspace.soon(60, growth=1.0)


def test_an_error_of_ours_in_any_stage_parks_the_batch_and_quotes_nothing(
    keyspace: Keyspace, new_worker: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    for stage in ("run", "record", "finish_or_park"):
        keyspace.next_case(stage)
        (batch_id,) = choose(keyspace, 1)
        worker = new_worker()
        with monkeypatch.context() as broken, capture_logs() as lines:
            owners = {"run": worker.evaluations, "record": worker.ledger, "finish_or_park": worker.judging._completion}
            broken.setattr(owners[stage], stage, away)
            worker.run(batch_id)
        errors = [(line["event"], line["error"]) for line in lines if line["log_level"] == "error"]
        assert errors == [("unexpected error", "ValueError")]
        assert output(0) not in str(lines)
        assert (holders(keyspace), ready(keyspace)) == ({batch_id: "parked"}, [])
        assert keyspace.leases()[batch_id] == keyspace.soon(60, growth=1.0)
        worker.sweep_due(scored=1)
    keyspace.next_case("while taking")
    (batch_id,) = choose(keyspace, 1)
    worker = new_worker()
    with monkeypatch.context() as broken, capture_logs() as lines:
        broken.setattr(worker.ledger, "already_finished", away)
        worker.run(batch_id)
    assert [(line["event"], line["error"]) for line in lines] == [("unexpected error", "ValueError")]
    worker.sweep_due(scored=1)


def test_the_setting_chooses_which_verdicts_are_logged(keyspace: Keyspace, new_worker: Workers) -> None:
    passing_but_one = replace(
        SAFETY, score=lambda trace, _: Reading((Score("safety", 1.0, passed=trace.output[-2] not in "147"),))
    )
    for first, which, logged in ((0, "all", 3), (3, "failed", 1), (6, "none", 0)):
        worker = new_worker(judges={"safety": passing_but_one}, log_verdicts=which)
        with capture_logs() as lines:
            worker.run(*choose(keyspace, 3, first=first))
        log_lines = [row["scores"] for line in lines if line["event"] == "verdict" for row in line["rows"]]
        assert log_lines == [{"safety": 1.0}] * logged, which
    assert_settled(keyspace, scored=9)


@pytest.mark.usefixtures("_patience_with_tools")
def test_calls_of_all_tries_of_an_exploration_count(keyspace: Keyspace, new_worker: Workers) -> None:
    """What was paid for is not paid for again until the letters' end."""
    for steps in ((LOOK, LOOK, AWAY), (LOOK, AWAY)):
        keyspace.next_case(f"{len(steps) - 1} rounds")
        (batch_id,) = choose(keyspace, 1, judges=TABLES, rules=RULES)
        worker = new_worker(*steps, judges=load_judges(TABLES))
        worker.run(batch_id)
        while keyspace.batches():
            worker.sweep_due()
        (verdict,) = keyspace.outbox("j")
        assert (verdict["outcome"], verdict["reason"]) == ("unscored", "over_budget")
        assert 16 <= verdict["attempts"] == len(worker.model.requests) < 16 + len(steps)
    keyspace.next_case("an outage before the first answer")
    (batch_id,) = choose(keyspace, 1, judges=TABLES, rules=RULES)
    worker = new_worker(AWAY, judges=load_judges(TABLES))
    worker.run(batch_id)
    for _ in range(30):
        worker.sweep_due()
    assert keyspace.outbox("j") == []
    new_worker(LOOK, YES, judges=load_judges(TABLES)).sweep_due(scored=1)


def test_a_batch_goes_to_the_judge_model_it_was_chosen_for(keyspace: Keyspace, new_worker: Workers) -> None:
    """Whatever its settings are called by now: at its own price, and never to another model of the same name."""
    (batch_id,) = choose(keyspace, 2)
    assert keyspace.batches()[batch_id].grader == "default"
    worker = new_worker(models={"default": DEAR, "old": MODEL})
    worker.run(batch_id)
    assert [len(model.reached) for model in worker.models.values()] == [0, 2]
    assert MODEL.price is not None
    assert {(entry["judge_model"], entry["cost_usd"]) for entry in keyspace.outbox("j")} == {
        ("scripted", cost_usd(MODEL.price))
    }
    assert_settled(keyspace, scored=2)
    keyspace.next_case("another judge model of the same name is not asked instead")
    choose(keyspace, 1, age_s=7 * HOUR_S)
    worker = new_worker(models={"default": DEAR}, configured_models=lambda: frozenset({"other"}))
    worker.sweep()
    assert worker.model.reached == []
    assert read_account(keyspace.store).reasons == {"dead:unknown_judge_version": 1}
    assert_settled(keyspace, scored=0, dead=1)
    keyspace.next_case("of settings that share a judge model those of the rule are taken")
    (batch_id,) = choose(keyspace, 1)
    dear = msgspec.structs.replace(MODEL, price=DEAR.price)
    worker = new_worker(models={"default": MODEL, "also": dear})
    worker.run(batch_id)
    assert [len(model.reached) for model in worker.models.values()] == [1, 0]
    worker = new_worker(models={"default": MODEL, "also": MODEL, "other": DEAR})
    worker.judging.stop(0.1)
    assert [model.is_closed for model in worker.models.values()] == [True, True, True]


def test_work_for_a_model_that_nobody_has_any_more_ends(keyspace: Keyspace, new_worker: Workers) -> None:
    leave(keyspace, 20)
    young = leave(keyspace, 2, age_s=5 * HOUR_S, first=50)
    worker = new_worker(configured_models=lambda: ONLY_OURS)
    worker.sweep()
    assert worker.model.reached == []
    assert {letter.judge_model for letter in letters(keyspace).values()} == {"gone"}
    assert read_account(keyspace.store).reasons == {"dead:unknown_judge_version": 20}
    assert (sorted(keyspace.batches()), ready(keyspace, "gone"), holders(keyspace)) == (
        sorted(young),
        sorted(young),
        {},
    )
    assert worker.judging.circuits() == {"scripted": 0.0}, "nobody is there for it"
    new_worker(models={"default": MODEL, "back": GONE}).sweep()
    assert_settled(keyspace, scored=2, dead=20)
    for delay_s in (None, 60.0):
        keyspace.next_case("its holder died" if delay_s is None else "it was parked")
        leave(keyspace, 1)
        leases = Leases(keyspace.store, tries_ttl_s=60)
        (taken,) = leases.take("gone", "a worker of before", 1)
        if delay_s is not None:
            leases.put_back(taken.lease, delay_s=delay_s)
        worker = new_worker(configured_models=lambda: ONLY_OURS)
        worker.sweep()
        assert letters(keyspace) == {}
        worker.sweep_due(scored=0, dead=1)


def test_batches_that_another_worker_may_judge_are_not_given_up(keyspace: Keyspace, new_worker: Workers) -> None:
    for asked in (None, frozenset({"scripted", "gone"})):
        keyspace.next_case("it is not known who is asked" if asked is None else "another worker asks it")
        leave(keyspace, 2)
        before = keyspace.batches()
        new_worker(configured_models=lambda asked=asked: asked).sweep()
        assert (keyspace.batches(), letters(keyspace), holders(keyspace)) == (before, {}, {})
    keyspace.next_case("own batches before the first exchange")
    choose(keyspace, 5, batch_size=1, age_s=7 * HOUR_S)
    worker = new_worker(batch_size=1, configured_models=frozenset[str])
    worker.limits.limit = 1
    worker.model.answers.clear()
    worker.look()
    worker.rest()
    assert worker.judging.held == 2, "as many as there is capacity for"
    worker.end()
    assert_settled(keyspace, scored=5)


def test_judging_tells_whether_its_loop_lives_and_where_there_is_capacity(
    keyspace: Keyspace, new_worker: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    judging = new_worker().judging
    assert not judging.pulse.has_ended
    with monkeypatch.context() as fallen:
        fallen.setattr(judging.loop, "_thread", threading.Thread())
        assert judging.pulse.has_ended
    judging.stop(0)
    assert not judging.pulse.has_ended
    batch_ids = choose(keyspace, 4, batch_size=1)
    worker = new_worker(batch_size=1)
    worker.limits.limit = 1
    assert worker.judging.capacity() == {"scripted": True}
    worker.model.hung = {output(number) for number in range(4)}
    worker.wake(batch_ids[0])
    wait_until(lambda: worker.judging.held == 2, what="the slots to be taken")
    assert worker.judging.capacity() == {"scripted": False}
    worker.judging.stop(0)
    shut = new_worker()
    shut.limits.blocked_for_s = 5.0
    assert shut.judging.capacity() == {"scripted": False}
