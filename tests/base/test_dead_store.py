"""Dead letters are found by reason, service, judge, age and id; they are bounded, and those removed count once."""

import pytest
from support.dead_parts import dead, dead_bytes, give_up, read_balanced_account, retry_all
from support.judging_parts import Workers, letters
from support.stage_parts import HOUR, Keyspace, make_trace, make_verdict, settings_of

from worker.base.dead_letters import store as store_module
from worker.base.dead_letters.store import DeadLetterStore, prune
from worker.base.lookup.verdict_filter import VerdictFilter
from worker.core.queue.batch import Evaluation, Item
from worker.core.queue.ledger import DeadLetter, Ledger
from worker.core.storage.client import StoreError

DAY_MS = 86_400_000


def add_dead_letter(
    keyspace: Keyspace, number: int, *, judge: str = "safety", reason: str = "timeout", name: str = "", **trace: object
) -> str:
    verdict = make_verdict(number, outcome="unscored", reason=reason, judge=judge)
    evaluation = Evaluation(name or verdict.evaluation_id, HOUR, judge, verdict.judge_version, 1.0)
    item = Item(make_trace(number, **trace), (evaluation,))
    letter = DeadLetter(1, evaluation, "default", "scripted", reason, 2, 1.0, 2.0, item=item)
    keyspace.client.hincrby(keyspace.keys.account_all, "chosen", 1)
    assert Ledger(keyspace.store, settings_of(keyspace)).add_dead_letter([(letter, verdict)]) == [True]
    keyspace.client.zadd(keyspace.keys.dead_due, {evaluation.id: 1000 * number})
    return evaluation.id


def find(keyspace: Keyspace, *, newest_first: bool = True, **fields: object) -> list[str]:
    stored = DeadLetterStore(keyspace.store).find(VerdictFilter(**fields), newest_first=newest_first)
    return [each.letter.evaluation.id for each in stored]


def test_each_filter_and_all_together(keyspace: Keyspace) -> None:
    one = add_dead_letter(keyspace, 1, reason="timeout", service="shop-a", judge="safety")
    two = add_dead_letter(keyspace, 2, reason="rate_limited", service="shop-b", judge="safety")
    three = add_dead_letter(keyspace, 3, reason="rate_limited", service="lab", judge="groundedness")
    cases: list[tuple[dict[str, object], list[str]]] = [
        ({}, [three, two, one]),
        ({"reasons": ["rate_limited"]}, [three, two]),
        ({"reasons": ["rate_limited", "timeout"], "services": ["shop-*"]}, [two, one]),
        ({"judges": ["groundedness"]}, [three]),
        ({"since_ms": 2000}, [three, two]),
        ({"until_ms": 2000}, [two, one]),
        ({"ids": [one, two]}, [two, one]),
        ({"ids": [one[:31]]}, [three, two, one]),
        ({"reasons": ["rate_limited"], "services": ["shop-?"], "judges": ["safety"], "since_ms": 1500}, [two]),
        ({"services": ["SHOP-*"]}, []),
        ({"newest_first": False}, [one, two, three]),
    ]
    for fields, expected in cases:
        assert find(keyspace, **fields) == expected, fields


def test_many_come_in_chunks_others_are_skipped(
    keyspace: Keyspace, new_worker: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "_FIRST_CHUNK_COUNT", 2)
    monkeypatch.setattr(store_module, "CHUNK_BYTES", 2000)
    ids = give_up(keyspace, new_worker, 20)
    assert sorted(find(keyspace)) == sorted(ids)
    store = DeadLetterStore(keyspace.store)
    assert {stored.letter.evaluation.id: stored.letter for stored in store.read(ids)} == letters(keyspace)
    # One that is removed during the search is left out.
    first, second, third, *rest = ids
    new_worker().ledger.remove(rest)
    assert [stored.letter.evaluation.id for stored in store.read([rest[0], third])] == [third]
    assert sorted(dead(keyspace)) == sorted(ids[:3])
    newer = keyspace.client.hget(keyspace.keys.dead, first).replace(b'{"v":1', b'{"v":9')
    keyspace.client.hset(keyspace.keys.dead, mapping={first: newer, second: b"{"})
    assert [each.letter.evaluation.id for each in store.find(VerdictFilter())] == [third]
    assert store.unreadable == 2


