"""Decide what becomes of each entry: sample the traces, tally the rest, and lay it all out for the script."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from judges.catalog import configured
from judges.judge import Judge
from worker.ingest.choosing import Chosen, Naming
from worker.ingest.draft import Draft, Plan, Shed, Tally
from worker.ingest.entries import FeedbackEntry, GoneEntry, InvalidEntry, Read, ReportEntry, TraceEntry
from worker.keys import Keys
from worker.sampling import Choice, Sampler
from worker.seats import Seat, Seats
from worker.settings import Settings

__all__ = ["Planner"]


class Planner:
    """Makes plans under one configuration."""

    def __init__(self, settings: Settings, keys: Keys, judges: Mapping[str, Judge] | None = None) -> None:
        """Take rules, models and sizes from the settings.

        Args:
            judges: By name; those of the settings unless given.
        """
        judges = configured(settings.judges) if judges is None else judges
        seats = Seats(settings, judges)
        self._settings = settings
        self._keys = keys
        self._sampler = Sampler(settings, seats)
        self._naming = Naming(seats, {name: judge.version for name, judge in judges.items()})

    def plan(self, entries: Iterable[Read], shed: Collection[str] = frozenset()) -> Plan:
        """Sample the traces among the entries and lay out what shall become of each entry.

        Args:
            shed: Judge models for which nothing is chosen now: what the rules want of them is counted only.
        """
        draft = Draft(self._settings, self._keys)
        for entry in entries:
            match entry:
                case TraceEntry():
                    self._trace(draft, entry, shed)
                case ReportEntry():
                    draft.report(entry)
                case InvalidEntry(entry_id, producer, reason):
                    draft.tally(entry_id, Tally("invalid", reason, producer, "unknown"))
                case GoneEntry(entry_id):
                    draft.gone(entry_id)
                case FeedbackEntry():
                    self._feedback(draft, entry)
        return draft.finish()

    def complaint(self, entry: TraceEntry) -> list[Chosen]:
        """Choose evaluations for a trace of which an end user complained later."""
        return self._naming.evaluations(entry, self._sampler.sample_complaint(entry.trace), "late_feedback")

    def _feedback(self, draft: Draft, entry: FeedbackEntry) -> None:
        if entry.feedback.score >= 0:
            draft.feedback(entry, "not_negative")
        elif not self._sampler.hears_complaints:
            draft.feedback(entry, "no_rule")
        else:
            draft.gather(entry)

    def _trace(self, draft: Draft, entry: TraceEntry, shed: Collection[str]) -> None:
        choices, rules = self._sampler.sample(entry.trace)
        draft.sampled(rules)
        if choices:
            self._choose(draft, entry, choices, shed)
        else:
            outcome = "not_sampled" if rules else "no_rule"
            draft.tally(entry.entry_id, Tally(outcome, None, entry.producer, entry.trace.service))

    def _choose(self, draft: Draft, entry: TraceEntry, choices: Sequence[Choice], shed: Collection[str]) -> None:
        chosen = self._naming.evaluations(entry, choices, "live")
        if not shed:
            draft.choose(entry, chosen)
            return
        away = [_away(seat, shed) for seat, _ in chosen]
        kept = [one for one, shed_for in zip(chosen, away, strict=True) if shed_for is None]
        left = Counter(judge_model for judge_model in away if judge_model is not None)
        of_models = tuple(Shed(*each) for each in sorted(left.items()))
        if kept:
            draft.choose(entry, kept, of_models)
        else:
            draft.tally(entry.entry_id, Tally("shed", None, entry.producer, entry.trace.service, of_models))


def _away(seat: Seat, shed: Collection[str]) -> str | None:
    """Name the judge model for which a seat is given nothing now: its own, or that of a member it would wait for."""
    return next((judge_model for judge_model in (seat.judge_model, *seat.members) if judge_model in shed), None)
