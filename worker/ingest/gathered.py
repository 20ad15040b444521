"""Late feedback that waits for the next pass: a sorted set in Redis, and the lease of whoever makes the pass.

A member is one `f` entry, moved here by ingest in the step that acknowledged it, and taken out by the script that
deals with it. So the lease only spares work: without it two passes would do the same, and nothing twice.
"""

import secrets
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
import redis
from msgspec import Struct

from tracejudge import LateFeedback
from worker.store import Store, redis_now_ms

__all__ = ["MAX_GATHERED", "Complaint", "Gathered", "Member", "member_of"]

MAX_GATHERED: Final = 10_000
_PASS_FROM: Final = MAX_GATHERED // 2
"""So many are sought at once, and what comes meanwhile still has room."""
_LEASE_MS: Final = 15_000
_VERSION: Final = 1
_MAX_COMMENT_CHARS: Final = 1_000


class Complaint(Struct, frozen=True, kw_only=True):
    """One `f` entry as it is gathered. Version 1."""

    v: int = _VERSION
    entry_id: str
    trace_id: str
    score: float
    comment: str | None = None


class Member(NamedTuple):
    """A complaint, and the very text it is gathered under."""

    raw: str
    complaint: Complaint


def member_of(entry_id: str, feedback: LateFeedback) -> str:
    """Write a complaint; of a long comment only the beginning, since thousands of them wait at once."""
    comment = feedback.comment[:_MAX_COMMENT_CHARS] if feedback.comment else None
    complaint = Complaint(entry_id=entry_id, trace_id=feedback.trace_id, score=feedback.score, comment=comment)
    return msgspec.json.encode(complaint).decode()


class Gathered:
    """The gathered complaints of one prefix, as one worker sees them."""

    def __init__(self, store: Store, wait_s: float) -> None:
        """Begin without the lease.

        Args:
            wait_s: How long the next pass waits for what cannot be dealt with in this one.
        """
        self._store = store
        self._keys = store.keys
        self._holder = secrets.token_hex(8)
        self._wait_ms = int(wait_s * 1000)
        self._passed_at = float("-inf")

    def due(self) -> bool:
        """Tell whether it is time for a pass: the oldest has waited long enough, or many have come.

        Raises:
            StoreError: Redis did not answer.
        """

        def look(client: "redis.Redis") -> list[object]:
            pipe = client.pipeline(transaction=False)
            pipe.zcount(self._keys.feedback, "-inf", redis_now_ms(client))
            pipe.zcard(self._keys.feedback)
            return pipe.execute()

        over, gathered = self._store.call(look)
        # Many hasten a pass, but not the next one at once: they may be those that it could not deal with.
        hastens = gathered >= _PASS_FROM and time.monotonic() - self._passed_at >= self._wait_ms / 1000
        return bool(over) or hastens

    def hold(self) -> bool:
        """Take or keep the lease of the pass; False when another worker has it.

        Raises:
            StoreError: Redis did not answer.
        """
        return self._lease(_LEASE_MS)

    def release(self) -> None:
        """Give the lease back.

        Raises:
            StoreError: Redis did not answer.
        """
        self._passed_at = time.monotonic()
        self._lease(0)

    def all(self) -> list[Member]:
        """Read all that is gathered, the oldest first.

        Raises:
            StoreError: Redis did not answer.
        """
        found = self._store.call(lambda client: client.zrange(self._keys.feedback, 0, MAX_GATHERED - 1))
        read = {raw: _read(raw) for raw in found}
        strangers = [raw for raw, complaint in read.items() if complaint is None]
        if strangers:
            # What a newer version has gathered is left to a worker that knows it, and not looked at all the time.
            self.postpone(strangers)
        return [Member(raw.decode(), complaint) for raw, complaint in read.items() if complaint is not None]

    def postpone(self, raw: Sequence[bytes]) -> None:
        """Leave members to the next pass, those of them that are still gathered.

        Raises:
            StoreError: Redis did not answer.
        """

        def postpone(client: "redis.Redis") -> None:
            later = redis_now_ms(client) + self._wait_ms
            client.zadd(self._keys.feedback, dict.fromkeys(raw, later), xx=True)

        self._store.call(postpone)

    def _lease(self, length_ms: int) -> bool:
        return bool(self._store.run("hold", (self._keys.feedback_pass,), (self._holder, length_ms)))


def _read(raw: bytes) -> Complaint | None:
    try:
        complaint = msgspec.json.decode(raw, type=Complaint)
    except msgspec.DecodeError:
        return None
    return complaint if complaint.v == _VERSION else None
