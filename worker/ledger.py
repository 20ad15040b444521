"""What counts: a verdict is once in the ledger and once in the outbox, an evaluation given up is once a dead letter."""

from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import redis
from msgspec import Struct

from judges.verdict import Assessment, Score, Verdict
from worker.batches import Evaluation, Item, fresh_id
from worker.settings import Settings
from worker.store import Store

__all__ = ["MAX_REVIVALS", "REVIVABLE", "REVIVAL_WAITS_S", "DeadLetter", "Finished", "Ledger"]

REVIVABLE: Final = frozenset(
    {"judge_unavailable", "judge_rejected", "rate_limited", "timeout", "unknown_judge_version"}
)
"""Reasons whose cause may go away by itself; an `internal_error` is a fault of ours, which stays."""
REVIVAL_WAITS_S: Final = (60.0, 600.0, 3600.0, 6 * 3600.0, 24 * 3600.0)
"""How long a dead letter waits at least before each time it is taken up by itself; then never again."""
MAX_REVIVALS: Final = len(REVIVAL_WAITS_S)
_DAY_S: Final = 86_400


_KEPT: Final = b"{"
_decode_kept = msgspec.json.Decoder(Assessment).decode
_ABSTAINED: Final = b"abstained"
# For good, since no score of it will ever be there; and the trace is not to blame, nor the endpoint.
_NOT_KEPT: Final = Assessment("unscored", "judge_failed", note="it ended before anybody wanted its scores kept")


class Finished(NamedTuple):
    """A final verdict, ready to be written: its id, its JSON, its outcome, and the reason or an empty text.

    ``kept`` is what the ledger keeps of it in place of the outcome alone.
    """

    evaluation_id: str
    payload: bytes
    outcome: str
    reason: str
    kept: bytes = b""

    @classmethod
    def of(cls, verdict: Verdict, *, keep: bool = False) -> "Finished":
        """Encode a verdict.

        Args:
            keep: Whether its scores are to be combined with others.
        """
        kept = _kept(verdict) if keep else b""
        return cls(verdict.evaluation_id, msgspec.json.encode(verdict), verdict.outcome, verdict.reason or "", kept)


class DeadLetter(Struct, frozen=True):
    """An evaluation that could not be made in time, with all it takes to try it again.

    Its version is that of batches that hold its evaluation. After ``reason`` there are only numbers: scripts find the
    reason by that.
    """

    v: int
    evaluation: Evaluation
    model: str
    judge_model: str
    item: Item
    reason: str
    attempts: int
    chosen_at: float
    given_up_at: float


