"""The bounded buffer between the threads that publish and the sender thread, and the flush requests between them.

First the data that passes through it: an item from caller to sender, an entry of the stream, a batch, and the counts.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable
from itertools import compress, islice, repeat
from math import inf
from operator import is_
from types import MethodDescriptorType
from typing import Any, Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import astuple

from tracejudge.content.field_names import field_of
from tracejudge.content.truncate import CONTENT_FIELDS
from tracejudge.delivery.fork import Wakeup, reentrant_lock
from tracejudge.dialects.values import MAX_ITEMS, SCALARS, SEQUENCES, copied_collection
from tracejudge.ids import MAX_HASHED_CHARS, plain_text
from tracejudge.log import attributes_of, member_of, report_or_raise
from tracejudge.model import Document, Message, TextEnum, Trace

_SHELL_BYTES = 600  # the publication itself, its ids and its place in the buffer
_MAX_ARRIVED = 64
_ADMITTED_AT_ONCE = 4  # in some 5 µs
_MAX_STEPS = 100  # at most 0.2 ms; the rest is estimated from what was measured
_METADATA = frozenset(Trace.__struct_fields__).difference(CONTENT_FIELDS)
_text_bytes = str.__sizeof__
_SIZES: dict[int, Callable[[Any], int]] = {
    id(kind): member_of(kind, "__sizeof__")
    for kind in (dict, list, tuple, int, float, bool, type(None), bytes, Message, Document)
}


class Kind(TextEnum):
    """Kinds of entries in the stream; the value is the field that holds the JSON."""

    TRACE = "t"
    FEEDBACK = "f"
    REPORT = "r"


# Made in the calling thread, so as cheap as possible. gc=False: the garbage collector would walk over ten thousand of
# them again and again, and nothing an item holds can lead back to it.
class Item(Struct, gc=False):
    """A publication in the buffer: neither completed nor checked yet."""

    kind: Kind
    fields: dict[str, Any]  # As given, with lists and dicts copied; owned by the sender.
    size_bytes: int = 0  # As `weigh` estimates it; 0 until then.
    published_at_s: float = 0.0  # Seconds since the epoch; with 0 a trace without a time gets none.
    trace_id: str = ""  # The id that `publish` returned.
    span_id: str | None = None  # Id of the current OpenTelemetry span, if it belongs to this trace.
    site: str | None = None  # File and line of the call, if it was recorded.


class Entry(NamedTuple):
    """One entry of the stream."""

    kind: Kind
    payload: bytes
    place: int = 0  # Modulo the number of partitions of a cluster its partition (see `place_of`).


class Batch(Struct, frozen=True):
    """Entries that are appended together, under one number, at most once however often it is sent."""

    number: int
    entries: tuple[Entry, ...]
    items: int  # Items taken from the buffer for this batch, including those that could not be encoded.
    size_bytes: int  # Their size, which the buffer holds until the batch is confirmed.
    settles_through: int
    """Position in the order of acceptance up to which no item is pending once this batch is confirmed."""
    flush_ticket: int  # Last flush that this batch completes.

    def count(self, kind: Kind) -> int:
        """Count the entries of a kind."""
        return sum(entry.kind is kind for entry in self.entries)


class Reason(TextEnum):
    """Reasons why an entry never reaches the stream. The list is closed: every loss has one of these."""

    BUFFER_FULL = "buffer_full"
    """`max_items` entries are held; drops the new entry, or the oldest with drop="oldest"."""
    BUFFER_BYTES = "buffer_bytes"
    """The entries held leave too few of `max_bytes`; drops the new entry, or the oldest with drop="oldest"."""
    INVALID = "invalid"
    """An unknown or missing field, or a value that JSON cannot hold; found during encoding."""
    SHUTDOWN = "shutdown"
    """Published after `shutdown`."""
    TOO_LARGE = "too_large"
    """Encoded larger than the worker accepts."""
    REDACTION = "redaction"
    """The host's redaction function failed; an unredacted trace is never sent."""
    ABANDONED = "abandoned"
    """Not confirmed within the timeout of `shutdown`."""


