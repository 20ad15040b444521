"""One filter of verdicts and dead letters, for the commands that look them up and for the board."""

from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from typing import Final, Literal, NamedTuple

from judges.core.verdict import Verdict
from worker.core.queue.ledger import OutboxEntry, StoredDeadLetter

VerdictOutcome = Literal["passed", "failed", "scored", "abstained", "unscored", "dead"]
"""`scored` is a verdict whose metrics have no pass rule; `dead` an evaluation that was given up."""
FAILED: Final[frozenset[VerdictOutcome]] = frozenset({"failed", "abstained", "unscored", "dead"})
"""The outcomes that `--failed` selects: everything that did not pass."""


class VerdictFilter(NamedTuple):
    """Which verdicts or dead letters are selected; an empty or absent field accepts all."""

    services: Sequence[str] = ()  # Patterns of the service, with `*`, `?` and `[...]`, of which one matches.
    judges: Sequence[str] = ()  # Patterns of the judge.
    origin: str | None = None  # Origin of the verdict.
    outcomes: Collection[str] = ()  # Outcomes, of which one is the verdict's.
    reasons: Collection[str] = ()  # Reasons for a missing score.
    trace_ids: Collection[str] | None = None  # Traces, of which one is judged, also as a part of a conversation.
    traces: Sequence[str] = ()  # Beginnings of the id of a judged trace.
    ids: Sequence[str] = ()  # Beginnings of the evaluation id.
    since_ms: int | None = None  # Written or given up at this time or later, in milliseconds since the epoch.
    until_ms: int | None = None  # Written or given up at this time or before.

    @property
    def accepts_all(self) -> bool:
        """Whether it accepts everything."""
        return self == VerdictFilter()

    def accepts(self, item: OutboxEntry | StoredDeadLetter) -> bool:
        """Return whether a verdict or a dead letter is selected; its time is not compared."""
        outcome: VerdictOutcome
        reason: str | None
        if isinstance(item, OutboxEntry):
            verdict = item.verdict
            service, judge, origin = verdict.service, verdict.judge, verdict.origin
            outcome, reason, evaluation_id = outcome_of(item), verdict.reason, verdict.evaluation_id
            trace_ids = judged_traces(verdict)
        else:
            service, judge, origin = item.owner.service, item.evaluation.judge, item.evaluation.origin
            outcome, reason, evaluation_id = "dead", item.reason, item.evaluation.id
            trace_ids = frozenset({item.owner.trace_id})
        return (
            (not self.services or any(fnmatchcase(service, pattern) for pattern in self.services))
            and (not self.judges or any(fnmatchcase(judge, pattern) for pattern in self.judges))
            and self.origin in {None, origin}
            and (not self.outcomes or outcome in self.outcomes)
            and (not self.reasons or reason in self.reasons)
            and (self.trace_ids is None or not trace_ids.isdisjoint(self.trace_ids))
            and (not self.traces or any(name.startswith(tuple(self.traces)) for name in trace_ids))
            and evaluation_id.startswith(tuple(self.ids) or "")
        )


def outcome_of(entry: OutboxEntry) -> VerdictOutcome:
    """Return the outcome of an entry; one failing metric makes a verdict fail."""
    verdict = entry.verdict
    if entry.kind == "d":
        return "dead"
    if verdict.outcome != "scored":
        return verdict.outcome
    passed = {score.passed for score in verdict.scores}
    return "failed" if False in passed else "passed" if True in passed else "scored"


def judged_traces(verdict: Verdict) -> frozenset[str]:
    """Return the ids of the judged trace, or of all traces of the judged conversation."""
    session = verdict.details.get("session")
    joined = session.get("trace_ids") if isinstance(session, dict) else None
    return frozenset((verdict.trace_id, *(name for name in joined or () if isinstance(name, str))))
