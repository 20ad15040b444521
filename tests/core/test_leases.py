"""One worker at a time has a batch, nobody else can end or put back what it has, and a batch of nobody is found."""

from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs
from support.judging import ready as ready_of
from support.stages import IngestHarness, Keyspace, make_maintenance, make_traces

from judges.core.model import CallTotals
from judges.core.verdict import Refusals
from worker.base.accounting import read_account
from worker.core.queue.batch import fresh_id, made_at_ms
from worker.core.queue.leases import LEASE_MS, READY_MS, SET_ASIDE_S, Lease, LeasedPayload, Leases
from worker.core.runtime.partition import Maintenance
from worker.core.storage.keys import INGEST_GROUP
from worker.core.telemetry.backlog import Backpressure

LEASE_S, READY_S = LEASE_MS / 1000, READY_MS / 1000
MODEL, OTHER = "lexical", "other"
TTL_S = 7200
BEGIN_S = 1_700_000_000.0
HOUR_S = 3600.0


def ids(taken: list[LeasedPayload]) -> list[str]:
    return [lease.lease.batch_id for lease in taken]


def ready(keyspace: Keyspace, model: str = MODEL) -> list[str]:
    return ready_of(keyspace, model)


def holder_of(keyspace: Keyspace, batch_id: str) -> str | None:
    holder = keyspace.client.hget(keyspace.keys.holders, batch_id)
    return None if holder is None else holder.decode()


def due_in(keyspace: Keyspace, batch_id: str) -> float:
    return keyspace.leases()[batch_id]


def assert_gone(keyspace: Keyspace, batch_id: str) -> None:
    assert batch_id not in str(keyspace.everything())


def add_three(keyspace: Keyspace) -> list[str]:
    """Add three batches, the oldest first."""
    return [keyspace.add_batch(made_at_s=BEGIN_S + number) for number in range(3)]


def test_ready_batches_are_taken_once_and_the_oldest_first(keyspace: Keyspace, leases: Leases) -> None:
    keyspace.append("p1", make_traces(range(6)))
    chosen = IngestHarness(keyspace, batch_size=2)
    chosen.process()
    batches = keyspace.batches()
    assert (sorted(ready(keyspace)), len(batches)) == (sorted(batches), 3)
    assert set(chosen.woken) <= batches.keys()
    scores = dict(keyspace.client.zrange(keyspace.keys.ready(MODEL), 0, -1, withscores=True))
    assert scores == {each.encode(): int(batch.created_at * 1000) for each, batch in batches.items()}
    assert keyspace.leases() == dict.fromkeys(batches, keyspace.soon(READY_S))
    payloads = {batch_id: keyspace.client.get(keyspace.keys.batch(batch_id)) for batch_id in batches}
    (first,) = leases.take(MODEL, "a", 1)
    batch_id = first.lease.batch_id
    assert first == LeasedPayload(Lease(batch_id, MODEL, "a"), payloads[batch_id], {})
    assert (holder_of(keyspace, batch_id), due_in(keyspace, batch_id)) == ("a", keyspace.soon(LEASE_S))
    rest = leases.take(MODEL, "b", 9)
    assert {lease.lease.batch_id: lease.payload for lease in (first, *rest)} == payloads
    before = keyspace.everything()
    assert leases.take(MODEL, "c", 1) == []
    assert keyspace.everything() == before
    keyspace.next_case("many workers at once")
    batch_ids = add_three(keyspace)
    with ThreadPoolExecutor(16) as pool:
        taken = list(pool.map(lambda number: leases.take(MODEL, f"holder {number}", 2), range(16)))
    assert sorted(batch_id for each in taken for batch_id in ids(each)) == batch_ids
    by_age = {age_s: keyspace.add_batch(made_at_s=BEGIN_S - age_s) for age_s in (20, 40, 10, 30)}
    assert ids(leases.take(MODEL, "a", 2)) == [by_age[40], by_age[30]], "whenever it came"
    assert ids(leases.take(MODEL, "a", 9)) == [by_age[20], by_age[10]]
    keyspace.next_case("those of the judge model, made before a given time, and not finished")
    batch_ids, other = add_three(keyspace), keyspace.add_batch(OTHER)
    assert [ids(leases.take(model, "a", 9)) for model in (OTHER, "unknown")] == [[other], []]
    made_ms = [made_at_ms(batch_id) for batch_id in batch_ids]
    assert leases.take(MODEL, "a", 9, made_before_ms=made_ms[0]) == []
    assert ids(leases.take(MODEL, "a", 9, made_before_ms=made_ms[2])) == batch_ids[:2]
    assert ready(keyspace) == batch_ids[2:]
    gone = keyspace.add_batch()
    keyspace.client.delete(keyspace.keys.batch(gone))
    keyspace.client.hset(keyspace.keys.tries(gone), "e1", 4)
    assert ids(leases.take(MODEL, "a", 9)) == batch_ids[2:]
    assert_gone(keyspace, gone)


