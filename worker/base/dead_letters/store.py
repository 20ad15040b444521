"""Finding, reading and pruning dead letters.

Letters are filtered without the texts of their traces, and read in chunks. All functions raise StoreError if Redis does
not answer.
"""

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec
import redis

from judges.core.verdict import Assessment
from tracejudge import Trace
from worker.base.lookup.verdict_filter import VerdictFilter
from worker.core.config.settings import Settings
from worker.core.queue.batch import KNOWN_VERSIONS
from worker.core.queue.ledger import DeadLetter, Ledger, StoredDeadLetter, evaluation_states
from worker.core.storage.client import Store, redis_now_ms
from worker.core.storage.group_reader import CHUNK_BYTES, next_count

_FIRST_CHUNK_COUNT: Final = 16
_CHUNK_COUNT: Final = 500
_PRUNE_COUNT: Final = 200
_MAX_PRUNE_CHUNKS: Final = 50
_T = TypeVar("_T", StoredDeadLetter, DeadLetter)
_D = TypeVar("_D", StoredDeadLetter, Trace)
_decode_letter = msgspec.json.Decoder(StoredDeadLetter).decode
_decode_trace = msgspec.json.Decoder(Trace).decode
_decode_scores = msgspec.json.Decoder(Assessment).decode
# A code of scripts/ledger.lua.
_ABSTAINED: Final = b"2"
# Final, since its scores will never exist, and neither the trace nor the endpoint is the cause.
_NOT_KEPT: Final = Assessment("unscored", "judge_failed", note="it ended before anybody wanted its scores kept")


def read_assessments(store: Store, periods: Mapping[str, str]) -> dict[str, Assessment]:
    """Read the kept scores of evaluations, given as periods by id."""
    # Evaluations that have not ended are left out, and those whose scores only newer workers read. An evaluation that
    # ended without its scores being kept, or was removed from the dead letters, is unscored here.
    kept: dict[str, Assessment] = {}
    for name, state in evaluation_states(store, periods).items():
        if not state.ended:
            continue
        if not state.scores:
            kept[name] = Assessment("abstained") if state.outcome == _ABSTAINED else _NOT_KEPT
            continue
        with suppress(msgspec.DecodeError):
            kept[name] = _decode_scores(state.scores)
    return kept


class Retry(NamedTuple):
    """The retries of a letter: how many were automatic, and the batch of the current one or empty."""

    times: int = 0
    batch_id: str = ""

    @classmethod
    def read(cls, mark: bytes | None) -> "Retry":
        """Read a mark, the value of a field of `dead:retries`."""
        if not mark:
            return cls()
        times, _, batch_id = mark.decode().partition(" ")
        return cls(int(times), batch_id)


class FoundDeadLetter(NamedTuple, Generic[_T]):
    """A letter with or without its trace, its bytes, its mark in `dead:retries`, and when Redis gave it up."""

    letter: _T
    size: int
    mark: str
    given_up_ms: float

    @property
    def retry(self) -> Retry:
        """Its retries."""
        return Retry.read(self.mark.encode())


class DeadLetterStore:
    """The dead letters in one Redis."""

    def __init__(self, store: Store) -> None:
        self.unreadable = 0  # Letters skipped so far because another version wrote them.
        self._store = store
        self._keys = store.keys

    def find(self, by: VerdictFilter, *, newest_first: bool = True) -> Iterator[FoundDeadLetter[StoredDeadLetter]]:
        """Find letters, in the order of the times they were given up."""
        lowest = "-inf" if by.since_ms is None else by.since_ms
        highest = "+inf" if by.until_ms is None else by.until_ms
        raws = self._store.call(lambda client: client.zrangebyscore(self._keys.dead_due, lowest, highest))
        # Compare ids before the letters are read, because an id selects few of them.
        prefixes = tuple(by.ids) or ""
        ids = [name for name in map(bytes.decode, raws) if name.startswith(prefixes)]
        return (dead for dead in self.heads(ids[::-1] if newest_first else ids) if by.accepts(dead.letter))

    def read(self, evaluation_ids: Sequence[str]) -> Iterator[FoundDeadLetter[DeadLetter]]:
        """Read whole letters; those that no longer exist are left out."""

        def read_traces(names: list[str], client: "redis.Redis") -> Any:
            return client.hmget(self._keys.dead_traces, names)

        for chunk in self._chunks(evaluation_ids):
            names = list(dict.fromkeys(dead.letter.trace for dead in chunk))
            position, count = 0, _FIRST_CHUNK_COUNT
            # Traces may be megabytes each, so they are read in smaller chunks; letters that share one get it once.
            while position < len(names):
                part = names[position : position + count]
                raw_traces = self._store.call(partial(read_traces, part))
                traces = dict(zip(part, raw_traces, strict=True))
                position += count
                size = sum(len(trace or b"") for trace in raw_traces)
                count = next_count(count, len(part), size, most=_CHUNK_COUNT, most_bytes=CHUNK_BYTES)
                for dead in chunk:
                    raw = traces.get(dead.letter.trace)
                    trace = self._decode(_decode_trace, raw)
                    if raw is not None and trace is not None:
                        size = dead.size + len(raw)
                        yield FoundDeadLetter(dead.letter.with_trace(trace), size, dead.mark, dead.given_up_ms)

    def heads(self, evaluation_ids: Sequence[str]) -> Iterator[FoundDeadLetter[StoredDeadLetter]]:
        """Read letters without their traces; those that no longer exist are left out."""
        for chunk in self._chunks(evaluation_ids):
            yield from chunk

    def _chunks(self, ids: Sequence[str]) -> Iterator[list[FoundDeadLetter[StoredDeadLetter]]]:
        keys = self._keys

        def read(some: list[str], pipe: "redis.client.Pipeline") -> None:
            pipe.hmget(keys.dead, some)
            pipe.hmget(keys.dead_retries, some)
            pipe.zmscore(keys.dead_due, some)

        for first in range(0, len(ids), _CHUNK_COUNT):
            some = list(ids[first : first + _CHUNK_COUNT])
            replies = zip(*self._store.pipeline(partial(read, some)), strict=True)
            existing = ((raw, mark, due) for raw, mark, due in replies if raw is not None and due is not None)
            letters = ((self._decode(_decode_letter, raw), raw, mark, due) for raw, mark, due in existing)
            yield [
                FoundDeadLetter(letter, len(raw), (mark or b"").decode(), due)
                for letter, raw, mark, due in letters
                if letter is not None
            ]

    def _decode(self, decode: Callable[[bytes], _D], raw: bytes | None) -> _D | None:
        if raw is None:
            return None
        with suppress(msgspec.DecodeError, RecursionError):
            decoded = decode(raw)
            if isinstance(decoded, Trace) or decoded.v in KNOWN_VERSIONS:
                return decoded
        self.unreadable += 1
        return None


