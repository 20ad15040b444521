"""The outcome of every entry of one read: traces are sampled, all others are counted, as ``choose.lua`` applies it."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from worker.core.config.settings import Settings
from worker.core.features import IngestHook, collect_limits, find_single
from worker.core.selection.batch_writer import BatchWriter
from worker.core.selection.evaluations import EvaluationFactory, leave_out_shed, told_marks
from worker.core.selection.sampling import RuleTally, Sampler, Sampling
from worker.core.selection.stream_entry import FeedbackEntry, InvalidEntry, ReportEntry, StreamEntry, TraceEntry
from worker.core.storage.keys import Keys

# Redis serves no other client while the script of a plan runs: about 3 ms for so much, where a chosen trace takes
# fifteen times as long as one that is only counted.
_MAX_COST: Final = 1_000
_COST_OF_CHOSEN: Final = 15


class Tally(NamedTuple):
    """Common properties of entries that end in ingest.

    Attributes:
        shed: How many evaluations of each entry are not chosen because their judge model is away, by judge model.
    """

    outcome: str
    reason: str | None
    producer: str | None
    service: str
    shed: tuple[tuple[str, int], ...] = ()


@dataclass(slots=True)
class Plan:
    """The outcomes of one read.

    Attributes:
        writer: Collects the keys and payloads of the script's call.
        first, last: Ids of the first and last entry of the read.
        tallies: Ids of entries that end here, by their common properties; in the order of the script's answer.
        traces: Traces with a chosen evaluation or conversation; in the order of the script's answer.
        reports: Reports of producers; in the order of the script's answer.
        services: The service of each producer, by the index of the producer's key.
        rules: How many traces each rule matched, and whether it chose them.
        keys, arguments, bodies: The call of `choose`, set by ``Planner.plan`` when all else is known.
        producers: The index of each producer's key.
        chosen, reported: The parts of the script's plan for ``traces`` and ``reports``.
        feedback: Ids of entries with late feedback that is not kept, by outcome.
        pending_feedback: Late feedback that is kept until its trace is searched.
        gone: Ids of entries that were trimmed before they were read.
        invalid: Entries that cannot be used.
    """

    writer: BatchWriter
    first: str = ""
    last: str = "0-0"
    tallies: dict[Tally, list[str]] = field(default_factory=dict)
    traces: list[TraceEntry] = field(default_factory=list)
    reports: list[ReportEntry] = field(default_factory=list)
    services: dict[int, str] = field(default_factory=dict)
    rules: Counter[RuleTally] = field(default_factory=Counter)
    keys: Sequence[str] = ()
    arguments: Sequence[bytes] = ()
    bodies: Mapping[str, bytes] = field(default_factory=dict)
    producers: dict[str, int] = field(default_factory=dict)
    chosen: list[dict[str, object]] = field(default_factory=list)
    reported: list[dict[str, object]] = field(default_factory=list)
    feedback: dict[str, list[str]] = field(default_factory=dict)
    pending_feedback: list[dict[str, object]] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    invalid: list[InvalidEntry] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was read."""
        return self.last == "0-0"

    def tally(self, entry_id: str, tally: Tally) -> None:
        """Count an entry that ends here."""
        self.tallies.setdefault(tally, []).append(entry_id)

    def producer(self, name: str | None, service: str, keys: Keys) -> int:
        """Return the index of a producer's key; 0 means all entries without a producer."""
        if name is None:
            return 0
        if name not in self.producers:
            self.producers[name] = self.writer.key(keys.producer(name))
            self.services[self.producers[name]] = service
        return self.producers[name]

    def report(self, entry: ReportEntry, keys: Keys) -> None:
        """Add the totals of a producer."""
        report = entry.report
        self.reports.append(entry)
        self.reported.append(
            {
                "id": entry.entry_id,
                "producer": self.producer(report.producer, report.service, keys),
                "name": report.producer,
                "published": report.published,
                "dropped": report.dropped,
            }
        )


def _bounded(entries: Iterator[StreamEntry], plan: Plan) -> Iterator[StreamEntry]:
    """Yield entries until the plan costs Redis as much as it may."""
    for number, entry in enumerate(entries, 1):
        yield entry
        if number + _COST_OF_CHOSEN * len(plan.traces) > _MAX_COST:
            return


