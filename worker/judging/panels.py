"""What several models found on one question, combined once the ledger holds the verdicts of them all.

A panel asks nobody. Until its members have ended it waits, and looks again; that is no try, and nothing that failed.
When the last of them must have ended or been given up, it waits no longer: those that answered are combined where they
are enough. Where they are not, it is given up for the reason a member was given up for.
"""

import asyncio
import time
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple, cast

import structlog

from judges.combine import combine
from judges.judge import Judge
from judges.verdict import Assessment, Reason
from worker.batches import Batch, Evaluation, Member
from worker.dead.letters import Letters
from worker.ledger import Ledger
from worker.seats import Seat
from worker.settings import Settings
from worker.store import StoreError

__all__ = ["Heard", "Panels"]

log = structlog.get_logger("tracejudge.judging")

_MIN_WAIT_S: Final = 1.0
_MAX_WAIT_S: Final = 30.0
_WAIT_SHARE: Final = 0.25
"""Of its age: who has waited for a minute may wait for some seconds more, and costs less by it."""
_UNKNOWN: Final[Reason] = "timeout"
"""Of a member that neither ended nor was given up."""


class Heard(NamedTuple):
    """What was heard of the members of a batch's panels, by evaluation id.

    Attributes:
        found: What those found that have ended.
        given_up: Why others were given up, once the rest is not waited for any more.
        wait_s: How long to wait for the rest before looking again; None where that has taken too long.
    """

    found: Mapping[str, Assessment] = {}
    given_up: Mapping[str, Reason] = {}
    wait_s: float | None = _MIN_WAIT_S

    def assess(self, seat: Seat, judge: Judge, evaluation: Evaluation) -> Assessment:
        """Combine what the members found; a passing reason while one that is waited for has not ended."""
        missing = [member for member in evaluation.members if member.id not in self.found]
        if not missing or self.wait_s is None:
            found = {member.judge_model: self._found_by(member) for member in evaluation.members}
            combined = combine(seat.combine, found, judge.metrics)
            if not missing or combined.outcome == "scored":
                return combined
        reason = next((self.given_up[member.id] for member in missing if member.id in self.given_up), _UNKNOWN)
        note = f"there is no verdict by {', '.join(member.judge_model for member in missing)} yet"
        return Assessment("unscored", reason, note=note, retry_after_s=self.wait_s)

    def _found_by(self, member: Member) -> Assessment:
        reason = self.given_up.get(member.id, _UNKNOWN)
        return self.found.get(member.id) or Assessment("unscored", reason)


class Panels:
    """Listens for the members of panels in one process."""

    def __init__(self, ledger: Ledger, settings: Settings) -> None:
        """Take how long to wait for members: until the last try of the last one has ended, and is known to have."""
        self._ledger = ledger
        self._letters = Letters(ledger.store)
        self._most_s = settings.give_up_after + settings.evaluation_timeout + _MAX_WAIT_S

    async def hear(self, batch: Batch) -> Heard:
        """Ask at once for all that the panels of a batch are waiting for."""
        members = {
            member.id for item in batch.items for evaluation in item.evaluations for member in evaluation.members
        }
        if not members:
            return Heard()
        age_s = time.time() - batch.created_at
        wait_s = min(_MAX_WAIT_S, max(_MIN_WAIT_S, age_s * _WAIT_SHARE))
        try:
            return await asyncio.to_thread(self._hear, members, wait_s if age_s < self._most_s else None)
        except StoreError as error:
            log.warning("verdicts to be combined cannot be read", batch=batch.id, error=str(error))
            return Heard(wait_s=wait_s)

    def _hear(self, members: AbstractSet[str], wait_s: float | None) -> Heard:
        found = self._ledger.assessments(sorted(members))
        missing = sorted(members - found.keys()) if wait_s is None else ()
        dead = (one.letter for one in self._letters.heads(missing))
        given_up = {letter.evaluation.id: cast("Reason", letter.reason) for letter in dead}
        return Heard(found, given_up, wait_s)
