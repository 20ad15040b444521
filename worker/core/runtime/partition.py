"""The parts of one worker process for one partition: store, threads and judging, built, started and stopped in order.

On a cluster a worker has one of these for each partition. Readers and exporters wait in Redis, so each has a thread of
its own; of all others one thread serves all partitions (`share_threads`).
"""

import contextlib
import math
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog

from judges.core.judge import Judge
from judges.endpoints.client import LimitedModel
from worker.core.config.graders import CODE, queue_label
from worker.core.config.settings import MAX_SESSION_BYTES, Settings
from worker.core.features import (
    ExporterSpec,
    PartitionContext,
    TraceHookContext,
    collect_all,
    installed,
    make_ingest_hooks,
)
from worker.core.ingest.consumer import IngestConsumer, Planner
from worker.core.judging.consumer import JudgingConsumer, QueueStatus
from worker.core.judging.evaluator import BatchEvaluator, code_slots
from worker.core.judging.fetching import Limits, Slots
from worker.core.queue.leases import LEASE_MS, Leases
from worker.core.queue.ledger import Ledger
from worker.core.queue.notify import Notifier
from worker.core.selection.sampling import Rules, Sampler
from worker.core.storage.client import Store, StoreError
from worker.core.storage.keys import INGEST_GROUP
from worker.core.telemetry.backlog import Backlog, Backpressure, Caps, Memory, measure, read_memory
from worker.core.telemetry.health import Heartbeat, Readiness, flow_positions, flows
from worker.core.telemetry.metrics import Metrics
from worker.core.telemetry.service import EventLoopThread, ServiceThread, stop_threads

PRODUCER_SILENCE_S: Final = 2 * 86_400
_INTERVAL_S: Final = 1.0
# A clock that goes back by less was adjusted, and not set.
_SET_BACK_MS: Final = 1_000
# Only one worker measures the mean entry size each second, because Redis reads all entries for it.
_MEAN_AGE_MS: Final = 900
log = structlog.get_logger("tracejudge.worker")


@dataclass
class ProcessContext:
    """The shared parts of all partitions of one process: judges, models, limits, metrics, and the event loop."""

    settings: Settings
    metrics: Metrics
    judges: Mapping[str, Judge]
    models: Mapping[str, LimitedModel]
    rules: Rules
    limits: Mapping[str, Limits]
    readiness: Readiness
    exporters: Mapping[str, ExporterSpec]  # Those of all workers.
    serves: QueueStatus  # Says whether a queue is consumed now.

    def __post_init__(self) -> None:
        self.wake = threading.Event()
        self.gauges = BacklogGauges(self.settings, self.metrics)
        self.code_slots = code_slots(self.rules.graders)
        self.slots = {judge_model: Slots(self.settings.partition_count) for judge_model in self.limits}
        self.loop = EventLoopThread("tracejudge-judging")

    def has(self, role: str) -> bool:
        """Return whether this worker has a role."""
        return role in self.settings.roles