class Planner:
    """Plans the outcomes of reads. One for each ingest thread, because sampler and hooks keep state."""

    def __init__(self, settings: Settings, keys: Keys, sampler: Sampler, hooks: Sequence[IngestHook] = ()) -> None:
        self._settings = settings
        self._keys = keys
        self.sampler = sampler
        self.hooks = hooks
        self._factory = EvaluationFactory(sampler.rules.graders)
        self._gather, self._limits = find_single(hooks, "gather"), collect_limits(hooks)
        self._keep_feedback = find_single(hooks, "feedback")

    def plan(self, entries: Iterator[StreamEntry], shed: Collection[str] = frozenset()) -> Plan:
        """Sample the traces among the entries and plan the outcome of each entry, for one call of the script.

        What is left of the iterator belongs to the next plan. For models to ``shed`` evaluations are only counted.
        """
        keys = self._keys
        own = (keys.feedback, keys.groups, keys.producers, keys.sessions_due, keys.sessions)
        plan = Plan(BatchWriter.for_choosing(self._settings, keys, *own))
        # Nearly all traces of a read end alike, so they are grouped by plain tuples, which cost least.
        unsampled: dict[tuple[tuple[RuleTally, ...], str | None, str], list[str]] = {}
        rules_of_chosen: list[tuple[RuleTally, ...]] = []
        for entry in _bounded(entries, plan):
            if isinstance(entry, TraceEntry):
                # Sample before anything is encoded, because at a low rate nearly all traces end with this.
                choices, rules, session_choices = sampling = self.sampler.sample(entry.trace)
                if choices or session_choices:
                    rules_of_chosen.append(rules)
                    self._choose(plan, entry, sampling, shed)
                else:
                    group = (rules, entry.producer, entry.trace.service)
                    unsampled.setdefault(group, []).append(entry.entry_id)
            elif isinstance(entry, ReportEntry):
                plan.report(entry, keys)
            elif isinstance(entry, FeedbackEntry):
                self._feedback(plan, entry)
            elif isinstance(entry, InvalidEntry):
                plan.invalid.append(entry)
                plan.tally(entry.entry_id, Tally("invalid", entry.reason, entry.producer, "unknown"))
            else:
                plan.gone.append(entry.entry_id)
            plan.first, plan.last = plan.first or entry.entry_id, entry.entry_id
        for (rules, producer, service), entry_ids in unsampled.items():
            tally = Tally("not_sampled" if rules else "no_rule", None, producer, service)
            plan.tallies.setdefault(tally, []).extend(entry_ids)
            for rule in rules:
                plan.rules[rule] += len(entry_ids)
        for rules in rules_of_chosen:
            plan.rules.update(rules)
        # Finish the writer last, because the tallies above add keys of producers.
        plan.keys, plan.arguments, plan.bodies = plan.writer.finish(self._script_plan(plan))
        return plan

    def _choose(self, plan: Plan, entry: TraceEntry, sampling: Sampling, shed: Collection[str]) -> None:
        chosen = self._factory.make(entry, sampling.choices, "live")
        shed_models: tuple[tuple[str, int], ...] = ()
        if shed:
            chosen, away = leave_out_shed(chosen, shed)
            shed_models = tuple(sorted(away.items()))
        if not chosen and not sampling.session_choices:
            plan.tally(entry.entry_id, Tally("shed", None, entry.producer, entry.trace.service, shed_models))
            return
        plan.traces.append(entry)
        written: dict[str, object] = {
            "id": entry.entry_id,
            "producer": plan.producer(entry.producer, entry.trace.service, self._keys),
            "evaluations": plan.writer.evaluations(chosen, entry.trace),
        }
        # Nearly every trace is without these, and Redis makes a table of each.
        if shed_models:
            written["shed"] = dict(shed_models)
        if sampling.session_choices and self._gather is not None:
            written["session"] = self._gather(plan.writer, entry, sampling.session_choices)
        if entry.trace.output.strip() and not self._settings.judge_duplicates:
            written["told"] = plan.writer.key(self._keys.told(entry.trace.trace_id))
            written["marks"] = told_marks(entry.trace, chosen, in_session="session" in written)
        plan.chosen.append(written)

    def _feedback(self, plan: Plan, entry: FeedbackEntry) -> None:
        member = None if self._keep_feedback is None else self._keep_feedback(entry)
        if member is not None:
            plan.pending_feedback.append({"id": entry.entry_id, "member": member})
        else:
            outcome = "no_rule" if entry.feedback.score < 0 else "not_negative"
            plan.feedback.setdefault(outcome, []).append(entry.entry_id)

    def _script_plan(self, plan: Plan) -> dict[str, object]:
        return {
            "tallies": [
                {
                    "outcome": tally.outcome,
                    "producer": plan.producer(tally.producer, tally.service, self._keys),
                    "ids": entry_ids,
                    "shed": dict(tally.shed),
                    "reason": tally.reason,
                }
                for tally, entry_ids in plan.tallies.items()
            ],
            "feedback": plan.feedback,
            "pending_feedback": plan.pending_feedback,
            "gone": plan.gone,
            "traces": plan.chosen,
            "reports": plan.reported,
            "producers": list(plan.producers.values()),
            "first": plan.first,
            "last": plan.last,
            **self._limits,
        }
