"""What travels: an item from the caller to the sender, an entry to the stream, and a batch of entries."""

from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct

from tracejudge.model import LateFeedback, Trace


class Kind(StrEnum):
    """The kinds of entries in the stream; the value is the field that holds the JSON."""

    TRACE = "t"
    FEEDBACK = "f"
    REPORT = "r"


class Item(Struct, frozen=True):
    """What a caller published, as it waits in the buffer: not encoded yet."""

    kind: Kind
    record: Trace | LateFeedback
    weight_bytes: int


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
    flush_ticket: int
    """The last flush this batch completes."""

    def count(self, kind: Kind) -> int:
        """Count the entries of a kind."""
        return sum(entry.kind is kind for entry in self.entries)
