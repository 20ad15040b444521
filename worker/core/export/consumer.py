"""Reads the outbox: one thread and one consumer group per exporter, with takeover of entries that dead workers left.

The first verdict after a silence leaves at once. Later ones gather for a fraction of a second: a read, a request
and an acknowledgement for each would cost many times what the verdict itself does.
"""

import secrets
import socket
import time
from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import ClassVar, Final

import structlog
from redis.exceptions import ResponseError

from worker.core.config.settings import Settings
from worker.core.queue.ledger import OUTBOX_VERSION, OutboxEntry, read_outbox_entry
from worker.core.storage.client import Entry, Store, StoreError
from worker.core.storage.group_reader import entry_position
from worker.core.telemetry.metrics import Metrics
from worker.core.telemetry.service import ServiceThread

log = structlog.get_logger("tracejudge.export")
_BLOCK_MS: Final = 1000
_GATHER_S: Final = 0.2


class ExportConsumer(ServiceThread):
    """Base of all exporters. A subclass delivers entries, and acknowledges them."""

    role = "export"
    exporter: ClassVar[str]  # Name of the exporter, and of its consumer group.
    # Reasons for which it drops verdicts; each counter exists at zero from the start.
    drop_reasons: ClassVar[tuple[str, ...]] = ("unreadable",)
    read_count: int = 512  # Maximum of entries read at once; after a full read the next follows without a pause.
    gather_s: float = _GATHER_S  # How long entries gather after a read.
    stale_ms: int = 15_000  # When entries that another worker has read and not acknowledged are taken over.

    def __init__(self, settings: Settings, store: Store, metrics: Metrics) -> None:  # noqa: ARG002 - subclasses use them
        super().__init__(f"export-{self.exporter}")
        self._store = store
        self._consumer = f"{socket.gethostname()}-{secrets.token_hex(4)}"
        self._next_claim = 0.0
        self._answer_lost = False
        self.asked_at = 0.0  # Monotonic time from which on Redis may have assigned the entries under delivery.
        self._drop_counter = partial(metrics.export_dropped.labels, self.exporter)
        for reason in self.drop_reasons:
            self._drop_counter(reason)

    @abstractmethod
    def deliver(self, entries: Sequence[OutboxEntry]) -> None:
        """Deliver entries and acknowledge them."""

    def count_dropped(self, reason: str, amount: int) -> None:
        """Count verdicts that could not be delivered."""
        self._drop_counter(reason).inc(amount)

    def prepare(self) -> None:
        """Create the consumer group."""
        self._store.make_group(self._store.keys.verdicts, self.exporter)

    def run_once(self) -> None:
        """Read once and deliver all of it; then let entries gather. A stop ends that pause with a last read."""
        self._begin_to_ask()
        stale = self._read_own_pending()
        if time.monotonic() >= self._next_claim:
            self._next_claim = time.monotonic() + 5.0
            names = (self._store.keys.verdicts, self.exporter, self._consumer)
            stale += self._store.claim_stale(*names, idle_ms=self.stale_ms, count=self.read_count)
        # Process these apart, because a group that was set back is recognised by the order of what it acknowledges.
        self._process(stale)
        fresh = self._read(_BLOCK_MS)
        self._process(fresh)
        gathers = 0 < len(fresh) < self.read_count
        if self.stopping.wait(self.gather_s if gathers else 0.0):
            self._process(self._read(block_ms=1))

    def stop(self, timeout_s: float) -> bool:
        """End the thread, then remove its consumer from the group."""
        ended = super().stop(timeout_s)
        if ended:
            self._store.remove_consumer(self._store.keys.verdicts, self.exporter, self._consumer)
        return ended

    def acknowledge(self, entry_ids: Sequence[str]) -> list[bool]:
        """Acknowledge entries, the smallest id first; True for each that was not acknowledged before."""
        if not entry_ids:
            return []
        keys = self._store.keys
        last = max(entry_ids, key=entry_position)
        names = (keys.verdicts, keys.account_all, keys.groups)
        fresh = self._store.run("acknowledge", names, (self.exporter, last, *entry_ids))
        return [answer == 1 for answer in fresh]

    def keep(self, entry_ids: Sequence[str]) -> int:
        """Reset the idle time of entries under delivery; return how many of them are still this consumer's."""
        names = (self._store.keys.verdicts,)
        return int(self._store.run("keep", names, (self.exporter, self._consumer, *entry_ids)))

    def _begin_to_ask(self) -> None:
        # Entries of a lost answer were assigned then, also when they are read again.
        if not self._answer_lost:
            self.asked_at = time.monotonic()

    def _read(self, block_ms: int) -> list[Entry]:
        self._begin_to_ask()
        self._answer_lost = True
        entries = self._store.read_group(
            self._store.keys.verdicts, self.exporter, self._consumer, count=self.read_count, block_ms=block_ms
        )
        self._answer_lost = False
        return entries

    def _read_own_pending(self) -> list[Entry]:
        """Read the entries that Redis assigned to this consumer in a lost answer; others wait until they are stale."""
        if not self._answer_lost:
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
        # Trimmed entries are left for the claim, which finds them in every version of Redis.
        return [(entry_id, fields) for entry_id, fields in reply[0][1] if fields] if reply else []

    def _process(self, entries: Sequence[Entry]) -> None:
        readable, unreadable, trimmed = [], [], []
        for entry in entries:
            read = read_outbox_entry(entry)
            if read is not None:
                readable.append(read)
            elif entry[1] is None:
                trimmed.append(entry[0])
            elif entry[1].get(b"v") == OUTBOX_VERSION:
                unreadable.append(entry[0].decode())
            # An entry of another version stays pending, because a worker that knows the version will claim it.
        if trimmed:
            # Bypass `acknowledge`, so that the accounting counts them as cut off. Redis 7 does the same by itself.
            self._store.call(lambda client: client.xack(self._store.keys.verdicts, self.exporter, *trimmed))
        if unreadable:
            log.warning("outbox entries unreadable", exporter=self.exporter, entries=len(unreadable))
            self.count_dropped("unreadable", sum(self.acknowledge(unreadable)))
        if readable:
            self.deliver(readable)
