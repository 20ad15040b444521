"""Factors of rules' rates: the active monitor writes them, ingest reads them every few seconds.

Ingest also counts the traces of each segment of the rules that divide their rate, from which the monitor computes them.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
import structlog
from msgspec import Struct

from worker.selection.sampling import Sampler
from worker.storage.client import Store

log = structlog.get_logger("tracejudge.sampling")
HOUR_S: Final = 3600
_EVERY_S: Final = 5.0
_SEGMENTS_TTL_S: Final = 4 * HOUR_S
_RATES_TTL_S: Final = HOUR_S
# A label whose values have no end, such as a random name, must not fill Redis.
_MAX_SEGMENTS: Final = 1_000


class Rates(Struct, frozen=True, omit_defaults=True):
    """Factors of rates by rule, and by rule and segment."""

    factors: Mapping[str, float] = {}
    segments: Mapping[str, Mapping[str, float]] = {}

    def write(self, store: Store) -> None:
        """Write them to Redis, where they expire if no monitor renews them."""
        store.call(lambda client: client.set(store.keys.rates, msgspec.json.encode(self), ex=_RATES_TTL_S))


class RateFactors:
    """Applies the factors in Redis to a sampler, and writes its counts there; for the thread that samples."""

    def __init__(self, store: Store, sampler: Sampler, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._sampler = sampler
        self._clock = clock
        self._next = 0.0
        self._rates = Rates()

    def exchange_due(self) -> None:
        """Exchange factors and counts if some seconds have passed; without factors in Redis, rates are whole.

        Raises:
            StoreError: Redis did not answer; the factors stay as they are, and the counts of these seconds are lost.
        """
        now = self._clock()
        if 0 <= self._next - now <= _EVERY_S:
            return
        self._next = now + _EVERY_S
        if counts := self._sampler.take_counts():
            self._write(counts, int(now // HOUR_S))
        stored = self._store.call(lambda client: client.get(self._store.keys.rates))
        try:
            rates = msgspec.json.decode(stored or b"{}", type=Rates)
        except msgspec.DecodeError:
            log.warning("factors of rates are unreadable", key=self._store.keys.rates)
            return
        if rates != self._rates:
            self._rates = rates
            self._sampler.set_factors(rates.factors, rates.segments)
            log.info("rates changed", factors=rates.factors)

    def _write(self, counts: Counter[tuple[str, str]], hour: int) -> None:
        key = self._store.keys.segments(hour)
        self._store.pipeline(
            lambda pipe: [
                *(
                    pipe.hincrby(key, segment_field(*name), amount)
                    for name, amount in counts.most_common(_MAX_SEGMENTS)
                ),
                pipe.expire(key, _SEGMENTS_TTL_S),
            ]
        )


def segment_field(rule: str, segment: str) -> bytes:
    """Encode a rule and a segment as one field."""
    return msgspec.msgpack.encode((rule, segment))


def read_segments(store: Store, now_s: float, hours: int) -> dict[str, Counter[str]]:
    """Read how many traces each segment had in the current hour and those before it, by rule."""
    first = int(now_s // HOUR_S) - hours + 1
    found: dict[str, Counter[str]] = {}
    keys = [store.keys.segments(hour) for hour in range(first, first + hours)]
    for fields in store.pipeline(lambda pipe: [pipe.hgetall(key) for key in keys]):
        for field, amount in fields.items():
            rule, segment = msgspec.msgpack.decode(field, type=tuple[str, str])
            found.setdefault(rule, Counter())[segment] += int(amount)
    return found
