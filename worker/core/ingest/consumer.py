"""The ingest thread: read, plan how each entry ends, write batches, notify; claim the entries of dead readers."""

import secrets
import socket
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec
import structlog
from msgspec import Struct

from tracejudge.model import TIMES
from worker.core.config.settings import Settings
from worker.core.features import IngestHook, collect_limits, find_overrides, find_single
from worker.core.queue.notify import Notifier
from worker.core.selection.evaluations import BatchWriter, EvaluationFactory, leave_out_shed, told_marks
from worker.core.selection.sampling import RuleTally, Sampler, Sampling
from worker.core.selection.stream_entry import (
    FeedbackEntry,
    InvalidEntry,
    ReportEntry,
    StreamEntry,
    TraceEntry,
    read_entry,
)
from worker.core.storage.client import Entry, Store, StoreError
from worker.core.storage.group_reader import READ_BYTES, READ_COUNT, GroupReader
from worker.core.storage.keys import INGEST_GROUP, Keys
from worker.core.telemetry.backlog import Backpressure, Bounds
from worker.core.telemetry.metrics import Metrics
from worker.core.telemetry.service import ServiceThread

# Redis serves no other client while the script of a plan runs: about 3 ms for so much, where a chosen trace takes
# fifteen times as long as one that is only counted.
_MAX_COST: Final = 1_000
_COST_OF_CHOSEN: Final = 15
log = structlog.get_logger("tracejudge.ingest")
_BLOCK_MS: Final = 1000
# Entries of a claim, and of a read while more than one of `_FEW_CHOSEN` traces is chosen: all that one read chooses may
# exceed the bounds of waiting work.
_SMALL_READ: Final = 128
_FEW_CHOSEN: Final = 64
# Entries are acknowledged within milliseconds; a reader that has held one for so long is dead or disconnected.
_STALE_MS: Final = 10_000
_PRESSURE_PAUSE_S: Final = 0.2


class Tally(NamedTuple):
    """Common properties of entries that end in ingest."""

    outcome: str
    reason: str | None
    producer: str | None
    service: str
    # How many evaluations of each entry are not chosen because their judge model is away, by judge model.
    shed: tuple[tuple[str, int], ...] = ()


@dataclass(slots=True)
class Plan:
    """The outcomes of one read; what the script answers for is in the order of its answer."""

    writer: BatchWriter  # Collects the keys and payloads of the script's call.
    first: str = ""  # Ids of the first and last entry of the read.
    last: str = "0-0"
    tallies: dict[Tally, list[str]] = field(default_factory=dict)  # Ids of entries that end here.
    traces: list[TraceEntry] = field(default_factory=list)  # Those with a chosen evaluation or conversation.
    reports: list[ReportEntry] = field(default_factory=list)  # Reports of producers.
    services: dict[int, str] = field(default_factory=dict)  # Of each producer, by the index of its key.
    rules: Counter[RuleTally] = field(default_factory=Counter)  # Matches of each rule, and whether it chose them.
    # The call of `choose`, set by ``Planner.plan`` when all else is known.
    keys: Sequence[str] = ()
    arguments: Sequence[bytes] = ()
    bodies: Mapping[str, bytes] = field(default_factory=dict)
    producers: dict[str, int] = field(default_factory=dict)  # The index of each producer's key.
    # The parts of the script's plan for ``traces`` and ``reports``.
    chosen: list[dict[str, object]] = field(default_factory=list)
    reported: list[dict[str, object]] = field(default_factory=list)
    # Ids of entries with late feedback that is not kept, by outcome, and feedback kept until its trace is searched.
    feedback: dict[str, list[str]] = field(default_factory=dict)
    pending_feedback: list[dict[str, object]] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)  # Ids of entries that were trimmed before they were read.
    invalid: list[InvalidEntry] = field(default_factory=list)  # Entries that cannot be used.

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
        """Plan the outcome of entries for one call of the script; the next plan has the rest of the iterator."""
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


class Answer(Struct):
    """The answer of ``choose.lua``: counts per tally, outcomes per trace, the batches, and the producers' totals."""

    tallied: tuple[int, ...] = ()
    outcomes: tuple[str, ...] = ()
    batch_ids: tuple[str, ...] = msgspec.field(default=(), name="made")
    published: Mapping[str, int] = {}
    dropped: tuple[tuple[int, str, int], ...] = ()
    feedback: Mapping[str, int] = {}
    shed: Mapping[str, int] = {}  # Evaluations by judge model.
    waiting: Mapping[str, int] = {}  # Bytes by judge model, if batches were made.
    lost_by_redis: int = 0


