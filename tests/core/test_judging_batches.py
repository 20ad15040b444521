"""Judging on a real Redis: every evaluation is asked for as often as it must, and ends once."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs
from support.fixtures import one_redis
from support.judging import (
    HOUR_S,
    MODEL,
    SAFETY,
    YES,
    JudgingWorker,
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
    verdicts,
)
from support.stages import Keyspace

from judges.core.judge import Judge, Reading
from judges.core.model import CallTotals, ModelSettings, Price
from judges.core.prompt import ToolCall
from judges.core.verdict import Call, Score
from judges.models.scripted import Step
from judges.registry import load_judges
from worker.base.accounting import read_account
from worker.core.config.settings import Rule
from worker.core.queue.leases import Leases

DEAR = ModelSettings(provider="scripted", model="other", price=Price(input=500.0, output=500.0))
GONE = ModelSettings(provider="scripted", model="gone")
ONLY_OURS = frozenset({"scripted"})
OLD_S = 7 * HOUR_S
any_redis_server = one_redis
PASS = Reading((Score("safety", 1.0),))
READS = {"mine": {"instructions": "Read {{ trace }}. Is {{ outputs }} borne out?", "max_rounds": 3}}
LOOK = Step(tool_calls=(ToolCall("look", "get_trace_info", "{}"),))
AWAY = Step(failure="judge_unavailable")


def scoring(score: Callable[[Any], Reading]) -> dict[str, Judge]:
    """Make a judge that scores by a function of the output, as the only one."""
    return {"safety": replace(SAFETY, score=lambda trace, _: score(trace.output))}


def leave(keyspace: Keyspace, count: int, *, age_s: float = OLD_S, first: int = 0) -> list[str]:
    """Leave batches of a judge model that the workers of these tests do not have."""
    return choose(keyspace, count, batch_size=1, age_s=age_s, first=first, models={"default": GONE})


def reasons(keyspace: Keyspace) -> dict[str, int]:
    return dict(read_account(keyspace.store).reasons)


def reached(worker: JudgingWorker) -> list[int]:
    return [len(model.reached) for model in worker.models.values()]


def test_each_evaluation_gets_one_verdict_with_and_without_messages(keyspace: Keyspace, new_worker: Workers) -> None:
    worker = new_worker()
    batch_ids = choose(keyspace, 6, batch_size=4)
    worker.run(*batch_ids)
    assert sorted(worker.judged_texts) == [output(number) for number in range(6)]
    assert judged(keyspace) == ids(*range(6))
    assert_settled(keyspace, scored=6)
    worker.run(*batch_ids)
    assert len(worker.judged_texts) == 6, "a message for what is finished does nothing"
    new_worker().run(
        choose(keyspace, 30, batch_size=1, first=6)[-1], scored=36
    )  # one message is enough for all ready batches
    choose(keyspace, 3, batch_size=1, first=36)
    worker = new_worker()
    worker.sweep()
    assert worker.notified == ["scripted"], "without a message the sweeper finds a ready batch"
    assert_settled(keyspace, scored=39)
    worker.sweep()
    assert worker.notified == ["scripted"], "nothing is ready"
    batch_ids = choose(keyspace, 12, batch_size=4, first=39)
    workers = [new_worker() for _ in range(3)]
    with ThreadPoolExecutor(12) as pool:
        list(pool.map(lambda number: workers[number % 3].wake(batch_ids[number // 3 % 3]), range(36)))
    for worker in workers:
        worker.settle()
    texts = sorted(text for worker in workers for text in worker.judged_texts)
    assert texts == sorted(output(number) for number in range(39, 51)), "each batch goes to one"
    assert_settled(keyspace, scored=51)


def test_a_task_returns_its_counts_and_a_verdict_holds_all_that_is_known(
    keyspace: Keyspace, new_worker: Workers
) -> None:
    choose(keyspace, 5, batch_size=2)
    worker, length = new_worker(failing(1)), len(YES)
    assert worker.judging.run("scripted") == {
        "batches": 3,
        "evaluations": {"scored": 4, "unfinished": 1},
        "calls": 5,
        "tokens": 8 * length,
        "usd": pytest.approx(4 * 3 * length / 1e6, abs=1e-6),
    }
    keyspace.next_case("messages for models of other workers, and a worker that does not work yet")
    choose(keyspace, 1)
    before = keyspace.everything()
    labels = ("", "other", "panel", "code", "-" * 99)
    assert [worker.judging.run(label) for label in labels] == [None] * 5
    assert keyspace.everything() == before
    worker = new_worker()
    worker.judging._started = False  # as before its thread runs
    worker.sweep()
    assert (len(ready(keyspace)), worker.judged_texts) == (1, [])
    keyspace.next_case("a verdict holds trace, judge and cost")
    (batch_id,) = choose(keyspace, 1)
    ((item,),) = (batch.items for batch in keyspace.batches().values())
    began = time.time()
    new_worker().run(batch_id)
    (verdict,) = verdicts(keyspace)
    (call,) = verdict.calls
    assert began <= verdict.started_at <= time.time()
    ids_of_trace = (verdict.evaluation_id, verdict.trace_id, verdict.span_id, verdict.service)
    assert ids_of_trace == (item.evaluations[0].id, item.trace.trace_id, item.trace.span_id, "shop")
    named = (verdict.judge, verdict.judge_version, verdict.judge_model, verdict.metrics)
    assert named == ("safety", SAFETY.version, "scripted", ("safety",))
    assert (verdict.outcome, verdict.rationale) == ("scored", "It is fine.")
    assert verdict.scores == (Score("safety", 1.0, 1.0, "yes", passed=True),)
    spent = (verdict.input_tokens, verdict.output_tokens, verdict.cost_usd, verdict.attempts)
    assert spent == (length, length, pytest.approx(3 * length / 1e6), 1)
    assert call == Call(call.started_at, call.duration_s, "ok", length, length, None, "scripted", "stop")
    keyspace.next_case("the setting chooses which verdicts are logged")
    judges = scoring(lambda text: Reading((Score("safety", 1.0, passed=text[-2] not in "147"),)))
    for first, which, logged in ((0, "all", 3), (3, "failed", 1), (6, "none", 0)):
        worker = new_worker(judges=judges, log_verdicts=which)
        with capture_logs() as lines:
            worker.run(*choose(keyspace, 3, first=first))
        rows = [row["scores"] for line in lines if line["event"] == "verdict" for row in line["rows"]]
        assert rows == [{"safety": 1.0}] * logged, which
    assert_settled(keyspace, scored=9)


def test_final_reasons_and_late_failures_end_an_evaluation(keyspace: Keyspace, new_worker: Workers) -> None:
    cut = Step(finish_reason="length")  # An answer that was cut off is requested twice.
    new_worker(Step(refusal=True), cut, cut, Step(failure="bad_request")).run(*choose(keyspace, 3))
    account = read_account(keyspace.store)
    assert (account.unscored, account.waiting, account.lost, keyspace.batches()) == (3, 0, 0, {})
    assert account.reasons == {f"unscored:{reason}": 1 for reason in ("bad_request", "refusal", "truncated")}
    keyspace.next_case("past give_up_after a failure becomes a dead letter, and a success none")
    (batch_id,) = choose(keyspace, 4, age_s=OLD_S)
    before, began = keyspace.batches()[batch_id], time.time()
    new_worker(failing(1, 2), give_up_after=6 * HOUR_S).run(batch_id)
    assert judged(keyspace) == ids(0, 3)
    dead_letters = letters(keyspace)
    doomed = {item.evaluations[0].id: item for item in before.items if item.trace.trace_id in ids(1, 2)}
    assert dead_letters.keys() == doomed.keys()
    for name, item in doomed.items():
        letter = dead_letters[name]
        assert (letter.item, letter.evaluation, letter.grader) == (item, item.evaluations[0], "default")
        assert (letter.reason, letter.note) == ("judge_unavailable", "away")
        assert (letter.attempts, letter.spent) == (1, CallTotals(1))
        assert (letter.judge_model, letter.chosen_at) == ("scripted", before.created_at)
    assert all(began <= letter.given_up_at <= time.time() for letter in dead_letters.values())
    dead_verdicts = keyspace.outbox("d")
    assert {entry["evaluation_id"] for entry in dead_verdicts} == dead_letters.keys()
    assert {(entry["outcome"], entry["reason"]) for entry in dead_verdicts} == {("unscored", "judge_unavailable")}
    assert reasons(keyspace) == {"dead:judge_unavailable": 2}
    assert_settled(keyspace, scored=2, dead=2)
    keyspace.next_case("the dead letter of an unknown version names that")
    new_worker(judges={}).run(*choose(keyspace, 1, age_s=OLD_S))
    assert reasons(keyspace) == {"dead:unknown_judge_version": 1}
    (dead,) = keyspace.outbox("d")
    assert (dead["judge"], dead["metrics"], dead.get("attempts", 0)) == ("safety", ["safety"], 0)


def test_a_batch_that_cannot_be_judged_or_read_is_parked(keyspace: Keyspace, new_worker: Workers) -> None:
    def check(batch_id: str) -> None:
        assert holders(keyspace) == {batch_id: "parked"}
        assert keyspace.leases()[batch_id] == keyspace.soon(1.0, less_s=0.5, growth=0.25)

    another: dict[str, Judge] = {"safety": replace(SAFETY, scoring="another")}
    for missing, judges in (("version", another), ("judge", {}), ("model", None)):
        keyspace.next_case(f"unknown {missing}")
        (batch_id,) = choose(keyspace, 3)
        stranger = new_worker(judges=judges)
        if missing == "model":
            stranger.evaluations._models = {}  # as if its configuration had none
        stranger.run(batch_id)
        check(batch_id)
        assert (stranger.judged_texts, read_account(keyspace.store).waiting) == ([], 3)
        new_worker().sweep_due(scored=3)
    for payload in (b'{"v":9,"work":[]}', b'{"v":1}', b"{"):
        keyspace.next_case(f"unreadable: {payload!r}")
        strange, plain = choose(keyspace, 2, batch_size=1)
        keyspace.client.set(keyspace.keys.batch(strange), payload)
        worker = new_worker()
        worker.run(plain)
        check(strange)
        assert len(worker.judged_texts) == 1, "it takes no other along"
        assert keyspace.client.get(keyspace.keys.batch(strange)) == payload


def test_an_error_of_a_judge_or_of_ours_parks_its_evaluation_and_quotes_nothing(
    keyspace: Keyspace, new_worker: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of ours hardly passes by itself; a batch of one that cancelled itself was judged over and over."""

    def failing_with(error: type[BaseException]) -> Callable[[str], Reading]:
        def score(text: str) -> Reading:
            if text == output(1):
                raise error(text)
            return PASS

        return score

    for error in (KeyError, asyncio.CancelledError):
        keyspace.next_case(error.__name__)
        (batch_id,) = choose(keyspace, 3)
        with capture_logs() as lines:
            new_worker(judges=scoring(failing_with(error))).run(batch_id)
        assert (judged(keyspace), holders(keyspace)) == (ids(0, 2), {batch_id: "parked"})
        assert (read_account(keyspace.store).waiting, output(1) in str(lines)) == (1, False)
        assert keyspace.leases()[batch_id] == keyspace.soon(60, growth=1.0)
        new_worker().sweep_due(scored=3)

    def break_down(*_: Any, **__: Any) -> None:
        raise ValueError(output(0))

    for stage in ("run", "record", "finish_or_park", "already_finished"):
        keyspace.next_case(stage)
        (batch_id,) = choose(keyspace, 1)
        worker = new_worker()
        owners = {"run": worker.evaluations, "finish_or_park": worker.judging._completion}  # no test reaches it else
        with monkeypatch.context() as broken, capture_logs() as lines:
            broken.setattr(owners.get(stage, worker.ledger), stage, break_down)
            worker.run(batch_id)
        errors = [(line["event"], line["error"]) for line in lines if line["log_level"] == "error"]
        assert (errors, output(0) in str(lines)) == ([("unexpected error", "ValueError")], False)
        if stage != "already_finished":
            assert (holders(keyspace), ready(keyspace)) == ({batch_id: "parked"}, [])
            assert keyspace.leases()[batch_id] == keyspace.soon(60, growth=1.0)
        worker.sweep_due(scored=1)


