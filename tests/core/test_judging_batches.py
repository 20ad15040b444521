"""Judging on a real Redis: every evaluation is asked for as often as it must, and ends once."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs
from support.judging_parts import (
    HOUR_S,
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
from support.stage_parts import Keyspace

from judges.core.judge import Reading
from judges.core.model import CallTotals
from judges.core.verdict import Call, Score, Verdict
from judges.models.scripted import Step
from worker.base.accounting import read_account
from worker.core.queue.ledger import DeadLetter


def test_every_evaluation_of_a_batch_gets_its_verdict_and_the_batch_goes(
    keyspace: Keyspace, new_worker: Workers
) -> None:
    worker = new_worker()
    batch_ids = choose(keyspace, 6, batch_size=4)
    worker.run(*batch_ids)
    assert sorted(worker.judged_texts) == [output(number) for number in range(6)]
    assert judged(keyspace) == ids(*range(6))
    assert_settled(keyspace, scored=6)
    worker.run(*batch_ids)
    assert len(worker.judged_texts) == 6, "a message for what is finished does nothing"


def test_one_message_is_enough_for_all_ready_batches(keyspace: Keyspace, new_worker: Workers) -> None:
    new_worker().run(choose(keyspace, 30, batch_size=1)[-1])
    assert_settled(keyspace, scored=30)


def test_without_a_message_the_sweeper_finds_a_ready_batch_and_a_task_judges_it(
    keyspace: Keyspace, new_worker: Workers
) -> None:
    choose(keyspace, 3, batch_size=1)
    worker = new_worker()
    worker.sweep()
    assert worker.notified == ["scripted"]
    assert_settled(keyspace, scored=3)
    worker.sweep()
    assert worker.notified == ["scripted"], "nothing is ready"


def test_a_message_for_a_model_of_another_worker_does_nothing(keyspace: Keyspace, new_worker: Workers) -> None:
    choose(keyspace, 1)
    before = keyspace.everything()
    worker = new_worker()
    assert [worker.judging.run(label) for label in ("", "other", "panel", "code", "-" * 99)] == [None] * 5
    assert keyspace.everything() == before


def test_a_task_returns_its_counts(keyspace: Keyspace, new_worker: Workers) -> None:
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


def test_of_many_wake_ups_at_once_each_batch_goes_to_one(keyspace: Keyspace, new_worker: Workers) -> None:
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


def test_a_final_reason_ends_an_evaluation_as_well(keyspace: Keyspace, new_worker: Workers) -> None:
    cut = Step(finish_reason="length")  # An answer that was cut off is requested twice.
    new_worker(Step(refusal=True), cut, cut, Step(failure="bad_request")).run(*choose(keyspace, 3))
    account = read_account(keyspace.store)
    assert (account.unscored, account.waiting, account.lost) == (3, 0, 0)
    assert account.reasons == {"unscored:bad_request": 1, "unscored:refusal": 1, "unscored:truncated": 1}
    assert keyspace.batches() == {}


def test_an_evaluation_that_fails_past_give_up_after_becomes_a_dead_letter(
    keyspace: Keyspace, new_worker: Workers
) -> None:
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


def test_a_late_try_that_succeeds_is_no_dead_letter(keyspace: Keyspace, new_worker: Workers) -> None:
    new_worker(give_up_after=HOUR_S).run(*choose(keyspace, 2, age_s=7 * HOUR_S))
    assert_settled(keyspace, scored=2)


@pytest.mark.parametrize("missing", ["version", "judge", "model"])
def test_a_batch_whose_judge_or_model_is_unknown_is_left_to_another_worker(
    keyspace: Keyspace, new_worker: Workers, missing: str
) -> None:
    (batch_id,) = choose(keyspace, 3)
    judges = {"version": {"safety": replace(SAFETY, scoring="another")}, "judge": {}, "model": None}[missing]
    stranger = new_worker(judges=judges)
    if missing == "model":
        stranger.evaluations._models = {}
    stranger.run(batch_id)
    assert (stranger.judged_texts, holders(keyspace)) == ([], {batch_id: "parked"})
    assert keyspace.leases()[batch_id] == keyspace.soon(1.0, less_s=0.5, growth=0.25)
    assert read_account(keyspace.store).waiting == 3
    keyspace.make_due()
    new_worker().sweep()
    assert_settled(keyspace, scored=3)


def test_the_dead_letter_of_an_unknown_version_names_that(keyspace: Keyspace, new_worker: Workers) -> None:
    new_worker(judges={}).run(*choose(keyspace, 1, age_s=7 * HOUR_S))
    assert read_account(keyspace.store).reasons == {"dead:unknown_judge_version": 1}
    (dead_verdict,) = keyspace.outbox("d")
    assert (dead_verdict["judge"], dead_verdict["metrics"], dead_verdict.get("attempts", 0)) == (
        "safety",
        ["safety"],
        0,
    )


@pytest.mark.parametrize("payload", [b'{"v":9,"work":[]}', b'{"v":1}', b"{"], ids=["newer", "broken", "no JSON"])
def test_a_batch_that_cannot_be_read_is_handed_back_whole(
    keyspace: Keyspace, new_worker: Workers, payload: bytes
) -> None:
    strange, plain = choose(keyspace, 2, batch_size=1)
    keyspace.client.set(keyspace.keys.batch(strange), payload)
    worker = new_worker()
    worker.run(plain)
    assert (len(worker.judged_texts), holders(keyspace)) == (1, {strange: "parked"}), "it takes no other along"
    assert keyspace.leases()[strange] == keyspace.soon(1.0, less_s=0.5, growth=0.25)
    assert keyspace.client.get(keyspace.keys.batch(strange)) == payload


def test_an_unexpected_error_of_a_judge_parks_the_batch_and_quotes_nothing(
    keyspace: Keyspace, new_worker: Workers
) -> None:
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
    keyspace.make_due()
    new_worker().sweep()
    assert_settled(keyspace, scored=3)


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


def secret(text: str, *, of: str) -> Any:
    """Score, or raise an error that quotes the text."""
    if text == of:
        raise KeyError(text)
    return Reading((Score("safety", 1.0),))


@pytest.mark.parametrize("stage", ["run", "record", "finish_or_park"])
def test_an_error_of_ours_parks_the_batch_and_quotes_nothing(
    keyspace: Keyspace, new_worker: Workers, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    (batch_id,) = choose(keyspace, 1)
    worker = new_worker()

    def break_down(*_: Any, **__: Any) -> None:
        raise ValueError(output(0))

    with monkeypatch.context() as broken, capture_logs() as lines:
        owners = {"run": worker.evaluations, "record": worker.ledger, "finish_or_park": worker.judging._completion}
        broken.setattr(owners[stage], stage, break_down)
        worker.run(batch_id)
    errors = [(line["event"], line["error"]) for line in lines if line["log_level"] == "error"]
    assert errors == [("unexpected error", "ValueError")]
    assert output(0) not in str(lines)
    assert (holders(keyspace), ready(keyspace)) == ({batch_id: "parked"}, [])
    assert keyspace.leases()[batch_id] == keyspace.soon(60, growth=1.0)
    keyspace.make_due()
    worker.sweep()
    assert_settled(keyspace, scored=1)


def test_an_error_of_ours_while_taking_quotes_nothing(
    keyspace: Keyspace, new_worker: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    (batch_id,) = choose(keyspace, 1)
    worker = new_worker()

    def break_down(*_: Any) -> None:
        raise ValueError(output(0))

    with monkeypatch.context() as broken, capture_logs() as lines:
        broken.setattr(worker.ledger, "already_finished", break_down)
        worker.run(batch_id)
    assert [(line["event"], line["error"]) for line in lines] == [("unexpected error", "ValueError")]
    keyspace.make_due()
    worker.sweep()
    assert_settled(keyspace, scored=1)


def test_a_task_of_a_worker_that_does_not_work_yet_does_nothing(
    keyspace: Keyspace, new_worker: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose(keyspace, 1)
    worker = new_worker()
    monkeypatch.setattr(worker.judging, "_started", False)
    worker.sweep()
    assert (len(ready(keyspace)), worker.judged_texts) == (1, [])


def test_an_evaluation_that_cancels_itself_takes_no_sibling_along(keyspace: Keyspace, new_worker: Workers) -> None:
    """Its batch was given back at once, and judged over and over."""
    (batch_id,) = choose(keyspace, 3)

    def score(trace: Any, _: Any) -> Any:
        if trace.output == output(1):
            raise asyncio.CancelledError
        return Reading((Score("safety", 1.0),))

    worker = new_worker(judges={"safety": replace(SAFETY, score=score)})
    worker.run(batch_id)
    assert (judged(keyspace), holders(keyspace)) == (ids(0, 2), {batch_id: "parked"})
    assert keyspace.leases()[batch_id] == keyspace.soon(60, growth=1.0)
