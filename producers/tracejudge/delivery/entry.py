"""Data of the delivery: an item from caller to sender, an entry of the stream, a batch of entries, and the counts."""

from enum import StrEnum
from typing import Any, NamedTuple

from msgspec import Struct


class Kind(StrEnum):
    """Kinds of entries in the stream; the value is the field that holds the JSON."""

    TRACE = "t"
    FEEDBACK = "f"
    REPORT = "r"


# Made in the calling thread, so as cheap as possible. gc=False: the garbage collector would walk over ten thousand of
# them again and again, and nothing an item holds can lead back to it.
class Item(Struct, frozen=True, gc=False):
    """A publication in the buffer: neither completed nor checked yet."""

    kind: Kind
    fields: dict[str, Any]
    """As given, with lists and dicts copied; owned by the sender."""
    size_bytes: int
    published_at_s: float = 0.0
    """Seconds since the epoch."""
    trace_id: str = ""
    """The id that `publish` returned."""
    span_id: str | None = None
    """Id of the current OpenTelemetry span, if it belongs to this trace."""


class Entry(NamedTuple):
    """One entry of the stream."""

    kind: Kind
    payload: bytes


class Batch(Struct, frozen=True):
    """Entries that are appended together, under one number, at most once however often it is sent."""

    number: int
    entries: tuple[Entry, ...]
    items: int
    """Items taken from the buffer for this batch, including those that could not be encoded."""
    size_bytes: int
    """Their size, which the buffer holds until the batch is confirmed."""
    settles_through: int
    """Position in the order of acceptance up to which no item is pending once this batch is confirmed."""
    flush_ticket: int
    """Last flush that this batch completes."""

    def count(self, kind: Kind) -> int:
        """Count the entries of a kind."""
        return sum(entry.kind is kind for entry in self.entries)


class Reason(StrEnum):
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
