"""A retry judges under the same id, once; until then the letter is dead, and one that fails is renewed."""

import threading

from support.dead_parts import OLD_S, dead, give_up, marks, read_balanced_account, retry_all, scheduled
from support.judging_parts import Workers, assert_settled, choose, failing, judged, letters
from support.stage_parts import Keyspace, settings_of

from judges.core.model import ModelRejectedError
from worker.base.dead_letters.retry import retry
from worker.base.dead_letters.store import DeadLetterStore


def test_a_retry_is_judged_once_under_the_same_id(keyspace: Keyspace, new_worker: Workers) -> None:
    ids = give_up(keyspace, new_worker, 3)
    assert read_balanced_account(keyspace).dead == 3
    (retried,) = retry_all(keyspace)
    assert sorted(retried.chosen) == sorted(ids)
    account = read_balanced_account(keyspace)
    assert (account.dead, account.waiting, account.chosen) == (3, 0, 3), "dead until the verdicts are there"
    worker = new_worker()
    worker.sweep()
    assert len(worker.judged_texts) == 3
    assert sorted(entry["evaluation_id"] for entry in keyspace.outbox("j")) == sorted(ids)
    assert (dead(keyspace), marks(keyspace)) == ([], {})
    assert len(keyspace.outbox("d")) == 3
    assert_settled(keyspace, scored=3)


def test_the_batch_holds_each_trace_once_and_the_letters_of_one_model(keyspace: Keyspace, new_worker: Workers) -> None:
    give_up(keyspace, new_worker, 40)
    assert [len(retried.chosen) for retried in retry_all(keyspace)] == [32, 8]
    batches = keyspace.batches().values()
    assert sorted(len(batch.items) for batch in batches) == [8, 32]
    assert {(batch.grader, batch.judge_model) for batch in batches} == {("default", "scripted")}
    assert keyspace.waiting()["scripted"] == sum(
        keyspace.client.strlen(keyspace.keys.batch(name)) for name in keyspace.batches()
    )


def test_calls_of_all_rounds_add_up(keyspace: Keyspace, new_worker: Workers) -> None:
    (name,) = give_up(keyspace, new_worker, 1)
    before = letters(keyspace)[name].attempts
    retry_all(keyspace)
    new_worker().sweep()
    (verdict,) = keyspace.outbox("j")
    assert (before, verdict["attempts"]) == (1, 2)


def test_while_one_is_under_way_a_second_retry_chooses_nothing(keyspace: Keyspace, new_worker: Workers) -> None:
    ids = give_up(keyspace, new_worker, 3)
    retry_all(keyspace)
    before = keyspace.everything()
    (again,) = retry_all(keyspace)
    assert (again.chosen, sorted(again.under_way)) == ([], sorted(ids))
    assert keyspace.everything() == before


def test_a_retry_that_read_the_letters_before_another_one_chooses_nothing(
    keyspace: Keyspace, new_worker: Workers
) -> None:
    ids = give_up(keyspace, new_worker, 2)
    store = list(DeadLetterStore(keyspace.store).read(ids))
    retry_all(keyspace)
    late = retry(keyspace.store, settings_of(keyspace), store)
    assert (late.chosen, len(late.under_way), len(keyspace.batches())) == ([], 2, 1)
    new_worker().sweep()
    gone = retry(keyspace.store, settings_of(keyspace), store)
    assert (gone.chosen, len(gone.gone), keyspace.batches()) == ([], 2, {})


def test_of_many_at_once_each_letter_goes_into_one_batch(keyspace: Keyspace, new_worker: Workers) -> None:
    ids = give_up(keyspace, new_worker, 60)
    chosen: list[str] = []

    def run() -> None:
        chosen.extend(name for retried in retry_all(keyspace) for name in retried.chosen)

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(chosen) == sorted(ids)
    worker = new_worker()
    worker.sweep()
    assert len(worker.judged_texts) == 60
    assert_settled(keyspace, scored=60)


