"""What the metrics are told after each step of ingest: only what took effect, as the answer of ``choose.lua`` says."""

from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

import structlog
from msgspec import Struct

from worker.ingest.draft import Plan
from worker.ingest.entries import unknown_fields
from worker.metrics import BoundedLabel, Metrics
from worker.settings import Settings

__all__ = ["Answer", "Counting"]

log = structlog.get_logger("tracejudge.ingest")

_MAX_DROP_REASONS: Final = 30


class Answer(Struct):
    """What ``choose.lua`` says: one answer per tally and per trace, batches made, and what producers add.

    ``shed`` counts evaluations, ``waiting`` bytes, both by judge model; the latter only where batches were made.
    """

    tallied: tuple[int, ...] = ()
    outcomes: tuple[str, ...] = ()
    made: tuple[str, ...] = ()
    published: Mapping[str, int] = {}
    dropped: tuple[tuple[int, str, int], ...] = ()
    feedback: Mapping[str, int] = {}
    shed: Mapping[str, int] = {}
    waiting: Mapping[str, int] = {}


class _Ended(NamedTuple):
    """What traces that count alike have in common; ``bare`` are those without a producer."""

    service: str
    outcome: str
    bare: bool


class Counting:
    """The counts of one process."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        """Begin at zero; judge models are known from the start."""
        self._metrics = metrics
        self._drop_reason = BoundedLabel(_MAX_DROP_REASONS)
        self._rules: dict[str, list[int]] = {rule.name: [0, 0] for rule in settings.rules}

    def count(self, plan: Plan, answer: Answer) -> None:
        """Count a step, the first time that it took effect."""
        self._count_tallies(plan, answer)
        self._count_traces(plan, answer)
        self._count_producers(plan, answer)
        for outcome, amount in answer.feedback.items():
            self._metrics.late_feedback.labels(outcome).inc(amount)
        for judge_model, amount in answer.shed.items():
            self._metrics.shed.labels(judge_model).inc(amount)
        self._count_rules(plan)

    def _count_tallies(self, plan: Plan, answer: Answer) -> None:
        for tally, amount in zip(plan.tallies, answer.tallied, strict=True):
            self._count_ended(_Ended(tally.service, tally.outcome, tally.producer is None), amount)
            if tally.reason is not None and amount:
                self._metrics.invalid_traces.labels(tally.reason).inc(amount)
                log.warning("entries are no traces", reason=tally.reason, entries=amount, producer=tally.producer)

    def _count_traces(self, plan: Plan, answer: Answer) -> None:
        ended: Counter[_Ended] = Counter()
        unknown: Counter[str] = Counter()
        for entry, outcome in zip(plan.traces, answer.outcomes, strict=True):
            if outcome:
                service = entry.trace.service
                ended[_Ended(service, outcome, entry.producer is None)] += 1
                unknown[service] += len(unknown_fields(entry))
        for kind, amount in ended.items():
            self._count_ended(kind, amount)
        for service, amount in unknown.items():
            self._metrics.unknown_fields.labels(self._metrics.service(service)).inc(amount)

    def _count_ended(self, kind: _Ended, amount: int) -> None:
        metrics = self._metrics
        label = metrics.service(kind.service)
        metrics.touch_service(label)
        metrics.traces.labels(label, kind.outcome).inc(amount)
        if kind.bare:
            metrics.producer_published.labels(label).inc(amount)

    def _count_producers(self, plan: Plan, answer: Answer) -> None:
        metrics = self._metrics
        for producer, amount in answer.published.items():
            metrics.producer_published.labels(metrics.service(plan.services[int(producer)])).inc(amount)
        for place, reason, amount in answer.dropped:
            service = metrics.service(plan.reports[place - 1].report.service)
            metrics.producer_dropped.labels(service, self._drop_reason(reason)).inc(amount)

    def _count_rules(self, plan: Plan) -> None:
        for rule, amount in plan.rules.items():
            counts = self._rules[rule.rule]
            counts[0] += amount
            counts[1] += amount if rule.chosen else 0
            self._metrics.sampling_ratio.labels(rule.rule).set(counts[1] / counts[0])
