"""Dead letters are bounded by count and age; what goes is removed in the books, and counts nowhere else later."""

import pytest
from dead_parts import balanced, dead, give_up, retry_all
from judging_parts import Desks
from stage_parts import Ground, settings_of

from worker.dead import cutting
from worker.dead.cutting import cut

DAY_MS = 86_400_000


def make_older(ground: Ground, ids: list[str], by_ms: int) -> None:
    for name in ids:
        ground.client.zincrby(ground.keys.dead_due, -by_ms, name)


def test_within_their_bounds_all_stay(ground: Ground, desk: Desks) -> None:
    ids = give_up(ground, desk, 3)
    make_older(ground, ids[:1], 7 * DAY_MS - 60_000)
    assert cut(ground.store, settings_of(ground, max_dead=3)) == 0
    assert len(dead(ground)) == 3
    assert cut(ground.store, settings_of(ground, prefix="nothing")) == 0


def test_the_oldest_of_too_many_go(ground: Ground, desk: Desks) -> None:
    ids = give_up(ground, desk, 5)
    for place, name in enumerate(ids):
        make_older(ground, [name], 1000 * (5 - place))
    assert cut(ground.store, settings_of(ground, max_dead=2)) == 3
    assert dead(ground) == ids[3:]
    account = balanced(ground)
    assert (account.dead, account.removed, account.chosen) == (2, 3, 5)
    assert cut(ground.store, settings_of(ground, max_dead=2)) == 0


def test_what_is_too_old_goes(ground: Ground, desk: Desks) -> None:
    ids = give_up(ground, desk, 3)
    make_older(ground, ids[:2], 2 * DAY_MS)
    assert cut(ground.store, settings_of(ground, dead_retention=86_400)) == 2
    assert dead(ground) == ids[2:]
    assert balanced(ground).removed == 2


def test_a_call_is_bounded_and_the_next_goes_on(ground: Ground, desk: Desks, monkeypatch: pytest.MonkeyPatch) -> None:
    give_up(ground, desk, 10)
    monkeypatch.setattr(cutting, "_PIECE_COUNT", 2)
    monkeypatch.setattr(cutting, "_MAX_PIECES", 3)
    settings = settings_of(ground, max_dead=1)
    assert [cut(ground.store, settings) for _ in range(3)] == [6, 3, 0]
    assert balanced(ground).removed == 9


def test_a_verdict_that_comes_after_the_cut_counts_no_more(ground: Ground, desk: Desks) -> None:
    give_up(ground, desk, 2)
    retry_all(ground)
    worker = desk()
    worker.begin(next(iter(ground.batches())))
    make_older(ground, dead(ground), 8 * DAY_MS)
    assert cut(ground.store, settings_of(ground)) == 2
    worker.end()
    account = balanced(ground)
    assert (account.removed, account.scored, account.dead, ground.batches()) == (2, 0, 0, {})
    assert ground.outbox("j") == []