class _Kind(NamedTuple):
    """Labels of traces that are counted alike; ``bare`` ones have no producer that counts them."""

    service: str
    outcome: str
    bare: bool


class IngestMetrics:
    """The counters of one process."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._metrics = metrics
        self._rules: dict[str, list[int]] = {rule.name: [0, 0] for rule in settings.rules}
        self._touched: set[str] = set()

    def count(self, plan: Plan, answer: Answer) -> None:
        """Count a read, as far as it took effect now."""
        metrics = self._metrics
        for tally, amount in zip(plan.tallies, answer.tallied, strict=True):
            self._count_traces(_Kind(tally.service, tally.outcome, tally.producer is None), amount)
            if tally.reason is not None and amount:
                metrics.invalid_traces.labels(tally.reason).inc(amount)
                row = next(row for row in plan.invalid if (row.reason, row.producer) == (tally.reason, tally.producer))
                example = {"detail": row.detail, "trace_id": row.trace_id}
                log.warning("invalid entries", reason=tally.reason, entries=amount, producer=tally.producer, **example)
        self._count_chosen(plan, answer)
        for producer, amount in answer.published.items():
            metrics.producer_published.labels(metrics.service(plan.services[int(producer)])).inc(amount)
        for number, reason, amount in answer.dropped:
            service = metrics.service(plan.reports[number - 1].report.service)
            metrics.producer_dropped.labels(service, reason).inc(amount)
        if answer.lost_by_redis:
            metrics.lost_by_redis.inc(answer.lost_by_redis)
            log.warning("redis lost confirmed traces", traces=answer.lost_by_redis)
        for outcome, amount in answer.feedback.items():
            metrics.late_feedback.labels(outcome).inc(amount)
        for judge_model, amount in answer.shed.items():
            metrics.shed.labels(judge_model).inc(amount)
        for rule, amount in plan.rules.items():
            counts = self._rules[rule.rule]
            counts[0] += amount
            counts[1] += amount if rule.chosen else 0
            metrics.sampling_ratio.labels(rule.rule).set(counts[1] / counts[0])

    def _count_chosen(self, plan: Plan, answer: Answer) -> None:
        metrics = self._metrics
        kinds: Counter[_Kind] = Counter()
        unknown: Counter[str] = Counter()
        left_out: Counter[tuple[str, str]] = Counter()
        for entry, outcome in zip(plan.traces, answer.outcomes, strict=True):
            if outcome:
                service = entry.trace.service
                kinds[_Kind(service, outcome, entry.producer is None)] += 1
                unknown[service] += len(entry.unknown)
                left_out.update((service, field) for field in {part.field for part in entry.left_out})
        for kind, amount in kinds.items():
            self._count_traces(kind, amount)
        for service, amount in unknown.items():
            label = metrics.service(service)
            metrics.unknown_fields.labels(label).inc(amount)
            # Each series exists at zero, so that a rate over it is never silent.
            for time_name in TIMES:
                metrics.fields_left_out.labels(label, time_name)
        for (service, name), amount in left_out.items():
            metrics.fields_left_out.labels(metrics.service(service), name).inc(amount)

    def _count_traces(self, kind: _Kind, amount: int) -> None:
        metrics = self._metrics
        label = metrics.service(kind.service)
        if label not in self._touched:
            # Touch a service once, because it makes a series per outcome and a read is counted every few milliseconds.
            metrics.touch_service(label)
            self._touched.add(label)
        metrics.traces.labels(label, kind.outcome).inc(amount)
        if kind.bare:
            metrics.producer_published.labels(label).inc(amount)


class IngestConsumer(ServiceThread):
    """Moves entries from the stream into batches, exactly once each."""

    role = "ingest"

    def __init__(
        self,
        settings: Settings,
        store: Store,
        metrics: Metrics,
        *,
        planner: Planner,
        notifier: Notifier,
        pressure: Backpressure,
    ) -> None:
        """Build the thread; ``pressure`` decides when reading pauses, and which judge models are shed."""
        super().__init__("ingest")
        self._settings = settings
        self._store = store
        self._metrics = IngestMetrics(settings, metrics)
        self._planner = planner
        self._notifier = notifier
        self._pressure = pressure
        self._bounds = Bounds(paused=False, shed=frozenset())
        self._is_pause_logged = False
        self._next_pause_log = 0.0
        self._consumer = f"{socket.gethostname()}-{secrets.token_hex(4)}"
        self._chooses_few = False
        self._reader = GroupReader(store, store.keys.traces, INGEST_GROUP, self._consumer)
        self._next_claim = 0.0
        self._before_read, self._after_read, self._close = (
            find_overrides(planner.hooks, name) for name in ("before_read", "after_read", "close")
        )

    def prepare(self) -> None:
        """Make the consumer group."""
        self._store.make_group(self._store.keys.traces, INGEST_GROUP)

    def run_once(self) -> None:
        """Read once and process all of it."""
        for prepare in self._before_read:
            if prepare():
                self._planner.sampler.clear()
        bounds = self._pressure.bounds
        self._log_changes(bounds)
        if bounds.paused:
            self.stopping.wait(_PRESSURE_PAUSE_S)
            return
        stale: Sequence[Entry] = ()
        if time.monotonic() >= self._next_claim:
            # One entry may pass the bound, because it must be claimed to learn its size.
            max_bytes = max(0, READ_BYTES - self._settings.max_trace_bytes)
            names = (self._store.keys.traces, INGEST_GROUP, self._consumer)
            stale = self._store.claim_stale(*names, idle_ms=_STALE_MS, count=_SMALL_READ, max_bytes=max_bytes)
            # One call returns at most 128; there may be more.
            self._next_claim = 0.0 if stale else time.monotonic() + 3.0
        self.process(stale or self._reader.read(_BLOCK_MS, READ_COUNT if self._chooses_few else _SMALL_READ))

    def process(self, entries: Iterable[Entry]) -> None:
        """Account for entries, write their batches, notify; after ``StoreError`` the entries stay pending."""
        max_bytes = self._settings.max_trace_bytes
        reads = (read_entry(entry, max_bytes) for entry in entries)
        while not (plan := self._planner.plan(reads, self._pressure.bounds.shed)).is_empty:
            self._chooses_few = len(plan.traces) * _FEW_CHOSEN < sum(map(len, plan.tallies.values()))
            self._apply(plan)

    def _apply(self, plan: Plan) -> None:
        labels = self._notifier.ready_labels() if plan.traces else frozenset()
        # Repeat until Redis answers, which the script allows, because giving up would leave the entries pending.
        while True:
            try:
                answer = msgspec.json.decode(
                    self._store.run("choose", plan.keys, plan.arguments, plan.bodies), type=Answer
                )
                break
            except StoreError as error:
                if self.stopping.is_set():
                    raise
                self.backoff(error)
        if answer.batch_ids:
            # Report the new work now: the next measurement is up to a second away.
            self._pressure.set_waiting(answer.waiting)
        self._metrics.count(plan, answer)
        if plan.invalid or any(entry.left_out for entry in plan.traces):
            for after_read in self._after_read:
                after_read(plan, answer)
        self._notifier.notify_batches(answer.batch_ids, except_labels=labels)

    def stop(self, timeout_s: float) -> bool:
        """Stop the thread; once it has ended, remove its name from the group unless entries are pending."""
        ended = super().stop(timeout_s)
        if ended:
            for close in self._close:
                close()
            self._reader.close()
            self._store.remove_consumer(self._store.keys.traces, INGEST_GROUP, self._consumer)
        return ended

    def _log_changes(self, bounds: Bounds) -> None:
        """Log once when reading pauses or resumes, and when evaluations for a judge model are shed or chosen again."""
        before, self._bounds = self._bounds, bounds
        now = time.monotonic()
        # At its bound a model may pause and resume reading many times a minute.
        if bounds.paused and not before.paused and now >= self._next_pause_log:
            self._next_pause_log, self._is_pause_logged = now + 60.0, True
            slow = sorted(self._pressure.slow)
            reason = "unfinished batches exceed max_waiting_bytes" if slow else "paused by remote control"
            log.warning("ingest paused", judge_models=slow, reason=reason)
        elif before.paused and not bounds.paused and self._is_pause_logged:
            self._is_pause_logged = False
            log.info("ingest resumed")
        for judge_model in sorted(bounds.shed - before.shed):
            log.warning("shedding started", judge_model=judge_model, reason="endpoint away, too much work waits")
        for judge_model in sorted(before.shed - bounds.shed):
            log.info("shedding ended", judge_model=judge_model)