class Totals(NamedTuple):
    """Counts of one kind of entry since the client's start."""

    published: int
    accepted: int
    dropped: dict[str, int]


class Counters:
    """Counts of one kind of entry. Guarded by the buffer's lock."""

    __slots__ = ("accepted", "delivered", "dropped", "refused")

    def __init__(self) -> None:
        self.accepted = 0
        self.refused = 0
        self.delivered = 0
        self.dropped: dict[str, int] = {}

    @property
    def waiting(self) -> int:
        """Entries that are neither confirmed nor dropped."""
        return self.accepted + self.refused - self.delivered - sum(self.dropped.values())

    def refuse(self, reason: Reason) -> None:
        """Count an entry that was dropped before it was accepted."""
        self.refused += 1
        self.drop(reason)

    def drop(self, reason: Reason, count: int = 1) -> None:
        """Count dropped entries."""
        if count:
            self.dropped[reason.value] = self.dropped.get(reason.value, 0) + count

    def totals(self) -> Totals:
        """Copy the counts."""
        return Totals(self.accepted + self.refused, self.accepted, self.dropped.copy())


class Buffer:
    """Items from `publish` until Redis confirms them, within two caps, and their counts.

    An item counts against the caps until its batch is confirmed, so they bound all the memory held, including batches
    that are being sent. One thread takes and settles; any thread may put.

    `put` only appends: what arrived is weighed, counted and accepted or refused by the next taker or reader of the
    counts, or by publishers that find `_MAX_ARRIVED` of them. So many may be held beyond the caps.
    """

    def __init__(
        self, *, max_items: int, max_bytes: int, wake: Callable[[], None], drop: Literal["newest", "oldest"] = "newest"
    ) -> None:
        # Reentrant: a signal handler or a finalizer may publish while its own thread holds the lock. It is held for a
        # few steps each time, never during encoding, sending or waiting.
        self._lock = reentrant_lock()
        self._max_items = max_items
        self._admitted_items = max_items  # 0 when closed, which saves each item a check
        self._max_bytes = max_bytes
        self._wake = wake
        self._drops_oldest = drop == "oldest"
        self._arrived: deque[Item] = deque()
        self._look_at: float = 1  # Arrived items at which a publisher looks after them.
        self._is_admitting = False
        self._items: deque[Item] = deque()
        self._traces = Counters()
        self._feedback = Counters()
        self._accepted = 0  # items of every kind since the start
        self.settled = 0  # position in the order of acceptance up to which no item awaits a confirmation
        self.closed = False  # whether everything is refused
        self._abandoned = 0
        self._held_items = 0
        self._held_bytes = 0
        self._wake_at: float = 1
        self._final = False

    def put(self, item: Item) -> None:
        """Append an item, and wake the sender only if it waits for this one. One without a size is weighed later."""
        # Without a lock, as every publication passes here: appending is one step for all threads.
        arrived = self._arrived
        arrived.append(item)
        if len(arrived) >= self._look_at:
            self._look()

    def _look(self) -> None:
        """Wake the sender if it waits for what arrived, and admit a few if many did."""
        with self._lock:
            is_awaited = self._accepted + len(self._arrived) >= self._wake_at
            if is_awaited:
                self._wake_at = inf
            self._admit(_MAX_ARRIVED - _ADMITTED_AT_ONCE)
        if is_awaited:
            self._wake()

    def _admit(self, left: int = 0) -> None:
        """Accept the items that arrived, but for the last ones, or count why not. The lock is held."""
        if self._is_admitting:  # A signal handler publishes meanwhile: the loop reaches its items too.
            return
        self._is_admitting = True
        arrived = self._arrived
        try:
            while len(arrived) > left:
                item = arrived[0]
                try:
                    size_bytes = item.size_bytes = item.size_bytes or weigh(item.fields)
                    if self._held_items < self._admitted_items and self._held_bytes + size_bytes <= self._max_bytes:
                        reason = None
                    else:
                        reason = self._make_room(item)
                except BaseException as error:  # noqa: BLE001 - whatever one item is, the others go on
                    report_or_raise(error)
                    reason = Reason.INVALID
                counters = self._counters(item.kind)
                # Up to `append` no call: a signal handler, which runs after calls only, may raise.
                del arrived[0]
                if reason is None:
                    self._held_bytes += size_bytes
                    self._held_items += 1
                    self._accepted += 1
                    counters.accepted += 1
                    self._items.append(item)
                else:
                    counters.refuse(reason)
        finally:
            self._is_admitting = False
            self._look_at = max(min(self._wake_at - self._accepted, _MAX_ARRIVED), 1)

    @property
    def accepted(self) -> int:
        """Items of every kind that were accepted since the start."""
        with self._lock:
            self._admit()
            return self._accepted

    def refuse(self, kind: Kind, reason: Reason) -> None:
        """Count a publication that never became an item."""
        with self._lock:
            self._counters(kind).refuse(Reason.SHUTDOWN if self.closed else reason)

    def take(self, *, max_items: int, max_bytes: int) -> list[Item]:
        """Remove the oldest items, up to a count and until their size passes `max_bytes`."""
        with self._lock:
            self._admit()
        taken: list[Item] = []
        size_bytes = 0
        # Without the lock, one item at a time: publishers must not wait for a whole batch to be taken.
        while len(taken) < max_items and size_bytes < max_bytes:
            try:
                item = self._items.popleft()
            except IndexError:
                break
            taken.append(item)
            size_bytes += item.size_bytes
        return taken

    def drop(self, kind: Kind, reason: Reason) -> None:
        """Count the drop of an accepted item; its batch settles it."""
        with self._lock:
            if not self._final:
                self._counters(kind).drop(reason)

    def settle(self, batch: Batch) -> None:
        """Count a confirmed batch as delivered, and free the room of its items."""
        traces, feedback = batch.count(Kind.TRACE), batch.count(Kind.FEEDBACK)
        with self._lock:
            if self._final:
                return
            self._traces.delivered += traces
            self._feedback.delivered += feedback
            self._held_items -= batch.items
            self._held_bytes -= batch.size_bytes
            self.settled = batch.settles_through

    def wake_after(self, count: int) -> bool:
        """Request a wake-up once `count` items are queued; False if they already are."""
        with self._lock:
            self._look_at = 1  # First: who has read the former value has appended before.
            self._admit()
            missing = count - len(self._items)
            return missing > 0 and self._wake_in(missing)

    def wake_on_next_item(self) -> None:
        """Request another wake-up after the last one failed."""
        with self._lock:
            self._look_at = 1
            self._admit()
            self._wake_in(1)

    def _wake_in(self, missing: int) -> bool:
        self._wake_at = self._accepted + missing
        self._look_at = min(missing, _MAX_ARRIVED)
        return True

    def close(self) -> bool:
        """Refuse everything from now on; False if it was closed before."""
        with self._lock:
            self._admit()
            was_open, self.closed = not self.closed, True
            self._admitted_items = 0
            return was_open

    def abandon_queued(self) -> None:
        """Drop the items that are in no batch yet."""
        with self._lock:
            self._admit()
            while self._drop_oldest(Reason.ABANDONED):
                self._abandoned += 1

    def abandon_all(self) -> int:
        """Drop everything not confirmed, freeze the counts, and return how many were abandoned since the start."""
        with self._lock:
            self._admit()
            self._final = True
            self._items.clear()
            both = (self._traces, self._feedback)
            for counters in both:
                counters.drop(Reason.ABANDONED, counters.waiting)
            return sum(counters.dropped.get(Reason.ABANDONED, 0) for counters in both)

    def totals(self, kind: Kind = Kind.TRACE) -> Totals:
        """Copy the counts of a kind at one moment."""
        with self._lock:
            self._admit()
            return self._counters(kind).totals()

    @property
    def taken(self) -> int:
        """Items that left the queue since the start, in order of acceptance."""
        with self._lock:
            return self.accepted - len(self._items)

    @property
    def settles_through(self) -> int:
        """The value of `settled` once all items taken so far are confirmed."""
        # A position, not a count: an item dropped for a newer one left the queue without a confirmation, and must not
        # stand for an earlier one that is still being sent.
        with self._lock:
            return self.accepted - len(self._items) - self._abandoned

    @property
    def is_half_empty(self) -> bool:
        """Whether at most half of each cap is used."""
        return self._held_items * 2 <= self._max_items and self._held_bytes * 2 <= self._max_bytes

    @property
    def queued(self) -> int:
        """Items that are in no batch yet."""
        with self._lock:
            self._admit()
            return len(self._items)

    def _counters(self, kind: Kind) -> Counters:
        return self._traces if kind is Kind.TRACE else self._feedback

    def _make_room(self, item: Item) -> Reason | None:
        """Drop the oldest items until this one fits, if so configured; else return why it is refused."""
        while True:
            if self.closed:
                return Reason.SHUTDOWN
            if self._held_items >= self._max_items:
                reason = Reason.BUFFER_FULL
            elif self._held_bytes + item.size_bytes > self._max_bytes:
                reason = Reason.BUFFER_BYTES
            else:
                return None
            # An item of less than an eighth of the buffer is not worth adding up the queue.
            could_fit = item.size_bytes * 8 <= self._max_bytes
            if self._drops_oldest and not could_fit:
                # Else queued items would be dropped for nothing: batches that are being sent keep their room.
                queued_bytes = sum(item.size_bytes for item in list(self._items))
                could_fit = self._held_bytes - queued_bytes + item.size_bytes <= self._max_bytes
            if not (self._drops_oldest and could_fit and self._drop_oldest(reason)):
                return reason

    def _drop_oldest(self, reason: Reason) -> bool:
        try:
            item = self._items.popleft()
        except IndexError:  # the sender takes without the lock
            return False
        self._held_items -= 1
        self._held_bytes -= item.size_bytes
        self._counters(item.kind).drop(reason)
        return True


