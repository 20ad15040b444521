"""From what the rules want of a trace to evaluations with ids: where new traces, late feedback and replays agree.

An id is that of ``judges.verdict.evaluation_id``. Ingest makes several of each trace, so what is the same for all of a
trace is written once for it, and what is the same for all traces once at all.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from judges.verdict import Origin
from worker.batches import Evaluation, Member
from worker.ingest.entries import TraceEntry
from worker.sampling import Choice
from worker.seats import Seat, Seats

__all__ = ["Chosen", "Naming"]


class Chosen(NamedTuple):
    """One chosen evaluation, and who makes it."""

    seat: Seat
    evaluation: Evaluation


class _Wanted(NamedTuple):
    """What evaluations of all traces have in common that one seat makes by one judge.

    Attributes:
        end: What their ids are made of behind the trace.
        members: The same of those that are combined, each with its judge model.
    """

    seat: Seat
    version: str
    keep: bool
    end: bytes
    members: tuple[tuple[str, bytes], ...]


class Naming:
    """Makes evaluations: whatever their origin, trace, judge, version and judge model make their ids."""

    def __init__(self, seats: Seats, versions: Mapping[str, str]) -> None:
        """Take who judges, and the versions of judges by name."""
        self._seats = seats
        self._versions = versions
        self._known: dict[tuple[str, str], _Wanted] = {}

    def evaluations(self, entry: TraceEntry, choices: Sequence[Choice], origin: Origin) -> list[Chosen]:
        """Make all evaluations that are chosen for a trace."""
        begin = _written(entry.trace.trace_id, entry.trace.span_id or "", entry.publication_id)
        return [self._chosen(begin, choice, origin) for choice in choices]

    def _chosen(self, begin: bytes, choice: Choice, origin: Origin) -> Chosen:
        judge = choice.judge
        wanted = self._known.get((judge, choice.model)) or self._wanted(judge, choice.model)
        members = tuple([Member(name, _id(begin, end)) for name, end in wanted.members]) if wanted.members else ()
        name = _id(begin, wanted.end)
        return Chosen(
            wanted.seat, Evaluation(name, judge, wanted.version, choice.probability, origin, wanted.keep, members)
        )

    def _wanted(self, judge: str, seat_name: str) -> _Wanted:
        seat, version = self._seats.named(seat_name), self._versions[judge]
        # Whether a panel is chosen too or not: late feedback or a replay may bring it later.
        keep = (judge, seat.judge_model) in self._seats.combined
        members = tuple((member, _end(judge, version, member)) for member in seat.members)
        wanted = _Wanted(seat, version, keep, _end(judge, version, seat.judge_model), members)
        self._known[judge, seat_name] = wanted
        return wanted


def _end(judge: str, version: str, judge_model: str) -> bytes:
    return _written(judge, version, judge_model, "0")


def _written(*parts: str) -> bytes:
    return "".join([f"{len(part)}:{part};" for part in parts]).encode()


def _id(begin: bytes, end: bytes) -> str:
    return hashlib.blake2b(begin + end, digest_size=16).hexdigest()