class Ledger:
    """The ledger, the outbox and the dead letters, written together with the books."""

    def __init__(self, store: Store, settings: Settings) -> None:
        """Take caps and lifetimes from the settings."""
        self.store = store
        self._keys = store.keys
        self._max_outbox = settings.max_outbox
        self._ttl_s = settings.ledger_ttl_s
        # So long nothing that is dead is chosen anew; by then its letter is cut off.
        self._dead_ttl_s = int(settings.dead_retention + settings.ledger_ttl_s + _DAY_S)

    def record(self, finished: Sequence[Finished]) -> list[bool]:
        """Write verdicts; True for each that was new. Writing one twice changes nothing.

        An evaluation that was given up before is no dead letter any more.

        Raises:
            StoreError: Redis did not answer; it is safe to call again.
        """
        ledger = [self._keys.ledger(one.evaluation_id) for one in finished]
        flat = [part for one in finished for part in one]
        fresh = self.store.run("record", (*self._written(), *ledger), (self._max_outbox, self._ttl_s, *flat))
        return [answer == 1 for answer in fresh]

    def bury(self, letters: Sequence[tuple[DeadLetter, Verdict]]) -> list[bool]:
        """Give evaluations up; True for each that was not finished or given up before.

        One whose retry has failed is renewed: with its new reason, the calls of all tries, and the time of now.

        Raises:
            StoreError: Redis did not answer; it is safe to call again.
        """
        waits = ",".join(str(int(wait_s * 1000)) for wait_s in REVIVAL_WAITS_S)
        names: list[str] = []
        flat: list[bytes | str] = []
        for letter, verdict in letters:
            names += self._named(letter)
            flat += (letter.evaluation.id, msgspec.json.encode(letter), msgspec.json.encode(verdict), letter.reason)
            flat += (_made(letter), "1" if _passes(letter) else "0")
        arguments = (self._max_outbox, self._dead_ttl_s, waits, *flat)
        return [answer == 1 for answer in self.store.run("bury", (*self._written(), *names), arguments)]

    def remove(self, evaluation_ids: Sequence[str], *, given_up_until_ms: int | None = None) -> list[bool]:
        """Take dead letters out for good; True for each that was there. They count as removed, and stay finished.

        Args:
            given_up_until_ms: Only what was given up at this time or before; all of them unless given.

        Raises:
            StoreError: Redis did not answer; it is safe to call again.
        """
        if not evaluation_ids:
            return []
        _, *written = self._written()
        ledger = [self._keys.ledger(evaluation_id) for evaluation_id in evaluation_ids]
        until = "+inf" if given_up_until_ms is None else given_up_until_ms
        removed = self.store.run("dead_remove", (*written, *ledger), (self._ttl_s, until, *evaluation_ids))
        return [answer == 1 for answer in removed]

    def already_finished(self, evaluation_ids: Sequence[str]) -> set[str]:
        """Find which evaluations the ledger or the dead letters hold, those aside whose retry is under way.

        Raises:
            StoreError: Redis did not answer.
        """
        if not evaluation_ids:
            return set()
        keys, ids = self._keys, list(evaluation_ids)

        def look(client: "redis.Redis") -> list[Any]:
            pipe = client.pipeline(transaction=False)
            pipe.mget([keys.ledger(evaluation_id) for evaluation_id in ids])
            pipe.zmscore(keys.dead_due, ids)
            pipe.hmget(keys.dead_retries, ids)
            return pipe.execute()

        found = zip(ids, *self.store.call(look), strict=True)
        return {one for one, ended, dead, retry in found if _has_ended(ended, dead, retry)}

    def assessments(self, evaluation_ids: Collection[str]) -> dict[str, Assessment]:
        """Read what is kept of verdicts, by evaluation id; what has not ended, or only newer workers read, is left out.

        One that ended without its scores being kept, or was removed from the dead letters, is unscored here.

        Raises:
            StoreError: Redis did not answer.
        """
        if not evaluation_ids:
            return {}
        names = [self._keys.ledger(evaluation_id) for evaluation_id in evaluation_ids]
        found = zip(evaluation_ids, self.store.call(lambda client: client.mget(names)), strict=True)
        return {name: kept for name, entry in found if entry is not None and (kept := _read_kept(entry)) is not None}

    def _written(self) -> tuple[str, ...]:
        """Name all that the scripts write, but for what is of one evaluation."""
        keys = self._keys
        return (keys.verdicts, keys.account_now(), keys.books, keys.dead, keys.dead_due, keys.dead_retries)

    def _named(self, letter: DeadLetter) -> tuple[str, str, str]:
        keys, name = self._keys, letter.evaluation.id
        return keys.ledger(name), keys.chosen(name), keys.dead_again(letter.judge_model)


def _kept(verdict: Verdict) -> bytes:
    scores = [Score(one.metric, one.value, one.raw, one.label, one.passed) for one in verdict.scores]
    return msgspec.json.encode(Assessment(verdict.outcome, verdict.reason, tuple(scores)))


def _read_kept(entry: bytes) -> Assessment | None:
    if not entry.startswith(_KEPT):
        return Assessment("abstained") if entry == _ABSTAINED else _NOT_KEPT
    try:
        return _decode_kept(entry)
    except msgspec.DecodeError:
        return None


def _passes(letter: DeadLetter) -> bool:
    """Tell whether it may be made some day: what is combined can be as soon as its members are there."""
    return letter.reason in REVIVABLE or bool(letter.evaluation.members)


def _made(letter: DeadLetter) -> str:
    """Write when a letter's batch was made as the ids of batches say it."""
    return fresh_id(letter.judge_model, letter.chosen_at).split("-", 1)[0]


def _has_ended(outcome: bytes | None, given_up_ms: float | None, retry: bytes | None) -> bool:
    is_retried = retry is not None and not retry.endswith(b" ")
    return outcome is not None or (given_up_ms is not None and not is_retried)
