"""Dead letters are found by reason, service, judge, age and id, in the order of their times, in chunks."""

import pytest
from support.dead_parts import dead, give_up, retry_all
from support.judging_parts import Workers, letters
from support.stage_parts import HOUR, Keyspace, make_trace, make_verdict, settings_of

from worker.base.dead_letters import store as letters_module
from worker.base.dead_letters.store import DeadLetterStore
from worker.base.lookup.verdict_filter import VerdictFilter
from worker.core.queue.batch import Evaluation, Item
from worker.core.queue.ledger import DeadLetter, Ledger


def add_dead_letter(
    keyspace: Keyspace, number: int, *, judge: str = "safety", reason: str = "timeout", **trace: str
) -> str:
    verdict = make_verdict(number, outcome="unscored", reason=reason, judge=judge)
    evaluation = Evaluation(verdict.evaluation_id, HOUR, judge, verdict.judge_version, 1.0)
    item = Item(make_trace(number, **trace), (evaluation,))
    letter = DeadLetter(1, evaluation, "default", "lexical", reason, 2, 1.0, 2.0, item=item)
    assert Ledger(keyspace.store, settings_of(keyspace)).add_dead_letter([(letter, verdict)]) == [True]
    keyspace.client.zadd(keyspace.keys.dead_due, {evaluation.id: 1000 * number})
    return evaluation.id


def find(keyspace: Keyspace, **fields: object) -> list[str]:
    return [stored.letter.evaluation.id for stored in DeadLetterStore(keyspace.store).find(VerdictFilter(**fields))]


def test_each_filter_and_all_together(keyspace: Keyspace) -> None:
    letter_id = add_dead_letter(keyspace, 1, reason="timeout", service="shop-a", judge="safety")
    two = add_dead_letter(keyspace, 2, reason="rate_limited", service="shop-b", judge="safety")
    three = add_dead_letter(keyspace, 3, reason="rate_limited", service="lab", judge="groundedness")
    assert find(keyspace) == [three, two, letter_id]
    assert find(keyspace, reasons=["rate_limited"]) == [three, two]
    assert find(keyspace, reasons=["rate_limited", "timeout"], services=["shop-*"]) == [two, letter_id]
    assert find(keyspace, judges=["groundedness"]) == [three]
    assert find(keyspace, since_ms=2000) == [three, two]
    assert find(keyspace, until_ms=2000) == [two, letter_id]
    assert find(keyspace, ids=[letter_id, two]) == [two, letter_id]
    assert find(keyspace, ids=[letter_id[:31]]) == [three, two, letter_id]
    assert find(keyspace, reasons=["rate_limited"], services=["shop-?"], judges=["safety"], since_ms=1500) == [two]
    assert find(keyspace, services=["SHOP-*"]) == []
    oldest_first = DeadLetterStore(keyspace.store).find(VerdictFilter(), newest_first=False)
    assert [stored.letter.evaluation.id for stored in oldest_first] == [letter_id, two, three]


def test_many_and_large_ones_come_in_chunks(
    keyspace: Keyspace, new_worker: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letters_module, "_FIRST_CHUNK_COUNT", 2)
    monkeypatch.setattr(letters_module, "CHUNK_BYTES", 2000)
    ids = give_up(keyspace, new_worker, 20)
    assert sorted(find(keyspace)) == sorted(ids)
    whole = {stored.letter.evaluation.id: stored.letter for stored in DeadLetterStore(keyspace.store).read(ids)}
    assert whole == letters(keyspace)


def test_dead_letters_of_another_version_are_skipped_and_counted(keyspace: Keyspace, new_worker: Workers) -> None:
    first, second, third = give_up(keyspace, new_worker, 3)
    newer = keyspace.client.hget(keyspace.keys.dead, first).replace(b'{"v":1', b'{"v":9')
    keyspace.client.hset(keyspace.keys.dead, mapping={first: newer, second: b"{"})
    store = DeadLetterStore(keyspace.store)
    assert [each.letter.evaluation.id for each in store.find(VerdictFilter())] == [third]
    assert store.unreadable == 2


def test_a_dead_letter_removed_during_the_search_is_left_out(keyspace: Keyspace, new_worker: Workers) -> None:
    first, second = give_up(keyspace, new_worker, 2)
    new_worker().ledger.remove([first])
    assert [entry.letter.evaluation.id for entry in DeadLetterStore(keyspace.store).read([first, second])] == [second]
    assert dead(keyspace) == [second]


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
    assert keyspace.counted("removed", "dead", "dead:judge_unavailable") == {
        "removed": 2, "dead": 0, "dead:judge_unavailable": 0,
    }  # fmt: skip
    assert ledger.remove([]) == []
