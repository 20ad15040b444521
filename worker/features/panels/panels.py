"""Panels: combine the verdicts of several judge models on one question.

A panel calls no model. It is parked, without counting a try, until the ledger has the verdicts of its members. Once
the last of them must have ended or been given up, those that answered are combined if they are enough; otherwise the
panel is given up for the reason of a member.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Final, NamedTuple, cast

import structlog
from prometheus_client import Gauge

from judges.core.combine import GROUNDED_AND_RELEVANT, JUDGE_PAIR, combine, join
from judges.core.judge import Judge
from judges.core.verdict import Assessment, Reason
from worker.base.dead_letters.store import DeadLetterStore, read_assessments
from worker.core.config.graders import Grader
from worker.core.config.settings import Settings
from worker.core.queue.batch import Batch, Evaluation
from worker.core.queue.ledger import Ledger
from worker.core.storage.client import StoreError
from worker.core.telemetry.metrics import Metric, MetricTable

log = structlog.get_logger("tracejudge.judging")
_MIN_WAIT_S: Final = 1.0
_MAX_WAIT_S: Final = 30.0
_UNKNOWN: Final[Reason] = "timeout"  # The reason of a member that neither ended nor was given up.


class PanelMetrics(MetricTable):
    """The gauges of panels."""

    # fmt: off
    panel_member = Metric(Gauge, "panel_member", "boolean", ("judge", "judge_model"),
        "1 where rules use a judge model's verdicts only as a member of a panel")


class PanelVotes(NamedTuple):
    """The verdicts of the members of a batch's panels, by evaluation id."""

    assessments: Mapping[str, Assessment] = {}  # Of members that have ended.
    given_up: Mapping[str, Reason] = {}  # Why members were given up; empty while the rest is waited for.
    wait_s: float | None = _MIN_WAIT_S  # Seconds until the rest is read again; None if it has taken too long.

    def combine(self, grader: Grader, judge: Judge, evaluation: Evaluation) -> Assessment:
        """Combine the members' assessments; a passing reason while a member that counts has not ended."""
        missing = [member for member in evaluation.members if member.id not in self.assessments]
        if not missing or self.wait_s is None:
            is_joint = judge.name == GROUNDED_AND_RELEVANT.name
            names = JUDGE_PAIR if is_joint else (member.judge_model for member in evaluation.members)
            votes = {
                name: self.assessments.get(member.id) or Assessment("unscored", self.given_up.get(member.id, _UNKNOWN))
                for name, member in zip(names, evaluation.members, strict=True)
            }
            combined = join(votes) if is_joint else combine(grader.combine, votes, judge.metrics)
            if not missing or combined.outcome == "scored":
                return combined
        reason = next((self.given_up[member.id] for member in missing if member.id in self.given_up), _UNKNOWN)
        note = f"there is no verdict by {', '.join(member.judge_model for member in missing)} yet"
        return Assessment("unscored", reason, note=note, retry_after_s=self.wait_s)


class Panels:
    """Assesses the evaluations of panels, for one process."""

    def __init__(self, ledger: Ledger, settings: Settings, graders: Mapping[str, Grader]) -> None:
        """Keep the graders of panels by the judge model that names them."""
        self._store = ledger.store
        self._graders = graders
        self._dead_letters = DeadLetterStore(ledger.store)
        # By then the last try of the last member must have ended.
        self._max_age_s = settings.give_up_after + settings.evaluation_timeout + _MAX_WAIT_S

    def assess(self, votes: PanelVotes, judge: Judge, evaluation: Evaluation, judge_model: str) -> Assessment | None:
        """Combine the votes on an evaluation of a panel; None for every other evaluation."""
        return votes.combine(self._graders[judge_model], judge, evaluation) if evaluation.members else None

    async def prepare(self, batch: Batch) -> PanelVotes:
        """Read the verdicts of all members that the panels of a batch wait for."""
        members = {
            member.id: evaluation.period
            for item in batch.items
            for evaluation in item.evaluations
            for member in evaluation.members
        }
        if not members:
            return PanelVotes()
        age_s = time.time() - batch.created_at
        # A quarter of its age: after a minute of waiting some seconds more cost little, and each read costs something.
        wait_s = min(_MAX_WAIT_S, max(_MIN_WAIT_S, age_s / 4))
        is_over = age_s >= self._max_age_s

        def read() -> PanelVotes:
            assessments = read_assessments(self._store, members)
            missing = sorted(members.keys() - assessments.keys()) if is_over else ()
            dead = (head.letter for head in self._dead_letters.heads(missing))
            given_up = {letter.evaluation.id: cast("Reason", letter.reason) for letter in dead}
            return PanelVotes(assessments, given_up, None if is_over else wait_s)

        try:
            return await asyncio.to_thread(read)
        except StoreError as error:
            log.warning("panel verdicts not readable", batch=batch.id, error=str(error))
            return PanelVotes(wait_s=wait_s)
