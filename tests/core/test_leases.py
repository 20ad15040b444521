"""One worker at a time has a batch, and nobody else can end or put back what it has."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from structlog.testing import capture_logs
from support.leases_parts import (
    BEGIN_S,
    LEASE_S,
    MODEL,
    OTHER,
    READY_S,
    TTL_S,
    add,
    assert_gone,
    due_in,
    holder_of,
    ids,
    ready,
)
from support.stage_parts import Chosen, Ground, make_traces

from judges.core.model import Spent
from judges.core.verdict import Refusals
from worker.base.accounting import read_account
from worker.core.queue.batch import made_at_ms
from worker.core.queue.leases import SET_ASIDE_S, Lease, LeasedPayload, Leases


def _replace_by_list(ground: Ground, key: str) -> None:
    ground.client.delete(key)
    ground.client.rpush(key, "somebody's")


def test_what_ingest_chose_is_ready_since_it_was_made(ground: Ground, leases: Leases) -> None:
    chosen = Chosen(ground, batch_size=2)
    ground.append("p1", make_traces(range(6)))
    chosen.take()
    batches = ground.batches()
    assert (sorted(ready(ground)), len(batches)) == (sorted(batches), 3)
    assert set(chosen.woken) <= batches.keys()
    scores = dict(ground.client.zrange(ground.keys.ready(MODEL), 0, -1, withscores=True))
    assert scores == {each.encode(): int(batch.created_at * 1000) for each, batch in batches.items()}
    assert all(due_s == ground.soon(READY_S) for due_s in ground.leases().values())
    payloads = {batch_id: ground.client.get(ground.keys.batch(batch_id)) for batch_id in batches}
    assert {one.lease.batch_id: one.payload for one in leases.take(MODEL, "a", 9)} == payloads


def test_a_taken_batch_is_held_by_one(ground: Ground, leases: Leases, batch_id: str) -> None:
    payload = ground.client.get(ground.keys.batch(batch_id))
    assert leases.take(MODEL, "a", 1) == [LeasedPayload(Lease(batch_id, MODEL, "a"), payload, {})]
    before = ground.everything()
    assert leases.take(MODEL, "b", 1) == []
    assert ground.everything() == before
    assert (holder_of(ground, batch_id), due_in(ground, batch_id)) == ("a", ground.soon(LEASE_S))


def test_of_many_who_reach_for_batches_each_goes_to_one(leases: Leases, batch_ids: list[str]) -> None:
    with ThreadPoolExecutor(16) as pool:
        taken = list(pool.map(lambda number: leases.take(MODEL, f"holder {number}", 2), range(16)))
    assert sorted(batch_id for each in taken for batch_id in ids(each)) == batch_ids


def test_the_oldest_is_taken_first_whenever_it_came(ground: Ground, leases: Leases) -> None:
    made = {age_s: add(ground, made_at_s=BEGIN_S - age_s) for age_s in (20, 40, 10, 30)}
    assert ids(leases.take(MODEL, "a", 2)) == [made[40], made[30]]
    assert ids(leases.take(MODEL, "a", 9)) == [made[20], made[10]]


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda ground, one: _replace_by_list(ground, ground.keys.batch(one)), "wrong_type"),
        (lambda ground, one: ground.client.set(ground.keys.tries(one), "somebody's"), "wrong_type"),
        (lambda ground, one: ground.client.hset(ground.keys.tries(one), "e1", "{"), "unreadable_tries"),
    ],
    ids=["batch", "tries", "content of tries"],
)
def test_an_unreadable_batch_is_set_aside_and_blocks_no_other(
    ground: Ground, leases: Leases, batch_ids: list[str], spoil: Callable[[Ground, str], object], reason: str
) -> None:
    strange, *others = batch_ids
    payload = ground.client.get(ground.keys.batch(strange))
    spoil(ground, strange)
    with capture_logs() as lines:
        assert ids(leases.take(MODEL, "a", len(batch_ids))) == others
    assert [(line["event"], line["batch"], line["reason"]) for line in lines] == [("batch set aside", strange, reason)]
    assert (holder_of(ground, strange), due_in(ground, strange)) == ("parked", ground.soon(SET_ASIDE_S))
    assert ground.accounting() == {"unreadable": 1, f"unreadable:{reason}": 1}
    assert read_account(ground.store).reasons == {f"unreadable:{reason}": 1}
    # Once it is repaired it is leased like any other.
    ground.client.delete(ground.keys.batch(strange), ground.keys.tries(strange))
    ground.client.set(ground.keys.batch(strange), payload)
    ground.make_due(strange)
    leases.sweep([MODEL])
    assert ids(leases.take(MODEL, "a", 9)) == [strange]


def test_only_batches_of_the_judge_model_are_taken(ground: Ground, leases: Leases, batch_id: str) -> None:
    other = add(ground, OTHER)
    assert ids(leases.take(OTHER, "a", 9)) == [other]
    assert leases.take("unknown", "a", 9) == []
    assert ready(ground) == [batch_id]


def test_only_what_was_made_before_a_time_is_taken(ground: Ground, leases: Leases, batch_ids: list[str]) -> None:
    made_ms = [made_at_ms(batch_id) for batch_id in batch_ids]
    assert leases.take(MODEL, "a", 9, made_before_ms=made_ms[0]) == []
    assert ids(leases.take(MODEL, "a", 9, made_before_ms=made_ms[2])) == batch_ids[:2]
    assert ready(ground) == batch_ids[2:]


def test_what_is_finished_and_still_ready_is_cleaned_up(ground: Ground, leases: Leases, batch_ids: list[str]) -> None:
    first, gone, last = batch_ids
    ground.client.delete(ground.keys.batch(gone))
    ground.client.hset(ground.keys.tries(gone), "e1", 4)
    assert ids(leases.take(MODEL, "a", 9)) == [first, last]
    assert_gone(ground, gone)


def test_an_answer_that_is_lost_on_its_way_costs_a_lease(ground: Ground, leases: Leases, batch_id: str) -> None:
    leases.take(MODEL, "a", 1)
    ground.make_due(batch_id)
    assert leases.sweep([MODEL]) == 1
    assert ids(leases.take(MODEL, "a again", 1)) == [batch_id]


def test_a_lapsed_lease_goes_to_another(ground: Ground, leases: Leases, batch_id: str) -> None:
    leases.take(MODEL, "a", 1)
    ground.make_due(batch_id)
    assert (leases.sweep([MODEL]), ids(leases.take(MODEL, "b", 1))) == (1, [batch_id])
    assert leases.renew([Lease(batch_id, MODEL, "a")]) == {batch_id}
    assert (holder_of(ground, batch_id), due_in(ground, batch_id)) == ("b", ground.soon(LEASE_S))


def test_a_lease_that_was_swept_is_lost_though_nobody_took_it(ground: Ground, leases: Leases, batch_id: str) -> None:
    held = leases.take(MODEL, "a", 1)[0].lease
    ground.make_due(batch_id)
    leases.sweep([MODEL])
    before = ground.everything()
    assert leases.renew([held]) == {batch_id}
    leases.put_back(held, delay_s=60, tries={"e1": Spent(1)})
    assert ground.everything() == before
    assert ready(ground) == [batch_id]


def test_a_lapsed_lease_that_nobody_swept_can_be_renewed(ground: Ground, leases: Leases, batch_id: str) -> None:
    (taken,) = leases.take(MODEL, "a", 1)
    ground.make_due(batch_id)
    assert leases.renew([taken.lease]) == set()
    assert due_in(ground, batch_id) == ground.soon(LEASE_S)
    assert leases.sweep([MODEL]) == 0


def test_renewing_keeps_what_is_ours_and_tells_what_is_lost(
    ground: Ground, leases: Leases, batch_ids: list[str]
) -> None:
    kept, lost, finished = batch_ids
    held = [taken.lease for taken in leases.take(MODEL, "a", 3)]
    ground.make_due(lost)
    leases.sweep([MODEL])
    leases.take(MODEL, "b", 1)
    ground.make_due(kept)
    leases.finish(finished, MODEL)
    assert leases.renew(held) == {lost, finished}
    assert (holder_of(ground, kept), due_in(ground, kept)) == ("a", ground.soon(LEASE_S))
    assert_gone(ground, finished)
    assert leases.renew([]) == set()


def test_what_is_put_back_is_ready_in_its_old_place(ground: Ground, leases: Leases, batch_ids: list[str]) -> None:
    (taken,) = leases.take(MODEL, "a", 1)
    leases.put_back(taken.lease)
    assert (ready(ground), holder_of(ground, batch_ids[0])) == (batch_ids, None)
    assert due_in(ground, batch_ids[0]) == ground.soon(READY_S)


def test_a_parked_batch_is_ready_when_its_time_has_come(ground: Ground, leases: Leases, batch_ids: list[str]) -> None:
    (taken,) = leases.take(MODEL, "a", 1)
    leases.put_back(taken.lease, delay_s=120)
    assert (holder_of(ground, batch_ids[0]), due_in(ground, batch_ids[0])) == ("parked", ground.soon(120))
    assert (leases.sweep([MODEL]), ready(ground)) == (0, batch_ids[1:])
    ground.make_due(batch_ids[0])
    assert (leases.sweep([MODEL]), ready(ground)) == (1, batch_ids)
    assert holder_of(ground, batch_ids[0]) is None


def test_only_the_holder_puts_a_batch_back(ground: Ground, leases: Leases, batch_id: str) -> None:
    leases.take(MODEL, "a", 1)
    before = ground.everything()
    for stranger in ("b", "parked"):
        leases.put_back(Lease(batch_id, MODEL, stranger), tries={"e1": Spent(1)})
        leases.put_back(Lease(batch_id, MODEL, stranger), delay_s=600, tries={"e1": Spent(1)})
    assert ground.everything() == before


@pytest.mark.parametrize("delay_s", [0.0, 60.0])
def test_who_puts_a_finished_batch_back_brings_nothing_back(
    ground: Ground, leases: Leases, batch_id: str, delay_s: float
) -> None:
    (taken,) = leases.take(MODEL, "a", 1)
    leases.finish(batch_id, MODEL)
    leases.put_back(taken.lease, delay_s=delay_s, tries={"e1": Spent(1)})
    assert_gone(ground, batch_id)


@pytest.mark.usefixtures("batch_id")
@pytest.mark.parametrize("delay_s", [0.0, 60.0])
def test_putting_back_twice_is_putting_back_once(ground: Ground, leases: Leases, delay_s: float) -> None:
    (taken,) = leases.take(MODEL, "a", 1)
    leases.put_back(taken.lease, delay_s=delay_s, tries={"e1": Spent(4)})
    before = ground.everything()
    leases.put_back(taken.lease, delay_s=delay_s, tries={"e1": Spent(4)})
    assert ground.everything() == before


def test_what_rounds_took_is_kept_from_round_to_round_and_go_with_the_batch(
    ground: Ground, leases: Leases, batch_id: str
) -> None:
    first = {"e1": Spent(4, 100, 10, 0.5, refusals=Refusals(1, 2.5)), "e2": Spent(1, cost_usd=None, is_known=False)}
    last = {"e1": Spent(7, 200, 20, 1.0), "e3": Spent(2)}
    rounds: tuple[dict[str, Spent], ...] = (first, {}, last)
    seen = []
    for tries in rounds:
        (taken,) = leases.take(MODEL, "a", 1)
        seen.append(taken.tries)
        leases.put_back(taken.lease, tries=tries)
    assert seen == [{}, first, first]
    assert leases.take(MODEL, "a", 1)[0].tries == first | last
    leases.finish(batch_id, MODEL)
    assert_gone(ground, batch_id)


def test_a_probe_is_of_what_was_never_tried_as_long_as_there_is_any(
    ground: Ground, leases: Leases, batch_ids: list[str]
) -> None:
    first, second, *fresh = batch_ids
    for taken in leases.take(MODEL, "a", 2):
        leases.put_back(taken.lease, tries={"e1": Spent(1)})
    assert sorted(ready(ground)) == sorted(batch_ids)

    def order(*, untried_first: bool) -> list[str]:
        taken = [leases.take(MODEL, "a", 1, untried_first=untried_first)[0].lease for _ in batch_ids]
        for held in taken:
            leases.put_back(held)
        return [held.batch_id for held in taken]

    assert order(untried_first=True) == [*fresh, first, second]
    assert order(untried_first=False) == batch_ids
    two = [taken.lease.batch_id for taken in leases.take(MODEL, "a", len(fresh) + 1, untried_first=True)]
    assert two == [*fresh, first], "what is left over is the oldest"


def test_tries_are_not_kept_for_ever(ground: Ground, leases: Leases, batch_id: str) -> None:
    key = ground.keys.tries(batch_id)
    leases.put_back(leases.take(MODEL, "a", 1)[0].lease)
    assert not ground.client.exists(key)
    leases.put_back(leases.take(MODEL, "a", 1)[0].lease, tries={"e1": Spent(1)})
    ground.client.expire(key, 60)
    leases.put_back(leases.take(MODEL, "a", 1)[0].lease, delay_s=60, tries={"e1": Spent(1)})
    assert TTL_S - 60 < ground.client.ttl(key) <= TTL_S


def test_finishing_twice_is_finishing_once(ground: Ground, leases: Leases, batch_ids: list[str]) -> None:
    first, *others = batch_ids
    sizes = {batch_id: ground.client.strlen(ground.keys.batch(batch_id)) for batch_id in batch_ids}
    leases.take(MODEL, "a", 2)
    leases.finish(first, MODEL)
    after = ground.everything()
    leases.finish(first, MODEL)
    assert ground.everything() == after
    assert ground.waiting() == {MODEL: sum(sizes[batch_id] for batch_id in others)}
    for batch_id in others:
        leases.finish(batch_id, MODEL)
    assert ground.everything().keys() == {"layout", "shard", "traces", "waiting"}
    assert ground.waiting() == {MODEL: 0}