def test_a_mark_without_its_batch_does_not_prevent_a_retry(keyspace: Keyspace, new_worker: Workers) -> None:
    ids = give_up(keyspace, new_worker, 1)
    retry_all(keyspace)
    for name in keyspace.batches():
        keyspace.client.delete(keyspace.keys.batch(name))
    (again,) = retry_all(keyspace)
    assert again.chosen == ids
    worker = new_worker()
    worker.sweep()
    worker.sweep()
    assert len(judged(keyspace)) == 1
    assert read_balanced_account(keyspace).scored == 1


def test_a_retry_that_fails_renews_the_letter(keyspace: Keyspace, new_worker: Workers) -> None:
    (name,) = give_up(keyspace, new_worker, 1)
    first = letters(keyspace)[name]
    retry_all(keyspace)
    worker = new_worker(failing(0, error=ModelRejectedError("no")), give_up_after=0.001)
    worker.sweep()
    renewed = letters(keyspace)[name]
    assert (renewed.reason, renewed.attempts, renewed.chosen_at) == ("judge_rejected", 2, first.chosen_at)
    assert renewed.given_up_at > first.given_up_at
    assert renewed.item == first.item
    account = read_balanced_account(keyspace)
    assert (account.dead, account.chosen, account.reasons) == (
        1, 1, {"dead:judge_rejected": 1, "dead:judge_unavailable": 0},
    )  # fmt: skip
    assert [entry["reason"] for entry in keyspace.outbox("d")] == ["judge_unavailable"], "told of once"
    assert keyspace.batches() == {}
    assert marks(keyspace)[name] == (0, "")
    (retried,) = retry_all(keyspace)
    assert retried.chosen == [name]
    new_worker().sweep()
    assert_settled(keyspace, scored=1)


def test_only_the_batch_of_the_retry_renews(keyspace: Keyspace, new_worker: Workers) -> None:
    """A batch from before may be judged again when its end was not written."""
    (batch_id,) = choose(keyspace, 1, age_s=OLD_S)
    payload = keyspace.client.get(keyspace.keys.batch(batch_id))
    worker = new_worker(failing(0))
    worker.run(batch_id)
    (name,) = dead(keyspace)
    retry_all(keyspace)
    before, mark = letters(keyspace), marks(keyspace)
    (retry_batch,) = keyspace.batches()
    keyspace.client.set(keyspace.keys.batch(batch_id), payload)
    keyspace.client.zadd(keyspace.keys.leases, {batch_id: 0})
    keyspace.make_due(retry_batch, in_s=100)
    keyspace.client.zrem(keyspace.keys.ready("scripted"), retry_batch)
    worker.sweep()
    assert (letters(keyspace), marks(keyspace)) == (before, mark)
    assert marks(keyspace)[name].batch_id == retry_batch


def test_a_retry_interrupted_by_a_kill_is_judged_once(keyspace: Keyspace, new_worker: Workers) -> None:
    give_up(keyspace, new_worker, 4)
    retry_all(keyspace)
    killed = new_worker(failing(2, 3))
    killed.sweep()
    assert read_balanced_account(keyspace).dead == 2, "two are judged, two are parked"
    killed.judging.stop(0.0)
    keyspace.make_due()
    new_worker().sweep()
    assert_settled(keyspace, scored=4)


def test_a_new_letter_may_be_taken_up_by_itself_only_where_its_reason_may_pass(
    keyspace: Keyspace, new_worker: Workers
) -> None:
    (passing,) = give_up(keyspace, new_worker, 1)
    give_up(keyspace, new_worker, 1, first=5, error=RuntimeError("a fault of ours"))
    assert {letter.reason for letter in letters(keyspace).values()} == {"judge_unavailable", "internal_error"}
    assert scheduled(keyspace) == {passing: keyspace.soon(60)}


def test_a_trace_with_a_dead_letter_is_not_chosen_again(keyspace: Keyspace, new_worker: Workers) -> None:
    (name,) = give_up(keyspace, new_worker, 1)
    # However long it is dead: the ledger may have forgotten it by then.
    keyspace.client.delete(*keyspace.client.keys(f"{keyspace.keys.evaluations}:*"))
    choose(keyspace, 1)
    assert (keyspace.ledger(), dead(keyspace)) == ({}, [name])
