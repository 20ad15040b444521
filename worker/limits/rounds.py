"""What is counted while a limit is measured."""

from typing import NamedTuple

__all__ = ["Round", "Trial"]


class Trial(NamedTuple):
    """What stood before a limit that is being tried, in calls and in calls a second."""

    limit: int
    throughput: float


class Round:
    """Ends of the calls from number ``first`` on."""

    __slots__ = ("calls", "ended", "failed", "first", "latency_s", "size", "succeeded", "wanted")

    def __init__(self, first: int, size: int) -> None:
        self.first = first
        self.size = size
        self.calls = self.ended = self.failed = self.succeeded = self.wanted = 0
        self.latency_s = 0.0

    @property
    def is_full(self) -> bool:
        """Tell whether somebody waited for a place most of the time."""
        return 2 * self.wanted > self.ended

    @property
    def share_failed(self) -> float:
        """Of the calls that ended meanwhile, also of those that began before, since the limit was last lowered."""
        return self.failed / self.calls if self.calls else 0.0
