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
from support.stage_parts import IngestHarness, Keyspace, make_traces

from judges.core.model import CallTotals
from judges.core.verdict import Refusals
from worker.base.accounting import read_account
from worker.core.queue.batch import made_at_ms
from worker.core.queue.leases import SET_ASIDE_S, Lease, LeasedPayload, Leases


def _replace_by_list(keyspace: Keyspace, key: str) -> None:
    keyspace.client.delete(key)
    keyspace.client.rpush(key, "somebody's")


def test_chosen_batches_are_ready_in_order_of_creation(keyspace: Keyspace, leases: Leases) -> None:
    chosen = IngestHarness(keyspace, batch_size=2)
    keyspace.append("p1", make_traces(range(6)))
    chosen.process()
    batches = keyspace.batches()
    assert (sorted(ready(keyspace)), len(batches)) == (sorted(batches), 3)
    assert set(chosen.woken) <= batches.keys()
    scores = dict(keyspace.client.zrange(keyspace.keys.ready(MODEL), 0, -1, withscores=True))
    assert scores == {each.encode(): int(batch.created_at * 1000) for each, batch in batches.items()}
    assert all(due_s == keyspace.soon(READY_S) for due_s in keyspace.leases().values())
    payloads = {batch_id: keyspace.client.get(keyspace.keys.batch(batch_id)) for batch_id in batches}
    assert {lease.lease.batch_id: lease.payload for lease in leases.take(MODEL, "a", 9)} == payloads


def test_a_taken_batch_is_held_by_one(keyspace: Keyspace, leases: Leases, batch_id: str) -> None:
    payload = keyspace.client.get(keyspace.keys.batch(batch_id))
    assert leases.take(MODEL, "a", 1) == [LeasedPayload(Lease(batch_id, MODEL, "a"), payload, {})]
    before = keyspace.everything()
    assert leases.take(MODEL, "b", 1) == []
    assert keyspace.everything() == before
    assert (holder_of(keyspace, batch_id), due_in(keyspace, batch_id)) == ("a", keyspace.soon(LEASE_S))


def test_each_batch_is_leased_to_one_of_many_workers(leases: Leases, batch_ids: list[str]) -> None:
    with ThreadPoolExecutor(16) as pool:
        taken = list(pool.map(lambda number: leases.take(MODEL, f"holder {number}", 2), range(16)))
    assert sorted(batch_id for each in taken for batch_id in ids(each)) == batch_ids


def test_the_oldest_is_taken_first_whenever_it_came(keyspace: Keyspace, leases: Leases) -> None:
    by_age = {age_s: add(keyspace, made_at_s=BEGIN_S - age_s) for age_s in (20, 40, 10, 30)}
    assert ids(leases.take(MODEL, "a", 2)) == [by_age[40], by_age[30]]
    assert ids(leases.take(MODEL, "a", 9)) == [by_age[20], by_age[10]]


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda keyspace, batch_id: _replace_by_list(keyspace, keyspace.keys.batch(batch_id)), "wrong_type"),
        (lambda keyspace, batch_id: keyspace.client.set(keyspace.keys.tries(batch_id), "somebody's"), "wrong_type"),
        (lambda keyspace, batch_id: keyspace.client.hset(keyspace.keys.tries(batch_id), "e1", "{"), "unreadable_tries"),
    ],
    ids=["batch", "tries", "content of tries"],
)
def test_an_unreadable_batch_is_set_aside_and_blocks_no_other(
    keyspace: Keyspace, leases: Leases, batch_ids: list[str], spoil: Callable[[Keyspace, str], object], reason: str
) -> None:
    strange, *others = batch_ids
    payload = keyspace.client.get(keyspace.keys.batch(strange))
    spoil(keyspace, strange)
    with capture_logs() as lines:
        assert ids(leases.take(MODEL, "a", len(batch_ids))) == others
    assert [(line["event"], line["batch"], line["reason"]) for line in lines] == [("batch set aside", strange, reason)]
    assert (holder_of(keyspace, strange), due_in(keyspace, strange)) == ("parked", keyspace.soon(SET_ASIDE_S))
    assert keyspace.accounting() == {"unreadable": 1, f"unreadable:{reason}": 1}
    assert read_account(keyspace.store).reasons == {f"unreadable:{reason}": 1}
    # Once it is repaired it is leased like any other.
    keyspace.client.delete(keyspace.keys.batch(strange), keyspace.keys.tries(strange))
    keyspace.client.set(keyspace.keys.batch(strange), payload)
    keyspace.make_due(strange)
    leases.sweep([MODEL])
    assert ids(leases.take(MODEL, "a", 9)) == [strange]


def test_only_batches_of_the_judge_model_are_taken(keyspace: Keyspace, leases: Leases, batch_id: str) -> None:
    other = add(keyspace, OTHER)
    assert ids(leases.take(OTHER, "a", 9)) == [other]
    assert leases.take("unknown", "a", 9) == []
    assert ready(keyspace) == [batch_id]