def test_an_unreadable_batch_is_set_aside_and_blocks_no_other(keyspace: Keyspace, leases: Leases) -> None:
    client, keys = keyspace.client, keyspace.keys

    def replace_by_list(batch_id: str) -> None:
        client.delete(keys.batch(batch_id))
        client.rpush(keys.batch(batch_id), "somebody's")

    for spoil, reason in (
        (replace_by_list, "wrong_type"),
        (lambda batch_id: client.set(keys.tries(batch_id), "somebody's"), "wrong_type"),
        (lambda batch_id: client.hset(keys.tries(batch_id), "e1", "{"), "unreadable_tries"),
    ):
        keyspace.next_case(reason)
        strange, *others = add_three(keyspace)
        payload = client.get(keys.batch(strange))
        spoil(strange)
        with capture_logs() as lines:
            assert ids(leases.take(MODEL, "a", 3)) == others
        told = [(line["event"], line["batch"], line["reason"]) for line in lines]
        assert told == [("batch set aside", strange, reason)]
        assert (holder_of(keyspace, strange), due_in(keyspace, strange)) == ("parked", keyspace.soon(SET_ASIDE_S))
        assert keyspace.accounting() == {"unreadable": 1, f"unreadable:{reason}": 1}
        assert read_account(keyspace.store).reasons == {f"unreadable:{reason}": 1}
        # Once it is repaired it is leased like any other.
        client.delete(keys.batch(strange), keys.tries(strange))
        client.set(keys.batch(strange), payload)
        keyspace.make_due(strange)
        leases.sweep([MODEL])
        assert ids(leases.take(MODEL, "a", 9)) == [strange]


def test_a_lapsed_lease_goes_to_another_once_it_is_swept(keyspace: Keyspace, leases: Leases) -> None:
    batch_id = keyspace.add_batch()
    (taken,) = leases.take(MODEL, "a", 1)
    keyspace.make_due(batch_id)
    assert leases.renew([taken.lease]) == set(), "it was not swept"
    assert (due_in(keyspace, batch_id), leases.sweep([MODEL])) == (keyspace.soon(LEASE_S), 0)
    keyspace.make_due(batch_id)
    assert leases.sweep([MODEL]) == 1
    before = keyspace.everything()
    assert leases.renew([taken.lease]) == {batch_id}, "though its batch is still ready"
    leases.put_back(taken.lease, delay_s=60, tries={"e1": CallTotals(1)})
    assert (keyspace.everything(), ready(keyspace)) == (before, [batch_id])
    assert ids(leases.take(MODEL, "b", 1)) == [batch_id]
    assert leases.renew([taken.lease]) == {batch_id}
    assert (holder_of(keyspace, batch_id), due_in(keyspace, batch_id)) == ("b", keyspace.soon(LEASE_S))
    keyspace.next_case("of several leases those that are lost or finished are returned")
    kept, _, finished = add_three(keyspace)
    held = [taken.lease for taken in leases.take(MODEL, "a", 3)]
    leases.finish(finished, MODEL)
    lost = held[1]._replace(holder="another")
    assert leases.renew([held[0], lost, held[2]]) == {lost.batch_id, finished}
    assert (holder_of(keyspace, kept), leases.renew([])) == ("a", set())


