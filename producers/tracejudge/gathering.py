"""How a batch comes together: items are taken and encoded in small pieces, so that publishers get their turn."""

from collections.abc import Callable

from tracejudge.buffer import Buffer
from tracejudge.entries import Batch, Entry, Item
from tracejudge.tally import Reason

MAX_BATCH_ITEMS = 500
MAX_BATCH_BYTES = 2 * 1024 * 1024

_AHEAD_ITEMS = 100  # fewer may well wait until the batch before is confirmed, and be joined by others
_PIECE_ITEMS = 16  # about 0.1 ms of traces of 4 kB
_TURN_S = 0.000_05


class Gathering:
    """The batch to come. Used by the sender's thread only."""

    def __init__(
        self, *, buffer: Buffer, encode: Callable[[Item], Entry | Reason], sleep: Callable[[float], None]
    ) -> None:
        self._buffer = buffer
        self._encode = encode
        self._sleep = sleep
        self._seen = 0
        self._clear()

    @property
    def empty(self) -> bool:
        """Whether nothing has been taken for it yet."""
        return not self._items

    def fill(self) -> None:
        """Take what waits, as far as it fits, and encode it."""
        while self._items < MAX_BATCH_ITEMS and self._weight_bytes < MAX_BATCH_BYTES:
            piece = min(_PIECE_ITEMS, MAX_BATCH_ITEMS - self._items)
            items = self._buffer.take(max_items=piece, max_bytes=MAX_BATCH_BYTES - self._weight_bytes)
            for item in items:
                self._add(item)
            if len(items) < piece:
                return
            self._give_way()

    def fill_ahead(self) -> None:
        """Use the time in which Redis works on the batch before, when much waits."""
        if self.empty and self._buffer.queued >= _AHEAD_ITEMS:
            self.fill()

    def close(self, *, number: int, report: Entry | None, flush_ticket: int) -> Batch:
        """Make the batch of what was gathered, and begin the next."""
        if report is not None:
            self._entries.append(report)
        batch = Batch(
            number=number,
            entries=tuple(self._entries),
            items=self._items,
            weight_bytes=self._weight_bytes,
            settles=self._buffer.settles,
            flush_ticket=flush_ticket,
        )
        self._clear()
        return batch

    def _clear(self) -> None:
        self._entries: list[Entry] = []
        self._items = 0
        self._weight_bytes = 0

    def _add(self, item: Item) -> None:
        self._items += 1
        self._weight_bytes += item.weight_bytes
        outcome = self._encode(item)
        if isinstance(outcome, Entry):
            self._entries.append(outcome)
        else:
            self._buffer.drop(item.kind, outcome)

    def _give_way(self) -> None:
        """Let a thread that publishes go on, which would wait 5 ms for the interpreter.

        Not while the buffer is more than half full: then delivering helps the host more than a quick call.
        """
        accepted = self._buffer.accepted
        if accepted != self._seen and self._buffer.roomy:
            self._sleep(_TURN_S)
        self._seen = accepted
