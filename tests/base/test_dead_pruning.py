"""Dead letters are bounded by count and age; what goes is removed in the accounting, and counts nowhere else later."""

import pytest
from support.dead_parts import balanced, dead, dead_bytes, give_up, retry_all
from support.judging_parts import Desks
from support.stage_parts import HOUR, Ground, make_trace, make_verdict, settings_of

from worker.base.dead_letters import store as store_module
from worker.base.dead_letters.store import DeadLetterStore, prune
from worker.core.queue.batch import Evaluation, Item
from worker.core.queue.ledger import DeadLetter
from worker.core.storage.client import StoreError

DAY_MS = 86_400_000


def make_older(ground: Ground, ids: list[str], by_ms: int) -> None:
    for name in ids:
        ground.client.zincrby(ground.keys.dead_due, -by_ms, name)


def test_within_their_bounds_all_stay(ground: Ground, desk: Desks) -> None:
    ids = give_up(ground, desk, 3)
    make_older(ground, ids[:1], 7 * DAY_MS - 60_000)
    assert prune(ground.store, settings_of(ground, max_dead=3)) == 0
    assert len(dead(ground)) == 3
    assert prune(ground.store, settings_of(ground, prefix="nothing")) == 0


def test_the_oldest_of_too_many_go(ground: Ground, desk: Desks) -> None:
    ids = give_up(ground, desk, 5)
    for place, name in enumerate(ids):
        make_older(ground, [name], 1000 * (5 - place))
    assert prune(ground.store, settings_of(ground, max_dead=2)) == 3
    assert dead(ground) == ids[3:]
    account = balanced(ground)
    assert (account.dead, account.removed, account.chosen) == (2, 3, 5)
    assert prune(ground.store, settings_of(ground, max_dead=2)) == 0


def test_nothing_goes_while_a_key_that_is_written_has_a_wrong_type(ground: Ground, desk: Desks) -> None:
    give_up(ground, desk, 2)
    for key in (ground.keys.account_all, ground.keys.dead_traces, ground.keys.dead_refs):
        ground.client.rename(key, f"{key}:kept")
        ground.client.set(key, "not ours")
        before = ground.everything()
        with pytest.raises(StoreError, match="rename it or delete it"):
            prune(ground.store, settings_of(ground, max_dead=1))
        assert ground.everything() == before, key
        ground.client.rename(f"{key}:kept", key)
    assert prune(ground.store, settings_of(ground, max_dead=1)) == 1


def test_what_is_too_old_goes(ground: Ground, desk: Desks) -> None:
    ids = give_up(ground, desk, 3)
    make_older(ground, ids[:2], 2 * DAY_MS)
    assert prune(ground.store, settings_of(ground, dead_retention=86_400)) == 2
    assert dead(ground) == ids[2:]
    assert balanced(ground).removed == 2


def test_the_oldest_of_too_large_ones_go_and_no_more_than_must(ground: Ground, desk: Desks) -> None:
    ids = give_up(ground, desk, 6)
    for place, name in enumerate(ids):
        make_older(ground, [name], 1000 * (6 - place))
    whole = dead_bytes(ground)
    assert prune(ground.store, settings_of(ground, max_dead_bytes=whole)) == 0
    assert prune(ground.store, settings_of(ground, max_dead_bytes=whole - 1)) == 1
    assert prune(ground.store, settings_of(ground, max_dead_bytes=whole * 11 // 20)) == 2
    assert dead(ground) == ids[3:]
    assert dead_bytes(ground) <= whole * 11 // 20
    assert prune(ground.store, settings_of(ground, max_dead_bytes=1)) == 3
    account = balanced(ground)
    assert (account.dead, account.removed, account.chosen) == (0, 6, 6)
    assert not ground.client.exists(*ground.keys.dead_letters)


def test_a_dead_trace_takes_its_bytes_once_whatever_asked_for_it(ground: Ground, desk: Desks) -> None:
    """A letter used to hold its trace: three judges of a trace of 100 kB took 300 kB when their model was away."""
    text = "x" * 100_000
    judges = ("safety", "groundedness", "relevance_to_query")
    one, *others = [f"{number}" * 32 for number in range(3)]
    ledger = desk().ledger
    for name, judge in zip((one, *others), judges, strict=True):
        evaluation = Evaluation(name, HOUR, judge, "0" * 32, 1.0)
        item = Item(make_trace(1, context=[text]), (evaluation,))
        letter = DeadLetter(1, evaluation, "default", "scripted", "timeout", 2, 1.0, 2.0, item=item)
        news = make_verdict(evaluation_id=name, outcome="unscored", reason="timeout")
        ground.client.hincrby(ground.keys.account_all, "chosen", 1)
        assert ledger.add_dead_letter([(letter, news)]) == [True]
    assert dead_bytes(ground) < 102_000 + 3 * 500
    assert sum(map(len, ground.client.hvals(ground.keys.dead))) < 3 * 500
    whole = {found.letter.evaluation.id: found.letter for found in DeadLetterStore(ground.store).read([one, *others])}
    assert {letter.item.trace.context[0] for letter in whole.values()} == {text}
    assert ledger.remove(others) == [True, True]
    assert [found.letter.item.trace for found in DeadLetterStore(ground.store).read(dead(ground))] == [
        whole[one].item.trace
    ]
    retry_all(ground)
    assert balanced(ground).dead == 1
    assert ledger.remove([one]) == [True]
    assert dead(ground) == []


def test_a_call_is_bounded_and_the_next_goes_on(ground: Ground, desk: Desks, monkeypatch: pytest.MonkeyPatch) -> None:
    give_up(ground, desk, 10)
    monkeypatch.setattr(store_module, "_PRUNE_COUNT", 2)
    monkeypatch.setattr(store_module, "_MAX_PRUNE_CHUNKS", 3)
    settings = settings_of(ground, max_dead=1)
    assert [prune(ground.store, settings) for _ in range(3)] == [6, 3, 0]
    assert balanced(ground).removed == 9


def test_a_verdict_that_comes_after_the_cut_counts_no_more(ground: Ground, desk: Desks) -> None:
    give_up(ground, desk, 2)
    retry_all(ground)
    worker = desk()
    worker.begin(next(iter(ground.batches())))
    make_older(ground, dead(ground), 8 * DAY_MS)
    assert prune(ground.store, settings_of(ground)) == 2
    worker.end()
    account = balanced(ground)
    assert (account.removed, account.scored, account.dead, ground.batches()) == (2, 0, 0, {})
    assert ground.outbox("j") == []