class Partition:
    """The threads and the judging of one partition."""

    def __init__(self, process: ProcessContext, store: Store, send: Callable[[str, int], None]) -> None:
        """Build what the configured roles need; ``send(label, at_most)`` sends a notification (``BrokerSender``)."""
        settings, metrics, rules = process.settings, process.metrics, process.rules
        self._process = process
        self.store = store  # The partition.
        # Any worker judges the batches of all partitions, as its messages name them; reading them is divided.
        is_read = store.partition in settings.served
        self._judges = process.has("judge")
        roles = [role for role in settings.roles if is_read or role == "judge"]
        ledger = Ledger(store, settings)
        self._notifier = Notifier(store, send, process.limits, process.wake)
        # Judges its batches.
        self.judging = JudgingConsumer(
            settings,
            store,
            BatchEvaluator(
                *(settings, process.judges, process.models, ledger),
                rules=rules,
                metrics=metrics,
                slots=process.code_slots,
            ),
            ledger,
            limits=process.limits,
            notifier=self._notifier,
            serves=process.serves,
            slots=process.slots,
            loop=process.loop,
        )
        self._notifier.shifts = self.judging if self._judges else None
        # Panels add no backlog of their own, because their batches are small, and end with their members.
        called = {CODE.judge_model, *(model.judge_model for model in settings.models.values())}
        self._backpressure = Backpressure(settings.max_waiting_bytes, called)
        heartbeat = Heartbeat(store, self.judging.circuits if self._judges else dict, settings.config_hash)
        self._maintenance = Maintenance(
            settings,
            store,
            metrics,
            groups=tuple(process.exporters),
            readiness=process.readiness,
            capacity=self.judging.capacity if self._judges else dict,
            backpressure=self._backpressure,
            heartbeat=heartbeat,
            gauges=process.gauges,
            is_read=is_read,
            chores=collect_all((feature.chores for feature in installed()), settings, metrics, store),
        )
        context = PartitionContext(
            settings=settings,
            metrics=metrics,
            judges=process.judges,
            store=store,
            rules=rules,
            notifier=self._notifier,
            pressure=self._backpressure,
            judging=self.judging,
        )
        made = collect_all((feature.threads for feature in installed()), context)
        if wrong := [thread.name for thread in made if thread.role not in {"ingest", "judge"}]:
            raise ValueError(f"threads of features are of the role ingest or judge: {', '.join(wrong)}")
        self._ingest: list[ServiceThread] = []
        if "ingest" in roles:
            hooks = make_ingest_hooks(TraceHookContext(settings, metrics, ledger, rules))
            # Each partition has its own sampler, because hooks adjust its rates in the thread that samples.
            planner = Planner(settings, store.keys, Sampler(rules, hooks), hooks)
            ingest = IngestConsumer(
                *(settings, store, metrics), planner=planner, notifier=self._notifier, pressure=self._backpressure
            )
            self._ingest = [ingest, *(thread for thread in made if thread.role == "ingest")]
        self._notifiers = [self._notifier] if "ingest" in roles or self._judges else []
        self._sweepers: list[ServiceThread] = []
        if self._judges:
            sweeper = Sweeper(settings, store, self.judging, self._notifier, heartbeat)
            self._sweepers = [sweeper, *(thread for thread in made if thread.role == "judge")]
        makers = (exporter.make for exporter in process.exporters.values() if exporter.role in roles)
        self.exporters = [make(settings, store, metrics) for make in makers if make is not None]
        readiness, number = process.readiness, store.partition
        for thread in (*self._ingest, *self._sweepers, *self.exporters):
            readiness.watch(thread.name, thread.role, thread, number)
        if self._judges:
            readiness.watch("event-loop", "judge", self.judging, number)
        for thread in (*self._notifiers, self._maintenance):
            readiness.watch(thread.name, None, thread, number)
        groups = {name: exporter.role for name, exporter in process.exporters.items() if exporter.role != "monitor"}
        for flow in flows(roles, groups, list(process.limits), number):
            readiness.add_flow(flow)

    @property
    def threads(self) -> list[ServiceThread]:
        """All its threads, in the order of their start."""
        return [self._maintenance, *self._notifiers, *self._ingest, *self._sweepers, *self.exporters]

    def start(self) -> None:
        """Start all threads; a partition that is away is waited for."""
        if self._judges:
            self.judging.start()
        for thread in self.threads:
            thread.start()

    def stop(self) -> None:
        """Stop in order."""
        # First ingest, so that no new evaluation is chosen; then judging: no further call begins, those in flight have
        # their grace, and leases are released; exporters last, so that verdicts of that time still leave.
        # In a hurry ingest is not waited for, because it may be in the middle of a second's wait for entries.
        stop_threads(self._ingest, unless=lambda: self.judging.hurried)
        for thread in self._notifiers:
            # Wait for it when all else is done, because it may hang on a broker, and nothing is lost with it.
            thread.stopping.set()
        stop_threads(self._sweepers)
        if self._judges:
            self.judging.stop(self._process.settings.grace_s)
        stop_threads(self.exporters)
        late = self._ingest if self.judging.hurried else []
        stop_threads([*late, *self._notifiers, self._maintenance])

    def pause_ingest(self, *, paused: bool) -> None:
        """Pause or resume ingest; any thread may call it."""
        self._backpressure.set_paused(paused=paused)


def forget_producers(store: Store) -> int:
    """Remove the keys of producers that are gone, and account for their remainders; return how many."""
    # At most a thousand per call; the next call continues. Any number of workers may call it at once; it can be
    # repeated.
    keys = store.keys
    silence_ms = PRODUCER_SILENCE_S * 1000
    before_ms = store.now_ms() - silence_ms
    # Read no more producers at once, because Redis serves no other client meanwhile.
    silent = store.call(lambda client: client.zrangebyscore(keys.producers, "-inf", before_ms, 0, 1_000))
    if not silent:
        return 0
    fixed = (keys.producers, keys.traces, keys.account_now(), keys.account_all)
    names = (*fixed, *(keys.producer(raw.decode()) for raw in silent))
    return int(store.run("forget_producers", names, (INGEST_GROUP, silence_ms, *silent)))