def test_only_the_holder_puts_a_batch_back_or_parks_it_once(keyspace: Keyspace, leases: Leases) -> None:
    batch_ids, tries = add_three(keyspace), {"e1": CallTotals(4)}
    batch_id = batch_ids[0]
    (taken,) = leases.take(MODEL, "a", 1)
    leases.put_back(taken.lease)
    assert (ready(keyspace), holder_of(keyspace, batch_id)) == (batch_ids, None), "in its old place"
    assert due_in(keyspace, batch_id) == keyspace.soon(READY_S)
    (taken,) = leases.take(MODEL, "a", 1)
    before = keyspace.everything()
    for stranger in ("b", "parked"):
        for delay_s in (0.0, 600.0):
            leases.put_back(Lease(batch_id, MODEL, stranger), delay_s=delay_s, tries=tries)
    assert keyspace.everything() == before
    leases.put_back(taken.lease, delay_s=120)
    assert (holder_of(keyspace, batch_id), due_in(keyspace, batch_id)) == ("parked", keyspace.soon(120))
    assert (leases.sweep([MODEL]), ready(keyspace)) == (0, batch_ids[1:])
    keyspace.make_due(batch_id)
    assert (leases.sweep([MODEL]), ready(keyspace)) == (1, batch_ids)
    assert holder_of(keyspace, batch_id) is None
    for delay_s in (0.0, 60.0):
        (taken,) = leases.take(MODEL, "a", 1)
        leases.put_back(taken.lease, delay_s=delay_s, tries=tries)
        before = keyspace.everything()
        leases.put_back(taken.lease, delay_s=delay_s, tries=tries)
        assert keyspace.everything() == before, "twice is once"
        leases.finish(taken.lease.batch_id, MODEL)
        leases.put_back(taken.lease, delay_s=delay_s, tries=tries)
        assert_gone(keyspace, taken.lease.batch_id)
    keyspace.next_case("finishing twice is finishing once")
    first, *others = add_three(keyspace)
    size = sum(keyspace.client.strlen(keyspace.keys.batch(batch_id)) for batch_id in others)
    leases.take(MODEL, "a", 2)
    leases.finish(first, MODEL)
    after = keyspace.everything()
    leases.finish(first, MODEL)
    assert (keyspace.everything(), keyspace.waiting()) == (after, {MODEL: size})
    for batch_id in others:
        leases.finish(batch_id, MODEL)
    assert keyspace.everything().keys() == {"layout", "partitions", "traces", "waiting"}


def test_tries_are_kept_for_all_rounds_and_not_for_ever(keyspace: Keyspace, leases: Leases) -> None:
    batch_id, key = keyspace.add_batch(), keyspace.keys.tries
    refusals = Refusals(1, 2.5)
    first = {"e1": CallTotals(4, 100, 10, 0.5, refusals=refusals), "e2": CallTotals(1, cost_usd=None, is_known=False)}
    last = {"e1": CallTotals(7, 200, 20, 1.0), "e3": CallTotals(2)}
    for before, tries in (({}, {}), ({}, first), (first, {}), (first, last), (first | last, {})):
        (taken,) = leases.take(MODEL, "a", 1)
        assert taken.tries == before
        leases.put_back(taken.lease, tries=tries)
        assert keyspace.client.exists(key(batch_id)) == bool(before or tries)
    keyspace.client.expire(key(batch_id), 60)
    leases.put_back(leases.take(MODEL, "a", 1)[0].lease, delay_s=60, tries=last)
    assert TTL_S - 60 < keyspace.client.ttl(key(batch_id)) <= TTL_S
    leases.finish(batch_id, MODEL)
    assert_gone(keyspace, batch_id)
    keyspace.next_case("a probe prefers batches that were never tried")
    batch_ids = add_three(keyspace)
    first_id, second, *fresh = batch_ids
    for taken in leases.take(MODEL, "a", 2):
        leases.put_back(taken.lease, tries={"e1": CallTotals(1)})
    assert sorted(ready(keyspace)) == sorted(batch_ids)
    for untried_first, order in ((True, [*fresh, first_id, second]), (False, batch_ids)):
        taken = [leases.take(MODEL, "a", 1, untried_first=untried_first)[0].lease for _ in batch_ids]
        assert [held.batch_id for held in taken] == order
        for held in taken:
            leases.put_back(held)
    two = ids(leases.take(MODEL, "a", len(fresh) + 1, untried_first=True))
    assert two == [*fresh, first_id], "what is left over is the oldest"