class Flush(NamedTuple):
    """A numbered flush request: the first `target` items accepted are to be confirmed."""

    ticket: int
    target: int


class _Waiter(NamedTuple):
    ticket: int
    wakeup: Wakeup


class Flushes:
    """Flush requests in order. Completing one completes all before it, so only the latest is kept."""

    def __init__(self) -> None:
        self._lock = reentrant_lock()
        self.latest = Flush(ticket=0, target=0)
        self.completed = 0  # ticket up to which all requests are completed
        self._waiters: list[_Waiter] = []

    def request(self, target: int) -> int:
        """Request a flush and return its ticket. Targets never fall, whatever the order of threads."""
        with self._lock:
            self.latest = Flush(self.latest.ticket + 1, max(target, self.latest.target))
            return self.latest.ticket

    def complete(self, ticket: int) -> None:
        """Wake the threads that wait for this ticket or an earlier one."""
        with self._lock:
            self.completed = max(self.completed, ticket)
            for waiter in self._waiters:
                if waiter.ticket <= self.completed:
                    waiter.wakeup.open()

    def wait(self, ticket: int, timeout_s: float) -> None:
        """Wait until a ticket is completed, at most the timeout in seconds."""
        waiter = _Waiter(ticket, Wakeup())
        with self._lock:
            if self.completed >= ticket:
                return
            self._waiters.append(waiter)
        try:
            waiter.wakeup.wait_in_host(max(timeout_s, 0.0))
        finally:
            with self._lock:
                self._waiters.remove(waiter)

    @property
    def pending(self) -> bool:
        """Whether a request is not completed yet."""
        return self.latest.ticket > self.completed


