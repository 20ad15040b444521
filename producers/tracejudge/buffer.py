"""The bounded buffer between the threads that publish and the one that sends."""

from collections import deque
from collections.abc import Callable
from typing import Literal

from tracejudge.entries import Batch, Item, Kind
from tracejudge.native import reentrant_lock
from tracejudge.tally import Reason, Tally, Totals

_NEVER = -1
_MANY = 8


class Buffer:
    """Items from `publish` until Redis confirms them, within two caps, and the books about them.

    An item counts against the caps until its batch is confirmed, so that they bound all the memory held,
    whatever is on the wire. One thread takes and settles; any may put.
    """

    def __init__(
        self,
        *,
        max_items: int,
        max_bytes: int,
        wake: Callable[[], None],
        drop: Literal["newest", "oldest"] = "newest",
    ) -> None:
        # Reentrant: a signal handler or a finalizer may publish while this very thread is inside. The lock is
        # held for a few steps each time, never while something is encoded, sent or waited for.
        self._lock = reentrant_lock()
        self._max_items = max_items
        self._door_items = max_items  # none, when closed: one question less for each publication
        self._max_bytes = max_bytes
        self._wake = wake
        self._drops_oldest = drop == "oldest"
        self._items: deque[Item] = deque()
        self._traces = Tally()
        self._feedback = Tally()
        self._accepted = 0
        self._abandoned = 0
        self._settled = 0
        self._held_items = 0
        self._held_bytes = 0
        self._wake_at = 1
        self._closed = False
        self._final = False

    def put(self, item: Item) -> None:
        """Accept an item, or count why not; wake the sender only when it waits for this one."""
        with self._lock:
            # Written for speed: every publication passes here.
            held_bytes = self._held_bytes + item.weight_bytes
            if self._held_items >= self._door_items or held_bytes > self._max_bytes:
                if not self._make_room(item):
                    return
                held_bytes = self._held_bytes + item.weight_bytes
            self._held_bytes = held_bytes
            self._held_items += 1
            accepted = self._accepted = self._accepted + 1
            self._items.append(item)
        if accepted == self._wake_at:
            self._wake()

    def put_feedback(self, item: Item) -> None:
        """Do the same with an item that has books of its own."""
        with self._lock:
            before = self._accepted
            self.put(item)
            self._feedback.accepted += self._accepted - before

    def refuse(self, kind: Kind, reason: Reason) -> None:
        """Count a publication that never became an item."""
        with self._lock:
            self._tally(kind).refuse(Reason.SHUTDOWN if self._closed else reason)

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
        traces, feedback = batch.count(Kind.TRACE), batch.count(Kind.FEEDBACK)
        with self._lock:
            if self._final:
                return
            self._traces.delivered += traces
            self._feedback.delivered += feedback
            self._held_items -= batch.items
            self._held_bytes -= batch.weight_bytes
            self._settled = batch.settles

    def wake_after(self, count: int) -> bool:
        """Ask to be woken when so many items wait; False when they are here already."""
        with self._lock:
            missing = count - len(self._items)
            self._wake_at = self._accepted + missing if missing > 0 else _NEVER
            return missing > 0

    def ask_again(self) -> None:
        """Have the next item wake the sender too, as this one could not."""
        with self._lock:
            self._wake_at = self._accepted + 1

    def close(self) -> bool:
        """Refuse everything from now on; False when that was so already."""
        with self._lock:
            was_open, self._closed = not self._closed, True
            self._door_items = 0
            return was_open

    def abandon_queued(self) -> None:
        """Give up what no batch has taken yet."""
        with self._lock:
            while self._lose_oldest(Reason.ABANDONED):
                self._abandoned += 1

    def abandon_all(self) -> int:
        """Give up everything not confirmed and end the books; a reply that comes later changes nothing.

        Returns:
            How many entries were abandoned in all, earlier ones included.
        """
        with self._lock:
            self._final = True
            self._items.clear()
            both = (self._tally(Kind.TRACE), self._tally(Kind.FEEDBACK))
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
    def settles(self) -> int:
        """Where `settled` will be when all that was taken so far is confirmed.

        By place in the order, not by count: an item that made room for a later one left the queue without a
        confirmation, and must not stand for an earlier one that is still on its way.
        """
        with self._lock:
            return self._accepted - len(self._items) - self._abandoned

    @property
    def settled(self) -> int:
        """Items, from the first on, of which none waits for a confirmation any more."""
        return self._settled

    @property
    def roomy(self) -> bool:
        """Whether at most half of what may be held is held."""
        return self._held_items * 2 <= self._max_items and self._held_bytes * 2 <= self._max_bytes

    @property
    def queued(self) -> int:
        """Items that no batch has taken yet."""
        return len(self._items)

    @property
    def closed(self) -> bool:
        """Whether everything is refused."""
        return self._closed

    def _tally(self, kind: Kind) -> Tally:
        """Give the books of a kind, brought up to date."""
        self._traces.accepted = self._accepted - self._feedback.accepted
        return self._traces if kind is Kind.TRACE else self._feedback

    def _make_room(self, item: Item) -> bool:
        """Drop what waits longest until an item fits, where that is wished; else count the item as dropped."""
        while (reason := self._refusal(item.weight_bytes)) is not None:
            fits = self._fits_beside_what_is_on_its_way(item.weight_bytes)
            if reason is Reason.SHUTDOWN or not (self._drops_oldest and fits and self._lose_oldest(reason)):
                self._tally(item.kind).refuse(reason)
                return False
        return True

    def _fits_beside_what_is_on_its_way(self, weight_bytes: int) -> bool:
        """Tell whether losing what waits could make room at all; else it would be lost for nothing."""
        if weight_bytes * _MANY <= self._max_bytes:
            return True  # and adding up what waits would cost more than it saves
        queued_bytes = sum(item.weight_bytes for item in list(self._items))
        return self._held_bytes - queued_bytes + weight_bytes <= self._max_bytes

    def _lose_oldest(self, reason: Reason) -> bool:
        """Drop the item that waits longest; False when the sender has taken them all."""
        try:
            item = self._items.popleft()
        except IndexError:  # the sender takes without the lock
            return False
        self._held_items -= 1
        self._held_bytes -= item.weight_bytes
        self._tally(item.kind).drop(reason)
        return True

    def _refusal(self, weight_bytes: int) -> Reason | None:
        if self._closed:
            return Reason.SHUTDOWN
        if self._held_items >= self._max_items:
            return Reason.BUFFER_FULL
        if self._held_bytes + weight_bytes > self._max_bytes:
            return Reason.BUFFER_BYTES
        return None
