import random
import signal
import threading
from typing import NoReturn

from hypothesis import given
from hypothesis import strategies as st

from tracejudge.delivery.buffer import Batch, Buffer, Entry, Item, Kind, Reason, Totals
from tracejudge.settings import Drop


def item(size_bytes: int = 1, kind: Kind = Kind.TRACE) -> Item:
    return Item(kind, {"output": ""}, size_bytes)


def batch(items: list[Item], buffer: Buffer) -> Batch:
    entries = tuple(Entry(item.kind, b"{}") for item in items)
    size_bytes = sum(item.size_bytes for item in items)
    settles_through = buffer.settles_through
    return Batch(1, entries, items=len(items), size_bytes=size_bytes, settles_through=settles_through, flush_ticket=0)


def make_buffer(
    max_items: int = 100, max_bytes: int = 1000, wakes: list[None] | None = None, drop: Drop = "newest"
) -> Buffer:
    calls = wakes if wakes is not None else []
    return Buffer(max_items=max_items, max_bytes=max_bytes, wake=lambda: calls.append(None), drop=drop)


def test_items_come_out_in_the_order_they_were_put() -> None:
    buffer = make_buffer()
    items = [item(weight) for weight in (1, 2, 3)]
    for each in items:
        buffer.put(each)
    assert buffer.take(max_items=2, max_bytes=1000) == items[:2]
    assert buffer.take(max_items=2, max_bytes=1000) == items[2:]
    assert buffer.take(max_items=2, max_bytes=1000) == []


def test_a_batch_ends_with_the_item_that_passes_its_bytes() -> None:
    buffer = make_buffer()
    for weight in (60, 60, 60):
        buffer.put(item(weight))
    assert [lease.size_bytes for lease in buffer.take(max_items=10, max_bytes=100)] == [60, 60]


def test_items_over_the_cap_are_dropped_until_a_batch_is_confirmed() -> None:
    buffer = make_buffer(max_items=2)
    for _ in range(3):
        buffer.put(item())
    taken = buffer.take(max_items=10, max_bytes=1000)
    buffer.put(item())
    assert buffer.totals() == Totals(published=4, accepted=2, dropped={"buffer_full": 2})
    buffer.settle(batch(taken, buffer))
    buffer.put(item())
    assert buffer.totals() == Totals(published=5, accepted=3, dropped={"buffer_full": 2})


def test_bytes_over_the_cap_are_dropped_until_a_batch_is_confirmed() -> None:
    buffer = make_buffer(max_bytes=100)
    buffer.put(item(60))
    buffer.put(item(41))
    buffer.put(item(40))
    taken = buffer.take(max_items=10, max_bytes=1000)
    buffer.put(item(1))
    assert buffer.totals() == Totals(published=4, accepted=2, dropped={"buffer_bytes": 2})
    buffer.settle(batch(taken, buffer))
    buffer.put(item(100))
    assert buffer.totals() == Totals(published=5, accepted=3, dropped={"buffer_bytes": 2})


def test_only_the_item_the_sender_waits_for_wakes_it() -> None:
    wakes: list[None] = []
    buffer = make_buffer(wakes=wakes)
    buffer.put(item())
    buffer.put(item())
    assert len(wakes) == 1, "the first ever starts the thread"
    assert not buffer.wake_after(2), "so many are here"
    assert buffer.wake_after(4)
    buffer.put(item())
    assert len(wakes) == 1
    buffer.put(item())
    buffer.put(item())
    assert len(wakes) == 2
    buffer.wake_on_next_item()
    buffer.put(item())
    assert len(wakes) == 3


def test_feedback_is_counted_separately() -> None:
    buffer = make_buffer()
    buffer.put(item())
    buffer.put(item(kind=Kind.FEEDBACK))
    buffer.refuse(Kind.FEEDBACK, Reason.INVALID)
    assert buffer.totals() == Totals(published=1, accepted=1, dropped={})
    assert buffer.totals(Kind.FEEDBACK) == Totals(published=2, accepted=1, dropped={"invalid": 1})


def test_a_closed_buffer_refuses() -> None:
    buffer = make_buffer()
    assert buffer.close()
    assert not buffer.close()
    buffer.put(item())
    buffer.refuse(Kind.TRACE, Reason.INVALID)
    assert buffer.totals() == Totals(published=2, accepted=0, dropped={"shutdown": 2})


def test_what_is_neither_confirmed_nor_dropped_is_abandoned_once() -> None:
    buffer = make_buffer()
    for _ in range(5):
        buffer.put(item())
    confirmed = batch(buffer.take(max_items=2, max_bytes=1000), buffer)
    buffer.drop(Kind.TRACE, Reason.TOO_LARGE)
    buffer.abandon_queued()
    assert buffer.totals().dropped == {"too_large": 1, "abandoned": 3}
    assert buffer.abandon_all() == 4
    buffer.settle(confirmed)
    buffer.drop(Kind.TRACE, Reason.INVALID)
    assert buffer.abandon_all() == 4
    assert buffer.totals() == Totals(published=5, accepted=5, dropped={"too_large": 1, "abandoned": 4})