class BacklogGauges:
    """The gauges of the backlog, summed over the partitions that this worker serves. Safe to share between threads.

    The gauges of Redis' memory show the fullest server.

    A partition that is away keeps its last measured values in the sums, and its gauge `partition_up` is 0.
    """

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._metrics = metrics
        self._lock = threading.Lock()
        self._measured: dict[int, tuple[Backlog, Memory | None]] = {}
        self._max_bytes = {
            "traces": settings.max_stream_bytes,
            "outbox": settings.max_outbox_bytes,
            "batches": settings.max_waiting_bytes,
            "dead_letters": settings.max_dead_bytes,
            "sessions": MAX_SESSION_BYTES.read(settings),
        }
        self.lag: dict[str, Any] = {}  # The backlog, for remote control.

    def report_away(self, partition: int) -> None:
        """Report that a partition does not answer."""
        self._metrics.partition_up.labels(str(partition)).set(0)

    def update(self, partition: int, backlog: Backlog, memory: Memory | None, *, is_read: bool = True) -> None:
        """Set the gauges and counters of a partition; the gauges of the backlog only if this worker reads it."""
        metrics = self._metrics
        metrics.partition_up.labels(str(partition)).set(1)
        if not is_read:
            return
        metrics.cut_off.inc(backlog.traces.newly_cut)
        for exporter, position in backlog.outbox.items():
            metrics.outbox_cut_off.labels(exporter).inc(position.newly_cut)
        with self._lock:
            self._measured[partition] = backlog, memory
            parts = [part for part, _ in self._measured.values()]
            memories = [used for _, used in self._measured.values() if used is not None]
            outbox: Counter[str] = Counter()
            stored: Counter[str] = Counter()
            for part in parts:
                outbox.update({exporter: position.lag for exporter, position in part.outbox.items()})
                stored.update(part.bytes)
            parked = sum(part.parked for part in parts)
            waiting = sum(part.batches for part in parts) - parked
            lag = sum(part.traces.lag for part in parts)
            metrics.stream_lag.set(lag)
            metrics.stream_oldest.set(max(part.traces.oldest_ms for part in parts) / 1000)
            metrics.stream_capacity.set(sum(part.capacity for part in parts))
            metrics.batches_waiting.set(waiting)
            metrics.batches_parked.set(parked)
            metrics.dead_letters.set(sum(part.dead for part in parts))
            for what, size in stored.items():
                metrics.stored_bytes.labels(what).set(size)
                metrics.stored_max_bytes.labels(what).set(len(parts) * self._max_bytes[what])
            for exporter, behind in outbox.items():
                metrics.outbox_lag.labels(exporter).set(behind)
            if memories:
                # Report the fullest, because a sum would hide that one of several is about to refuse writes.
                fullest = max(memories, key=lambda mem: (mem.used_bytes / (mem.max_bytes or math.inf), mem.used_bytes))
                metrics.redis_used_bytes.set(fullest.used_bytes)
                metrics.redis_max_bytes.set(fullest.max_bytes)
            self.lag = {"stream": lag, "batches": waiting, "parked": parked, "outbox": dict(outbox)}


