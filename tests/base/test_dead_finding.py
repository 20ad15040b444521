"""Dead letters are found by reason, service, judge, age and id, in the order of their times, in chunks."""

import pytest
from support.dead_parts import dead, give_up, retry_all
from support.judging_parts import Desks, letters
from support.stage_parts import HOUR, Ground, make_trace, make_verdict, settings_of

from worker.base.dead_letters import store as letters_module
from worker.base.dead_letters.store import DeadLetterStore
from worker.base.lookup.verdict_filter import VerdictFilter
from worker.core.queue.batch import Evaluation, Item
from worker.core.queue.ledger import DeadLetter, Ledger


def add_dead_letter(
    ground: Ground, number: int, *, judge: str = "safety", reason: str = "timeout", **trace: str
) -> str:
    verdict = make_verdict(number, outcome="unscored", reason=reason, judge=judge)
    evaluation = Evaluation(verdict.evaluation_id, HOUR, judge, verdict.judge_version, 1.0)
    item = Item(make_trace(number, **trace), (evaluation,))
    letter = DeadLetter(1, evaluation, "default", "lexical", reason, 2, 1.0, 2.0, item=item)
    assert Ledger(ground.store, settings_of(ground)).add_dead_letter([(letter, verdict)]) == [True]
    ground.client.zadd(ground.keys.dead_due, {evaluation.id: 1000 * number})
    return evaluation.id


def find(ground: Ground, **wanted: object) -> list[str]:
    return [found.letter.evaluation.id for found in DeadLetterStore(ground.store).find(VerdictFilter(**wanted))]


def test_each_filter_and_all_together(ground: Ground) -> None:
    one = add_dead_letter(ground, 1, reason="timeout", service="shop-a", judge="safety")
    two = add_dead_letter(ground, 2, reason="rate_limited", service="shop-b", judge="safety")
    three = add_dead_letter(ground, 3, reason="rate_limited", service="lab", judge="groundedness")
    assert find(ground) == [three, two, one]
    assert find(ground, reasons=["rate_limited"]) == [three, two]
    assert find(ground, reasons=["rate_limited", "timeout"], services=["shop-*"]) == [two, one]
    assert find(ground, judges=["groundedness"]) == [three]
    assert find(ground, since_ms=2000) == [three, two]
    assert find(ground, until_ms=2000) == [two, one]
    assert find(ground, ids=[one, two]) == [two, one]
    assert find(ground, ids=[one[:31]]) == [three, two, one]
    assert find(ground, reasons=["rate_limited"], services=["shop-?"], judges=["safety"], since_ms=1500) == [two]
    assert find(ground, services=["SHOP-*"]) == []
    oldest_first = DeadLetterStore(ground.store).find(VerdictFilter(), newest_first=False)
    assert [found.letter.evaluation.id for found in oldest_first] == [one, two, three]


def test_many_and_large_ones_come_in_chunks(ground: Ground, desk: Desks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letters_module, "_FIRST_CHUNK_COUNT", 2)
    monkeypatch.setattr(letters_module, "CHUNK_BYTES", 2000)
    ids = give_up(ground, desk, 20)
    assert sorted(find(ground)) == sorted(ids)
    whole = {found.letter.evaluation.id: found.letter for found in DeadLetterStore(ground.store).read(ids)}
    assert whole == letters(ground)


def test_what_another_version_wrote_is_passed_over_and_counted(ground: Ground, desk: Desks) -> None:
    first, second, third = give_up(ground, desk, 3)
    newer = ground.client.hget(ground.keys.dead, first).replace(b'{"v":1', b'{"v":9')
    ground.client.hset(ground.keys.dead, mapping={first: newer, second: b"{"})
    found = DeadLetterStore(ground.store)
    assert [one.letter.evaluation.id for one in found.find(VerdictFilter())] == [third]
    assert found.unreadable == 2


def test_what_goes_meanwhile_is_left_out(ground: Ground, desk: Desks) -> None:
    first, second = give_up(ground, desk, 2)
    desk().ledger.remove([first])
    assert [one.letter.evaluation.id for one in DeadLetterStore(ground.store).read([first, second])] == [second]
    assert dead(ground) == [second]


def test_how_it_fares_with_retries_is_told(ground: Ground, desk: Desks) -> None:
    (name,) = give_up(ground, desk, 1)
    (found,) = DeadLetterStore(ground.store).find(VerdictFilter())
    assert found.retry == (0, "")
    retry_all(ground)
    (found,) = DeadLetterStore(ground.store).find(VerdictFilter())
    assert (found.letter.evaluation.id, found.retry) == (name, (0, next(iter(ground.batches()))))


def test_removing_counts_once(ground: Ground, desk: Desks) -> None:
    ids = give_up(ground, desk, 2)
    ledger = desk().ledger
    assert ledger.remove([*ids, "nothing"]) == [True, True, False]
    before = ground.everything()
    assert ledger.remove(ids) == [False, False]
    assert ground.everything() == before
    assert ground.counted("removed", "dead", "dead:judge_unavailable") == {
        "removed": 2, "dead": 0, "dead:judge_unavailable": 0,
    }  # fmt: skip
    assert ledger.remove([]) == []
