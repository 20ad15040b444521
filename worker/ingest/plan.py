"""Decide what becomes of each entry: sample the traces, tally the rest, and lay it all out for the script."""

from collections import Counter
from collections.abc import Collection, Iterable

from judges.catalog import configured
from judges.verdict import Origin, evaluation_id
from worker.batches import Evaluation
from worker.ingest.draft import Draft, Plan, Shed, Tally
from worker.ingest.entries import FeedbackEntry, GoneEntry, InvalidEntry, Read, ReportEntry, TraceEntry
from worker.keys import Keys
from worker.sampling import Choice, Sampler
from worker.settings import Settings

__all__ = ["Planner", "make_evaluation"]


class Planner:
    """Makes plans under one configuration."""

    def __init__(self, settings: Settings, keys: Keys) -> None:
        """Take rules, models and sizes from the settings."""
        self._settings = settings
        self._keys = keys
        self._sampler = Sampler(settings)
        self._judges = configured(settings.judges)

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

    def complaint(self, entry: TraceEntry) -> list[tuple[str, Evaluation]]:
        """Choose evaluations, with the names of their models, for a trace of which an end user complained later."""
        choices = self._sampler.sample_complaint(entry.trace)
        return [(choice.model, self._evaluation(entry, choice, "late_feedback")) for choice in choices]

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

    def _choose(self, draft: Draft, entry: TraceEntry, choices: Iterable[Choice], shed: Collection[str]) -> None:
        kept: list[Choice] = []
        left: Counter[str] = Counter()
        for choice in choices:
            judge_model = self._judge_model(choice)
            if judge_model in shed:
                left[judge_model] += 1
            else:
                kept.append(choice)
        of_models = tuple(Shed(*each) for each in sorted(left.items()))
        if kept:
            draft.choose(entry, [(choice.model, self._evaluation(entry, choice)) for choice in kept], of_models)
        else:
            draft.tally(entry.entry_id, Tally("shed", None, entry.producer, entry.trace.service, of_models))

    def _judge_model(self, choice: Choice) -> str:
        return self._settings.models[choice.model].judge_model

    def _evaluation(self, entry: TraceEntry, choice: Choice, origin: Origin = "live") -> Evaluation:
        version = self._judges[choice.judge].version
        return make_evaluation(entry, choice, version=version, judge_model=self._judge_model(choice), origin=origin)


def make_evaluation(entry: TraceEntry, choice: Choice, *, version: str, judge_model: str, origin: Origin) -> Evaluation:
    """Make a chosen evaluation: whatever its origin, trace, judge, version and judge model make its id."""
    name = evaluation_id(
        entry.trace, entry.publication_id, judge=choice.judge, version=version, judge_model=judge_model
    )
    return Evaluation(name, choice.judge, version, choice.probability, origin)
