"""Delivery without Redis: the buffer before the sender, sizes, and the encoding of entries."""

import json
import random
import signal
import threading
from collections import deque
from sys import getsizeof
from typing import Any, NoReturn

from hypothesis import given
from hypothesis import strategies as st
from lookalikes import table
from msgspec import structs
from sdk_rig import SETTINGS

from tracejudge.delivery.buffer import (
    MAX_ITEMS,
    Batch,
    Buffer,
    Entry,
    Item,
    Kind,
    Reason,
    Totals,
    copy_collections,
    weigh,
)
from tracejudge.delivery.encoding import MAX_ENTRY_BYTES, ItemEncoder
from tracejudge.model import Document, Message
from tracejudge.settings import Drop

TOO_LARGE = "x" * (4 * 1024 * 1024)


def item(size_bytes: int = 1, kind: Kind = Kind.TRACE) -> Item:
    return Item(kind, {"output": ""}, size_bytes)


def batch(items: list[Item], buffer: Buffer) -> Batch:
    entries = tuple(Entry(item.kind, b"{}") for item in items)
    size_bytes, through = sum(item.size_bytes for item in items), buffer.settles_through
    return Batch(1, entries, items=len(items), size_bytes=size_bytes, settles_through=through, flush_ticket=0)


class Filled(Buffer):
    """A buffer with items of these weights, which counts how often it woke the sender."""

    def __init__(self, *weights: int, max_items: int = 100, max_bytes: int = 1000, drop: Drop = "newest") -> None:
        self.wakes = 0
        super().__init__(max_items=max_items, max_bytes=max_bytes, wake=self._count, drop=drop)
        self.items = [item(weight) for weight in weights]
        for each in self.items:
            self.put(each)

    def _count(self) -> None:
        self.wakes += 1

    def take_all(self) -> list[Item]:
        return self.take(max_items=10**9, max_bytes=10**12)


def test_items_come_out_in_order_and_a_batch_ends_with_the_item_that_passes_its_bytes() -> None:
    buffer = Filled(1, 2, 3)
    assert buffer.take(max_items=2, max_bytes=1000) == buffer.items[:2]
    assert buffer.take(max_items=2, max_bytes=1000) == buffer.items[2:]
    assert buffer.take(max_items=2, max_bytes=1000) == []
    buffer = Filled(60, 60, 60)
    assert buffer.take(max_items=10, max_bytes=100) == buffer.items[:2]


def test_what_is_over_a_cap_is_dropped_until_a_batch_is_confirmed() -> None:
    buffer = Filled(1, 1, 1, max_items=2)
    taken = buffer.take_all()
    buffer.put(item())
    assert buffer.totals() == Totals(published=4, accepted=2, dropped={"buffer_full": 2})
    buffer.settle(batch(taken, buffer))
    buffer.put(item())
    assert buffer.totals() == Totals(published=5, accepted=3, dropped={"buffer_full": 2})
    buffer = Filled(60, 41, 40, max_bytes=100)
    taken = buffer.take_all()
    buffer.put(item(1))
    assert buffer.totals() == Totals(published=4, accepted=2, dropped={"buffer_bytes": 2})
    buffer.settle(batch(taken, buffer))
    buffer.put(item(100))
    assert buffer.totals() == Totals(published=5, accepted=3, dropped={"buffer_bytes": 2})


def test_only_the_item_the_sender_waits_for_wakes_it() -> None:
    buffer = Filled(1, 1)
    assert buffer.wakes == 1, "the first ever starts the thread"
    assert not buffer.wake_after(2), "so many are here"
    assert buffer.wake_after(4)
    for wakes in (1, 2, 2):
        buffer.put(item())
        assert buffer.wakes == wakes
    buffer.wake_on_next_item()
    buffer.put(item())
    assert buffer.wakes == 3


