"""Series of the monitor: their labels, their keys in Redis, and the sums that are stored of them.

A series is one metric of one judge version and judge model for one service and environment; a segment of it is another
series. Sums are kept in buckets of five minutes for 3 days and of an hour for 90 days, those of whole series besides in
buckets of ten seconds for an hour, see scripts/quality.lua.
"""

import binascii
import datetime as dt
import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Final, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from judges.agreement.shares import ClassSums, SessionSums, Sums, Unjudged, sum_unjudged, weight_class
from judges.core.verdict import Verdict, joined_parts
from worker.base.monitor.feature import MonitorKeys, tag_of
from worker.core.config.settings import MAX_SEGMENT_VALUE_CHARS
from worker.core.storage.client import Store

T = TypeVar("T")
TEN_SECONDS_S: Final = 10
TEN_MINUTES_S: Final = 600
FIVE_MINUTES_S: Final = 300
HOUR_S: Final = 3600
DAY_S: Final = 24 * HOUR_S
STATE_TTL_S: Final = 90 * DAY_S  # How long the state of a series without verdicts is kept.
FINE_DAYS: Final = 3
COARSE_DAYS: Final = 90
CLUSTER_PERIOD_S: Final = 6 * HOUR_S
"""A session that is longer than this, or crosses its end, counts as several clusters."""
TRACE_PERIOD_S: Final = HOUR_S // 2
"""The same for a trace without a session, whose spans are judged within minutes; there are more of these to keep."""
CLUSTER_PARTS: Final = 8
VERSION_DIGITS: Final = 8
_EQUAL_WEIGHTS_NUMBERS: Final = 3
"""Judgements, passes and weight, in place of the sums of a class whose judgements all have the same weight."""


class Series(Struct, frozen=True, array_like=True):
    """The labels of one series; ``segment`` and ``value`` are empty for the whole of it."""

    service: str
    environment: str
    judge: str
    version: str
    judge_model: str
    metric: str
    segment: str = ""
    value: str = ""

    @property
    def id(self) -> str:
        """The name of the series in keys, 16 hex digits."""
        return hashlib.blake2b(joined_parts(*msgspec.structs.astuple(self)), digest_size=8).hexdigest()

    @property
    def segment_name(self) -> str:
        """The segment as labels and logs write it, empty for the whole."""
        return f"{self.segment}={self.value}" if self.segment else ""

    @property
    def labels(self) -> tuple[str, str, str, str, str]:
        """The labels of its gauges without metric and segment."""
        return (self.service, self.environment, self.judge, self.version, self.judge_model)

    @property
    def log_fields(self) -> dict[str, str | None]:
        """The labels as logs write them, without the segment."""
        return {
            "service": self.service,
            "environment": self.environment or None,
            "judge": self.judge,
            "version": self.version,
            "judge_model": self.judge_model,
            "metric": self.metric,
        }


class Bucket(NamedTuple):
    """The sums of one bucket; its time is in seconds since the epoch."""

    begins_at: float
    sums: Sums
    abstained: Unjudged
    inapplicable: Unjudged  # Unscored because the judge does not apply; those that are unknown are in ``sums``.

    @property
    def unscored(self) -> Unjudged:
        """All verdicts without a score."""
        return sum_unjudged((self.inapplicable, self.sums.unknown))

    @property
    def verdicts(self) -> int:
        """The number of all verdicts."""
        return self.sums.total.judgements + self.abstained.verdicts + self.unscored.verdicts


class Place(NamedTuple):
    """The keys and fields of the buckets of a time."""

    hour_key: str
    hour: str
    five_key: str
    five: str
    ten_key: str
    ten: str


def series_of(verdict: Verdict, segments: Sequence[str]) -> Iterator[Series]:
    """Yield the series that each metric of a verdict belongs to, the whole first."""
    values = [(name, value) for name in segments if (value := segment_value(verdict, verdict.tags, name))]
    for metric in verdict.metrics:
        labels = (
            verdict.service,
            verdict.environment or "",
            verdict.judge,
            verdict.judge_version[:VERSION_DIGITS],
            verdict.judge_model,
            metric,
        )
        yield Series(*labels)
        for segment in values:
            yield Series(*labels, *segment)


def segment_value(labels: object, tags: Mapping[str, str], segment: str) -> str:
    """Return the value of a segment, empty if it has none; ``labels`` has the fields of a verdict."""
    value = getattr(labels, segment) if (tag := tag_of(segment)) is None else tags.get(tag)
    return (value or "")[:MAX_SEGMENT_VALUE_CHARS]


def is_unknown(verdict: Verdict) -> bool:
    """Return whether a verdict was withheld, as filters do of the worst; a judge that does not apply is none."""
    return verdict.outcome == "unscored" and verdict.reason != "missing_input"


@lru_cache(1024)
def class_of(weight: float) -> str:
    """Return the class of a weight as a letter, A for weights from 1 to below 2."""
    return chr(ord("A") + min(25, max(0, weight_class(weight))))


def cluster_of(name: str) -> str:
    """Return a short name of a session, or of a trace without one."""
    # Two sessions with the same name within a period would count as one: 1 of 10^7 among 7,500.
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=6).digest()
    return binascii.b2a_base64(digest, newline=False).decode()


def utc_minute(at: float) -> str:
    """Write a time as labels and logs do, as 2026-11-23T10:05Z."""
    return f"{dt.datetime.fromtimestamp(at, dt.UTC):%Y-%m-%dT%H:%MZ}"


