"""What became of everything published, in counts."""

from enum import StrEnum
from typing import NamedTuple


class Reason(StrEnum):
    """Why an entry never reaches the stream. The list is closed: a loss without one of these is a fault."""

    BUFFER_FULL = "buffer_full"
    """`max_items` entries are held: at the door, or with drop="oldest" the one that waited longest."""
    BUFFER_BYTES = "buffer_bytes"
    """The entries held leave too few of `max_bytes`: at the door, or with drop="oldest" those that waited longest."""
    INVALID = "invalid"
    """An unknown or missing field, or a value JSON cannot hold; found when it is encoded."""
    SHUTDOWN = "shutdown"
    """At the door: published after `shutdown`."""
    TOO_LARGE = "too_large"
    """Encoded, it is larger than the worker takes."""
    REDACTION = "redaction"
    """The host's redaction function failed on it: what is not redacted does not travel."""
    ABANDONED = "abandoned"
    """Not confirmed when the time of `shutdown` was over."""


class Totals(NamedTuple):
    """The counts of one kind of entry since the client's start."""

    published: int
    accepted: int
    dropped: dict[str, int]


class Tally:
    """The counts of one kind of entry. Whoever changes them holds the buffer's lock."""

    __slots__ = ("accepted", "delivered", "dropped", "refused")

    def __init__(self) -> None:
        self.accepted = 0
        self.refused = 0
        self.delivered = 0
        self.dropped: dict[str, int] = {}

    @property
    def published(self) -> int:
        """Entries that somebody wanted to send."""
        return self.accepted + self.refused

    @property
    def waiting(self) -> int:
        """Entries of which neither a confirmation nor a drop is known."""
        return self.published - self.delivered - sum(self.dropped.values())

    def refuse(self, reason: Reason) -> None:
        """Count an entry that is lost at the door."""
        self.refused += 1
        self.drop(reason)

    def drop(self, reason: Reason, count: int = 1) -> None:
        """Count entries that are lost, once each."""
        if count:
            self.dropped[reason.value] = self.dropped.get(reason.value, 0) + count

    def totals(self) -> Totals:
        """Copy the counts."""
        return Totals(self.published, self.accepted, self.dropped.copy())