def copy_collections(fields: dict[str, Any]) -> None:
    """Copy the lists, dicts and other collections among the values in place, one level deep."""
    # Runs no code of a value. Of a long collection only the part that is read is copied.
    # Written for speed: every publication passes here.
    for name, value in fields.items():
        kind = type(value)
        if kind is str:
            continue
        if (kind is list or kind is dict) and len(value) <= 2 * _MAX_STEPS:
            fields[name] = value.copy()
        elif id(kind) not in SCALARS:
            fields[name] = copied_collection(value)


def weigh(fields: dict[str, Any]) -> int:
    """Estimate the bytes of all values, and cut enormous ids and names in place to the part that is read.

    Runs no code of a value, not even to count it: known are built-in types and what subclasses of them inherit. The
    number is odd if there are values besides texts, numbers and lists or dicts of these, which may have code.

    Not guaranteed: the sizes of foreign objects, and of values in containers after the first thousand. A string shared
    by several publications counts for each.
    """
    total = _SHELL_BYTES
    containers: list[Any] = []
    for value in fields.values():
        kind = type(value)
        if kind is str:
            total += value.__sizeof__()
        elif kind is list:
            size = value.__sizeof__()
            for inner in value:
                if type(inner) is not str:
                    containers.append(value)
                    break
                size += inner.__sizeof__()
            else:
                total += size
        elif kind is dict:
            total += value.__sizeof__()
            for inner in value.values():
                if id(type(inner)) not in SCALARS:
                    containers.append(value)
                    break
        elif id(kind) not in SCALARS:
            containers.append(value)
    total = (total + estimate_bytes(containers)) | 1 if containers else total & -2
    return weigh(fields) if total > MAX_HASHED_CHARS and _cut_names(fields) else total