@pytest.mark.usefixtures("_patience_with_tools")
def test_calls_of_all_tries_of_an_exploration_count(keyspace: Keyspace, new_worker: Workers) -> None:
    """What was paid for is not paid for again until the letters' end; an outage before the first answer is free."""
    rules, judges = (Rule(name="all", judges=("mine",)),), load_judges(READS)
    for steps in ((LOOK, LOOK, AWAY), (LOOK, AWAY)):
        keyspace.next_case(f"{len(steps) - 1} rounds")
        worker = new_worker(*steps, judges=judges)
        worker.run(*choose(keyspace, 1, judges=READS, rules=rules))
        while keyspace.batches():
            worker.sweep_due()
        (verdict,) = keyspace.outbox("j")
        assert (verdict["outcome"], verdict["reason"]) == ("unscored", "over_budget")
        assert 16 <= verdict["attempts"] == len(worker.model.requests) < 16 + len(steps)
    keyspace.next_case("an outage before the first answer")
    worker = new_worker(AWAY, judges=judges)
    worker.run(*choose(keyspace, 1, judges=READS, rules=rules))
    for _ in range(10):
        worker.sweep_due()
    assert keyspace.outbox("j") == []
    new_worker(LOOK, YES, judges=judges).sweep_due(scored=1)


