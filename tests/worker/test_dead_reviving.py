"""Dead letters are taken up again once their cause is gone: few at first, more while they succeed, never endlessly."""

from collections.abc import Callable, Collection
from typing import Any

import pytest
from dead_parts import balanced, dead, give_up, make_revivable, marks, retry_all, scheduled
from hypothesis import given
from hypothesis import strategies as st
from judging_parts import Desks, assert_settled, failing
from stage_parts import Ground, settings_of

from judges.catalog import catalogue
from judges.models.model import ModelRejectedError, ModelSettings
from worker.dead.pace import FIRST, MOST, Pace
from worker.dead.reviving import Reviving
from worker.ledger import MAX_REVIVALS, REVIVAL_WAITS_S

VERSIONS = {name: judge.version for name, judge in catalogue().items()}
MODELS = {"default": ModelSettings(provider="scripted", model="scripted")}


@pytest.fixture
def reviving(ground: Ground) -> Callable[..., Reviving]:
    """Make the stage of one worker, whose thread does not run."""

    def make(
        healthy: Collection[str] = ("scripted",), versions: dict[str, str] = VERSIONS, **settings: Any
    ) -> Reviving:
        known = settings_of(ground, **{"models": MODELS, **settings})
        return Reviving(known, ground.store, healthy=lambda: healthy, versions=versions)

    return make


def under_way(ground: Ground) -> list[str]:
    return sorted(name for name, retry in marks(ground).items() if retry.batch_id)


def test_what_is_due_is_taken_up_and_judged_once(
    ground: Ground, desk: Desks, reviving: Callable[..., Reviving]
) -> None:
    ids = give_up(ground, desk, 3)
    stage = reviving()
    stage.look()
    assert ground.batches() == {}, "a minute has not passed"
    make_revivable(ground)
    stage.look()
    assert under_way(ground) == sorted(ids)
    assert {retry.times for retry in marks(ground).values()} == {1}
    stage.look()
    assert len(ground.batches()) == 1
    desk().sweep()
    assert_settled(ground, scored=3)


def test_only_of_judge_models_that_are_healthy(ground: Ground, desk: Desks, reviving: Callable[..., Reviving]) -> None:
    give_up(ground, desk, 1)
    make_revivable(ground)
    reviving(healthy=()).look()
    assert ground.batches() == {}
    reviving(healthy=("other",)).look()
    assert ground.batches() == {}


def test_where_a_probe_may_be_made_one_is_taken_up(ground: Ground, desk: Desks) -> None:
    give_up(ground, desk, 30)
    make_revivable(ground)
    healthy: list[str] = []
    known = settings_of(ground, models=MODELS)
    probed = lambda: ("scripted",)  # noqa: E731 - a name for one expression
    stage = Reviving(known, ground.store, healthy=lambda: healthy, versions=VERSIONS, probed=probed)
    stage.look()
    stage.look()
    assert len(under_way(ground)) == 1
    desk().sweep()
    stage.look()
    assert (balanced(ground).scored, len(under_way(ground))) == (1, 1)
    healthy.append("scripted")
    stage.look()
    assert len(under_way(ground)) > FIRST


def test_a_fault_of_ours_is_never_taken_up(ground: Ground, desk: Desks, reviving: Callable[..., Reviving]) -> None:
    give_up(ground, desk, 2, error=RuntimeError("a fault"))
    make_revivable(ground)
    reviving().look()
    assert (ground.batches(), len(dead(ground))) == ({}, 2)


def test_few_at_first_and_twice_as_many_while_they_succeed(
    ground: Ground, desk: Desks, reviving: Callable[..., Reviving]
) -> None:
    give_up(ground, desk, 75)
    make_revivable(ground)
    stage, worker = reviving(), desk()
    stage.look()
    assert len(under_way(ground)) == FIRST
    stage.look()
    assert len(under_way(ground)) == FIRST, "what is under way takes its place"
    worker.sweep()
    stage.look()
    assert len(under_way(ground)) == 2 * FIRST
    worker.sweep()
    stage.look()
    worker.sweep()
    assert_settled(ground, scored=75)


def test_few_again_once_one_dies_again(ground: Ground, desk: Desks, reviving: Callable[..., Reviving]) -> None:
    give_up(ground, desk, 90)
    make_revivable(ground)
    stage = reviving()
    stage.look()
    desk().sweep()
    stage.look()
    assert len(under_way(ground)) == 2 * FIRST
    desk(failing(*range(90)), give_up_after=0.001).sweep()
    stage.look()
    assert len(under_way(ground)) == FIRST
    assert balanced(ground).dead == 90 - FIRST


