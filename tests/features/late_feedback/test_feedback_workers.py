"""Several workers, and workers that die: one pass at a time, no complaint lost, none judged twice."""

import pytest
from support.feedback_parts import Passes, balanced, complain, ended, evaluations, gathered, take
from support.stage_parts import Ground, make_trace, make_traces

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
def _complaints(ground: Ground) -> None:
    for trace in make_traces(range(100)):
        ground.add(trace)
    for number in NUMBERS:
        complain(ground, make_trace(number).trace_id)
    complain(ground, "never published")
    take(ground)


@pytest.fixture
def _long_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "_LEASE_MS", HOUR_MS)


def lose_lease(ground: Ground) -> None:
    """Make the lease expire."""
    assert ground.client.delete(ground.keys.feedback_pass) == 1


def test_while_one_worker_makes_a_pass_no_other_does(ground: Ground) -> None:
    one, other = Passes(ground), Passes(ground)
    one.turn(2)
    assert 0 < ground.client.pttl(ground.keys.feedback_pass) <= 15_000
    other.turn(20)
    assert (one.under_way, other.under_way) == (True, False)
    one.turn(20)
    assert not one.under_way
    assert ground.client.exists(ground.keys.feedback_pass) == 0, "the next pass need not wait"
    other.turn(20)
    assert (one.outcomes, other.outcomes) == (ALL_ENDED, {})
    assert (ended(ground), evaluations(ground)) == (ALL_ENDED, FOUND)


@pytest.mark.usefixtures("_long_leases")
def test_a_lease_is_kept_while_the_pass_goes_on(ground: Ground) -> None:
    passes = Passes(ground)
    passes.turn()
    ground.client.pexpire(ground.keys.feedback_pass, HOUR_MS // 2)
    passes.turn()
    assert ground.client.pttl(ground.keys.feedback_pass) > HOUR_MS // 2


@pytest.mark.usefixtures("_long_leases")
@pytest.mark.parametrize("turns", range(1, 7))
def test_a_worker_that_dies_anywhere_in_a_pass_leaves_all_of_it_to_another(ground: Ground, turns: int) -> None:
    dead, heir = Passes(ground), Passes(ground)
    dead.turn(turns)
    if dead.under_way:
        heir.turn(3)
        assert not heir.under_way, "as long as its lease lasts"
        lose_lease(ground)
    heir.turn(20)
    assert (ended(ground), gathered(ground), evaluations(ground)) == (ALL_ENDED, {}, FOUND)
    assert balanced(ground).chosen == len(FOUND)


@pytest.mark.usefixtures("_long_leases")
def test_two_passes_at_the_same_time_do_nothing_twice(ground: Ground) -> None:
    slow, quick = Passes(ground), Passes(ground)
    slow.until_dealing()
    lose_lease(ground)
    quick.make()
    slow.stage.select(slow.stage._pass, slow.stage._pass.part)
    assert (quick.outcomes, slow.outcomes, slow.woken) == (ALL_ENDED, {}, [])
    assert (ended(ground), evaluations(ground)) == (ALL_ENDED, FOUND)
    balanced(ground)


@pytest.mark.usefixtures("_long_leases")
def test_a_worker_that_was_away_for_too_long_gives_its_pass_up(ground: Ground) -> None:
    slow, quick = Passes(ground), Passes(ground)
    slow.until_dealing()
    lose_lease(ground)
    quick.turn()
    slow.turn()
    assert (slow.under_way, quick.under_way) == (False, True)
    slow.turn(5)
    assert ground.client.exists(ground.keys.feedback_pass) == 1, "it is the other's lease"
    quick.turn(20)
    assert (ended(ground), evaluations(ground)) == (ALL_ENDED, FOUND)


@pytest.mark.parametrize("turn", range(5))
def test_redis_that_goes_away_at_any_moment_costs_a_repetition_and_nothing_else(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, turn: int
) -> None:
    passes = Passes(ground)
    passes.turn(turn)
    with monkeypatch.context() as away:
        for name in ("run", "call"):
            away.setattr(ground.store, name, _refuse)
        with pytest.raises(StoreError):
            passes.turn()
    passes.turn(20)
    assert (passes.outcomes, ended(ground), evaluations(ground)) == (ALL_ENDED, ALL_ENDED, FOUND)


def _refuse(*_: object) -> None:
    raise StoreError("Redis does not answer (ConnectionError)")