def test_feedback_is_counted_separately_and_a_closed_buffer_refuses() -> None:
    buffer = Filled(1)
    buffer.put(item(kind=Kind.FEEDBACK))
    buffer.refuse(Kind.FEEDBACK, Reason.INVALID)
    assert buffer.totals() == Totals(published=1, accepted=1, dropped={})
    assert buffer.totals(Kind.FEEDBACK) == Totals(published=2, accepted=1, dropped={"invalid": 1})
    buffer = Filled()
    assert buffer.close()
    assert not buffer.close()
    buffer.put(item())
    buffer.refuse(Kind.TRACE, Reason.INVALID)
    assert buffer.totals() == Totals(published=2, accepted=0, dropped={"shutdown": 2})


def test_what_is_neither_confirmed_nor_dropped_is_abandoned_once() -> None:
    buffer = Filled(1, 1, 1, 1, 1)
    confirmed = batch(buffer.take(max_items=2, max_bytes=1000), buffer)
    buffer.drop(Kind.TRACE, Reason.TOO_LARGE)
    buffer.abandon_queued()
    assert buffer.totals().dropped == {"too_large": 1, "abandoned": 3}
    assert buffer.abandon_all() == 4
    buffer.settle(confirmed)
    buffer.drop(Kind.TRACE, Reason.INVALID)
    assert buffer.abandon_all() == 4
    assert buffer.totals() == Totals(published=5, accepted=5, dropped={"too_large": 1, "abandoned": 4})


class InterruptionError(Exception):
    """What the signal handler of a host raises."""


def test_what_a_signal_handler_raises_anywhere_loses_no_item_and_leaves_the_lock_free() -> None:
    def interrupt(*_: object) -> NoReturn:
        raise InterruptionError

    buffer = Filled()
    with buffer._lock:  # held where a signal handler or a finalizer publishes
        buffer.put(item())
    assert buffer.totals().accepted == 1
    buffer = Filled(max_items=10**9, max_bytes=10**12)
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
    assert buffer.queued == buffer.accepted == len(buffer.take_all())


def test_the_oldest_make_room_for_the_newest_unless_they_are_on_the_wire_or_it_never_fits() -> None:
    buffer = Filled(10, 20, 30, 40, 60, max_items=3, max_bytes=100, drop="oldest")
    assert buffer.take_all() == buffer.items[3:]
    assert buffer.totals() == Totals(published=5, accepted=5, dropped={"buffer_full": 2, "buffer_bytes": 1})
    buffer = Filled(1, 1, max_items=2, drop="oldest")
    assert buffer.take_all() == buffer.items
    buffer.put(item())
    assert buffer.totals() == Totals(published=3, accepted=2, dropped={"buffer_full": 1})
    buffer = Filled(50, 101, max_bytes=100, drop="oldest")
    assert buffer.queued == 1
    assert buffer.totals() == Totals(published=2, accepted=1, dropped={"buffer_bytes": 1})


def test_an_item_that_made_room_settles_no_other() -> None:
    """Else a flush would call confirmed what is still on the wire."""
    buffer = Filled(1, 1, max_items=4, drop="oldest")
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
    buffer = Filled(max_items=3, max_bytes=100, drop=drop)
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
        assert buffer._held_bytes <= 100  # what bounds the memory, and no figure outside
        assert buffer._held_items == held
        assert buffer.settled <= buffer.accepted - held
        assert buffer.taken == buffer.accepted - buffer.queued


# --- sizes -----------------------------------------------------------------------------------------------------------

TEXT = "a" * 10_000


def test_text_counts_wherever_it_is_also_in_the_parts_of_a_long_list() -> None:
    rows = [{"result": {"rows": [{"cell": TEXT}]}}]
    for value in (TEXT, [TEXT], [{"text": TEXT}], [Document(text=TEXT)], {"key": TEXT}, (TEXT,), rows):
        assert 10_000 < weigh({"field": value}) < 12_500, type(value)
    assert weigh({"field": "\U0001f600" * 1_000}) > 4_000, "wide characters count with what they take"
    assert weigh({}) == 600, "a publication without content has a size"
    messages = [Message(role="user", content="word " * 100) for _ in range(MAX_ITEMS)]
    exact = sum(getsizeof(message.content) for message in messages)
    assert exact * 0.5 < weigh({"messages": messages}) < exact * 2
    words = ["word " * 20 for _ in range(20_000)]
    exact = sum(map(getsizeof, words))
    assert exact * 0.5 < weigh({"metadata": {"rows": words}}) < exact * 2
    assert 8_000_000 < weigh({"metadata": {"rows": [1] * 1_000_000}}) < 60_000_000
    small: list[Any] = [{"text": ""} for _ in range(1_500)]
    assert weigh({"context": [*small, TEXT * 10]}) > 100_000
    assert weigh({"context": [TEXT * 10, *small]}) > 100_000


