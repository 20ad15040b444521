"""A lane is kept as full as its endpoint can use, and little fuller, whoever asks from whichever thread."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judging_parts import Gate

from worker.judging.lane import Lane

MIB = 1024 * 1024


def lane_of(*, limit: int = 64, batch_size: int = 32, **gate: float) -> Lane:
    return Lane("scripted", Gate(limit=limit, **gate), batch_size)


@pytest.mark.parametrize(
    ("limit", "held", "room"),
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
def test_as_much_may_be_taken_as_the_endpoint_takes_and_two_batches(limit: int, held: int, room: int) -> None:
    lane = lane_of(limit=limit)
    lane.enter(1, 1)
    lane.leave(1, 1)
    lane.enter(held, held)
    assert lane.room() == room


def test_a_closed_gate_leaves_no_room() -> None:
    lane = lane_of()
    assert lane.wants()
    lane.limits = Gate(limit=64, closed_for_s=0.1)
    assert (lane.room(), lane.wants()) == (0, False)


def test_what_is_in_memory_is_bounded_in_bytes() -> None:
    lane = lane_of()
    lane.enter(1, 64 * MIB - 1)
    assert (lane.room() > 0, lane.has_memory) == (True, True)
    lane.enter(1, 1)
    assert (lane.room(), lane.has_memory) == (0, False)
    lane.leave(1, 1)
    assert (lane.room() > 0, lane.has_memory) == (True, True)


@pytest.mark.parametrize(
    ("size", "room", "room_after"),
    [(0, 9, 10), (1 * MIB, 9, 10), (8 * MIB, 7, 8), (32 * MIB, 1, 2), (63 * MIB, 1, 1), (64 * MIB, 0, 1)],
)
def test_no_more_is_taken_at_once_than_memory_has_place_for_as_far_as_is_known(
    size: int, room: int, room_after: int
) -> None:
    lane = lane_of(limit=256)
    assert lane.room() == 1, "one, to see how large they are"
    lane.enter(32, size)
    lane.enter(0, 0)
    assert lane.room() == room
    lane.leave(32, size)
    assert lane.room() == room_after


def test_whoever_leaves_makes_room() -> None:
    lane = lane_of(limit=4, batch_size=4)
    lane.enter(8, 800)
    rooms = []
    for _ in range(8):
        lane.leave(1, 100)
        rooms.append(lane.room())
    assert rooms == [0, 0, 0, 1, 1, 1, 1, 2]


def test_a_lane_wants_nothing_while_nothing_is_ready_or_somebody_is_at_it() -> None:
    lane = lane_of()
    lane.dry = True
    assert not lane.wants()
    lane.dry = False
    lane.begin()
    assert not lane.wants()
    lane.end()
    assert lane.wants()


def test_whoever_asks_while_another_is_at_it_has_it_look_once_more() -> None:
    lane = lane_of()
    assert lane.begin()
    assert [lane.begin(), lane.begin()] == [False, False]
    assert lane.end(), "somebody asked"
    assert lane.begin()
    assert not lane.end(), "and was heard"
    assert lane.begin()
    assert not lane.end()


def test_under_many_threads_one_is_at_it_and_nobody_goes_unheard() -> None:
    lane = lane_of()
    lock, asked, seen, at_it = threading.Lock(), 0, 0, 0

    def ask(_: int) -> None:
        nonlocal asked, seen, at_it
        with lock:
            asked += 1
        while lane.begin():
            with lock:
                at_it += 1
                assert at_it == 1
            with lock:
                seen, at_it = asked, at_it - 1
            if not lane.end():
                return

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(ask, range(2000)))
    assert (asked, seen) == (2000, 2000)


def test_counts_hold_under_many_threads() -> None:
    lane = lane_of(limit=1, batch_size=1)

    def pass_through(seed: int) -> None:
        part = random.Random(seed).randint(1, 5)
        for _ in range(200):
            lane.enter(part, part * 10)
            lane.leave(part, part * 10)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(pass_through, range(8)))
    assert (lane._evaluations, lane._bytes) == (0, 0)


@dataclass
class _Turn:
    """What happens to a lane: some of its room is taken, in batches of this size; some end; its limit changes."""

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
    gate = Gate(limit=limit)
    lane, held = Lane("scripted", gate, batch_size), 0
    for turn in turns:
        gate.limit = turn.limit or gate.limit
        room = lane.room()
        assert room >= 0
        assert room or held >= gate.limit, "there is something to do for every slot"
        taken = round(room * turn.share) * max(1, round(batch_size * turn.size))
        lane.enter(taken, 0)
        held += taken
        if taken:
            assert held <= gate.limit + min(gate.limit, 2 * batch_size) + batch_size - 1
        ended = int(held * turn.ending)
        lane.leave(ended, 0)
        held -= ended
