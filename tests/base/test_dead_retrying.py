"""A retry judges under the same id, once; until then the letter is dead, and one that fails is renewed."""

import threading

from support.dead_parts import OLD_S, balanced, dead, give_up, marks, retry_all, scheduled
from support.judging_parts import Desks, assert_settled, choose, failing, judged, letters
from support.stage_parts import Ground, settings_of

from judges.core.model import ModelRejectedError
from worker.base.dead_letters.retry import retry
from worker.base.dead_letters.store import DeadLetterStore


def test_a_retry_is_judged_once_under_the_same_id(ground: Ground, desk: Desks) -> None:
    ids = give_up(ground, desk, 3)
    assert balanced(ground).dead == 3
    (retried,) = retry_all(ground)
    assert sorted(retried.chosen) == sorted(ids)
    account = balanced(ground)
    assert (account.dead, account.waiting, account.chosen) == (3, 0, 3), "dead until the verdicts are there"
    worker = desk()
    worker.sweep()
    assert len(worker.asked) == 3
    assert sorted(entry["evaluation_id"] for entry in ground.outbox("j")) == sorted(ids)
    assert (dead(ground), marks(ground)) == ([], {})
    assert len(ground.outbox("d")) == 3
    assert_settled(ground, scored=3)


def test_the_batch_holds_each_trace_once_and_the_letters_of_one_model(ground: Ground, desk: Desks) -> None:
    give_up(ground, desk, 40)
    assert [len(retried.chosen) for retried in retry_all(ground)] == [32, 8]
    batches = ground.batches().values()
    assert sorted(len(batch.items) for batch in batches) == [8, 32]
    assert {(batch.model, batch.judge_model) for batch in batches} == {("default", "scripted")}
    assert ground.waiting()["scripted"] == sum(
        ground.client.strlen(ground.keys.batch(name)) for name in ground.batches()
    )


def test_calls_of_all_rounds_add_up(ground: Ground, desk: Desks) -> None:
    (name,) = give_up(ground, desk, 1)
    before = letters(ground)[name].attempts
    retry_all(ground)
    desk().sweep()
    (verdict,) = ground.outbox("j")
    assert (before, verdict["attempts"]) == (1, 2)


def test_while_one_is_under_way_a_second_retry_chooses_nothing(ground: Ground, desk: Desks) -> None:
    ids = give_up(ground, desk, 3)
    retry_all(ground)
    before = ground.everything()
    (again,) = retry_all(ground)
    assert (again.chosen, sorted(again.under_way)) == ([], sorted(ids))
    assert ground.everything() == before


def test_a_retry_that_read_the_letters_before_another_one_chooses_nothing(ground: Ground, desk: Desks) -> None:
    ids = give_up(ground, desk, 2)
    found = list(DeadLetterStore(ground.store).read(ids))
    retry_all(ground)
    late = retry(ground.store, settings_of(ground), found)
    assert (late.chosen, len(late.under_way), len(ground.batches())) == ([], 2, 1)
    desk().sweep()
    gone = retry(ground.store, settings_of(ground), found)
    assert (gone.chosen, len(gone.gone), ground.batches()) == ([], 2, {})


def test_of_many_at_once_each_letter_goes_into_one_batch(ground: Ground, desk: Desks) -> None:
    ids = give_up(ground, desk, 60)
    chosen: list[str] = []

    def run() -> None:
        chosen.extend(name for retried in retry_all(ground) for name in retried.chosen)

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(chosen) == sorted(ids)
    worker = desk()
    worker.sweep()
    assert len(worker.asked) == 60
    assert_settled(ground, scored=60)


def test_a_mark_whose_batch_is_gone_holds_nobody_back(ground: Ground, desk: Desks) -> None:
    ids = give_up(ground, desk, 1)
    retry_all(ground)
    for name in ground.batches():
        ground.client.delete(ground.keys.batch(name))
    (again,) = retry_all(ground)
    assert again.chosen == ids
    worker = desk()
    worker.sweep()
    worker.sweep()
    assert len(judged(ground)) == 1
    assert balanced(ground).scored == 1


def test_a_retry_that_fails_renews_the_letter(ground: Ground, desk: Desks) -> None:
    (name,) = give_up(ground, desk, 1)
    first = letters(ground)[name]
    retry_all(ground)
    worker = desk(failing(0, error=ModelRejectedError("no")), give_up_after=0.001)
    worker.sweep()
    renewed = letters(ground)[name]
    assert (renewed.reason, renewed.attempts, renewed.chosen_at) == ("judge_rejected", 2, first.chosen_at)
    assert renewed.given_up_at > first.given_up_at
    assert renewed.item == first.item
    account = balanced(ground)
    assert (account.dead, account.chosen, account.reasons) == (
        1, 1, {"dead:judge_rejected": 1, "dead:judge_unavailable": 0},
    )  # fmt: skip
    assert [entry["reason"] for entry in ground.outbox("d")] == ["judge_unavailable"], "told of once"
    assert ground.batches() == {}
    assert marks(ground)[name] == (0, "")
    (retried,) = retry_all(ground)
    assert retried.chosen == [name]
    desk().sweep()
    assert_settled(ground, scored=1)


def test_only_the_batch_of_the_retry_renews(ground: Ground, desk: Desks) -> None:
    """A batch from before may be judged again when its end was not written."""
    (batch_id,) = choose(ground, 1, age_s=OLD_S)
    payload = ground.client.get(ground.keys.batch(batch_id))
    worker = desk(failing(0))
    worker.run(batch_id)
    (name,) = dead(ground)
    retry_all(ground)
    before, mark = letters(ground), marks(ground)
    (retry_batch,) = ground.batches()
    ground.client.set(ground.keys.batch(batch_id), payload)
    ground.client.zadd(ground.keys.leases, {batch_id: 0})
    ground.make_due(retry_batch, in_s=100)
    ground.client.zrem(ground.keys.ready("scripted"), retry_batch)
    worker.sweep()
    assert (letters(ground), marks(ground)) == (before, mark)
    assert marks(ground)[name].batch_id == retry_batch


def test_what_comes_back_after_a_kill_is_judged_once(ground: Ground, desk: Desks) -> None:
    give_up(ground, desk, 4)
    retry_all(ground)
    killed = desk(failing(2, 3))
    killed.sweep()
    assert balanced(ground).dead == 2, "two are judged, two are parked"
    killed.judging.stop(0.0)
    ground.make_due()
    desk().sweep()
    assert_settled(ground, scored=4)


def test_a_new_letter_may_be_taken_up_by_itself_only_where_its_reason_may_pass(ground: Ground, desk: Desks) -> None:
    (passing,) = give_up(ground, desk, 1)
    give_up(ground, desk, 1, first=5, error=RuntimeError("a fault of ours"))
    assert {letter.reason for letter in letters(ground).values()} == {"judge_unavailable", "internal_error"}
    assert scheduled(ground) == {passing: ground.soon(60)}


def test_what_is_dead_is_not_chosen_anew(ground: Ground, desk: Desks) -> None:
    (name,) = give_up(ground, desk, 1)
    # However long it is dead: the ledger may have forgotten it by then.
    ground.client.delete(*ground.client.keys(f"{ground.keys.evaluations}:*"))
    choose(ground, 1)
    assert (ground.ledger(), dead(ground)) == ({}, [name])