def test_each_at_most_five_times_with_growing_waits(
    ground: Ground, desk: Desks, reviving: Callable[..., Reviving]
) -> None:
    (name,) = give_up(ground, desk, 1)
    stage, waits = reviving(), []
    for _ in range(MAX_REVIVALS):
        waits.append(scheduled(ground)[name])
        make_revivable(ground)
        stage.look()
        worker = desk(failing(0, error=ModelRejectedError("no")), give_up_after=0.001)
        worker.sweep()
        worker.judging.stop(0.0)
    assert waits == [ground.soon(wait_s) for wait_s in REVIVAL_WAITS_S]
    assert (scheduled(ground), marks(ground)[name].times) == ({}, MAX_REVIVALS)
    stage.look()
    assert ground.batches() == {}
    (retried,) = retry_all(ground)
    assert retried.chosen == [name], "who asks for it gets it"
    worker = desk(failing(0), give_up_after=0.001)
    worker.sweep()
    assert (scheduled(ground), balanced(ground).dead) == ({}, 1)


def test_what_no_worker_here_can_judge_lets_others_pass(
    ground: Ground, desk: Desks, reviving: Callable[..., Reviving]
) -> None:
    ids = give_up(ground, desk, 2)
    make_revivable(ground)
    reviving(versions={"safety": "another"}).look()
    reviving_elsewhere = reviving(models={"other": MODELS["default"]})
    assert ground.batches() == {}
    assert scheduled(ground) == dict.fromkeys(ids, ground.soon(600))
    make_revivable(ground)
    reviving_elsewhere.look()
    assert ground.batches() == {}


def test_live_traces_go_first(ground: Ground, desk: Desks, reviving: Callable[..., Reviving]) -> None:
    give_up(ground, desk, 1)
    make_revivable(ground)
    stage = reviving(max_waiting_bytes=1000)
    ground.client.hset(ground.keys.waiting, "scripted", 501)
    stage.look()
    assert ground.batches() == {}
    ground.client.hset(ground.keys.waiting, "scripted", 500)
    stage.look()
    assert len(ground.batches()) == 1


def test_of_several_workers_one_takes_them_up(ground: Ground, desk: Desks, reviving: Callable[..., Reviving]) -> None:
    give_up(ground, desk, 50)
    make_revivable(ground)
    for stage in [reviving() for _ in range(3)]:
        stage.look()
    assert len(under_way(ground)) == FIRST


def test_what_is_no_letter_any_more_is_forgotten(
    ground: Ground, desk: Desks, reviving: Callable[..., Reviving]
) -> None:
    first, second, third = give_up(ground, desk, 3)
    worker = desk()
    worker.ledger.remove([first])
    make_revivable(ground)
    retry_all(ground, ids=[second])
    assert scheduled(ground).keys() == {first, third}
    reviving().look()
    assert scheduled(ground) == {}
    assert under_way(ground) == sorted([second, third])


def test_it_looks_once_a_minute(ground: Ground, desk: Desks) -> None:
    give_up(ground, desk, 1)
    make_revivable(ground)
    now = [100.0]
    stage = Reviving(
        settings_of(ground, models=MODELS),
        ground.store,
        healthy=lambda: ("scripted",),
        versions=VERSIONS,
        clock=lambda: now[0],
    )
    stage.stopping.set()
    now[0] += 59
    stage.turn()
    assert ground.batches() == {}
    now[0] += 1
    stage.turn()
    assert len(ground.batches()) == 1


ENDS = {
    "all end well": (0, 20, 40),
    "half end well": (0, 10, 40),
    "few end well": (0, 9, 20),
    "none ends": (0, 0, 20),
    "one dies": (1, 19, 40),
    "some die": (2, 18, 20),
    "all die": (20, 0, 20),
}


@pytest.mark.parametrize(("died", "ended", "allowed"), ENDS.values(), ids=ENDS.keys())
def test_the_pace_goes_by_how_the_last_ones_ended(died: int, ended: int, allowed: int) -> None:
    pace = Pace()
    pace.take([str(number) for number in range(FIRST)])
    watched = pace.watched
    pace.hear(watched[:died], watched[died : died + ended])
    assert (pace.allowed, pace.room()) == (allowed, allowed - (FIRST - died - ended))


@given(shares=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), max_size=30))
def test_the_pace_stays_between_its_bounds(shares: list[tuple[float, float]]) -> None:
    pace = Pace()
    for number, (died, ended) in enumerate(shares):
        pace.take([f"{number}-{place}" for place in range(pace.room())])
        watched = pace.watched
        gone = int(len(watched) * died)
        pace.hear(watched[:gone], watched[gone : gone + int(len(watched) * ended)])
        assert FIRST <= pace.allowed <= MOST
        assert 0 <= pace.room() <= pace.allowed