def test_how_it_fares_with_retries_is_told(keyspace: Keyspace, new_worker: Workers) -> None:
    (name,) = give_up(keyspace, new_worker, 1)
    (store,) = DeadLetterStore(keyspace.store).find(VerdictFilter())
    assert store.retry == (0, "")
    retry_all(keyspace)
    (store,) = DeadLetterStore(keyspace.store).find(VerdictFilter())
    assert (store.letter.evaluation.id, store.retry) == (name, (0, next(iter(keyspace.batches()))))


def test_removing_counts_once(keyspace: Keyspace, new_worker: Workers) -> None:
    ids = give_up(keyspace, new_worker, 2)
    ledger = new_worker().ledger
    assert ledger.remove([*ids, "nothing"]) == [True, True, False]
    before = keyspace.everything()
    assert ledger.remove(ids) == [False, False]
    assert keyspace.everything() == before
    counts = {"removed": 2, "dead": 0, "dead:judge_unavailable": 0}
    assert keyspace.counted(*counts) == counts
    assert ledger.remove([]) == []


# --- bounds ---
def make_older(keyspace: Keyspace, ids: list[str], by_ms: int) -> None:
    for name in ids:
        keyspace.client.zincrby(keyspace.keys.dead_due, -by_ms, name)


def in_order(keyspace: Keyspace, ids: list[str]) -> list[str]:
    """Make each a second older than the next one."""
    for place, name in enumerate(ids):
        make_older(keyspace, [name], 1000 * (len(ids) - place))
    return ids


def test_too_many_and_too_old_ones_go(keyspace: Keyspace, new_worker: Workers) -> None:
    ids = in_order(keyspace, give_up(keyspace, new_worker, 5))
    make_older(keyspace, ids[:1], 7 * DAY_MS - 60_000)
    assert prune(keyspace.store, settings_of(keyspace, max_dead=5)) == 0, "within their bounds all stay"
    assert prune(keyspace.store, settings_of(keyspace, prefix="nothing")) == 0
    assert len(dead(keyspace)) == 5
    assert prune(keyspace.store, settings_of(keyspace, max_dead=2)) == 3
    assert dead(keyspace) == ids[3:]
    account = read_balanced_account(keyspace)
    assert (account.dead, account.removed, account.chosen) == (2, 3, 5)
    assert prune(keyspace.store, settings_of(keyspace, max_dead=2)) == 0
    make_older(keyspace, ids[3:4], 2 * DAY_MS)
    assert prune(keyspace.store, settings_of(keyspace, dead_retention=86_400)) == 1
    assert dead(keyspace) == ids[4:]
    assert read_balanced_account(keyspace).removed == 4


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


def test_the_oldest_of_too_large_ones_go_and_no_more_than_must(keyspace: Keyspace, new_worker: Workers) -> None:
    ids = in_order(keyspace, give_up(keyspace, new_worker, 6))
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
    text, judges, ledger = "x" * 100_000, ("safety", "groundedness", "relevance_to_query"), new_worker().ledger
    names = [f"{number}" * 32 for number in range(3)]
    for name, judge in zip(names, judges, strict=True):
        add_dead_letter(keyspace, 1, judge=judge, name=name, context=[text])
    assert dead_bytes(keyspace) < 102_000 + 3 * 500
    assert sum(map(len, keyspace.client.hvals(keyspace.keys.dead))) < 3 * 500
    store = DeadLetterStore(keyspace.store)
    whole = {stored.letter.evaluation.id: stored.letter for stored in store.read(names)}
    assert {letter.item.trace.context[0] for letter in whole.values()} == {text}
    assert ledger.remove(names[1:]) == [True, True]
    assert [stored.letter.item.trace for stored in store.read(dead(keyspace))] == [whole[names[0]].item.trace]
    retry_all(keyspace)
    assert read_balanced_account(keyspace).dead == 1
    assert ledger.remove(names[:1]) == [True]
    assert dead(keyspace) == []


def test_calls_are_bounded_and_go_on(keyspace: Keyspace, new_worker: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
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
