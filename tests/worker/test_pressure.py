"""Whether more is chosen: slow models hold reading up, dead ones are left out, and neither before the bound."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.pressure import Bounds, Pressure

BOUND = 100
NAMES = ("a", "b", "c")


def bounds(waiting: dict[str, int], dead: set[str]) -> Bounds:
    pressure = Pressure(BOUND)
    pressure.hear_waiting(waiting)
    pressure.hear_dead(dead)
    return pressure.bounds


def test_at_first_nothing_holds_choosing_up() -> None:
    assert Pressure(BOUND).bounds == Bounds(paused=False, shed=frozenset())


@pytest.mark.parametrize(
    ("waiting", "dead", "expected"),
    [
        ({"a": BOUND}, set(), Bounds(paused=False, shed=frozenset())),
        ({"a": BOUND + 1}, set(), Bounds(paused=True, shed=frozenset())),
        ({"a": BOUND, "b": BOUND}, set(), Bounds(paused=False, shed=frozenset())),
        ({"a": BOUND}, {"a"}, Bounds(paused=False, shed=frozenset())),
        ({"a": BOUND + 1}, {"a"}, Bounds(paused=False, shed=frozenset("a"))),
        ({"a": BOUND + 1, "b": 1}, {"a", "b"}, Bounds(paused=False, shed=frozenset("a"))),
        ({"a": BOUND + 1, "b": BOUND + 1}, {"a"}, Bounds(paused=True, shed=frozenset("a"))),
        ({}, {"a"}, Bounds(paused=False, shed=frozenset())),
    ],
    ids=["at-the-bound", "slow", "each-for-itself", "dead-with-little", "dead", "one-of-two-dead", "both", "no-work"],
)
def test_slow_pauses_and_dead_sheds(waiting: dict[str, int], dead: set[str], expected: Bounds) -> None:
    assert bounds(waiting, dead) == expected


def test_a_model_that_comes_back_with_much_to_do_is_slow_until_it_has_done_it() -> None:
    pressure = Pressure(BOUND)
    pressure.hear_dead({"a"})
    pressure.hear_waiting({"a": BOUND + 1})
    assert pressure.bounds == Bounds(paused=False, shed=frozenset("a"))
    pressure.hear_dead(())
    assert pressure.bounds == Bounds(paused=True, shed=frozenset())
    pressure.hear_waiting({"a": BOUND})
    assert pressure.bounds == Bounds(paused=False, shed=frozenset())


@given(st.dictionaries(st.sampled_from(NAMES), st.integers(0, 2 * BOUND)), st.sets(st.sampled_from(NAMES)))
def test_only_dead_models_past_the_bound_are_shed_and_only_living_ones_pause(
    waiting: dict[str, int], dead: set[str]
) -> None:
    found = bounds(waiting, dead)
    over = {name for name in NAMES if waiting.get(name, 0) > BOUND}
    assert found.shed == over & dead
    assert found.paused == any(name not in dead for name in over)
