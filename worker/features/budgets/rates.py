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

from worker.core.features import Parts, Selector
from worker.core.selection.sampling import Sampler
from worker.core.storage.client import Store, StoreError
from worker.features.budgets.feature import BudgetKeys

log = structlog.get_logger("tracejudge.sampling")
_ingest_log = structlog.get_logger("tracejudge.ingest")
HOUR_S: Final = 3600
_EVERY_S: Final = 5.0
_NEW_HOURS: Final = 24
_MAX_SEEN: Final = 10_000
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
        key = BudgetKeys(store.keys.prefix).rates
        store.call(lambda client: client.set(key, msgspec.json.encode(self), ex=_RATES_TTL_S))


class RateFactors:
    """Applies the factors in Redis to a sampler, and writes its counts there; for the thread that samples."""

    def __init__(self, store: Store, sampler: Sampler, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._keys = BudgetKeys(store.keys.prefix)
        self._sampler = sampler
        self._clock = clock
        self._next = 0.0
        self._rates = Rates()
        self._first = _FirstTraces(store, sampler)

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
            key, frequent = self._keys.segments(int(now // HOUR_S)), counts.most_common(_MAX_SEGMENTS)
            self._store.pipeline(
                lambda pipe: [
                    *(pipe.hincrby(key, segment_field(*name), amount) for name, amount in frequent),
                    pipe.expire(key, _SEGMENTS_TTL_S),
                ]
            )
        self._first.exchange(int(now // HOUR_S))
        stored = self._store.call(lambda client: client.get(self._keys.rates))
        try:
            rates = msgspec.json.decode(stored or b"{}", type=Rates)
        except msgspec.DecodeError:
            log.warning("factors of rates are unreadable", key=self._keys.rates)
            return
        if rates != self._rates:
            self._rates = rates
            self._sampler.set_factors(rates.factors, rates.segments)
            log.info("rates changed", factors=rates.factors)


class RateSelector(Selector):
    """Exchanges the factors of rates with the monitor."""

    def __init__(self, parts: Parts) -> None:
        self._store = parts.ledger.store
        self._rates = RateFactors(self._store.first, parts.sampler)

    def before_read(self) -> None:
        """Exchange factors and counts if some seconds have passed."""
        try:
            self._rates.exchange_due()
        except StoreError as error:
            # The first shard is away: the factors stay as they are, and this one is read on.
            if self._store is self._store.first:
                raise
            _ingest_log.warning("factors of rates not exchanged", error=str(error))


def segment_field(rule: str, segment: str) -> bytes:
    """Encode a rule and a segment as one field."""
    return msgspec.msgpack.encode((rule, segment))


class _FirstTraces:
    """Exchanges how many traces new values had in the current hour, and learns which values are not new any more."""

    def __init__(self, store: Store, sampler: Sampler) -> None:
        self._store = store
        self._keys = BudgetKeys(store.keys.prefix)
        self._sampler = sampler
        self._known: frozenset[str] | None = None
        self._hour = 0
        self._of_hour: Counter[tuple[str, str]] = Counter()
        self._is_full = False

    def exchange(self, hour: int) -> None:
        """Add our counts to those of all workers."""
        seen, key = self._keys.seen, self._keys.first(hour)
        if self._known is None:
            # A worker that starts must not take every value for a new one.
            stored = self._store.call(lambda client: client.hgetall(seen))
            self._known = frozenset(name.decode() for name, first in stored.items() if hour - int(first) >= _NEW_HOURS)
        if hour != self._hour:
            self._hour, self._of_hour = hour, Counter()
        if counts := self._sampler.take_first():
            values = sorted({value for _, value in counts})
            written = [] if self._is_full else values
            replies = self._store.pipeline(
                lambda pipe: [
                    *(pipe.hincrby(key, msgspec.msgpack.encode(name), amount) for name, amount in counts.items()),
                    *(pipe.hsetnx(seen, value, hour) for value in written),
                    pipe.expire(key, 2 * HOUR_S),
                    pipe.hmget(seen, values),
                    pipe.hlen(seen),
                ]
            )
            self._of_hour |= Counter(dict(zip(counts, replies, strict=False)))
            first = zip(values, replies[-2], strict=True)
            # Beyond the bound no value is new.
            self._known |= {value for value, since in first if since is None or hour - int(since) >= _NEW_HOURS}
            self._is_full = replies[-1] >= _MAX_SEEN
        self._sampler.set_first(Counter(self._of_hour), self._known)


def read_segments(store: Store, now_s: float, hours: int) -> dict[str, Counter[str]]:
    """Read how many traces each segment had in the current hour and those before it, by rule."""
    first = int(now_s // HOUR_S) - hours + 1
    found: dict[str, Counter[str]] = {}
    keys = map(BudgetKeys(store.keys.prefix).segments, range(first, first + hours))
    for fields in store.hashes(keys):
        for field, amount in fields.items():
            rule, segment = msgspec.msgpack.decode(field, type=tuple[str, str])
            found.setdefault(rule, Counter())[segment] += int(amount)
    return found
