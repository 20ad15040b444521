"""Read dead letters: found by what tells them apart, without the texts of their traces, and piece by piece."""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec
import redis
from msgspec import Struct

from worker.batches import KNOWN_VERSIONS, Evaluation
from worker.ledger import DeadLetter
from worker.pieces import next_count
from worker.store import Store

__all__ = ["Found", "Head", "Letters", "Retry", "Wanted"]

_FIRST_PIECE_COUNT: Final = 16
_PIECE_COUNT: Final = 500
_PIECE_BYTES: Final = 4 * 1024 * 1024
"""About how much is read at once: Redis serves nobody else meanwhile."""
_T = TypeVar("_T", "Head", DeadLetter)


class _Trace(Struct, frozen=True):
    trace_id: str
    service: str
    user_id: str | None = None


class _Item(Struct, frozen=True):
    trace: _Trace


class Head(Struct, frozen=True):
    """What tells a dead letter apart. Everything else of it is passed over unread."""

    v: int
    evaluation: Evaluation
    model: str
    judge_model: str
    item: _Item
    reason: str
    attempts: int
    chosen_at: float
    given_up_at: float


class Retry(NamedTuple):
    """How a letter fares with retries: how often it was taken up by itself, and the batch it is in now, or nothing."""

    times: int = 0
    batch_id: str = ""

    @classmethod
    def read(cls, mark: bytes | None) -> "Retry":
        """Read what `dead:retries` holds."""
        if mark is None:
            return cls()
        times, _, batch_id = mark.decode().partition(" ")
        return cls(int(times), batch_id)


class Found(NamedTuple, Generic[_T]):
    """A letter or its head, its bytes, its mark in `dead:retries`, and when it was given up by Redis' clock."""

    letter: _T
    size: int
    mark: str
    given_up_ms: float

    @property
    def retry(self) -> Retry:
        """How it fares with retries."""
        return Retry.read(self.mark.encode() if self.mark else None)


class Wanted(NamedTuple):
    """Which letters; what is empty or absent takes all.

    Attributes:
        reasons: Why they were given up.
        services: Patterns of services, of which one fits.
        judges: Names of judges.
        ids: Evaluation ids, or their beginnings.
        since_ms: Given up at this time or later, in milliseconds since the epoch.
        until_ms: Given up at this time or before.
    """

    reasons: Sequence[str] = ()
    services: Sequence[str] = ()
    judges: Sequence[str] = ()
    ids: Sequence[str] = ()
    since_ms: int | None = None
    until_ms: int | None = None

    def fits(self, head: Head) -> bool:
        """Tell whether a letter is one of them, its id and time aside."""
        service = head.item.trace.service
        return (
            (not self.reasons or head.reason in self.reasons)
            and (not self.judges or head.evaluation.judge in self.judges)
            and (not self.services or any(fnmatchcase(service, pattern) for pattern in self.services))
        )


class Letters:
    """The dead letters of one prefix.

    Attributes:
        unreadable: How many were passed over so far because another version wrote them.
    """

    def __init__(self, store: Store) -> None:
        """Look at nothing yet."""
        self.unreadable = 0
        self._store = store

    def find(self, wanted: Wanted, *, newest_first: bool = True) -> Iterator[Found[Head]]:
        """Find letters, in the order of the times they were given up.

        Raises:
            StoreError: Redis did not answer.
        """
        return (found for found in self._read(self._ids(wanted, newest_first), Head) if wanted.fits(found.letter))

    def read(self, evaluation_ids: Sequence[str]) -> Iterator[Found[DeadLetter]]:
        """Read whole letters; those that are no more are left out.

        Raises:
            StoreError: Redis did not answer.
        """
        return self._read(evaluation_ids, DeadLetter)

    def heads(self, evaluation_ids: Sequence[str]) -> Iterator[Found[Head]]:
        """Read what tells letters apart; those that are none are left out.

        Raises:
            StoreError: Redis did not answer.
        """
        return self._read(evaluation_ids, Head)

    def _ids(self, wanted: Wanted, newest_first: bool) -> list[str]:  # noqa: FBT001 - handed on
        lowest = "-inf" if wanted.since_ms is None else wanted.since_ms
        highest = "+inf" if wanted.until_ms is None else wanted.until_ms
        due = self._store.keys.dead_due
        found = self._store.call(lambda client: client.zrangebyscore(due, lowest, highest))
        ids = [raw.decode() for raw in found if not wanted.ids or raw.decode().startswith(tuple(wanted.ids))]
        return ids[::-1] if newest_first else ids

    def _read(self, ids: Sequence[str], kind: type[_T]) -> Iterator[Found[_T]]:
        decoder = msgspec.json.Decoder(kind)
        position, count = 0, _FIRST_PIECE_COUNT
        while position < len(ids):
            some = ids[position : position + count]
            found = zip(*self._store.call(partial(self._get, some)), strict=True)
            position += count
            there = [(raw, mark, due) for raw, mark, due in found if raw is not None and due is not None]
            size = sum(len(raw) for raw, _, _ in there)
            count = next_count(count, len(some), size, most=_PIECE_COUNT, most_bytes=_PIECE_BYTES)
            for raw, mark, due in there:
                letter = self._decoded(decoder, raw)
                if letter is not None:
                    yield Found(letter, len(raw), (mark or b"").decode(), due)

    def _get(self, ids: Sequence[str], client: "redis.Redis") -> list[Any]:
        pipe = client.pipeline(transaction=False)
        pipe.hmget(self._store.keys.dead, list(ids))
        pipe.hmget(self._store.keys.dead_retries, list(ids))
        pipe.zmscore(self._store.keys.dead_due, list(ids))
        return pipe.execute()

    def _decoded(self, decoder: "msgspec.json.Decoder[_T]", raw: bytes) -> _T | None:
        try:
            letter = decoder.decode(raw)
        except (msgspec.DecodeError, RecursionError):
            letter = None
        if letter is not None and letter.v in KNOWN_VERSIONS:
            return letter
        self.unreadable += 1
        return None
