"""The leases that a process holds, and the tasks that work under them."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

import structlog

from worker.leases import RENEW_S, Held, Leases

__all__ = ["Holdings"]

log = structlog.get_logger("tracejudge.judging")

_OVERDUE_S: Final = 2 * RENEW_S

Task = asyncio.Task[None]


class Holdings:
    """Batches under way. Safe to share between threads."""

    def __init__(self, leases: Leases, cancel: Callable[[Task], None]) -> None:
        """Begin with nothing.

        Args:
            cancel: Cancels a task from any thread.
        """
        self._leases = leases
        self._cancel = cancel
        self._lock = threading.Lock()
        self._held: dict[str, tuple[Held, Task | None]] = {}
        self._takes = 0
        self._ending = False
        self._renewed_at = time.monotonic()

    def __len__(self) -> int:
        """Count batches."""
        return len(self._held)

    @property
    def awaited(self) -> bool:
        """Whether a lease is held, or may be by the answer of Redis that somebody waits for."""
        with self._lock:
            return bool(self._held or self._takes)

    @contextlib.contextmanager
    def taking(self) -> Iterator[None]:
        """Let it be known that leases are being taken, until they are added."""
        with self._lock:
            self._takes += 1
        try:
            yield
        finally:
            with self._lock:
                self._takes -= 1

    def add(self, held: Held) -> None:
        """Note a lease that was taken. Had our own one lapsed meanwhile, what works under that one ends."""
        with self._lock:
            _, older = self._held.get(held.batch_id, (None, None))
            self._held[held.batch_id] = (held, None)
        if older is not None:
            self._cancel(older)

    def begin(self, held: Held, task: Task) -> None:
        """Note who works under a lease; one that is not ours any more, or comes after the end, is not worked under."""
        with self._lock:
            holding, _ = self._held.get(held.batch_id, (None, None))
            if holding == held:
                self._held[held.batch_id] = (held, task)
            is_over = self._ending or holding != held
        if is_over:
            self._cancel(task)

    def remove(self, held: Held) -> None:
        """Note that the work under a lease has ended; a later lease of the same batch stays."""
        with self._lock:
            holding, _ = self._held.get(held.batch_id, (None, None))
            if holding == held:
                del self._held[held.batch_id]

    def cancel_all(self) -> None:
        """End all work, also under leases that are being taken now."""
        with self._lock:
            self._ending = True
            tasks = [task for _, task in self._held.values() if task is not None]
        for task in tasks:
            self._cancel(task)

    def renew(self) -> None:
        """Renew all leases; what is no longer ours is not judged further.

        Raises:
            StoreError: Redis did not answer.
        """
        with self._lock:
            held = dict(self._held)
        for batch_id in self._leases.renew(lease for lease, _ in held.values()):
            _, task = held[batch_id]
            # A task that is done has just finished the batch.
            if task is not None and not task.done():
                log.warning("lease lost", batch=batch_id)
                self._cancel(task)
        self._renewed_at = time.monotonic()

    def renew_overdue(self) -> None:
        """Renew what should have been renewed long ago: Redis was away, or the event loop was busy.

        Raises:
            StoreError: Redis did not answer.
        """
        if time.monotonic() - self._renewed_at > _OVERDUE_S:
            self.renew()
