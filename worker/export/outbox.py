"""Read the outbox: one exporter's thread, its consumer group, and what dead readers of the group left.

The first verdict after a silence leaves at once. Those behind it gather for a fraction of a second: a read, a request
and an acknowledgement for each of them would cost many times what the verdict itself does.
"""

import secrets
import socket
import time
from abc import abstractmethod
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

import msgspec
import structlog
from redis.exceptions import ResponseError

from judges.verdict import Verdict
from worker.consumers import leave
from worker.stage import Stage
from worker.store import Entry, Store, StoreError

__all__ = ["OutboxEntry", "OutboxReader", "read_outbox_entry"]

log = structlog.get_logger("tracejudge.export")

_BLOCK_MS: Final = 1000
_LAST_BLOCK_MS: Final = 1
_GATHER_S: Final = 0.2
_CLAIM_EVERY_S: Final = 5.0
_VERSION: Final = b"1"
_decoder = msgspec.json.Decoder(Verdict)


class OutboxEntry(NamedTuple):
    """One entry of the outbox: a final verdict (``j``) or the news of a dead letter (``d``)."""

    entry_id: str
    kind: Literal["j", "d"]
    verdict: Verdict


def read_outbox_entry(entry: Entry) -> OutboxEntry | None:
    """Read an entry; None when it was trimmed away, is of another version, or not ours."""
    raw_id, fields = entry
    if not fields or fields.get(b"v") != _VERSION:
        return None
    kind: Literal["j", "d"] = "j" if b"j" in fields else "d"
    try:
        return OutboxEntry(raw_id.decode(), kind, _decoder.decode(fields.get(kind.encode(), b"")))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


class OutboxReader(Stage):
    """An exporter. Subclasses say what to do with entries and acknowledge what is done.

    Attributes:
        read_count: Entries of one turn at most; a turn that gets as many is followed by the next at once.
        gather_s: How long after a read entries gather for the next one.
        stale_ms: When entries that another worker has read and not acknowledged are taken over.
    """

    role = "export"
    exporter: str
    read_count: int = 512
    gather_s: float = _GATHER_S
    stale_ms: int = 15_000

    def __init__(self, store: Store, exporter: str) -> None:
        """Prepare the thread; ``start`` begins."""
        super().__init__(f"export-{exporter}")
        self.exporter = exporter
        self._store = store
        self._consumer = f"{socket.gethostname()}-{secrets.token_hex(4)}"
        self._next_claim = 0.0
        self._unsure = False

    @abstractmethod
    def deliver(self, entries: Sequence[OutboxEntry]) -> None:
        """Send entries on and acknowledge them."""

    def prepare(self) -> None:
        """Make the consumer group."""
        self._store.run("open_outbox", (self._store.keys.verdicts, self._store.keys.books), (self.exporter,))

    def turn(self) -> None:
        """Read once and deliver all of it; then let entries gather, which are read at once when it is to stop."""
        stale = self._unheard() + self._stale()
        fresh = self._read(_BLOCK_MS)
        self._take(stale + fresh)
        gathers = 0 < len(fresh) < self.read_count
        if self.stopping.wait(self.gather_s if gathers else 0.0):
            self._take(self._read(_LAST_BLOCK_MS))

    def stop(self, timeout_s: float) -> bool:
        """End the thread; when it has ended, its name leaves the group."""
        ended = super().stop(timeout_s)
        if ended:
            leave(self._store, self._store.keys.verdicts, self.exporter, self._consumer)
        return ended

    def acknowledge(self, entry_ids: Sequence[str]) -> list[bool]:
        """Acknowledge entries; True for each that nobody had acknowledged before.

        Raises:
            StoreError: Redis did not answer.
        """
        keys = (self._store.keys.verdicts, self._store.keys.books)
        fresh = self._store.run("acknowledge", keys, (self.exporter, *entry_ids))
        return [answer == 1 for answer in fresh]

    def keep(self, entry_ids: Sequence[str]) -> int:
        """Keep entries ours that are still being delivered; return how many of them are.

        Raises:
            StoreError: Redis did not answer.
        """
        names = (self._store.keys.verdicts,)
        return int(self._store.run("keep", names, (self.exporter, self._consumer, *entry_ids)))

    @abstractmethod
    def dropped(self, reason: str, amount: int) -> None:
        """Count entries that could not be delivered."""

    def _read(self, block_ms: int) -> list[Entry]:
        self._unsure = True
        entries = self._store.read_group(
            self._store.keys.verdicts, self.exporter, self._consumer, count=self.read_count, block_ms=block_ms
        )
        self._unsure = False
        return entries

    def _unheard(self) -> list[Entry]:
        """Read what was given to us in an answer that was lost: until it is stale nobody else would."""
        if not self._unsure:
            return []
        keys, count = self._store.keys, self.read_count
        try:
            reply = self._store.call(
                lambda client: client.xreadgroup(self.exporter, self._consumer, {keys.verdicts: "0"}, count=count)
            )
        except StoreError as error:
            if isinstance(error.__cause__, ResponseError):
                return []  # Redis came back without its data; the read that follows makes the group anew.
            raise
        # What was trimmed away is left for the claim, which knows of it in every version of Redis.
        return [(entry_id, fields) for entry_id, fields in reply[0][1] if fields] if reply else []

    def _take(self, entries: Sequence[Entry]) -> None:
        readable, unreadable, gone = [], [], []
        for entry in entries:
            read = read_outbox_entry(entry)
            if read is not None:
                readable.append(read)
            elif entry[1] is None:
                gone.append(entry[0])
            elif entry[1].get(b"v") == _VERSION:
                unreadable.append(entry[0].decode())
            # Another version stays pending: a worker that knows it will claim it.
        if gone:
            # Past the books, which then tell that the outbox cut them off; Redis 7 does the same by itself.
            self._store.call(lambda client: client.xack(self._store.keys.verdicts, self.exporter, *gone))
        if unreadable:
            log.warning("outbox entries cannot be read", exporter=self.exporter, entries=len(unreadable))
            self.dropped("unreadable", sum(self.acknowledge(unreadable)))
        if readable:
            self.deliver(readable)

    def _stale(self) -> list[Entry]:
        if time.monotonic() < self._next_claim:
            return []
        self._next_claim = time.monotonic() + _CLAIM_EVERY_S
        return self._store.claim_stale(
            self._store.keys.verdicts, self.exporter, self._consumer, idle_ms=self.stale_ms, count=self.read_count
        )