def _cut_names(fields: dict[str, Any]) -> bool:
    """Cut enormous ids and names to what is read of them; return whether there are any."""
    is_cut = False
    for name, value in fields.items():
        kind = type(value)
        chars = str.__len__(value) if issubclass(kind, str) else len(value) if kind is bytes else 0
        if chars > MAX_HASHED_CHARS and type(name) is str and field_of(name) in _METADATA:
            fields[name], is_cut = value[:MAX_HASHED_CHARS] if kind is bytes else plain_text(value), True
    return is_cut


def estimate_bytes(values: Iterable[object]) -> int:
    """Estimate the bytes of values, including what containers hold."""
    total = containers = unseen = long = 0
    stack = list(values)
    for _ in range(_MAX_STEPS):
        if not stack:
            return total
        value = stack.pop()
        if type(value) is str:
            total += _text_bytes(value)
        else:
            total += (size := _size(value))
            if inside := _inside(value):
                containers += 1
                long += size if len(inside) > _MAX_STEPS else 0  # no measure of those within it
                room = MAX_ITEMS - len(stack)
                stack.extend(inside if len(inside) <= room else islice(inside, room))
                unseen += max(len(inside) - room, 0)
    kinds = list(map(type, stack))
    is_text = list(map(is_, kinds, repeat(str)))
    numbers = 0 if all(is_text) else sum(map(SCALARS.__contains__, map(id, kinds)))
    # The containers left are taken for as large as those measured.
    average, plain = (total - long) // max(containers, 1), sum(is_text) + numbers
    # A number in a list takes about 32 bytes.
    left = sum(map(_text_bytes, compress(stack, is_text))) + numbers * 32
    return total + left + (len(stack) - plain) * average + unseen * (left // plain if plain else average)


def _size(value: object) -> int:
    if (measure := _SIZES.get(id(type(value)))) is not None:
        return measure(value)
    # Only a method of a type in C: one in Python is the host's, and may record that it was called.
    method = member_of(type(value), "__sizeof__")
    is_size = type(method) is MethodDescriptorType and method.__name__ == "__sizeof__"
    try:
        return int(method(value)) if is_size else _SHELL_BYTES
    except TypeError:  # the method of another type
        return _SHELL_BYTES


def _inside(value: Any) -> Collection[Any]:
    # By type alone, and not through methods of the value: these may load something, raise, or never end.
    kind = type(value)
    if issubclass(kind, dict):
        return dict.values(value)
    if id(kind) in SCALARS:
        return ()
    if issubclass(kind, Struct):
        return astuple(value)
    if kind is list or kind is tuple:
        return value  # type: ignore[no-any-return]
    if issubclass(kind, SEQUENCES):
        base = next(base for base in SEQUENCES if issubclass(kind, base))
        return list(islice(base.__iter__(value), MAX_ITEMS))
    return () if issubclass(kind, type) else attributes_of(value).values()
