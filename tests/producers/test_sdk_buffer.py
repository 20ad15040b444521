"""Delivery without Redis: the buffer before the sender, sizes, and the encoding of entries."""

import gc
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

from tracejudge.delivery.buffer import MAX_ITEMS, Batch, Buffer, Entry, Item, Kind, Reason, copy_collections, weigh
from tracejudge.delivery.encoding import MAX_ENTRY_BYTES, ItemEncoder
from tracejudge.model import Document, Message
from tracejudge.settings import Drop


def item(size_bytes: int = 1, kind: Kind = Kind.TRACE) -> Item:
    return Item(kind, {"output": ""}, size_bytes)


class Scripted(Buffer):
    """A buffer whose steps take and return what a table holds; it counts how often it woke the sender."""

    def __init__(self, *, max_items: int = 100, max_bytes: int = 1000, drop: Drop = "newest") -> None:
        self.wakes = 0
        self.on_the_wire: list[Batch] = []
        super().__init__(max_items=max_items, max_bytes=max_bytes, wake=self._count, drop=drop)

    def _count(self) -> None:
        self.wakes += 1

    def woken(self) -> int:
        return self.wakes

    def puts(self, *weights: int) -> None:
        for weight in weights:
            self.put(item(weight))

    def puts_feedback(self) -> None:
        self.put(item(kind=Kind.FEEDBACK))

    def takes(self, max_items: int = 10**9, max_bytes: int = 10**12) -> list[int]:
        items = self.take(max_items=max_items, max_bytes=max_bytes)
        weights = [item.size_bytes for item in items]
        entries = tuple(Entry(item.kind, b"{}") for item in items)
        through = self.settles_through
        self.on_the_wire.append(Batch(1, entries, len(items), sum(weights), through, flush_ticket=0))
        return weights

    def settles(self) -> list[int]:
        self.settle(self.on_the_wire.pop(0))
        return [self.accepted, self.settled]

    def refuses(self, kind: str, reason: str) -> None:
        self.refuse(Kind(kind), Reason(reason))

    def drops(self, kind: str, reason: str) -> None:
        self.drop(Kind(kind), Reason(reason))

    def counts(self, kind: str = "t") -> list[Any]:
        return [*self.totals(Kind(kind))]


def test_a_buffer_keeps_drops_and_counts_as_its_table_says() -> None:
    """A row: its name, the bounds, and steps with their arguments, and with what they return if that matters."""
    for name, bounds, steps in table("buffer"):
        buffer = Scripted(**bounds)
        for step, arguments, *expected in steps:
            result = getattr(buffer, step)(*arguments)
            assert not expected or result == expected[0], (name, step, arguments)


class InterruptionError(Exception):
    """What the signal handler of a host raises."""


def test_what_a_signal_handler_raises_anywhere_loses_no_item_and_leaves_the_lock_free() -> None:
    def interrupt(*_: object) -> NoReturn:
        raise InterruptionError

    buffer = Scripted()
    with buffer._lock:  # held where a signal handler or a finalizer publishes
        buffer.put(item())
    assert buffer.totals().accepted == 1
    buffer = Scripted(max_items=10**9, max_bytes=10**12)
    begun = returned = raised = 0
    former = signal.signal(signal.SIGALRM, interrupt)
    gc.disable()  # what is raised in a callback of garbage, which other tests left, Python swallows
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
        gc.enable()
    thread = threading.Thread(target=buffer.put, args=(item(),), daemon=True)
    thread.start()
    thread.join(10)
    assert returned < buffer.accepted <= returned + raised + 1
    assert buffer.totals() == (buffer.accepted, buffer.accepted, {})
    assert buffer.queued == buffer.accepted == len(buffer.takes())


STEPS = st.tuples(st.sampled_from(["put", "take", "settle", "refuse", "close"]), st.integers(1, 60))


@given(st.lists(STEPS), st.sampled_from(["newest", "oldest"]))
def test_every_publication_is_delivered_dropped_or_held(steps: list[tuple[str, int]], drop: Drop) -> None:
    buffer = Scripted(max_items=3, max_bytes=100, drop=drop)
    delivered = 0
    for step, number in steps:
        if step == "put":
            buffer.puts(number)
        elif step == "take":
            buffer.takes(number, 50)
        elif step == "settle" and buffer.on_the_wire:
            delivered += len(buffer.on_the_wire[0].entries)
            buffer.settles()
        elif step == "refuse":
            buffer.refuses("t", "invalid")
        elif number > 55:
            buffer.close()
        totals = buffer.totals()
        held = sum(len(batch.entries) for batch in buffer.on_the_wire) + buffer.queued
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
    numbers = list(range(100_000))
    for value in (numbers, tuple(numbers), deque(numbers), set(numbers), dict.fromkeys(numbers).keys()):
        fields = {"context": value}
        copy_collections(fields)
        assert weigh(fields) < 200_000
        kept: Any = fields["context"]
        assert [*kept[:1_000], kept[1_000][:4]] == [*range(1_000), "[..."]
        assert type(value) is not list or kept[1_001:] == numbers[-1_000:]
    inner = {"text": TEXT}
    fields = {"context": [inner]}
    copy_collections(fields)
    assert fields["context"][0] is inner, "what is in a collection is not copied"
    fields = {"tags": dict.fromkeys(map(str, numbers), "a")}
    copy_collections(fields)
    assert list(fields["tags"].items())[-2:] == [("499", "a"), ("...", "[... 99,500 values cut]")]


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