def test_of_a_very_long_collection_only_what_a_trace_holds_is_copied() -> None:
    numbers = list(range(1_000_000))
    for value in (numbers, tuple(numbers), deque(numbers), set(numbers), dict.fromkeys(numbers).keys()):
        fields = {"context": value}
        copy_collections(fields)
        assert weigh(fields) < 200_000
        kept: Any = fields["context"]
        assert [*kept[:1_000], kept[1_000][:4]] == [*range(1_000), "[..."]
        assert type(value) is not list or kept[1_001:] == numbers[-1_000:]
    fields = {"tags": dict.fromkeys(map(str, numbers), "a")}
    copy_collections(fields)
    assert list(fields["tags"].items())[-2:] == [("499", "a"), ("...", "[... 999,500 values cut]")]


def test_lists_and_dicts_are_copied_and_what_is_in_them_is_not() -> None:
    inner = {"text": TEXT}
    given_fields = {"context": [inner], "tags": {"a": inner}, "output": TEXT}
    fields = dict(given_fields)
    copy_collections(fields)
    assert fields == given_fields
    assert fields["context"] is not given_fields["context"]
    assert fields["tags"] is not given_fields["tags"]
    assert fields["context"][0] is inner
    assert fields["tags"]["a"] is inner


# --- encoding --------------------------------------------------------------------------------------------------------

# Nothing is cut, so that what is too large can be seen.
ENCODING = structs.replace(SETTINGS, max_field_bytes=10**8, max_trace_bytes=10**8)
IDS = {"trace_id": "1", "id": "2", "span_id": "3", "started_at": 1_700_000_004}


def encoded(fields: dict[str, Any], encoder: ItemEncoder | None = None, published_at_s: float = 0.0) -> Any:
    encoder = encoder or ItemEncoder(ENCODING)
    entry = encoder.encode(Item(Kind.TRACE, {"output": "", **fields}, 1, published_at_s=published_at_s, trace_id="1"))
    assert isinstance(entry, Entry), (entry, fields)
    assert entry.kind is Kind.TRACE
    return json.loads(entry.payload)


def test_what_json_cannot_hold_does_not_cost_the_trace() -> None:
    recursive: list[Any] = []
    recursive.append([recursive])
    for value in (object(), "\ud800", recursive, {object(): "a"}, [["\ud800"]], {"a": {1, 2}}):
        for name in ("tags", "context", "messages", "input", "tool_calls", "spans", "usage", "guidelines"):
            assert encoded({**IDS, name: value})["trace_id"] == "1", (name, value)


def test_the_largest_entry_is_4_mib() -> None:
    encode = ItemEncoder(ENCODING).encode
    shell = len(encode(Item(Kind.TRACE, {**IDS, "output": ""}, 1)).payload)  # type: ignore[union-attr]
    fits = encode(Item(Kind.TRACE, {**IDS, "output": "x" * (MAX_ENTRY_BYTES - shell)}, 1))
    assert isinstance(fits, Entry)
    assert len(fits.payload) == 4 * 1024 * 1024
    too_large = {**IDS, "output": "x" * (MAX_ENTRY_BYTES - shell + 1)}
    assert encode(Item(Kind.TRACE, too_large, 1)) is Reason.TOO_LARGE


def test_results_of_named_tools_become_the_context() -> None:
    naming = ItemEncoder(structs.replace(ENCODING, context_tools=("kb_search",)))
    for name, body, context in table("tool_contexts"):
        assert encoded(body, naming).get("context") == context, name
        assert encoded(body).get("context") == body.get("context"), name
