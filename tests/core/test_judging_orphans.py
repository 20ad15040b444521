"""Work for a judge model that was taken out of the configuration ends, as soon as nobody will do it any more."""

import pytest
from support.judging_parts import HOUR_S, MODEL, Workers, assert_settled, choose, holders, letters, ready
from support.stage_parts import Keyspace

from judges.core.model import ModelSettings
from worker.base.accounting import read_account
from worker.core.queue.leases import Leases

GONE = ModelSettings(provider="scripted", model="gone")
ONLY_OURS = frozenset({"scripted"})


def leave(keyspace: Keyspace, count: int, *, age_s: float = 7 * HOUR_S, first: int = 0) -> list[str]:
    """Leave batches of a judge model that the workers of these tests do not have."""
    return choose(keyspace, count, batch_size=1, age_s=age_s, first=first, models={"default": GONE})


def test_old_batches_of_an_unknown_model_become_dead_letters_and_young_ones_wait(
    keyspace: Keyspace, new_worker: Workers
) -> None:
    leave(keyspace, 20)
    young = leave(keyspace, 2, age_s=5 * HOUR_S, first=50)
    worker = new_worker(configured_models=lambda: ONLY_OURS)
    worker.sweep()
    assert worker.model.reached == []
    assert {letter.judge_model for letter in letters(keyspace).values()} == {"gone"}
    assert read_account(keyspace.store).reasons == {"dead:unknown_judge_version": 20}
    assert (sorted(keyspace.batches()), ready(keyspace, "gone"), holders(keyspace)) == (
        sorted(young),
        sorted(young),
        {},
    )
    assert worker.judging.circuits() == {"scripted": 0.0}, "nobody is there for it"
    new_worker(models={"default": MODEL, "back": GONE}).sweep()
    assert_settled(keyspace, scored=2, dead=20)


@pytest.mark.parametrize(
    "asked", [None, frozenset({"scripted", "gone"})], ids=["it is not known who is asked", "another worker asks it"]
)
def test_batches_that_another_worker_may_judge_are_not_given_up(
    keyspace: Keyspace, new_worker: Workers, asked: frozenset[str] | None
) -> None:
    leave(keyspace, 2)
    before = keyspace.batches()
    new_worker(configured_models=lambda: asked).sweep()
    assert (keyspace.batches(), letters(keyspace), holders(keyspace)) == (before, {}, {})


def test_own_batches_are_no_orphans_before_the_first_exchange(keyspace: Keyspace, new_worker: Workers) -> None:
    choose(keyspace, 5, batch_size=1, age_s=7 * HOUR_S)
    worker = new_worker(batch_size=1, configured_models=frozenset[str])
    worker.limits.limit = 1
    worker.model.answers.clear()
    worker.look()
    worker.rest()
    assert worker.judging.held == 2, "as many as there is capacity for"
    worker.end()
    assert_settled(keyspace, scored=5)


@pytest.mark.parametrize("delay_s", [None, 60.0], ids=["its holder died", "it was parked"])
def test_leased_and_parked_orphans_are_found_when_they_are_due(
    keyspace: Keyspace, new_worker: Workers, delay_s: float | None
) -> None:
    leave(keyspace, 1)
    leases = Leases(keyspace.store, tries_ttl_s=60)
    (taken,) = leases.take("gone", "a worker of before", 1)
    if delay_s is not None:
        leases.put_back(taken.lease, delay_s=delay_s)
    worker = new_worker(configured_models=lambda: ONLY_OURS)
    worker.sweep()
    assert letters(keyspace) == {}
    keyspace.make_due()
    worker.sweep()
    assert_settled(keyspace, scored=0, dead=1)