def test_a_sweep_makes_due_batches_ready_and_no_others(keyspace: Keyspace, leases: Leases) -> None:
    batch_ids = add_three(keyspace)
    (held,) = leases.take(MODEL, "a", 1)
    before = keyspace.everything()
    assert leases.sweep([MODEL]) == 0
    assert (keyspace.everything(), ready(keyspace)) == (before, batch_ids[1:])
    leases.put_back(held.lease, delay_s=60.0)
    keyspace.make_due(*batch_ids)
    assert (leases.sweep([MODEL]), ready(keyspace)) == (3, batch_ids)
    assert keyspace.client.hgetall(keyspace.keys.holders) == {}, "nobody holds what was swept"
    assert keyspace.leases() == dict.fromkeys(batch_ids, keyspace.soon(READY_S))
    keyspace.next_case("missing in the ready set, and many leases of unknown models")
    batch_id = keyspace.add_batch()
    keyspace.client.delete(keyspace.keys.ready(MODEL))
    assert (leases.sweep([MODEL]), leases.take(MODEL, "a", 1)) == (0, [])
    strangers = [fresh_id("stranger", BEGIN_S) for _ in range(2500)]
    keyspace.client.zadd(keyspace.keys.leases, dict.fromkeys(strangers, 1.0))
    keyspace.make_due(batch_id)
    assert (leases.sweep([MODEL]), ready(keyspace)) == (1, [batch_id])
    keyspace.next_case("judge models that it does not know")
    batch_id, other = keyspace.add_batch(), keyspace.add_batch(OTHER)
    for model in (MODEL, OTHER):
        leases.take(model, "a", 1)
    keyspace.make_due(batch_id, other)
    keyspace.client.zadd(keyspace.keys.leases, {"no id of ours": 1.0, "x-y-z": 2.0})
    assert (leases.sweep([]), leases.sweep([MODEL])) == (0, 1)
    assert (ready(keyspace), ready(keyspace, OTHER), holder_of(keyspace, other)) == ([batch_id], [], "a")
    assert (leases.sweep([MODEL, OTHER]), ready(keyspace, OTHER)) == (1, [other])


STEPS = st.lists(
    st.tuples(st.sampled_from(["take", "put_back", "park", "finish", "come_due", "sweep"]), st.integers(0, 2)),
    max_size=30,
)


@given(steps=STEPS)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_each_batch_has_one_state_in_any_order(
    keyspace: Keyspace, leases: Leases, steps: list[tuple[str, int]]
) -> None:
    left = {keyspace.add_batch(made_at_s=BEGIN_S + number) for number in range(3)}
    names = sorted(left)
    names_of_holders = count()
    last: dict[str, Lease] = {}
    for step, number in steps:
        held = last.get(names[number], Lease(names[number], MODEL, "never"))
        match step:
            case "take":
                taken = leases.take(MODEL, f"holder {next(names_of_holders)}", number)
                last |= {lease.lease.batch_id: lease.lease for lease in taken}
                assert set(ids(taken)) <= left
            case "put_back":
                leases.put_back(held, tries={"e1": CallTotals(1)})
            case "park":
                leases.put_back(held, delay_s=60, tries={"e1": CallTotals(1)})
            case "finish":
                leases.finish(names[number], MODEL)
                left.discard(names[number])
            case "come_due":
                keyspace.make_due(names[number])
            case "sweep":
                leases.sweep([MODEL])
        taken_or_parked = {raw.decode() for raw in keyspace.client.hgetall(keyspace.keys.holders)}
        assert taken_or_parked | set(ready(keyspace)) == left
        assert not taken_or_parked & set(ready(keyspace))
        assert set(keyspace.leases()) == left
    for batch_id in names:
        leases.finish(batch_id, MODEL)
    assert keyspace.waiting() == {MODEL: 0}


