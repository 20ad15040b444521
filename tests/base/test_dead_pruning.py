"""Dead letters are bounded by count and age; what goes is removed in the accounting, and counts nowhere else later."""

import pytest
from support.dead_parts import dead, dead_bytes, give_up, read_balanced_account, retry_all
from support.judging_parts import Workers
from support.stage_parts import HOUR, Keyspace, make_trace, make_verdict, settings_of

from worker.base.dead_letters import store as store_module
from worker.base.dead_letters.store import DeadLetterStore, prune
from worker.core.queue.batch import Evaluation, Item
from worker.core.queue.ledger import DeadLetter
from worker.core.storage.client import StoreError

DAY_MS = 86_400_000


def make_older(keyspace: Keyspace, ids: list[str], by_ms: int) -> None:
    for name in ids:
        keyspace.client.zincrby(keyspace.keys.dead_due, -by_ms, name)


def test_within_their_bounds_all_stay(keyspace: Keyspace, new_worker: Workers) -> None:
    ids = give_up(keyspace, new_worker, 3)
    make_older(keyspace, ids[:1], 7 * DAY_MS - 60_000)
    assert prune(keyspace.store, settings_of(keyspace, max_dead=3)) == 0
    assert len(dead(keyspace)) == 3
    assert prune(keyspace.store, settings_of(keyspace, prefix="nothing")) == 0


def test_the_oldest_of_too_many_go(keyspace: Keyspace, new_worker: Workers) -> None:
    ids = give_up(keyspace, new_worker, 5)
    for place, name in enumerate(ids):
        make_older(keyspace, [name], 1000 * (5 - place))
    assert prune(keyspace.store, settings_of(keyspace, max_dead=2)) == 3
    assert dead(keyspace) == ids[3:]
    account = read_balanced_account(keyspace)
    assert (account.dead, account.removed, account.chosen) == (2, 3, 5)
    assert prune(keyspace.store, settings_of(keyspace, max_dead=2)) == 0


def test_nothing_goes_while_a_key_that_is_written_has_a_wrong_type(keyspace: Keyspace, new_worker: Workers) -> None:
    give_up(keyspace, new_worker, 2)
    for key in (keyspace.keys.account_all, keyspace.keys.dead_traces, keyspace.keys.dead_refs):
        keyspace.client.rename(key, f"{key}:kept")
        keyspace.client.set(key, "not ours")
        before = keyspace.everything()
        with pytest.raises(StoreError, match="rename it or delete it"):
            prune(keyspace.store, settings_of(keyspace, max_dead=1))
        assert keyspace.everything() == before, key
        keyspace.client.rename(f"{key}:kept", key)
    assert prune(keyspace.store, settings_of(keyspace, max_dead=1)) == 1


def test_old_dead_letters_are_removed(keyspace: Keyspace, new_worker: Workers) -> None:
    ids = give_up(keyspace, new_worker, 3)
    make_older(keyspace, ids[:2], 2 * DAY_MS)
    assert prune(keyspace.store, settings_of(keyspace, dead_retention=86_400)) == 2
    assert dead(keyspace) == ids[2:]
    assert read_balanced_account(keyspace).removed == 2


def test_the_oldest_of_too_large_ones_go_and_no_more_than_must(keyspace: Keyspace, new_worker: Workers) -> None:
    ids = give_up(keyspace, new_worker, 6)
    for place, name in enumerate(ids):
        make_older(keyspace, [name], 1000 * (6 - place))
    whole = dead_bytes(keyspace)
    assert prune(keyspace.store, settings_of(keyspace, max_dead_bytes=whole)) == 0
    assert prune(keyspace.store, settings_of(keyspace, max_dead_bytes=whole - 1)) == 1
    assert prune(keyspace.store, settings_of(keyspace, max_dead_bytes=whole * 11 // 20)) == 2
    assert dead(keyspace) == ids[3:]
    assert dead_bytes(keyspace) <= whole * 11 // 20
    assert prune(keyspace.store, settings_of(keyspace, max_dead_bytes=1)) == 3
    account = read_balanced_account(keyspace)
    assert (account.dead, account.removed, account.chosen) == (0, 6, 6)
    assert not keyspace.client.exists(*keyspace.keys.dead_letters)


def test_a_trace_of_several_dead_letters_counts_its_bytes_once(keyspace: Keyspace, new_worker: Workers) -> None:
    """A letter used to hold its trace: three judges of a trace of 100 kB took 300 kB when their model was away."""
    text = "x" * 100_000
    judges = ("safety", "groundedness", "relevance_to_query")
    first, *others = [f"{number}" * 32 for number in range(3)]
    ledger = new_worker().ledger
    for name, judge in zip((first, *others), judges, strict=True):
        evaluation = Evaluation(name, HOUR, judge, "0" * 32, 1.0)
        item = Item(make_trace(1, context=[text]), (evaluation,))
        letter = DeadLetter(1, evaluation, "default", "scripted", "timeout", 2, 1.0, 2.0, item=item)
        dead_verdict = make_verdict(evaluation_id=name, outcome="unscored", reason="timeout")
        keyspace.client.hincrby(keyspace.keys.account_all, "chosen", 1)
        assert ledger.add_dead_letter([(letter, dead_verdict)]) == [True]
    assert dead_bytes(keyspace) < 102_000 + 3 * 500
    assert sum(map(len, keyspace.client.hvals(keyspace.keys.dead))) < 3 * 500
    whole = {
        stored.letter.evaluation.id: stored.letter for stored in DeadLetterStore(keyspace.store).read([first, *others])
    }
    assert {letter.item.trace.context[0] for letter in whole.values()} == {text}
    assert ledger.remove(others) == [True, True]
    assert [stored.letter.item.trace for stored in DeadLetterStore(keyspace.store).read(dead(keyspace))] == [
        whole[first].item.trace
    ]
    retry_all(keyspace)
    assert read_balanced_account(keyspace).dead == 1
    assert ledger.remove([first]) == [True]
    assert dead(keyspace) == []


def test_a_call_is_bounded_and_the_next_goes_on(
    keyspace: Keyspace, new_worker: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_up(keyspace, new_worker, 10)
    monkeypatch.setattr(store_module, "_PRUNE_COUNT", 2)
    monkeypatch.setattr(store_module, "_MAX_PRUNE_CHUNKS", 3)
    settings = settings_of(keyspace, max_dead=1)
    assert [prune(keyspace.store, settings) for _ in range(3)] == [6, 3, 0]
    assert read_balanced_account(keyspace).removed == 9


def test_a_verdict_that_comes_after_the_cut_counts_no_more(keyspace: Keyspace, new_worker: Workers) -> None:
    give_up(keyspace, new_worker, 2)
    retry_all(keyspace)
    worker = new_worker()
    worker.begin(next(iter(keyspace.batches())))
    make_older(keyspace, dead(keyspace), 8 * DAY_MS)
    assert prune(keyspace.store, settings_of(keyspace)) == 2
    worker.end()
    account = read_balanced_account(keyspace)
    assert (account.removed, account.scored, account.dead, keyspace.batches()) == (2, 0, 0, {})
    assert keyspace.outbox("j") == []
