"""Measures how soon the batches of a killed worker continue in another one."""

import threading
import time
from typing import NamedTuple, Self

from worker.core.storage.client import Store, StoreError

__all__ = ["Recoveries"]

_LOOK_S = 0.2


class _Orphan(NamedTuple):
    holder: bytes
    since: float


class Recoveries:
    """Watches the batches of a killed worker until another worker holds them or they are finished."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._orphans: dict[bytes, _Orphan] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="recoveries", daemon=True)
        self.took_s: list[float] = []
        """Waiting times of the batches that were held at a kill."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(10)

    def begin(self) -> None:
        """Record all batches held now, by any worker: those of running workers finish in time as well."""
        now = time.monotonic()
        try:
            held = self._held()
        except StoreError:
            return
        with self._lock:
            self._orphans |= {batch: _Orphan(holder, now) for batch, holder in held.items() if holder != b"parked"}

    def check(self, within_s: float) -> None:
        """Fail if any of these batches waited longer."""
        self._look()
        with self._lock:
            waiting = [time.monotonic() - orphan.since for orphan in self._orphans.values()]
        slowest = max([*self.took_s, *waiting], default=0.0)
        assert slowest <= within_s, f"a batch went on after {slowest:.1f} s only"

    def _watch(self) -> None:
        while not self._stop.wait(_LOOK_S):
            try:
                self._look()
            except StoreError:
                continue

    def _look(self) -> None:
        with self._lock:
            if not self._orphans:
                return
        held, now = self._held(), time.monotonic()
        with self._lock:
            for batch, orphan in list(self._orphans.items()):
                if held.get(batch) == orphan.holder or (batch not in held and self._is_ready(batch)):
                    continue
                if self._orphans.pop(batch, None) is not None:  # else somebody else looked meanwhile
                    self.took_s.append(now - orphan.since)

    def _held(self) -> dict[bytes, bytes]:
        return self._store.call(lambda client: client.hgetall(self._store.keys.holders))

    def _is_ready(self, batch: bytes) -> bool:
        """Return whether a batch that no worker holds is still ready."""
        return bool(self._store.call(lambda client: client.exists(self._store.keys.batch(batch.decode()))))
