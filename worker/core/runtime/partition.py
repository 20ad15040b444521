"""The parts of one worker process for one partition: store, threads and judging, built, started and stopped in order.

On a cluster a worker has one of these for each partition. Readers and exporters wait in Redis, so each has a thread of
its own; of all others one thread serves all partitions (`share_threads`).
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog

from judges.core.judge import Judge
from judges.endpoints.client import LimitedModel
from worker.core.config.graders import CODE
from worker.core.config.settings import Settings
from worker.core.features import (
    ExporterSpec,
    PartitionContext,
    TraceHookContext,
    collect_all,
    installed,
    make_ingest_hooks,
)
from worker.core.ingest.consumer import IngestConsumer
from worker.core.ingest.plan import Planner
from worker.core.judging.consumer import JudgingConsumer, QueueStatus
from worker.core.judging.evaluator import BatchEvaluator, code_slots
from worker.core.judging.fetching import Limits, Slots
from worker.core.queue.ledger import Ledger
from worker.core.queue.notify import Notifier
from worker.core.runtime.maintenance import BacklogGauges, Maintenance, Sweeper
from worker.core.selection.sampling import Rules, Sampler
from worker.core.storage.client import Store
from worker.core.telemetry.backlog import Backpressure
from worker.core.telemetry.health import Heartbeat, Readiness, flows
from worker.core.telemetry.metrics import Metrics
from worker.core.telemetry.service import EventLoopThread, ServiceThread, stop_threads

log = structlog.get_logger("tracejudge.worker")


@dataclass
class ProcessContext:
    """The shared parts of all partitions of one process: judges, models with their limits, metrics, and the event loop.

    Attributes:
        exporters: Those of all workers.
        serves: Says whether a queue is consumed now.
    """

    settings: Settings
    metrics: Metrics
    judges: Mapping[str, Judge]
    models: Mapping[str, LimitedModel]
    rules: Rules
    limits: Mapping[str, Limits]
    readiness: Readiness
    exporters: Mapping[str, ExporterSpec]
    serves: QueueStatus

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
    """The threads and the judging of one partition.

    Attributes:
        store: The partition.
        judging: Judges its batches.
    """

    def __init__(self, process: ProcessContext, store: Store, send: Callable[[str, int], None]) -> None:
        """Build what the configured roles need; ``send(label, at_most)`` sends a notification (``BrokerSender``)."""
        settings, metrics, rules = process.settings, process.metrics, process.rules
        self._process = process
        self.store = store
        # Any worker judges the batches of all partitions, as its messages name them; reading them is divided.
        is_read = store.partition in settings.served
        self._judges = process.has("judge")
        roles = [role for role in settings.roles if is_read or role == "judge"]
        ledger = Ledger(store, settings)
        self._notifier = Notifier(store, send, process.limits, process.wake)
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
        """Stop in order.

        First ingest, so that no new evaluation is chosen; then judging: no further call begins, those in flight have
        their grace, and leases are released; exporters last, so that verdicts of that time still leave.
        """
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
