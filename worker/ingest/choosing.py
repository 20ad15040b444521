"""From what the rules want of a trace to evaluations with ids: where new traces, late feedback and replays agree."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from judges.verdict import Origin, evaluation_id
from worker.batches import Evaluation, Member
from worker.ingest.entries import TraceEntry
from worker.sampling import Choice
from worker.seats import Seat, Seats

__all__ = ["Chosen", "Naming"]


class Chosen(NamedTuple):
    """One chosen evaluation, and who makes it."""

    seat: Seat
    evaluation: Evaluation


class Naming:
    """Makes evaluations: whatever their origin, trace, judge, version and judge model make their ids."""

    def __init__(self, seats: Seats, versions: Mapping[str, str]) -> None:
        """Take who judges, and the versions of judges by name."""
        self._seats = seats
        self._versions = versions

    def evaluations(self, entry: TraceEntry, choices: Sequence[Choice], origin: Origin) -> list[Chosen]:
        """Make all evaluations that are chosen for a trace."""
        return [self._chosen(entry, choice, origin) for choice in choices]

    def _chosen(self, entry: TraceEntry, choice: Choice, origin: Origin) -> Chosen:
        judge, seat = choice.judge, self._seats.named(choice.model)
        version = self._versions[judge]
        # Whether a panel is chosen too or not: late feedback or a replay may bring it later.
        keep = (judge, seat.judge_model) in self._seats.combined
        members = tuple([Member(one, _id(entry, judge, version, one)) for one in seat.members]) if seat.members else ()
        name = _id(entry, judge, version, seat.judge_model)
        return Chosen(seat, Evaluation(name, judge, version, choice.probability, origin, keep, members))


def _id(entry: TraceEntry, judge: str, version: str, judge_model: str) -> str:
    return evaluation_id(entry.trace, entry.publication_id, judge=judge, version=version, judge_model=judge_model)
