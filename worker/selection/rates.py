"""Factors of rules' rates: the active monitor writes them, ingest reads them every few seconds."""

import time
from collections.abc import Callable
from typing import Final

import msgspec
import structlog

from worker.selection.sampling import Sampler
from worker.storage.client import Store

log = structlog.get_logger("tracejudge.sampling")
_EVERY_S: Final = 5.0


class RateFactors:
    """Applies the factors in Redis to a sampler."""

    def __init__(self, store: Store, sampler: Sampler, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._sampler = sampler
        self._clock = clock
        self._next = 0.0
        self._factors: dict[str, float] = {}

    def refresh_due(self) -> None:
        """Read the factors if some seconds have passed; without any, as when no monitor runs, rates are whole.

        Raises:
            StoreError: Redis did not answer; the factors stay as they are.
        """
        if self._clock() < self._next:
            return
        self._next = self._clock() + _EVERY_S
        stored = self._store.call(lambda client: client.get(self._store.keys.rates))
        try:
            factors = msgspec.json.decode(stored or b"{}", type=dict[str, float])
        except msgspec.DecodeError:
            log.warning("factors of rates are unreadable", key=self._store.keys.rates)
            return
        if factors != self._factors:
            self._factors = factors
            self._sampler.reduce(factors)
            log.info("rates changed", factors=factors)