def utc_days(since: float, until: float) -> list[dt.date]:
    """List the days of two times and those between them."""
    first, last = (dt.datetime.fromtimestamp(at, dt.UTC).date() for at in (since, until))
    return [first + dt.timedelta(days) for days in range((last - first).days + 1)]


def place(keys: MonitorKeys, series_id: str, at: float) -> Place:
    """Name the buckets of a time, in seconds since the epoch."""
    time = dt.datetime.fromtimestamp(at, dt.UTC)
    day = keys.quality(series_id, time.date().isoformat())
    hour = f"{day}:{time.hour:02d}"
    ten = f"{time.minute % 10 * 6 + time.second // 10:02d}"
    return Place(day, f"{time.hour:02d}", hour, f"{time.minute // 5:02d}", f"{hour}:{time.minute // 10}", ten)


def read_buckets(
    store: Store, series_ids: Iterable[str], since: float, until: float, *, fine: bool
) -> Iterator[list[Bucket]]:
    """Yield of each series its buckets in a span of time, ``fine`` ones of five minutes for 3 days, else of an hour."""
    size = _Size(HOUR_S, FIVE_MINUTES_S, "five_key") if fine else _Size(DAY_S, HOUR_S, "hour_key")
    return _read(store, series_ids, since, until, size)


def read_newest_buckets(store: Store, series_ids: Iterable[str], since: float, until: float) -> Iterator[list[Bucket]]:
    """Yield of each series the buckets of ten seconds, which are kept for an hour; segments have none."""
    return _read(store, series_ids, since, until, _Size(TEN_MINUTES_S, TEN_SECONDS_S, "ten_key"))


class _Size(NamedTuple):
    """The seconds of a hash and of each bucket in it, and the field of `Place` that names it."""

    length: int
    step: int
    key: str


def _read(store: Store, series_ids: Iterable[str], since: float, until: float, size: _Size) -> Iterator[list[Bucket]]:
    length, step, key = size
    begins = range(int(since // length) * length, math.ceil(until), length)
    ids, keys = iter(series_ids), MonitorKeys(store.keys.prefix)
    while some := list(islice(ids, max(1, 2_500 // max(1, len(begins))))):
        places = [place(keys, series_id, at) for series_id in some for at in begins]
        hashes = iter(store.read_hashes([getattr(spot, key) for spot in places]))
        for _ in some:
            yield [
                bucket
                for at, fields in zip(begins, hashes, strict=False)
                for bucket in _buckets(at, step, fields)
                if since <= bucket.begins_at < until
            ]


def _buckets(begins_at: float, step: int, fields: Mapping[bytes, bytes]) -> list[Bucket]:
    stored: dict[int, dict[str, list[float]]] = {}
    for field, value in sorted(fields.items()):
        stored.setdefault(int(field[:2]), {})[field[2:].decode()] = msgspec.msgpack.decode(value, type=list[float])
    return [
        Bucket(begins_at + number * step, _sums(kinds), _unjudged(kinds, "a"), _unjudged(kinds, "u"))
        for number, kinds in stored.items()
    ]


def _sums(kinds: Mapping[str, Sequence[float]]) -> Sums:
    sums = Sums()
    for kind, numbers in kinds.items():
        if kind.isupper():
            if len(numbers) == _EQUAL_WEIGHTS_NUMBERS:
                judgements, passes, w = numbers
                of_class = ClassSums(int(judgements), judgements * w, passes * w, judgements * w * w, passes * w * w)
            else:
                of_class = ClassSums(int(numbers[0]), *numbers[1:])
            sums.classes[ord(kind) - ord("A")] = of_class
    total = sums.total
    # Stored is the excess over sums in which each judgement is a session by itself.
    # Sums of version 0.2 lack the last two.
    later, weights, products, passed, cubes, fourths = (*kinds.get("s", (0, 0, 0, 0)), 0, 0)[:6]
    sums.over_sessions = SessionSums(
        total.judgements - int(later),
        total.squares + weights,
        total.passed_squares + products,
        total.passed_squares + passed,
        cubes,
        fourths,
    )
    sums.unknown = _unjudged(kinds, "x")
    return sums


def _unjudged(kinds: Mapping[str, Sequence[float]], kind: str) -> Unjudged:
    verdicts, weight, squares = kinds.get(kind, (0, 0, 0))
    return Unjudged(int(verdicts), weight, squares)


def read_states(store: Store, names: Mapping[str, str], of_type: type[T]) -> dict[str, T]:
    """Read the stored states of series, given keys of Redis by series id; a new state if nothing is stored."""
    stored = store.pipeline(lambda pipe: [pipe.get(name) for name in names.values()])
    return {
        series_id: msgspec.msgpack.decode(raw, type=of_type) if raw else of_type()
        for series_id, raw in zip(names, stored, strict=True)
    }


def write_states(store: Store, states: Mapping[str, object]) -> None:
    """Store states of series by key of Redis."""
    values = {name: msgspec.msgpack.encode(state) for name, state in states.items()}
    store.pipeline(lambda pipe: [pipe.set(name, value, ex=STATE_TTL_S) for name, value in values.items()])


def read_series(store: Store) -> dict[str, Series]:
    """Read all series by id."""
    fields = store.call(lambda client: client.hgetall(MonitorKeys(store.keys.prefix).quality_series))
    return {raw.decode(): msgspec.json.decode(labels, type=Series) for raw, labels in fields.items()}
