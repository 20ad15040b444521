"""Several workers, and workers that die: one pass at a time, no complaint lost, none judged twice."""

import pytest
from support.feedback_parts import Passes, complain, ended, evaluations, gathered, take
from support.stage_parts import Keyspace, make_trace, make_traces, read_balanced_account

from worker.core.storage.client import StoreError
from worker.features.late_feedback import pending as gathering

HOUR_MS = 3_600_000
NUMBERS = (3, 50, 90)
FOUND = sorted(
    (make_trace(number).trace_id, judge, "late_feedback", 1.0)
    for number in NUMBERS
    for judge in ("relevance_to_query", "safety")
)
ALL_ENDED = {"pulled": 3, "not_found": 1}


@pytest.fixture(autouse=True)
def _complaints(keyspace: Keyspace) -> None:
    for trace in make_traces(range(100)):
        keyspace.add(trace)
    for number in NUMBERS:
        complain(keyspace, make_trace(number).trace_id)
    complain(keyspace, "never published")
    take(keyspace)


@pytest.fixture
def _long_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "_LEASE_MS", HOUR_MS)


def lose_lease(keyspace: Keyspace) -> None:
    """Make the lease expire."""
    assert keyspace.client.delete(keyspace.keys.feedback_pass) == 1


def test_while_one_worker_makes_a_pass_no_other_does(keyspace: Keyspace) -> None:
    worker, other = Passes(keyspace), Passes(keyspace)
    worker.turn(2)
    assert 0 < keyspace.client.pttl(keyspace.keys.feedback_pass) <= 15_000
    other.turn(20)
    assert (worker.under_way, other.under_way) == (True, False)
    worker.turn(20)
    assert not worker.under_way
    assert keyspace.client.exists(keyspace.keys.feedback_pass) == 0, "the next pass need not wait"
    other.turn(20)
    assert (worker.outcomes, other.outcomes) == (ALL_ENDED, {})
    assert (ended(keyspace), evaluations(keyspace)) == (ALL_ENDED, FOUND)


@pytest.mark.usefixtures("_long_leases")
def test_a_lease_is_kept_while_the_pass_goes_on(keyspace: Keyspace) -> None:
    passes = Passes(keyspace)
    passes.turn()
    keyspace.client.pexpire(keyspace.keys.feedback_pass, HOUR_MS // 2)
    passes.turn()
    assert keyspace.client.pttl(keyspace.keys.feedback_pass) > HOUR_MS // 2


@pytest.mark.usefixtures("_long_leases")
@pytest.mark.parametrize("turns", range(1, 7))
def test_a_worker_that_dies_anywhere_in_a_pass_leaves_all_of_it_to_another(keyspace: Keyspace, turns: int) -> None:
    dead, successor = Passes(keyspace), Passes(keyspace)
    dead.turn(turns)
    if dead.under_way:
        successor.turn(3)
        assert not successor.under_way, "as long as its lease lasts"
        lose_lease(keyspace)
    successor.turn(20)
    assert (ended(keyspace), gathered(keyspace), evaluations(keyspace)) == (ALL_ENDED, {}, FOUND)
    assert read_balanced_account(keyspace).chosen == len(FOUND)


@pytest.mark.usefixtures("_long_leases")
def test_two_passes_at_the_same_time_do_nothing_twice(keyspace: Keyspace) -> None:
    slow, quick = Passes(keyspace), Passes(keyspace)
    slow.until_dealing()
    lose_lease(keyspace)
    quick.make()
    slow.stage.choose(slow.stage._pass, slow.stage._pass.part)
    assert (quick.outcomes, slow.outcomes, slow.woken) == (ALL_ENDED, {}, [])
    assert (ended(keyspace), evaluations(keyspace)) == (ALL_ENDED, FOUND)
    read_balanced_account(keyspace)


@pytest.mark.usefixtures("_long_leases")
def test_a_worker_that_was_away_for_too_long_gives_its_pass_up(keyspace: Keyspace) -> None:
    slow, quick = Passes(keyspace), Passes(keyspace)
    slow.until_dealing()
    lose_lease(keyspace)
    quick.turn()
    slow.turn()
    assert (slow.under_way, quick.under_way) == (False, True)
    slow.turn(5)
    assert keyspace.client.exists(keyspace.keys.feedback_pass) == 1, "it is the other's lease"
    quick.turn(20)
    assert (ended(keyspace), evaluations(keyspace)) == (ALL_ENDED, FOUND)


@pytest.mark.parametrize("turn", range(5))
def test_redis_that_goes_away_at_any_moment_costs_a_repetition_and_nothing_else(
    keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch, turn: int
) -> None:
    passes = Passes(keyspace)
    passes.turn(turn)
    with monkeypatch.context() as away:
        for name in ("run", "call"):
            away.setattr(keyspace.store, name, _refuse)
        with pytest.raises(StoreError):
            passes.turn()
    passes.turn(20)
    assert (passes.outcomes, ended(keyspace), evaluations(keyspace)) == (ALL_ENDED, ALL_ENDED, FOUND)


def _refuse(*_: object) -> None:
    raise StoreError("Redis does not answer (ConnectionError)")
