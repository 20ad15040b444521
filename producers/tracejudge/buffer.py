"""The bounded buffer between the threads that publish and the one that sends."""

import contextlib
import threading
from collections import deque
from collections.abc import Callable

from tracejudge.entries import Batch, Item, Kind
from tracejudge.tally import Reason, Tally, Totals


class Buffer:
    """Items from `publish` until Redis confirms them, within two caps, and the books about them.

    An item counts against the caps until its batch is confirmed, so that they bound all the memory held,
    whatever is on the wire. One thread takes and settles; any may put.
    """

    def __init__(self, *, max_items: int, max_bytes: int, wake: Callable[[], None]) -> None:
        # Reentrant: a signal handler or a finalizer may publish while this very thread is inside. The lock is
        # held for a few steps each time, never while something is encoded, sent or waited for.
        self._lock = threading.RLock()
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._wake = wake
        self._items: deque[Item] = deque()
        self._traces = Tally()
        self._feedback = Tally()
        self._accepted = 0
        self._settled = 0
        self._held_bytes = 0
        self._asleep = True
        self._closed = False
        self._final = False

    def put(self, item: Item) -> None:
        """Accept an item, or count why not; wake the sender only when it sleeps."""
        with self._lock:
            tally = self._traces if item.kind is Kind.TRACE else self._feedback
            tally.published += 1
            reason = self._refusal(item.weight_bytes)
            if reason is not None:
                tally.drop(reason)
                return
            tally.accepted += 1
            self._accepted += 1
            self._held_bytes += item.weight_bytes
            self._items.append(item)
            wake, self._asleep = self._asleep, False
        if wake:
            self._wake()

    def refuse(self, kind: Kind, reason: Reason) -> None:
        """Count a publication that never became an item."""
        with self._lock:
            tally = self._tally(kind)
            tally.published += 1
            tally.drop(Reason.SHUTDOWN if self._closed else reason)

    def take(self, *, max_items: int, max_bytes: int) -> list[Item]:
        """Remove the oldest items up to a count and until their weight passes `max_bytes`."""
        taken: list[Item] = []
        weight_bytes = 0
        # Without the lock, one item at a time: publishers must not wait for a whole batch to be taken.
        while len(taken) < max_items and weight_bytes < max_bytes:
            try:
                item = self._items.popleft()
            except IndexError:
                break
            taken.append(item)
            weight_bytes += item.weight_bytes
        return taken

    def drop(self, kind: Kind, reason: Reason) -> None:
        """Count an accepted item that is lost; its batch settles it."""
        with self._lock:
            if not self._final:
                self._tally(kind).drop(reason)

    def settle(self, batch: Batch) -> None:
        """Book a batch that is confirmed, and free the room of its items."""
        with self._lock:
            if self._final:
                return
            self._traces.delivered += batch.count(Kind.TRACE)
            self._feedback.delivered += batch.count(Kind.FEEDBACK)
            self._settled += batch.items
            self._held_bytes -= batch.weight_bytes

    def fall_asleep(self) -> bool:
        """Ask to be woken by the next item; False when one is here already."""
        with self._lock:
            self._asleep = not self._items
            return self._asleep

    def ask_again(self) -> None:
        """Have the next item wake the sender too, as this one could not."""
        with self._lock:
            self._asleep = True

    def close(self) -> bool:
        """Refuse everything from now on; False when that was so already."""
        with self._lock:
            was_open, self._closed = not self._closed, True
            return was_open

    def abandon_queued(self) -> None:
        """Give up what no batch has taken yet."""
        # The sender takes without the lock: what is here now may be gone with the next look.
        with self._lock, contextlib.suppress(IndexError):
            while True:
                self._tally(self._items.popleft().kind).drop(Reason.ABANDONED)

    def abandon_all(self) -> int:
        """Give up everything not confirmed and end the books; a reply that comes later changes nothing.

        Returns:
            How many entries were abandoned in all, earlier ones included.
        """
        with self._lock:
            self._final = True
            self._items.clear()
            both = (self._traces, self._feedback)
            for tally in both:
                tally.drop(Reason.ABANDONED, tally.waiting)
            return sum(tally.dropped.get(Reason.ABANDONED, 0) for tally in both)

    def totals(self, kind: Kind = Kind.TRACE) -> Totals:
        """Copy the books of a kind, as they stand at one moment."""
        with self._lock:
            return self._tally(kind).totals()

    @property
    def accepted(self) -> int:
        """Items accepted since the start, of every kind."""
        return self._accepted

    @property
    def taken(self) -> int:
        """Items that have left the queue since the start, in the order they came."""
        with self._lock:
            return self._accepted - len(self._items)

    @property
    def settled(self) -> int:
        """Items whose batch is confirmed."""
        return self._settled

    @property
    def queued(self) -> int:
        """Items that no batch has taken yet."""
        return len(self._items)

    def _tally(self, kind: Kind) -> Tally:
        return self._traces if kind is Kind.TRACE else self._feedback

    def _refusal(self, weight_bytes: int) -> Reason | None:
        if self._closed:
            return Reason.SHUTDOWN
        if self._accepted - self._settled >= self._max_items:
            return Reason.BUFFER_FULL
        if self._held_bytes + weight_bytes > self._max_bytes:
            return Reason.BUFFER_BYTES
        return None
