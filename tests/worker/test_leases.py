"""One worker at a time has a batch, and a batch that nobody has is found again."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from stage_parts import Chosen, Ground, make_traces

from worker.leases import FIRST_WAIT_MS, LEASE_MS, Held, Leases

LEASE_S, FIRST_WAIT_S = LEASE_MS / 1000, FIRST_WAIT_MS / 1000


@pytest.fixture
def leases(ground: Ground) -> Leases:
    return Leases(ground.store)


@pytest.fixture
def batch_ids(ground: Ground) -> list[str]:
    """Three batches as ingest makes them."""
    chosen = Chosen(ground, batch_size=2)
    ground.append("p1", make_traces(range(6)))
    chosen.take()
    assert len(chosen.woken) == 3
    return chosen.woken


@pytest.fixture
def batch_id(batch_ids: list[str]) -> str:
    return batch_ids[0]


def holder_of(ground: Ground, batch_id: str) -> str | None:
    holder = ground.client.hget(ground.keys.holders, batch_id)
    return None if holder is None else holder.decode()


def due_in(ground: Ground, batch_id: str) -> float:
    return ground.leases()[batch_id]


def about(seconds: float) -> object:
    """Expect a time that was set a moment ago."""
    return pytest.approx(seconds - 2, abs=2.001)


def test_a_taken_batch_is_held_by_one(ground: Ground, leases: Leases, batch_id: str) -> None:
    payload = ground.client.get(ground.keys.batch(batch_id))
    assert leases.take(Held(batch_id, "a")) == payload
    assert leases.take(Held(batch_id, "b")) is None
    assert (holder_of(ground, batch_id), due_in(ground, batch_id)) == ("a", about(LEASE_S))


def test_whoever_holds_a_batch_gets_it_again(ground: Ground, leases: Leases, batch_id: str) -> None:
    first = leases.take(Held(batch_id, "a"))
    assert first is not None
    assert leases.take(Held(batch_id, "a")) == first
    assert holder_of(ground, batch_id) == "a"


def test_of_many_who_reach_for_a_batch_one_gets_it(leases: Leases, batch_ids: list[str]) -> None:
    wishes = [Held(batch_id, f"holder {number}") for number in range(16) for batch_id in batch_ids]
    with ThreadPoolExecutor(16) as pool:
        taken = [held.batch_id for held, payload in zip(wishes, pool.map(leases.take, wishes), strict=True) if payload]
    assert sorted(taken) == sorted(batch_ids)


def test_an_expired_lease_can_be_taken_by_another(ground: Ground, leases: Leases, batch_id: str) -> None:
    leases.take(Held(batch_id, "a"))
    ground.make_due(batch_id)
    assert leases.take(Held(batch_id, "b")) is not None
    assert leases.renew([Held(batch_id, "a")]) == {batch_id}
    assert (holder_of(ground, batch_id), due_in(ground, batch_id)) == ("b", about(LEASE_S))


def test_a_parked_batch_is_not_taken_before_its_time(ground: Ground, leases: Leases, batch_id: str) -> None:
    leases.take(Held(batch_id, "a"))
    leases.put_back(Held(batch_id, "a"), delay_s=120, park=True)
    assert due_in(ground, batch_id) == about(120)
    assert leases.take(Held(batch_id, "a")) is None
    assert leases.take(Held(batch_id, "b")) is None
    ground.make_due(batch_id)
    assert leases.take(Held(batch_id, "b")) is not None


def test_a_finished_batch_is_gone_whatever_was_left_of_it(ground: Ground, leases: Leases, batch_id: str) -> None:
    leases.take(Held(batch_id, "a"))
    ground.client.delete(ground.keys.batch(batch_id))
    assert leases.take(Held(batch_id, "b")) is None
    assert batch_id not in ground.leases()
    assert holder_of(ground, batch_id) is None
    assert leases.take(Held("never there", "b")) is None


def test_renewing_keeps_what_is_ours_and_tells_what_is_lost(
    ground: Ground, leases: Leases, batch_ids: list[str]
) -> None:
    kept, lost, finished = batch_ids
    for batch_id in batch_ids:
        leases.take(Held(batch_id, "a"))
    ground.make_due(*batch_ids)
    leases.take(Held(lost, "b"))
    leases.finish(finished, "lexical")
    assert leases.renew(Held(batch_id, "a") for batch_id in batch_ids) == {lost, finished}
    assert (holder_of(ground, kept), due_in(ground, kept)) == ("a", about(LEASE_S))
    assert finished not in ground.leases(), "renewing brings nothing back"
    assert leases.renew([]) == set()


def test_an_expired_lease_that_nobody_took_can_be_renewed(ground: Ground, leases: Leases, batch_id: str) -> None:
    leases.take(Held(batch_id, "a"))
    ground.make_due(batch_id)
    assert leases.renew([Held(batch_id, "a")]) == set()
    assert due_in(ground, batch_id) == about(LEASE_S)


def test_only_the_holder_puts_a_batch_back(ground: Ground, leases: Leases, batch_id: str) -> None:
    leases.take(Held(batch_id, "a"))
    before = ground.everything()
    leases.put_back(Held(batch_id, "b"), delay_s=0, park=False)
    leases.put_back(Held(batch_id, "b"), delay_s=600, park=True)
    assert ground.everything() == before
    leases.put_back(Held(batch_id, "a"), delay_s=0, park=False)
    assert holder_of(ground, batch_id) is None
    assert leases.take(Held(batch_id, "b")) is not None, "at once, for it was not parked"


def test_who_puts_a_finished_batch_back_brings_nothing_back(ground: Ground, leases: Leases, batch_id: str) -> None:
    leases.take(Held(batch_id, "a"))
    leases.finish(batch_id, "lexical")
    before = ground.everything()
    leases.put_back(Held(batch_id, "a"), delay_s=0, park=True)
    assert ground.everything() == before


def test_nothing_is_due_before_its_time(ground: Ground, leases: Leases, batch_ids: list[str]) -> None:
    leases.take(Held(batch_ids[0], "a"))
    before = ground.everything()
    assert leases.due(100) == []
    assert ground.everything() == before


def test_what_nobody_works_on_is_found_once_in_a_while(ground: Ground, leases: Leases, batch_ids: list[str]) -> None:
    expired, parked, untouched = batch_ids
    leases.take(Held(expired, "a"))
    leases.take(Held(parked, "a"))
    leases.put_back(Held(parked, "a"), delay_s=120, park=True)
    ground.make_due()
    assert sorted(leases.due(100)) == sorted([expired, parked, untouched])
    assert all(due_s == about(FIRST_WAIT_S) for due_s in ground.leases().values())
    assert ground.client.hgetall(ground.keys.holders) == {}, "nobody holds what was found"
    assert leases.due(100) == []
    assert all(leases.take(Held(batch_id, "b")) for batch_id in batch_ids)
    assert leases.renew([Held(expired, "a")]) == {expired}


def test_no_more_is_found_than_was_asked_for_and_the_oldest_first(
    ground: Ground, leases: Leases, batch_ids: list[str]
) -> None:
    ground.client.zadd(ground.keys.leases, {batch_id: place for place, batch_id in enumerate(batch_ids, 1)})
    assert leases.due(2) == batch_ids[:2]
    assert leases.due(2) == batch_ids[2:]


def test_finishing_twice_is_finishing_once(ground: Ground, leases: Leases, batch_ids: list[str]) -> None:
    first, *others = batch_ids
    sizes = {batch_id: ground.client.strlen(ground.keys.batch(batch_id)) for batch_id in batch_ids}
    assert ground.waiting() == {"lexical": sum(sizes.values())}
    leases.take(Held(first, "a"))
    leases.finish(first, "lexical")
    after = ground.everything()
    leases.finish(first, "lexical")
    assert ground.everything() == after
    assert ground.waiting() == {"lexical": sum(sizes[batch_id] for batch_id in others)}
    assert set(ground.batches()) == set(ground.leases()) == set(others)
    for batch_id in others:
        leases.finish(batch_id, "lexical")
    assert ground.waiting() == {"lexical": 0}
    assert (ground.leases(), ground.client.hgetall(ground.keys.holders)) == ({}, {})