def test_a_publication_inside_another_of_the_same_thread_does_not_hang() -> None:
    """A signal handler or a finalizer may publish at any moment."""
    buffer = make_buffer()
    with buffer._lock:
        buffer.put(item())
    assert buffer.totals().accepted == 1


class InterruptionError(Exception):
    """What the signal handler of a host raises."""


def test_what_a_signal_handler_raises_anywhere_loses_no_item_and_leaves_the_lock_free() -> None:
    def interrupt(*_: object) -> NoReturn:
        raise InterruptionError

    buffer = make_buffer(max_items=10**9, max_bytes=10**12)
    begun = returned = raised = 0
    former = signal.signal(signal.SIGALRM, interrupt)
    try:
        while raised < 300:
            begun += 1
            try:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 1e-4))
                for _ in range(200):
                    buffer.put(Item(Kind.TRACE, {"output": ["a", 1]}))
                    returned += 1
            except InterruptionError:
                raised += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
    thread = threading.Thread(target=buffer.put, args=(item(),), daemon=True)
    thread.start()
    thread.join(10)
    assert returned < buffer.accepted <= returned + raised + 1
    assert buffer.totals() == (buffer.accepted, buffer.accepted, {})
    assert buffer.queued == buffer.accepted == len(buffer.take(max_items=10**9, max_bytes=10**12))


def test_the_oldest_make_room_for_the_newest() -> None:
    buffer = make_buffer(max_items=3, max_bytes=100, drop="oldest")
    items = [item(weight) for weight in (10, 20, 30, 40, 60)]
    for each in items:
        buffer.put(each)
    assert buffer.take(max_items=10, max_bytes=1000) == items[3:]
    assert buffer.totals() == Totals(published=5, accepted=5, dropped={"buffer_full": 2, "buffer_bytes": 1})


def test_what_is_on_the_wire_makes_no_room() -> None:
    buffer = make_buffer(max_items=2, drop="oldest")
    items = [item() for _ in range(2)]
    for each in items:
        buffer.put(each)
    assert buffer.take(max_items=10, max_bytes=1000) == items
    buffer.put(item())
    assert buffer.totals() == Totals(published=3, accepted=2, dropped={"buffer_full": 1})


def test_nothing_makes_room_for_what_never_fits() -> None:
    buffer = make_buffer(max_bytes=100, drop="oldest")
    buffer.put(item(50))
    buffer.put(item(101))
    assert buffer.queued == 1
    assert buffer.totals() == Totals(published=2, accepted=1, dropped={"buffer_bytes": 1})


def test_an_item_that_made_room_settles_no_other() -> None:
    """Else a flush would call confirmed what is still on the wire."""
    buffer = make_buffer(max_items=4, drop="oldest")
    for _ in range(2):
        buffer.put(item())
    first = batch(buffer.take(max_items=2, max_bytes=1000), buffer)
    for _ in range(3):
        buffer.put(item())
    second = batch(buffer.take(max_items=1, max_bytes=1000), buffer)
    buffer.settle(first)
    assert (buffer.accepted, buffer.settled) == (5, 2)
    buffer.settle(second)
    assert buffer.settled == 4


STEPS = st.tuples(st.sampled_from(["put", "take", "settle", "refuse", "close"]), st.integers(1, 60))


@given(st.lists(STEPS), st.sampled_from(["newest", "oldest"]))
def test_every_publication_is_delivered_dropped_or_held(steps: list[tuple[str, int]], drop: Drop) -> None:
    buffer = make_buffer(max_items=3, max_bytes=100, drop=drop)
    taken: list[Item] = []
    delivered = 0
    for step, number in steps:
        if step == "put":
            buffer.put(item(number))
        elif step == "take":
            taken += buffer.take(max_items=number, max_bytes=50)
        elif step == "settle":
            buffer.settle(batch(taken, buffer))
            delivered, taken = delivered + len(taken), []
        elif step == "refuse":
            buffer.refuse(Kind.TRACE, Reason.INVALID)
        elif number > 55:
            buffer.close()
        totals = buffer.totals()
        held = len(taken) + buffer.queued
        assert totals.published == delivered + sum(totals.dropped.values()) + held
        assert held <= 3
        assert buffer._held_bytes <= 100
        assert buffer._held_items == held
        assert buffer.settled <= buffer.accepted - held
        assert buffer.taken == buffer.accepted - buffer.queued


def test_counts_are_exact_with_many_threads() -> None:
    buffer = make_buffer(max_items=5_000, max_bytes=10**9)

    def put() -> None:
        for _ in range(1_000):
            buffer.put(item())

    running = [threading.Thread(target=put) for _ in range(8)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert buffer.totals() == Totals(published=8_000, accepted=5_000, dropped={"buffer_full": 3_000})