def test_only_batches_made_before_a_given_time_are_taken(
    keyspace: Keyspace, leases: Leases, batch_ids: list[str]
) -> None:
    made_ms = [made_at_ms(batch_id) for batch_id in batch_ids]
    assert leases.take(MODEL, "a", 9, made_before_ms=made_ms[0]) == []
    assert ids(leases.take(MODEL, "a", 9, made_before_ms=made_ms[2])) == batch_ids[:2]
    assert ready(keyspace) == batch_ids[2:]


def test_a_finished_batch_in_the_ready_set_is_removed(keyspace: Keyspace, leases: Leases, batch_ids: list[str]) -> None:
    first, gone, last = batch_ids
    keyspace.client.delete(keyspace.keys.batch(gone))
    keyspace.client.hset(keyspace.keys.tries(gone), "e1", 4)
    assert ids(leases.take(MODEL, "a", 9)) == [first, last]
    assert_gone(keyspace, gone)


def test_an_answer_that_is_lost_on_its_way_costs_a_lease(keyspace: Keyspace, leases: Leases, batch_id: str) -> None:
    leases.take(MODEL, "a", 1)
    keyspace.make_due(batch_id)
    assert leases.sweep([MODEL]) == 1
    assert ids(leases.take(MODEL, "a again", 1)) == [batch_id]


def test_a_lapsed_lease_goes_to_another(keyspace: Keyspace, leases: Leases, batch_id: str) -> None:
    leases.take(MODEL, "a", 1)
    keyspace.make_due(batch_id)
    assert (leases.sweep([MODEL]), ids(leases.take(MODEL, "b", 1))) == (1, [batch_id])
    assert leases.renew([Lease(batch_id, MODEL, "a")]) == {batch_id}
    assert (holder_of(keyspace, batch_id), due_in(keyspace, batch_id)) == ("b", keyspace.soon(LEASE_S))


def test_a_swept_lease_is_lost_though_its_batch_is_still_ready(
    keyspace: Keyspace, leases: Leases, batch_id: str
) -> None:
    held = leases.take(MODEL, "a", 1)[0].lease
    keyspace.make_due(batch_id)
    leases.sweep([MODEL])
    before = keyspace.everything()
    assert leases.renew([held]) == {batch_id}
    leases.put_back(held, delay_s=60, tries={"e1": CallTotals(1)})
    assert keyspace.everything() == before
    assert ready(keyspace) == [batch_id]


def test_a_lapsed_lease_that_was_not_swept_can_be_renewed(keyspace: Keyspace, leases: Leases, batch_id: str) -> None:
    (taken,) = leases.take(MODEL, "a", 1)
    keyspace.make_due(batch_id)
    assert leases.renew([taken.lease]) == set()
    assert due_in(keyspace, batch_id) == keyspace.soon(LEASE_S)
    assert leases.sweep([MODEL]) == 0


def test_renewing_keeps_held_leases_and_returns_lost_ones(
    keyspace: Keyspace, leases: Leases, batch_ids: list[str]
) -> None:
    kept, lost, finished = batch_ids
    held = [taken.lease for taken in leases.take(MODEL, "a", 3)]
    keyspace.make_due(lost)
    leases.sweep([MODEL])
    leases.take(MODEL, "b", 1)
    keyspace.make_due(kept)
    leases.finish(finished, MODEL)
    assert leases.renew(held) == {lost, finished}
    assert (holder_of(keyspace, kept), due_in(keyspace, kept)) == ("a", keyspace.soon(LEASE_S))
    assert_gone(keyspace, finished)
    assert leases.renew([]) == set()


def test_a_batch_that_is_put_back_is_ready_in_its_old_place(
    keyspace: Keyspace, leases: Leases, batch_ids: list[str]
) -> None:
    (taken,) = leases.take(MODEL, "a", 1)
    leases.put_back(taken.lease)
    assert (ready(keyspace), holder_of(keyspace, batch_ids[0])) == (batch_ids, None)
    assert due_in(keyspace, batch_ids[0]) == keyspace.soon(READY_S)


def test_a_parked_batch_is_ready_when_its_time_has_come(
    keyspace: Keyspace, leases: Leases, batch_ids: list[str]
) -> None:
    (taken,) = leases.take(MODEL, "a", 1)
    leases.put_back(taken.lease, delay_s=120)
    assert (holder_of(keyspace, batch_ids[0]), due_in(keyspace, batch_ids[0])) == ("parked", keyspace.soon(120))
    assert (leases.sweep([MODEL]), ready(keyspace)) == (0, batch_ids[1:])
    keyspace.make_due(batch_ids[0])
    assert (leases.sweep([MODEL]), ready(keyspace)) == (1, batch_ids)
    assert holder_of(keyspace, batch_ids[0]) is None


