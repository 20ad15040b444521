"""The plan under construction: keys, payloads and lists in the form that ``choose.lua`` reads."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from worker.ingest.choosing import Chosen
from worker.ingest.entries import FeedbackEntry, ReportEntry, TraceEntry
from worker.ingest.gathered import MAX_GATHERED, member_of
from worker.ingest.layout import Layout
from worker.keys import INGEST_GROUP, Keys
from worker.leases import READY_MS
from worker.sampling import RuleTally
from worker.settings import Settings

__all__ = ["ACCOUNT_TTL_S", "Draft", "Plan", "Shed", "Tally"]

ACCOUNT_TTL_S: Final = 90 * 86_400
_NO_PRODUCER: Final = 0


class Shed(NamedTuple):
    """How many evaluations of a trace are not chosen because their judge model is dead and has work enough."""

    judge_model: str
    amount: int


class Tally(NamedTuple):
    """What entries that end in ingest have in common."""

    outcome: str
    reason: str | None
    producer: str | None
    service: str
    shed: tuple[Shed, ...] = ()


class Plan(NamedTuple):
    """What the script gets, and what its answer is about.

    ``tallies``, ``traces`` and ``reports`` stand in the order of the script's answers. ``services`` tells whose a
    producer is, by the index of the producer's key.
    """

    keys: tuple[str, ...]
    arguments: tuple[bytes, ...]
    tallies: tuple[Tally, ...]
    traces: tuple[TraceEntry, ...]
    reports: tuple[ReportEntry, ...]
    services: dict[int, str]
    rules: Counter[RuleTally]


class Draft:
    """Collects entries; ``finish`` makes the plan."""

    def __init__(self, settings: Settings, keys: Keys) -> None:
        """Begin with the keys that every plan has."""
        self._settings = settings
        self._names = keys
        fixed = (keys.traces, keys.leases, keys.waiting, keys.account_now(), keys.books, keys.feedback)
        self._layout = Layout(settings, keys, fixed)
        self._rules: dict[tuple[RuleTally, ...], int] = {}
        self._tallies: dict[Tally, list[str]] = {}
        self._feedback: dict[str, list[str]] = {}
        self._gathered: list[dict[str, object]] = []
        self._gone: list[str] = []
        self._traces: list[tuple[TraceEntry, dict[str, object]]] = []
        self._reports: list[tuple[ReportEntry, dict[str, object]]] = []
        self._producers: dict[str, int] = {}
        self._services: dict[int, str] = {}

    def sampled(self, rules: tuple[RuleTally, ...]) -> None:
        """Count how the rules fared with a trace."""
        # By the tuple, which is one and the same for nearly all traces.
        self._rules[rules] = self._rules.get(rules, 0) + 1

    def tally(self, entry_id: str, tally: Tally) -> None:
        """Count an entry that ends here."""
        self._tallies.setdefault(tally, []).append(entry_id)

    def gone(self, entry_id: str) -> None:
        """Count an entry that was trimmed away between reading and dealing with it."""
        self._gone.append(entry_id)

    def feedback(self, entry: FeedbackEntry, outcome: str) -> None:
        """Count late feedback that ends here."""
        self._feedback.setdefault(outcome, []).append(entry.entry_id)

    def gather(self, entry: FeedbackEntry) -> None:
        """Gather late feedback for the next pass over the stream."""
        self._gathered.append({"id": entry.entry_id, "member": member_of(entry.entry_id, entry.feedback)})

    def report(self, entry: ReportEntry) -> None:
        """Take a producer's totals into the books."""
        report = entry.report
        producer = self._producer(report.producer, report.service)
        fields = {
            "id": entry.entry_id,
            "producer": producer,
            "published": report.published,
            "dropped": report.dropped,
        }
        self._reports.append((entry, fields))

    def choose(self, entry: TraceEntry, evaluations: Sequence[Chosen], shed: Sequence[Shed] = ()) -> None:
        """Put a trace's evaluations into the open batches of those who judge, but for those that are shed."""
        fields = {
            "id": entry.entry_id,
            "producer": self._producer(entry.producer, entry.trace.service),
            "payload": self._layout.trace(entry.trace),
            "evaluations": self._layout.evaluations(evaluations, entry.trace),
            "shed": dict(shed),
        }
        self._traces.append((entry, fields))

    def finish(self) -> Plan:
        """Make the plan."""
        plan = {
            "group": INGEST_GROUP,
            "chosen_ttl_s": self._settings.ledger_ttl_s,
            "account_ttl_s": ACCOUNT_TTL_S,
            "ready_ms": READY_MS,
            "tallies": [self._laid_out(tally, ids) for tally, ids in self._tallies.items()],
            "feedback": self._feedback,
            "gathered": self._gathered,
            "max_gathered": MAX_GATHERED,
            "feedback_wait_ms": int(self._settings.late_feedback_wait * 1000),
            "gone": self._gone,
            "traces": [fields for _, fields in self._traces],
            "reports": [fields for _, fields in self._reports],
            "batches": self._layout.batches,
        }
        script_keys, arguments = self._layout.finish(plan)
        return Plan(
            keys=script_keys,
            arguments=arguments,
            tallies=tuple(self._tallies),
            traces=tuple(entry for entry, _ in self._traces),
            reports=tuple(entry for entry, _ in self._reports),
            services=self._services,
            rules=self._counted_rules(),
        )

    def _laid_out(self, tally: Tally, entry_ids: list[str]) -> Mapping[str, object]:
        fields = {
            "outcome": tally.outcome,
            "producer": self._producer(tally.producer, tally.service),
            "ids": entry_ids,
            "shed": dict(tally.shed),
        }
        return fields if tally.reason is None else {**fields, "reason": tally.reason}

    def _counted_rules(self) -> Counter[RuleTally]:
        counted: Counter[RuleTally] = Counter()
        for rules, amount in self._rules.items():
            for rule in rules:
                counted[rule] += amount
        return counted

    def _producer(self, producer: str | None, service: str) -> int:
        if producer is None:
            return _NO_PRODUCER
        if producer not in self._producers:
            self._producers[producer] = self._layout.key(self._names.producer(producer))
            self._services[self._producers[producer]] = service
        return self._producers[producer]