def test_a_batch_goes_to_the_judge_model_it_was_chosen_for(keyspace: Keyspace, new_worker: Workers) -> None:
    """Whatever its settings are called by now: at its own price, and never to another model of the same name."""
    (batch_id,) = choose(keyspace, 2)
    assert keyspace.batches()[batch_id].grader == "default"
    worker = new_worker(models={"default": DEAR, "old": MODEL})
    worker.run(batch_id)
    assert MODEL.price is not None
    cost_usd = MODEL.price.cost_usd(len(YES), len(YES))
    assert {(entry["judge_model"], entry["cost_usd"]) for entry in keyspace.outbox("j")} == {("scripted", cost_usd)}
    assert reached(worker) == [0, 2]
    assert_settled(keyspace, scored=2)
    dear = msgspec.structs.replace(MODEL, price=DEAR.price)
    worker = new_worker(models={"default": MODEL, "also": dear, "other": DEAR})
    worker.run(*choose(keyspace, 1, first=2))
    assert reached(worker) == [1, 0, 0], "of settings that share a judge model those of the rule are taken"
    worker.judging.stop(0.1)
    assert [model.is_closed for model in worker.models.values()] == [True, True, True], "all models are closed"
    choose(keyspace, 1, age_s=OLD_S, first=3)
    worker = new_worker(models={"default": DEAR}, configured_models=lambda: frozenset({"other"}))
    worker.sweep()
    assert (worker.model.reached, reasons(keyspace)) == ([], {"dead:unknown_judge_version": 1})
    assert_settled(keyspace, scored=3, dead=1)