def test_only_the_holder_puts_a_batch_back(keyspace: Keyspace, leases: Leases, batch_id: str) -> None:
    leases.take(MODEL, "a", 1)
    before = keyspace.everything()
    for stranger in ("b", "parked"):
        leases.put_back(Lease(batch_id, MODEL, stranger), tries={"e1": CallTotals(1)})
        leases.put_back(Lease(batch_id, MODEL, stranger), delay_s=600, tries={"e1": CallTotals(1)})
    assert keyspace.everything() == before


@pytest.mark.parametrize("delay_s", [0.0, 60.0])
def test_putting_back_a_finished_batch_changes_nothing(
    keyspace: Keyspace, leases: Leases, batch_id: str, delay_s: float
) -> None:
    (taken,) = leases.take(MODEL, "a", 1)
    leases.finish(batch_id, MODEL)
    leases.put_back(taken.lease, delay_s=delay_s, tries={"e1": CallTotals(1)})
    assert_gone(keyspace, batch_id)


@pytest.mark.usefixtures("batch_id")
@pytest.mark.parametrize("delay_s", [0.0, 60.0])
def test_putting_back_twice_is_putting_back_once(keyspace: Keyspace, leases: Leases, delay_s: float) -> None:
    (taken,) = leases.take(MODEL, "a", 1)
    leases.put_back(taken.lease, delay_s=delay_s, tries={"e1": CallTotals(4)})
    before = keyspace.everything()
    leases.put_back(taken.lease, delay_s=delay_s, tries={"e1": CallTotals(4)})
    assert keyspace.everything() == before


def test_tries_of_all_rounds_are_kept_and_removed_with_the_batch(
    keyspace: Keyspace, leases: Leases, batch_id: str
) -> None:
    first = {
        "e1": CallTotals(4, 100, 10, 0.5, refusals=Refusals(1, 2.5)),
        "e2": CallTotals(1, cost_usd=None, is_known=False),
    }
    last = {"e1": CallTotals(7, 200, 20, 1.0), "e3": CallTotals(2)}
    rounds: tuple[dict[str, CallTotals], ...] = (first, {}, last)
    seen = []
    for tries in rounds:
        (taken,) = leases.take(MODEL, "a", 1)
        seen.append(taken.tries)
        leases.put_back(taken.lease, tries=tries)
    assert seen == [{}, first, first]
    assert leases.take(MODEL, "a", 1)[0].tries == first | last
    leases.finish(batch_id, MODEL)
    assert_gone(keyspace, batch_id)


def test_a_probe_prefers_batches_that_were_never_tried(
    keyspace: Keyspace, leases: Leases, batch_ids: list[str]
) -> None:
    first, second, *fresh = batch_ids
    for taken in leases.take(MODEL, "a", 2):
        leases.put_back(taken.lease, tries={"e1": CallTotals(1)})
    assert sorted(ready(keyspace)) == sorted(batch_ids)

    def order(*, untried_first: bool) -> list[str]:
        taken = [leases.take(MODEL, "a", 1, untried_first=untried_first)[0].lease for _ in batch_ids]
        for held in taken:
            leases.put_back(held)
        return [held.batch_id for held in taken]

    assert order(untried_first=True) == [*fresh, first, second]
    assert order(untried_first=False) == batch_ids
    two = [taken.lease.batch_id for taken in leases.take(MODEL, "a", len(fresh) + 1, untried_first=True)]
    assert two == [*fresh, first], "what is left over is the oldest"


def test_tries_are_not_kept_for_ever(keyspace: Keyspace, leases: Leases, batch_id: str) -> None:
    key = keyspace.keys.tries(batch_id)
    leases.put_back(leases.take(MODEL, "a", 1)[0].lease)
    assert not keyspace.client.exists(key)
    leases.put_back(leases.take(MODEL, "a", 1)[0].lease, tries={"e1": CallTotals(1)})
    keyspace.client.expire(key, 60)
    leases.put_back(leases.take(MODEL, "a", 1)[0].lease, delay_s=60, tries={"e1": CallTotals(1)})
    assert TTL_S - 60 < keyspace.client.ttl(key) <= TTL_S


def test_finishing_twice_is_finishing_once(keyspace: Keyspace, leases: Leases, batch_ids: list[str]) -> None:
    first, *others = batch_ids
    sizes = {batch_id: keyspace.client.strlen(keyspace.keys.batch(batch_id)) for batch_id in batch_ids}
    leases.take(MODEL, "a", 2)
    leases.finish(first, MODEL)
    after = keyspace.everything()
    leases.finish(first, MODEL)
    assert keyspace.everything() == after
    assert keyspace.waiting() == {MODEL: sum(sizes[batch_id] for batch_id in others)}
    for batch_id in others:
        leases.finish(batch_id, MODEL)
    assert keyspace.everything().keys() == {"layout", "partitions", "traces", "waiting"}
    assert keyspace.waiting() == {MODEL: 0}
