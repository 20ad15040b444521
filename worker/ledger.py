"""What counts: a verdict is once in the ledger and once in the outbox, an evaluation given up is once a dead letter."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from msgspec import Struct

from judges.verdict import Verdict
from worker.batches import Evaluation, Item
from worker.settings import Settings
from worker.store import Store

__all__ = ["DeadLetter", "Finished", "Ledger"]


class Finished(NamedTuple):
    """A final verdict, ready to be written: its id, its JSON, its outcome, and the reason or an empty text."""

    evaluation_id: str
    payload: bytes
    outcome: str
    reason: str

    @classmethod
    def of(cls, verdict: Verdict) -> "Finished":
        """Encode a verdict."""
        return cls(verdict.evaluation_id, msgspec.json.encode(verdict), verdict.outcome, verdict.reason or "")


class DeadLetter(Struct, frozen=True):
    """An evaluation that could not be made in time, with all it takes to try it again. Version 1."""

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
        self._store = store
        self._keys = store.keys
        self._max_outbox = settings.max_outbox
        self._ttl_s = settings.ledger_ttl_s

    def record(self, finished: Sequence[Finished]) -> list[bool]:
        """Write verdicts; True for each that was new. Writing one twice changes nothing.

        An evaluation that was given up before is no dead letter any more.

        Raises:
            StoreError: Redis did not answer; it is safe to call again.
        """
        ledger = [self._keys.ledger(one.evaluation_id) for one in finished]
        flat = [part for one in finished for part in one]
        fresh = self._store.run("record", self._written(ledger), (self._max_outbox, self._ttl_s, *flat))
        return [answer == 1 for answer in fresh]

    def bury(self, letters: Sequence[tuple[DeadLetter, Verdict]]) -> list[bool]:
        """Give evaluations up; True for each that was not finished or given up before.

        Raises:
            StoreError: Redis did not answer; it is safe to call again.
        """
        ledger = [self._keys.ledger(letter.evaluation.id) for letter, _ in letters]
        flat: list[bytes | str] = []
        for letter, verdict in letters:
            flat += (letter.evaluation.id, msgspec.json.encode(letter), msgspec.json.encode(verdict), letter.reason)
        buried = self._store.run("bury", self._written(ledger), (self._max_outbox, *flat))
        return [answer == 1 for answer in buried]

    def already_finished(self, evaluation_ids: Sequence[str]) -> set[str]:
        """Find which evaluations the ledger or the dead letters hold.

        Raises:
            StoreError: Redis did not answer.
        """
        if not evaluation_ids:
            return set()
        ledger = [self._keys.ledger(evaluation_id) for evaluation_id in evaluation_ids]
        in_ledger, dead = self._store.call(
            lambda client: (client.mget(ledger), client.hmget(self._keys.dead, list(evaluation_ids)))
        )
        found = zip(evaluation_ids, in_ledger, dead, strict=True)
        return {evaluation_id for evaluation_id, one, other in found if one is not None or other is not None}

    def _written(self, ledger: Sequence[str]) -> tuple[str, ...]:
        """Name all that the scripts write."""
        keys = self._keys
        return (keys.verdicts, keys.account_now(), keys.books, keys.dead, keys.dead_due, *ledger)