class Maintenance(ServiceThread):
    """Keeps the streams of one Redis within their caps and the gauges up to date."""

    role = "maintenance"
    shares = True

    def __init__(
        self,
        settings: Settings,
        store: Store,
        metrics: Metrics,
        *,
        groups: tuple[str, ...],
        readiness: Readiness,
        capacity: Callable[[], Mapping[str, bool]],
        backpressure: Backpressure,
        heartbeat: Heartbeat,
        gauges: BacklogGauges | None = None,
        is_read: bool = True,
        chores: Sequence[Callable[[], None]] = (),
    ) -> None:
        """Maintain one partition; ``is_read`` is whether this worker reads it, because it judges the batches of all."""
        super().__init__("maintenance")
        self._settings = settings
        self._store = store
        self._metrics = metrics
        self._groups = groups
        self._readiness = readiness
        self._capacity = capacity
        self._heartbeat = heartbeat
        self._backpressure = backpressure
        self._gauges = gauges or BacklogGauges(settings, metrics)
        self._is_read = is_read
        self._chores = chores
        self._prune_at = 0.0

    def run_once(self) -> None:
        """Trim, measure and report, then wait."""
        settings = self._settings
        keys = self._store.keys
        names = (keys.clock, keys.leases, keys.feedback, keys.sessions_due, keys.traces, keys.verdicts, *keys.locks)
        # Go by Redis' time, which made the ids, because a local clock that runs ahead would trim the whole stream.
        now_ms = int(self._store.run("clock", names, (LEASE_MS, _SET_BACK_MS)))
        oldest = f"{now_ms - int(settings.retention * 1000)}-0"
        caps = Caps(oldest, settings.max_stream_bytes, settings.max_stream, _MEAN_AGE_MS, settings.max_outbox_bytes)
        with contextlib.suppress(StoreError):
            # The SDK's script keeps to this cap. Each second, since Redis may come back without its data; a full Redis
            # refuses the write, and still has the former value.
            self._store.call(lambda client: client.hset(keys.caps, "max_stream", settings.max_stream))
        open_circuits = self._heartbeat.exchange_circuits()
        backlog = measure(self._store, caps, groups=self._groups, report_cuts=True, open_circuits=sorted(open_circuits))
        self._backpressure.set_open_circuits(open_circuits)
        self._backpressure.set_waiting(backlog.waiting)
        self._gauges.update(self._store.partition, backlog, read_memory(self._store), is_read=self._is_read)
        self._prune()
        paused = ("ingest",) if self._backpressure.bounds.paused else ()
        partition = self._store.partition
        self._readiness.update(flow_positions(self._store, self._groups, self._capacity()), paused, partition)
        self._heartbeat.beat({state.role: state.ready for state in self._readiness.roles(partition)})
        self.pause(_INTERVAL_S)

    def backoff(self, error: Exception) -> None:
        """Report the partition as away, and wait."""
        if isinstance(error, StoreError):
            self._gauges.report_away(self._store.partition)
        super().backoff(error)

    def stop(self, timeout_s: float) -> bool:
        """End the thread, and withdraw this worker's heartbeat."""
        ended = super().stop(timeout_s)
        with contextlib.suppress(StoreError):
            self._heartbeat.withdraw()
        return ended

    def _prune(self) -> None:
        """Once a minute: remove dead consumers and producers, and do the chores of features."""
        if time.monotonic() < self._prune_at:
            return
        self._prune_at = time.monotonic() + 60.0
        keys = self._store.keys
        for stream, group in ((keys.traces, INGEST_GROUP), *((keys.verdicts, group) for group in self._groups)):
            self._store.retire_consumers(stream, group)
        forget_producers(self._store)
        for chore in self._chores:
            chore()


class Sweeper(ServiceThread):
    """Each second, in one worker at a time: requeues batches that are due, and notifies, in case a message was lost."""

    role = "judge"
    shares = True

    def __init__(
        self, settings: Settings, store: Store, judging: JudgingConsumer, notifier: Notifier, heartbeat: Heartbeat
    ) -> None:
        """Ask ``heartbeat`` which judge models some worker has, and which have an open circuit in all workers."""
        super().__init__("sweeper")
        self._store = store
        self._judging = judging
        self._notifier = notifier
        self._heartbeat = heartbeat
        self.leases = Leases(store, tries_ttl_s=settings.ledger_ttl_s)
        self._holder = secrets.token_hex(8)

    def run_once(self) -> None:
        """Sweep if no other worker does, then wait."""
        # Renew first, or another worker sweeps our batches and judges them twice.
        self._judging.renew_overdue()
        # Another worker takes over the sweep after this time without renewal.
        if self._store.acquire_lock(self._store.keys.sweeper, self._holder, 3_000):
            self.sweep()
        self.pause(_INTERVAL_S)

    def sweep(self) -> None:
        """Requeue batches that are due, for all judge models that have any, and notify."""
        own_circuits = self._judging.circuits()
        names = sorted({*self.leases.judge_models(), *own_circuits})
        self.leases.sweep(names)
        configured, open_circuits = self._heartbeat.configured_models, self._heartbeat.open_circuits
        keys = self._store.keys
        ready = self._store.pipeline(
            lambda pipe: [pipe.zrange(keys.ready(name), 0, 0, withscores=True) for name in names]
        )
        for name, oldest in zip(names, ready, strict=True):
            if not oldest:
                continue
            if configured is not None and name not in configured and name not in own_circuits:
                # The model was removed from the configuration, so no task would ever complete its batches.
                self._judging.give_up(name)
            elif self._judging.should_notify(name, int(oldest[0][1]), open_circuits):
                self._notifier.notify(queue_label(name), 1)

    def stop(self, timeout_s: float) -> bool:
        """End the thread, and let another worker sweep."""
        ended = super().stop(timeout_s)
        if ended:
            with contextlib.suppress(StoreError):
                self._store.release_lock(self._store.keys.sweeper, self._holder)
        return ended
