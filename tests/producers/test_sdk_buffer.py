import threading

from hypothesis import given
from hypothesis import strategies as st

from tracejudge.buffer import Buffer
from tracejudge.entries import Batch, Entry, Item, Kind
from tracejudge.model import Trace
from tracejudge.tally import Reason, Totals


def item(weight_bytes: int = 1, kind: Kind = Kind.TRACE) -> Item:
    return Item(kind, Trace(trace_id="1", service="shop", output=""), weight_bytes)


def batch(items: list[Item]) -> Batch:
    entries = tuple(Entry(item.kind, b"{}") for item in items)
    weight_bytes = sum(item.weight_bytes for item in items)
    return Batch(1, entries, items=len(items), weight_bytes=weight_bytes, flush_ticket=0)


def make_buffer(max_items: int = 100, max_bytes: int = 1000, wakes: list[None] | None = None) -> Buffer:
    calls = wakes if wakes is not None else []
    return Buffer(max_items=max_items, max_bytes=max_bytes, wake=lambda: calls.append(None))


def test_items_come_out_in_the_order_they_were_put() -> None:
    buffer = make_buffer()
    items = [item(weight) for weight in (1, 2, 3)]
    for one in items:
        buffer.put(one)
    assert buffer.take(max_items=2, max_bytes=1000) == items[:2]
    assert buffer.take(max_items=2, max_bytes=1000) == items[2:]
    assert buffer.take(max_items=2, max_bytes=1000) == []


def test_a_batch_ends_with_the_item_that_passes_its_bytes() -> None:
    buffer = make_buffer()
    for weight in (60, 60, 60):
        buffer.put(item(weight))
    assert [one.weight_bytes for one in buffer.take(max_items=10, max_bytes=100)] == [60, 60]


def test_items_over_the_cap_are_dropped_until_a_batch_is_confirmed() -> None:
    buffer = make_buffer(max_items=2)
    for _ in range(3):
        buffer.put(item())
    taken = buffer.take(max_items=10, max_bytes=1000)
    buffer.put(item())
    assert buffer.totals() == Totals(published=4, accepted=2, dropped={"buffer_full": 2})
    buffer.settle(batch(taken))
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
    buffer.settle(batch(taken))
    buffer.put(item(100))
    assert buffer.totals() == Totals(published=5, accepted=3, dropped={"buffer_bytes": 2})


def test_only_an_item_that_meets_a_sleeper_wakes() -> None:
    wakes: list[None] = []
    buffer = make_buffer(wakes=wakes)
    buffer.put(item())
    buffer.put(item())
    assert len(wakes) == 1
    assert not buffer.fall_asleep(), "items are here"
    buffer.take(max_items=10, max_bytes=1000)
    buffer.put(item())
    assert len(wakes) == 1
    buffer.take(max_items=10, max_bytes=1000)
    assert buffer.fall_asleep()
    buffer.put(item())
    assert len(wakes) == 2


def test_feedback_has_books_of_its_own() -> None:
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
    unanswered = buffer.take(max_items=2, max_bytes=1000)
    buffer.drop(Kind.TRACE, Reason.TOO_LARGE)
    buffer.abandon_queued()
    assert buffer.totals().dropped == {"too_large": 1, "abandoned": 3}
    assert buffer.abandon_all() == 4
    buffer.settle(batch(unanswered))
    buffer.drop(Kind.TRACE, Reason.INVALID)
    assert buffer.abandon_all() == 4
    assert buffer.totals() == Totals(published=5, accepted=5, dropped={"too_large": 1, "abandoned": 4})


def test_a_publication_inside_another_of_the_same_thread_does_not_hang() -> None:
    """A signal handler or a finalizer may publish at any moment."""
    buffer = make_buffer()
    with buffer._lock:
        buffer.put(item())
    assert buffer.totals().accepted == 1


@given(st.lists(st.tuples(st.sampled_from(["put", "take", "settle", "refuse", "close"]), st.integers(1, 60))))
def test_every_publication_is_accepted_or_dropped_at_the_door(steps: list[tuple[str, int]]) -> None:
    buffer = make_buffer(max_items=3, max_bytes=100)
    taken: list[Item] = []
    for step, number in steps:
        if step == "put":
            buffer.put(item(number))
        elif step == "take":
            taken += buffer.take(max_items=number, max_bytes=50)
        elif step == "settle":
            buffer.settle(batch(taken))
            taken = []
        elif step == "refuse":
            buffer.refuse(Kind.TRACE, Reason.INVALID)
        elif number > 55:
            buffer.close()
        totals = buffer.totals()
        assert totals.published == totals.accepted + sum(totals.dropped.values())
        assert buffer.accepted - buffer.settled <= 3
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