def test_an_egress_holds_for_evaluations_of_before_the_rule(keyspace: Keyspace, new_worker: Workers) -> None:
    models = {"default": MODEL, "inside": msgspec.structs.replace(MODEL, model="inside")}
    free = Rule(name="free", judges=("safety",))
    kept = Rule(name="kept", judges=("groundedness",), model="inside", egress=("inside",))
    choose(keyspace, 5, age_s=OLD_S, models=models, rules=(free,))
    worker = new_worker(models=models, rules=(kept, free), give_up_after=HOUR_S)
    worker.sweep(scored=0, dead=5)
    assert (reached(worker), reasons(keyspace)) == ([0, 0], {"dead:judge_rejected": 5})


def test_work_for_a_model_that_nobody_has_any_more_ends(keyspace: Keyspace, new_worker: Workers) -> None:
    leave(keyspace, 20)
    young = sorted(leave(keyspace, 2, age_s=5 * HOUR_S, first=50))
    worker = new_worker(configured_models=lambda: ONLY_OURS)
    worker.sweep()
    assert worker.model.reached == []
    assert {letter.judge_model for letter in letters(keyspace).values()} == {"gone"}
    assert reasons(keyspace) == {"dead:unknown_judge_version": 20}
    assert (sorted(keyspace.batches()), ready(keyspace, "gone"), holders(keyspace)) == (young, young, {})
    assert worker.judging.circuits() == {"scripted": 0.0}, "nobody is there for it"
    new_worker(models={"default": MODEL, "back": GONE}).sweep(scored=2, dead=20)
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
    keyspace.next_case("batches that a worker may judge are not given up")
    leave(keyspace, 2)
    before = keyspace.batches()
    for configured in (None, frozenset({"scripted", "gone"})):  # not known yet, or another worker's
        new_worker(configured_models=lambda configured=configured: configured).sweep()
        assert (keyspace.batches(), letters(keyspace), holders(keyspace)) == (before, {}, {})
    keyspace.next_case("own batches before the first exchange")
    choose(keyspace, 5, batch_size=1, age_s=OLD_S)
    new_worker(batch_size=1, configured_models=frozenset[str], limit=1).sweep(scored=5)


def test_judging_tells_where_there_is_capacity(keyspace: Keyspace, new_worker: Workers) -> None:
    batch_ids = choose(keyspace, 4, batch_size=1)
    worker = new_worker(batch_size=1, limit=1)
    assert (worker.judging.capacity(), worker.judging.pulse.has_ended) == ({"scripted": True}, False)
    worker.begin(batch_ids[0])
    assert (worker.judging.held, worker.judging.capacity()) == (2, {"scripted": False})
    worker.judging.stop(0)
    assert not worker.judging.pulse.has_ended, "it was stopped"
    shut = new_worker()
    shut.limits.blocked_for_s = 5.0
    assert shut.judging.capacity() == {"scripted": False}
