"""Factors of rules' rates: the active monitor writes them, ingest reads them every few seconds.

Ingest also counts the traces of each segment of the rules that divide their rate, from which the monitor computes them.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Final

import msgspec
import structlog
from msgspec import Struct, structs

from tracejudge import Trace
from worker.core.config.settings import Settings
from worker.core.features import IngestHook
from worker.core.selection.sampling import CompiledRule
from worker.core.storage.client import Store, StoreError
from worker.features.budgets.feature import FIRST_PER_HOUR, STRATIFY, BudgetKeys

log = structlog.get_logger("tracejudge.sampling")
_ingest_log = structlog.get_logger("tracejudge.ingest")
HOUR_S: Final = 3600
_EVERY_S: Final = 5.0
_NEW_HOURS: Final = 24
_MAX_SEEN: Final = 10_000
_MAX_SEGMENTS: Final = 1_000  # A label whose values have no end, such as a random name, must not fill Redis.
_MAX_SEGMENT_CHARS: Final = 100
_NEW_LABELS: Final = ("service", "model", "release")
# Further new values of an hour choose no trace by themselves: names without end must not fill the memory.
_MAX_NEW: Final = 1_000

NewValue = tuple[tuple[str, str], int]
"""A rule with a value that may be new, and how many of its traces the rule chooses in an hour."""


class Rates(Struct, frozen=True, omit_defaults=True):
    """Factors of rates by rule, and by rule and segment."""

    factors: Mapping[str, float] = {}
    segments: Mapping[str, Mapping[str, float]] = {}

    def write(self, store: Store) -> None:
        """Write them to Redis; they expire if no monitor renews them."""
        key = BudgetKeys(store.keys.prefix).rates
        store.call(lambda client: client.set(key, msgspec.json.encode(self), ex=HOUR_S))


class RateAdjuster(IngestHook):
    """Adjusts the rates of rules by the factors in Redis, and writes counts there; for the thread that samples."""

    def __init__(self, settings: Settings, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._keys = BudgetKeys(store.first.keys.prefix)
        self._clock = clock
        self._next = 0.0
        self._counts: Counter[tuple[str, str]] = Counter()
        self.rates = Rates()  # The factors; without any in Redis, rates are whole.
        self.new_values = NewValues(store.first)  # Chooses the first traces of new values.
        self._applied = self.rates, self.new_values.known
        self._labels = {rule.name: labels for rule in settings.rules if (labels := STRATIFY.read(rule))}
        self._first_of = {rule.name: most for rule in settings.rules if (most := FIRST_PER_HOUR.read(rule))}
        self.fields = {*chain(*self._labels.values()), *(_NEW_LABELS if self._first_of else ())}

    def before_read(self) -> bool:
        """Exchange factors and counts every few seconds if Redis answers; return whether rates or new values change."""
        now = self._clock()
        if not 0 <= self._next - now <= _EVERY_S:
            self._next = now + _EVERY_S
            try:
                self._exchange(now)
            except StoreError as error:
                # The first partition is away: the factors stay as they are, and this stream is read on.
                if self._store is self._store.first:
                    raise
                _ingest_log.warning("factors of rates not exchanged", error=str(error))
        before, self._applied = self._applied, (self.rates, self.new_values.known)
        return before != self._applied

    def adjust(
        self, rules: Sequence[CompiledRule], trace: Trace
    ) -> tuple[Sequence[CompiledRule], Callable[[], Collection[str]] | None]:
        """Multiply rates by the factors of rules and segments; count traces of segments and of new values."""
        segments, matching = {}, [compiled.rule.name for compiled in rules]
        for rule in filter(self._labels.__contains__, matching):
            # The values of the rule's labels, which may be long, in one text; Redis and JSON take no lone surrogates.
            text = "\n".join((getattr(trace, label) or "")[:_MAX_SEGMENT_CHARS] for label in self._labels[rule])
            segments[rule] = text.encode("utf-8", "replace").decode()
        # The values that may be new: the service, and the model and release within it.
        names = (trace.service, *(f"{trace.service}\n{part}={getattr(trace, part)}" for part in ("model", "release")))
        values = [name[:_MAX_SEGMENT_CHARS].encode("utf-8", "replace").decode() for name in names]
        new = tuple(
            ((rule, value), self._first_of[rule])
            for rule in filter(self._first_of.__contains__, matching)
            for value in values
            if value not in self.new_values.known
        )
        first = partial(self._first, tuple(segments.items()), new) if segments or new else None
        return [self._adjusted(compiled, segments.get(compiled.rule.name, "")) for compiled in rules], first

    def _adjusted(self, compiled: CompiledRule, segment: str) -> CompiledRule:
        rule = compiled.rule
        rate = rule.rate * self.rates.factors.get(rule.name, 1.0)
        # An unknown segment has the mean rate.
        factor = self.rates.segments.get(rule.name, {}).get(segment, 1.0)
        rate = min(1.0, rate * factor) if factor != 1.0 else rate
        return compiled._replace(rule=structs.replace(rule, rate=rate))

    def _first(self, segments: Sequence[tuple[str, str]], new: Sequence[NewValue]) -> Collection[str]:
        """Count a trace; return the rules that choose it as one of the first with a new value."""
        for segment in segments:
            self._counts[segment] += 1
        return self.new_values.choose(new) if new else ()

    def _exchange(self, now: float) -> None:
        store = self._store.first
        if self._counts:
            counts, self._counts = self._counts, Counter()
            key, frequent = self._keys.segments(int(now // HOUR_S)), counts.most_common(_MAX_SEGMENTS)
            store.pipeline(
                lambda pipe: [
                    *(pipe.hincrby(key, msgspec.msgpack.encode(name), amount) for name, amount in frequent),
                    pipe.expire(key, 4 * HOUR_S),
                ]
            )
        self.new_values.exchange(int(now // HOUR_S))
        stored = store.call(lambda client: client.get(self._keys.rates))
        try:
            rates = msgspec.json.decode(stored or b"{}", type=Rates)
        except msgspec.DecodeError:
            log.warning("factors of rates are unreadable", key=self._keys.rates)
            return
        if rates != self.rates:
            self.rates = rates
            log.info("rates changed", factors=rates.factors)


class NewValues:
    """Chooses the first traces of new values in an hour, of all workers together."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._keys = BudgetKeys(store.keys.prefix)
        self._has_read = False
        self.known: frozenset[str] = frozenset()  # The values that are not new any more.
        self._hour = 0
        # Traces of this hour that rules choose: of all workers until the last exchange, the same plus our own since
        # then, and our own alone.
        self._exchanged: Counter[tuple[str, str]] = Counter()
        self._of_hour: Counter[tuple[str, str]] = Counter()
        self._own: Counter[tuple[str, str]] = Counter()
        self._is_full = False

    def choose(self, new: Sequence[NewValue]) -> set[str]:
        """Count a trace for its new values; return the rules that choose it as one of the first."""
        rules, of_hour = set(), self._of_hour
        for value, most in new:
            count = of_hour.get(value, 0)
            # Beyond that many the count changes nothing.
            if count < most and (count or len(of_hour) < _MAX_NEW):
                rules.add(value[0])
                of_hour[value] = count + 1
                self._own[value] += 1
        return rules

    def exchange(self, hour: int) -> None:
        """Add our counts to the counts of all workers, and learn which values are not new."""
        seen, key = self._keys.seen, self._keys.first(hour)
        if not self._has_read:
            # A worker that starts must not take every value for new.
            stored = self._store.call(lambda client: client.hgetall(seen))
            self.known = frozenset(name.decode() for name, first in stored.items() if hour - int(first) >= _NEW_HOURS)
            self._has_read = True
        if hour != self._hour:
            self._hour, self._exchanged = hour, Counter()
        if self._own:
            counts, self._own = self._own, Counter()
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
            self._exchanged |= Counter(dict(zip(counts, replies, strict=False)))
            first = zip(values, replies[-2], strict=True)
            # Beyond the bound no value is new.
            self.known |= {value for value, since in first if since is None or hour - int(since) >= _NEW_HOURS}
            self._is_full = replies[-1] >= _MAX_SEEN
        self._of_hour = Counter(self._exchanged)


def read_segments(store: Store, now_s: float, hours: int) -> dict[str, Counter[str]]:
    """Read how many traces each segment had in the current hour and those before it, by rule."""
    first = int(now_s // HOUR_S) - hours + 1
    counts: dict[str, Counter[str]] = {}
    keys = map(BudgetKeys(store.keys.prefix).segments, range(first, first + hours))
    for fields in store.read_hashes(keys):
        for field, amount in fields.items():
            rule, segment = msgspec.msgpack.decode(field, type=tuple[str, str])
            counts.setdefault(rule, Counter())[segment] += int(amount)
    return counts
