"""Where a replay stands: its question, how far it has come, and what it has counted, as one hash in Redis.

The script that chooses also moves the position and counts, in the same step. So whoever goes on, after Ctrl-C, a kill
or a lost reply, goes on exactly there; and several who go on with the same replay share the work.
"""

import secrets
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec
import redis
from msgspec import Struct

from worker.replay.question import QUESTION_VERSION, Question
from worker.store import Store

__all__ = ["END", "Counts", "Cursor", "ReplayError", "State", "fresh_name", "names_of_replays"]

END: Final = ""
"""The position of a replay that is finished."""
_SCAN_COUNT: Final = 1_000
_MAX_NAMES: Final = 20


class ReplayError(Exception):
    """A replay cannot go on; the text says why and what to do."""


class Counts(NamedTuple):
    """What became of the traces and evaluations that a replay has come upon.

    Attributes:
        traces: Looked at.
        not_matching: Of another service, or not chosen by rules or rate.
        not_read: Ingest is not done with them; they are its own to choose.
        cut_off: Gone before the replay could choose them, as far as known.
        cut_off_ms: How much of the stream's time was cut off before the replay came there.
        chosen: Evaluations chosen.
        already_judged: Evaluations that were chosen before: judged, waiting, or given up.
    """

    traces: int = 0
    not_matching: int = 0
    not_read: int = 0
    cut_off: int = 0
    cut_off_ms: int = 0
    chosen: int = 0
    already_judged: int = 0


class State(NamedTuple):
    """A replay at one moment; ``next_id`` is the entry it comes to next, or `END`."""

    question: Question
    next_id: str
    counts: Counts

    @property
    def is_finished(self) -> bool:
        """Tell whether the replay has come to its end."""
        return self.next_id == END


class _Version(Struct):
    v: int


def fresh_name() -> str:
    """Make the name of a new replay."""
    return secrets.token_hex(4)


class Cursor:
    """The hash of one replay."""

    def __init__(self, store: Store, name: str, ttl_s: int) -> None:
        """Take the replay's name, and how long it is remembered after its last step."""
        self.name = name
        self.key = store.keys.replay(name)
        self._store = store
        self._ttl_s = ttl_s

    def begin(self, question: Question, next_id: str) -> State:
        """Write a new replay down.

        Raises:
            StoreError: Redis did not answer.
        """

        def write(client: "redis.Redis") -> None:
            with client.pipeline() as pipe:
                pipe.hset(self.key, mapping={"question": msgspec.json.encode(question), "next": next_id})
                pipe.expire(self.key, self._ttl_s)
                pipe.execute()

        self._store.call(write)
        return State(question, next_id, Counts())

    def read(self) -> State:
        """Read how far the replay has come.

        Raises:
            ReplayError: There is no such replay, or this version cannot read it.
            StoreError: Redis did not answer.
        """
        return self.state_of(self._store.call(lambda client: client.hgetall(self.key)))

    def state_of(self, found: Mapping[bytes, bytes]) -> State:
        """Read what the hash holds.

        Raises:
            ReplayError: It holds nothing, or nothing that this version can read.
        """
        if not found:
            raise ReplayError(f"Redis knows no replay {self.name!r} (any more); begin anew, nothing is judged twice")
        counts = Counts(*(int(found.get(name.encode(), 0)) for name in Counts._fields))
        return State(self._question(found[b"question"]), found[b"next"].decode(), counts)

    def _question(self, raw: bytes) -> Question:
        if msgspec.json.decode(raw, type=_Version).v != QUESTION_VERSION:
            raise ReplayError(f"replay {self.name!r} was begun by another version of tracejudge; begin anew")
        return msgspec.json.decode(raw, type=Question)


def names_of_replays(store: Store) -> list[str]:
    """List the replays that Redis remembers, some of very many.

    Raises:
        StoreError: Redis did not answer.
    """
    start = store.keys.replay("")
    found = store.call(lambda client: list(client.scan_iter(f"{start}*", count=_SCAN_COUNT)))
    return sorted(key.decode().removeprefix(start) for key in found)[:_MAX_NAMES]