class AllDeadLetters:
    """The dead letters of all partitions, in one order."""

    def __init__(self, store: Store) -> None:
        self.by_partition = {partition: DeadLetterStore(partition) for partition in store.reachable}

    @property
    def unreadable(self) -> int:
        """Letters skipped so far because another version wrote them."""
        return sum(letters.unreadable for letters in self.by_partition.values())

    def find(self, by: VerdictFilter, *, newest_first: bool = True) -> Iterator[FoundDeadLetter[StoredDeadLetter]]:
        """Find letters, in the order of the times they were given up."""
        by_partition = (letters.find(by, newest_first=newest_first) for letters in self.by_partition.values())
        return heapq.merge(*by_partition, key=lambda letter: letter.given_up_ms, reverse=newest_first)

    def ids(self, by: VerdictFilter) -> dict[Store, list[str]]:
        """List the evaluations of letters by partition, in each the oldest first."""
        return {
            partition: [dead.letter.evaluation.id for dead in letters.find(by, newest_first=False)]
            for partition, letters in self.by_partition.items()
        }

    def read(self, evaluation_ids: Sequence[str]) -> Iterator[FoundDeadLetter[DeadLetter]]:
        """Read whole letters; those that no longer exist are left out."""
        for letters in self.by_partition.values():
            yield from letters.read(evaluation_ids)


def prune(store: Store, settings: Settings) -> int:
    """Remove dead letters that are too old, and the oldest of too many or too large ones; return how many.

    At most 10,000 per call, two hundred in one step; the next call continues. Any number of workers may call it at
    once: each letter is removed, and counted, once. A letter whose retry is under way is removed as well, and the
    verdict of that retry no longer counts.
    """
    ledger, keys = Ledger(store, settings), store.keys
    total = 0

    def prunable(client: "redis.Redis") -> tuple[Any, int]:
        """List the oldest letters over a cap, and the bytes above which they are removed; -1 removes all of them."""
        # By Redis' clock, which dated the letters.
        oldest_ms = redis_now_ms(client) - int(settings.dead_retention * 1000)
        excess = client.zcard(keys.dead_due) - settings.max_dead
        if excess > 0:
            return client.zrange(keys.dead_due, 0, min(excess, _PRUNE_COUNT) - 1, withscores=True), -1
        expired = client.zrangebyscore(keys.dead_due, "-inf", oldest_ms, start=0, num=_PRUNE_COUNT, withscores=True)
        if expired or int(client.hget(keys.dead_refs, "bytes") or 0) <= settings.max_dead_bytes:
            return expired, -1
        return client.zrange(keys.dead_due, 0, _PRUNE_COUNT - 1, withscores=True), settings.max_dead_bytes

    for _ in range(_MAX_PRUNE_CHUNKS):
        letters, above_bytes = store.call(prunable)
        if not letters:
            break
        ids, latest_ms = [raw.decode() for raw, _ in letters], int(letters[-1][1])
        # A letter renewed meanwhile has a later time, and is kept.
        total += sum(ledger.remove(ids, given_up_until_ms=latest_ms, above_bytes=above_bytes))
    return total
