"""Late feedback that waits for the next pass over the stream: a sorted set in Redis, and the lease of the pass.

A member is one `f` entry. Ingest adds it in the step that acknowledges the entry, and the script `choose_late_feedback`
removes it. The lease only saves work, since two concurrent passes would do nothing twice. All methods raise StoreError
if Redis does not answer.
"""

import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec
import redis
from msgspec import Struct

from worker.core.features import ChooseLimits, IngestHook
from worker.core.selection.stream_entry import FeedbackEntry
from worker.core.storage.client import Store, StoreError, redis_now_ms
from worker.features.late_feedback.feature import FeedbackKeys

MAX_PENDING: Final = 10_000
_PASS_FROM: Final = MAX_PENDING // 2  # This many members start a pass early, so that new feedback still has room.
_LEASE_MS: Final = 15_000
_VERSION: Final = 1


class FeedbackItem(Struct, frozen=True, kw_only=True):
    """One `f` entry as it is stored. Version 1."""

    v: int = _VERSION
    entry_id: str
    trace_id: str
    score: float
    comment: str | None = None
    asked: tuple[int, ...] = ()  # The partitions that do not know the trace, in the order in which they were asked.


class FeedbackMember(NamedTuple):
    """Feedback with the exact text of its member in the sorted set."""

    raw: str
    item: FeedbackItem


class FeedbackIntake(IngestHook):
    """Keeps negative feedback until its trace is searched."""

    def __init__(self, wait_s: float) -> None:
        self._wait_ms = int(wait_s * 1000)

    def limits(self, limits: ChooseLimits) -> ChooseLimits:
        """Add how much feedback may be pending, and for how long it is gathered."""
        return limits._replace(max_pending=MAX_PENDING, feedback_wait_ms=self._wait_ms)

    def feedback(self, entry: FeedbackEntry) -> str | None:
        """Encode negative feedback; long comments are shortened, since thousands may be pending."""
        feedback = entry.feedback
        if feedback.score >= 0:
            return None
        comment = feedback.comment[:1_000] if feedback.comment else None
        item = FeedbackItem(entry_id=entry.entry_id, trace_id=feedback.trace_id, score=feedback.score, comment=comment)
        return msgspec.json.encode(item).decode()


class PendingFeedback:
    """The pending feedback of one prefix, as a worker sees it."""

    def __init__(self, store: Store, wait_s: float) -> None:
        """Begin without the lease; feedback that one pass postpones waits ``wait_s`` for the next."""
        self._store = store
        self._keys = store.keys
        self._holder = secrets.token_hex(8)
        self._wait_ms = int(wait_s * 1000)
        self._passed_at = float("-inf")

    def is_due(self) -> bool:
        """Return whether a pass should begin: the oldest feedback has waited long enough, or much is pending."""
        name, now_ms = self._keys.feedback, self._store.now_ms()
        over, pending = self._store.pipeline(lambda pipe: (pipe.zcount(name, "-inf", now_ms), pipe.zcard(name)))
        # Not right after the last pass: these may be the ones that it postponed.
        is_crowded = pending >= _PASS_FROM and time.monotonic() - self._passed_at >= self._wait_ms / 1000
        return bool(over) or is_crowded

    def acquire(self) -> bool:
        """Acquire or keep the lease of the pass; False if another worker has it."""
        return self._store.acquire_lock(self._keys.feedback_pass, self._holder, _LEASE_MS)

    def release(self) -> None:
        """Release the lease."""
        self._passed_at = time.monotonic()
        self._store.release_lock(self._keys.feedback_pass, self._holder)

    def read_all(self) -> list[FeedbackMember]:
        """Read all pending feedback, the oldest first."""
        stored = self._store.call(lambda client: client.zrange(self._keys.feedback, 0, MAX_PENDING - 1))
        members, unknown = [], []
        for raw in stored:
            with suppress(msgspec.DecodeError):
                item = msgspec.json.decode(raw, type=FeedbackItem)
                if item.v == _VERSION:
                    members.append(FeedbackMember(raw.decode(), item))
                    continue
            unknown.append(raw)
        if unknown:
            # Left to workers of a newer version, and not read again in every pass.
            self.postpone(unknown)
        return members

    def hand_over(self, member: FeedbackMember, *, asks_away: bool = True) -> bool:
        """Hand feedback on an unknown trace to a partition that was not asked; False if all were.

        The other partition takes it once, however often this is repeated, and only then it is removed here. Without
        ``asks_away`` a partition that did not answer before is not waited for once more.
        """
        asked = (*member.item.asked, self._store.partition)
        partitions = [partition for partition in self._store.partitions if partition.partition not in asked]
        if not partitions:
            return False
        # A partition that is away is asked last.
        next_partition = min(partitions, key=lambda partition: (partition.is_away, partition.partition))
        if next_partition.is_away and not asks_away:
            raise StoreError(f"partition {next_partition.partition} does not answer")
        passed = msgspec.json.encode(msgspec.structs.replace(member.item, asked=asked))
        name = f"{asked[0]}:{member.item.entry_id}"
        keys = next_partition.keys.feedback, FeedbackKeys(next_partition.keys.prefix).feedback_taken
        next_partition.run("take_feedback", keys, (passed, name, 24 * 3600))
        self._store.call(lambda client: client.zrem(self._keys.feedback, member.raw))
        return True

    def postpone(self, raw: Sequence[bytes]) -> None:
        """Leave members to the next pass, unless they were removed meanwhile."""

        def postpone(client: "redis.Redis") -> None:
            later = redis_now_ms(client) + self._wait_ms
            client.zadd(self._keys.feedback, dict.fromkeys(raw, later), xx=True)

        self._store.call(postpone)
