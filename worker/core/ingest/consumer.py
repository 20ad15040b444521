"""The ingest thread: read, sample, write batches, notify the judging workers; claim the entries of dead readers."""

import secrets
import socket
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import structlog
from msgspec import Struct

from tracejudge.model import TIMES
from worker.core.config.settings import Settings
from worker.core.features import find_overrides
from worker.core.ingest.plan import Plan, Planner
from worker.core.queue.notify import Notifier
from worker.core.selection.stream_entry import read_entry
from worker.core.storage.client import Entry, Store, StoreError
from worker.core.storage.group_reader import READ_BYTES, READ_COUNT, GroupReader
from worker.core.storage.keys import INGEST_GROUP
from worker.core.telemetry.backlog import Backpressure, Bounds
from worker.core.telemetry.metrics import Metrics
from worker.core.telemetry.service import ServiceThread

log = structlog.get_logger("tracejudge.ingest")
_BLOCK_MS: Final = 1000
# Entries of a claim, and of a read while more than one of `_FEW_CHOSEN` traces is chosen: all that one read chooses may
# exceed the bounds of waiting work.
_SMALL_READ: Final = 128
_FEW_CHOSEN: Final = 64
# Entries are acknowledged within milliseconds; a reader that has held one for so long is dead or disconnected.
_STALE_MS: Final = 10_000
_PRESSURE_PAUSE_S: Final = 0.2


class Answer(Struct):
    """The answer of ``choose.lua``: one count per tally, one outcome per trace, the batches, and the producers' totals.

    ``shed`` counts evaluations and ``waiting`` bytes, both by judge model; ``waiting`` only if batches were made.
    """

    tallied: tuple[int, ...] = ()
    outcomes: tuple[str, ...] = ()
    batch_ids: tuple[str, ...] = msgspec.field(default=(), name="made")
    published: Mapping[str, int] = {}
    dropped: tuple[tuple[int, str, int], ...] = ()
    feedback: Mapping[str, int] = {}
    shed: Mapping[str, int] = {}
    waiting: Mapping[str, int] = {}
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
            for field in TIMES:
                metrics.fields_left_out.labels(label, field)
        for (service, field), amount in left_out.items():
            metrics.fields_left_out.labels(metrics.service(service), field).inc(amount)

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
        """Account for entries, write their batches, and notify the judging workers.

        ``StoreError`` if the thread stops before Redis answers; the entries stay pending and are claimed later.
        """
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
