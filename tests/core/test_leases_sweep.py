"""A batch that nobody has is found again: its holder is gone, its parking over, or somebody's hand took it away."""

from itertools import count

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.leases_parts import BEGIN_S, MODEL, OTHER, READY_S, add, holder_of, ids, ready
from support.stage_parts import Keyspace

from judges.core.model import CallTotals
from worker.core.queue.batch import fresh_id
from worker.core.queue.leases import Lease, Leases


def test_nothing_is_swept_before_its_time(keyspace: Keyspace, leases: Leases, batch_ids: list[str]) -> None:
    leases.take(MODEL, "a", 1)
    before = keyspace.everything()
    assert leases.sweep([MODEL]) == 0
    assert keyspace.everything() == before
    assert ready(keyspace) == batch_ids[1:]


def test_sweeping_again_changes_nothing(keyspace: Keyspace, leases: Leases, batch_ids: list[str]) -> None:
    for taken, delay_s in zip(leases.take(MODEL, "a", 2), (0.0, 60.0), strict=True):
        leases.put_back(taken.lease, delay_s=delay_s)
    keyspace.make_due(*batch_ids)
    assert (leases.sweep([MODEL]), ready(keyspace)) == (3, batch_ids)
    assert keyspace.client.hgetall(keyspace.keys.holders) == {}, "nobody holds what was swept"
    assert all(due_s == keyspace.soon(READY_S) for due_s in keyspace.leases().values())
    before = keyspace.everything()
    assert leases.sweep([MODEL]) == 0
    assert keyspace.everything() == before


def test_a_batch_missing_in_its_ready_set_is_added_when_due(keyspace: Keyspace, leases: Leases, batch_id: str) -> None:
    keyspace.client.delete(keyspace.keys.ready(MODEL))
    assert (leases.sweep([MODEL]), leases.take(MODEL, "a", 1)) == (0, [])
    keyspace.make_due(batch_id)
    assert (leases.sweep([MODEL]), ready(keyspace)) == (1, [batch_id])


def test_sweeping_leaves_judge_models_it_does_not_know(keyspace: Keyspace, leases: Leases, batch_id: str) -> None:
    other = add(keyspace, OTHER)
    for model in (MODEL, OTHER):
        leases.take(model, "a", 1)
    keyspace.make_due(batch_id, other)
    foreign = {"no id of ours": 1.0, "x-y-z": 2.0}
    keyspace.client.zadd(keyspace.keys.leases, foreign)
    assert (leases.sweep([]), leases.sweep([MODEL])) == (0, 1)
    assert (ready(keyspace), ready(keyspace, OTHER), holder_of(keyspace, other)) == ([batch_id], [], "a")
    assert leases.sweep([MODEL, OTHER]) == 1
    assert ready(keyspace, OTHER) == [other]


def test_many_unknown_leases_do_not_delay_the_sweep(keyspace: Keyspace, leases: Leases, batch_id: str) -> None:
    strangers = [fresh_id("stranger", BEGIN_S) for _ in range(2500)]
    keyspace.client.zadd(keyspace.keys.leases, dict.fromkeys(strangers, 1.0))
    leases.take(MODEL, "a", 1)
    keyspace.make_due(batch_id)
    assert (leases.sweep([MODEL]), ready(keyspace)) == (1, [batch_id])


STEPS = st.lists(
    st.tuples(st.sampled_from(["take", "put_back", "park", "finish", "come_due", "sweep"]), st.integers(0, 2)),
    max_size=30,
)


@given(steps=STEPS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_batch_is_ready_leased_parked_or_gone_after_any_steps(
    keyspace: Keyspace, leases: Leases, steps: list[tuple[str, int]]
) -> None:
    left = {add(keyspace, made_at_s=BEGIN_S + number) for number in range(3)}
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
