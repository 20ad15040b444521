"""What travels: an item from the caller to the sender, an entry to the stream, and a batch of entries."""

from enum import StrEnum
from typing import Any, NamedTuple

from msgspec import Struct


class Kind(StrEnum):
    """The kinds of entries in the stream; the value is the field that holds the JSON."""

    TRACE = "t"
    FEEDBACK = "f"
    REPORT = "r"


class Item(Struct, frozen=True, gc=False):
    """What a caller published, as it waits in the buffer: neither complete nor checked yet.

    Made in the calling thread, so it is as cheap as can be: the garbage collector, which would walk over ten
    thousand of them again and again, does not see it. Nothing it holds can lead back to it.
    """

    kind: Kind
    fields: dict[str, Any]
    """As they were given, but for copies of lists and dicts. The sender's own from here on."""
    weight_bytes: int
    published_at_s: float = 0.0
    """Seconds since the epoch."""
    trace_id: str = ""
    """What `publish` returned."""
    span_id: str | None = None
    """Of the current OpenTelemetry span, if there was one in this trace."""


class Entry(NamedTuple):
    """One entry of the stream."""

    kind: Kind
    payload: bytes


class Batch(Struct, frozen=True):
    """Entries that are appended together, under one number, as often as it takes and at most once."""

    number: int
    entries: tuple[Entry, ...]
    items: int
    """Items taken from the buffer for it, those that could not be encoded included."""
    weight_bytes: int
    """Their weight, which the buffer holds until the batch is confirmed."""
    settles: int
    """Items, from the first ever accepted on, of which none waits any more once this batch is confirmed."""
    flush_ticket: int
    """The last flush this batch completes."""

    def count(self, kind: Kind) -> int:
        """Count the entries of a kind."""
        return sum(entry.kind is kind for entry in self.entries)
