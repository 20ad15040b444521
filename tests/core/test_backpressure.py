"""Whether more is chosen: slow models hold reading up, dead ones are left out, and neither before the bound."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.cases import each_case

from worker.core.telemetry.backlog import Backpressure, Bounds

BOUND = 100
KNOWN = ("a", "b")
UNKNOWN = ("old", "of another prefix")
SURELY_S = 10.0
"""Dead for so long, also a slow model is held for dead."""
FREE = Bounds(paused=False, shed=frozenset())
PAUSED = Bounds(paused=True, shed=frozenset())
SHED = Bounds(paused=False, shed=frozenset("a"))


def pressure_of(*events: tuple[str, dict[str, Any]]) -> Backpressure:
    """Make a pressure that has heard this."""
    pressure = Backpressure(BOUND, KNOWN)
    for kind, heard in events:
        (pressure.set_waiting if kind == "waiting" else pressure.set_open_circuits)(heard)
    return pressure


def test_at_first_nothing_holds_choosing_up() -> None:
    assert pressure_of().bounds == FREE


@each_case(
    ("waiting", "dead", "expected"),
    [
        ({"a": BOUND}, {}, FREE),
        ({"a": BOUND + 1}, {}, PAUSED),
        ({"a": BOUND, "b": BOUND}, {}, FREE),
        ({"a": BOUND}, {"a": 60.0}, FREE),
        ({"a": BOUND + 1}, {"a": 0.1}, SHED),
        ({"a": BOUND + 1, "b": 1}, {"a": 60.0, "b": 60.0}, SHED),
        ({"a": BOUND + 1, "b": BOUND + 1}, {"a": 60.0}, Bounds(paused=True, shed=frozenset("a"))),
        ({"a": BOUND + 1, "b": BOUND + 1}, {"a": 60.0, "b": 0.1}, Bounds(paused=False, shed=frozenset("ab"))),
        ({}, {"a": 60.0}, FREE),
    ],
    ids=[
        "at-the-bound",
        "slow",
        "each-for-itself",
        "dead-with-little",
        "dead",
        "one-of-two-dead",
        "both",
        "both-dead",
        "no-work",
    ],
)
def test_a_slow_model_pauses_ingest_and_a_dead_model_over_the_bound_is_shed(
    waiting: dict[str, int], dead: dict[str, float], expected: Bounds
) -> None:
    assert pressure_of(("dead", dead), ("waiting", waiting)).bounds == expected


@each_case(("dead_s", "expected"), [(0.1, PAUSED), (SURELY_S - 0.1, PAUSED), (SURELY_S, SHED), (3600.0, SHED)])
def test_a_slow_model_is_shed_only_once_it_is_surely_dead(dead_s: float, expected: Bounds) -> None:
    assert pressure_of(("waiting", {"a": BOUND + 1}), ("dead", {"a": dead_s})).bounds == expected


def test_a_model_that_comes_back_with_much_to_do_is_slow_until_it_has_done_it() -> None:
    pressure = pressure_of(("dead", {"a": 1.0}), ("waiting", {"a": BOUND + 1}))
    assert pressure.bounds == SHED
    pressure.set_open_circuits({})
    assert pressure.bounds == PAUSED
    pressure.set_open_circuits({"a": 1.0})
    assert pressure.bounds == PAUSED, "it may be that it opened for a moment"
    pressure.set_waiting({"a": BOUND})
    assert pressure.bounds == FREE
    pressure.set_waiting({"a": BOUND + 1})
    assert pressure.bounds == SHED, "that it was slow is forgotten"


def sizes(*names: str) -> st.SearchStrategy[dict[str, int]]:
    return st.dictionaries(st.sampled_from(names), st.integers(BOUND - 2, BOUND + 2))


def deaths(*names: str, most_s: float = 3 * SURELY_S) -> st.SearchStrategy[dict[str, float]]:
    return st.dictionaries(st.sampled_from(names), st.floats(0.001, most_s))


def histories(*names: str) -> st.SearchStrategy[list[tuple[str, dict[str, Any]]]]:
    """What may be heard of these models, in any order."""
    waiting, dead = st.tuples(st.just("waiting"), sizes(*names)), st.tuples(st.just("dead"), deaths(*names))
    return st.lists(st.one_of(waiting, dead), max_size=12)


@given(histories(*KNOWN, *UNKNOWN))
def test_models_that_nothing_is_chosen_for_change_nothing(history: list[tuple[str, dict[str, Any]]]) -> None:
    alone = [(kind, {name: value for name, value in heard.items() if name in KNOWN}) for kind, heard in history]
    assert pressure_of(*history).bounds == pressure_of(*alone).bounds


@given(histories("a"))
def test_past_the_bound_a_model_is_either_waited_for_or_shed_and_below_neither(
    history: list[tuple[str, dict[str, Any]]],
) -> None:
    bounds = pressure_of(*history).bounds
    waiting = [heard for kind, heard in history if kind == "waiting"]
    is_over = bool(waiting) and waiting[-1].get("a", 0) > BOUND
    assert bounds.paused + len(bounds.shed) == is_over


@given(histories(*KNOWN), deaths("b"))
def test_a_living_model_past_the_bound_always_pauses(
    history: list[tuple[str, dict[str, Any]]], dead: dict[str, float]
) -> None:
    pressure = pressure_of(*history, ("dead", dead), ("waiting", {"a": BOUND + 1}))
    assert pressure.bounds.paused
    assert "a" not in pressure.bounds.shed


@given(histories(*KNOWN), st.lists(deaths("a", most_s=SURELY_S - 0.001), max_size=6))
def test_short_openings_never_shed_a_model_that_was_slow_before(
    history: list[tuple[str, dict[str, Any]]], openings: list[dict[str, float]]
) -> None:
    pressure = pressure_of(*history, ("dead", {}), ("waiting", {"a": BOUND + 1}))
    for dead in openings:
        pressure.set_open_circuits(dead)
        assert pressure.bounds == PAUSED
        pressure.set_waiting({"a": BOUND + 2})
        assert pressure.bounds == PAUSED
