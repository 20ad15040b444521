"""A prefetch window is kept as full as its endpoint can use, and little fuller."""

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st
from support.cases import each_case
from support.judging_parts import FakeLimits

from worker.core.judging.fetching import PrefetchWindow

MIB = 1024 * 1024


def window_of(*, limit: int = 64, batch_size: int = 32, **limits: float) -> PrefetchWindow:
    return PrefetchWindow("scripted", FakeLimits(limit=limit, **limits), batch_size)


@each_case(
    ("limit", "held", "capacity"),
    [
        (256, 0, 10),
        (256, 288, 1),
        (256, 289, 0),
        (64, 0, 4),
        (64, 63, 2),
        (64, 64, 2),
        (64, 97, 0),
        (16, 0, 1),
        (16, 15, 1),
        (16, 16, 0),
        (1, 0, 1),
        (1, 1, 0),
        (0, 0, 0),
        (0, 500, 0),
        (4, 500, 0),
    ],
)
def test_as_much_may_be_taken_as_the_endpoint_takes_and_two_batches(limit: int, held: int, capacity: int) -> None:
    window = window_of(limit=limit)
    window.acquire(1, 1)
    window.release(1, 1)
    window.acquire(held, held)
    assert window.capacity() == capacity


def test_a_blocked_endpoint_leaves_no_capacity() -> None:
    window = window_of()
    window.limits = FakeLimits(limit=64, blocked_for_s=0.1)
    assert (window.capacity(), window.is_blocked) == (0, True)


def test_an_evaluation_between_two_attempts_frees_its_capacity_within_bounds() -> None:
    window = window_of()
    window.acquire(128, 128)
    assert window.capacity() == 0
    window.limits = FakeLimits(limit=64, backing_off=64)
    assert window.capacity() > 0
    window.acquire(64 * 32, 64 * 32)
    window.limits = FakeLimits(limit=64, backing_off=100_000)
    assert window.capacity() == 0


def test_prefetched_batches_are_bounded_in_bytes() -> None:
    window = window_of()
    window.acquire(1, 64 * MIB - 1)
    assert (window.capacity() > 0, window.has_memory) == (True, True)
    window.acquire(1, 1)
    assert (window.capacity(), window.has_memory) == (0, False)
    window.release(1, 1)
    assert (window.capacity() > 0, window.has_memory) == (True, True)


@each_case(
    ("size", "capacity", "capacity_after"),
    [(0, 9, 10), (1 * MIB, 9, 10), (8 * MIB, 7, 8), (32 * MIB, 1, 2), (63 * MIB, 1, 1), (64 * MIB, 0, 1)],
)
def test_no_more_is_taken_at_once_than_memory_has_place_for_as_far_as_is_known(
    size: int, capacity: int, capacity_after: int
) -> None:
    window = window_of(limit=256)
    assert window.capacity() == 1, "one, to see how large they are"
    window.acquire(32, size)
    window.acquire(0, 0)
    assert window.capacity() == capacity
    window.release(32, size)
    assert window.capacity() == capacity_after


def test_evaluations_that_end_make_capacity() -> None:
    window = window_of(limit=4, batch_size=4)
    window.acquire(8, 800)
    capacities = []
    for _ in range(8):
        window.release(1, 100)
        capacities.append(window.capacity())
    assert capacities == [0, 0, 0, 1, 1, 1, 1, 2]


def test_counts_hold_under_many_threads() -> None:
    window = window_of(limit=1, batch_size=1)

    def pass_through(seed: int) -> None:
        part = random.Random(seed).randint(1, 5)
        for _ in range(200):
            window.acquire(part, part * 10)
            window.release(part, part * 10)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(pass_through, range(8)))
    assert (window.evaluations, window._bytes) == (0, 0)


@dataclass
class _Turn:
    """What happens to a window: some of its capacity is taken, in batches of this size; some end; its limit changes."""

    share: float
    size: float
    ending: float
    limit: int | None


LIMITS = st.integers(1, 300)
TURNS = st.lists(
    st.builds(_Turn, st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.none() | LIMITS), min_size=1, max_size=40
)


@given(limit=LIMITS, batch_size=st.integers(1, 64), turns=TURNS)
def test_no_more_is_taken_than_is_of_use_and_no_slot_stays_empty(
    limit: int, batch_size: int, turns: list[_Turn]
) -> None:
    limits = FakeLimits(limit=limit)
    window, held = PrefetchWindow("scripted", limits, batch_size), 0
    for turn in turns:
        limits.limit = turn.limit or limits.limit
        capacity = window.capacity()
        assert capacity >= 0
        assert capacity or held >= limits.limit, "there is something to do for every slot"
        taken = round(capacity * turn.share) * max(1, round(batch_size * turn.size))
        window.acquire(taken, 0)
        held += taken
        if taken:
            assert held <= limits.limit + min(limits.limit, 2 * batch_size) + batch_size - 1
        ended = int(held * turn.ending)
        window.release(ended, 0)
        held -= ended