@pytest.fixture
def maintenance(keyspace: Keyspace) -> Maintenance:
    stage = make_maintenance(keyspace, backpressure=Backpressure(1, {MODEL}))
    stage.run_once()
    return stage


def set_back(keyspace: Keyspace, maintenance: Maintenance, by_s: float) -> None:
    """Move the last look as far ahead as if the clock had been set back since, and look again."""
    keyspace.client.set(keyspace.keys.clock, keyspace.store.now_ms() + int(by_s * 1000))
    maintenance.run_once()


def test_due_times_follow_a_clock_that_is_set_back(keyspace: Keyspace, maintenance: Maintenance) -> None:
    """What was to happen by the old clock happens in its time, and not as much later: batches and feedback."""
    dead, parked, living = (keyspace.add_batch() for _ in range(3))
    for batch, in_s in ((dead, HOUR_S + 10), (parked, HOUR_S + 60), (living, LEASE_S - 1)):
        keyspace.make_due(batch, in_s=in_s)
    now_ms = int(keyspace.client.get(keyspace.keys.clock))
    keyspace.client.zadd(keyspace.keys.feedback, {"one": now_ms + (HOUR_S + 60) * 1000})
    set_back(keyspace, maintenance, HOUR_S)
    expected = [keyspace.soon(seconds) for seconds in (10, 60, LEASE_S - 1)]
    assert [due_in(keyspace, batch) for batch in (dead, parked, living)] == expected
    due_ms = keyspace.client.zscore(keyspace.keys.feedback, "one")
    assert (due_ms - keyspace.store.now_ms()) / 1000 == keyspace.soon(60)
    before = keyspace.client.zrange(keyspace.keys.leases, 0, -1, withscores=True)
    maintenance.run_once()
    assert keyspace.client.zrange(keyspace.keys.leases, 0, -1, withscores=True) == before, "once"
    for by_s in (-HOUR_S, 0.0, 0.5):
        set_back(keyspace, maintenance, by_s)
        assert keyspace.client.zrange(keyspace.keys.leases, 0, -1, withscores=True) == before, "not set back"
    keyspace.next_case("pending entries keep their consumer; that their idle time begins anew the experiments see")
    ids = [keyspace.add({"n": number}) for number in range(3)]
    for reader, amount in (("a", 2), ("b", 1)):
        keyspace.read(amount, consumer=reader)
    keyspace.client.xdel(keyspace.keys.traces, ids[0])
    set_back(keyspace, maintenance, HOUR_S)
    pending = keyspace.client.xpending_range(keyspace.keys.traces, INGEST_GROUP, min="-", max="+", count=10)
    readers = [(entry["message_id"].decode(), entry["consumer"], entry["times_delivered"]) for entry in pending]
    assert readers == list(zip(ids, (b"a", b"a", b"b"), (1, 1, 1), strict=True)), (
        "also what is gone: who claims it counts it"
    )
    keyspace.next_case("a lock of a dead worker is not held for longer: its TTL goes by the clock as well")
    locks = (keyspace.keys.sweeper, keyspace.keys.dead_auto_retry, keyspace.keys.feedback_pass)
    for lock in locks:
        keyspace.client.set(lock, "dead", ex=3600)
    maintenance.run_once()
    assert keyspace.client.exists(*locks) == len(locks)
    set_back(keyspace, maintenance, HOUR_S)
    assert keyspace.client.exists(*locks) == 0
