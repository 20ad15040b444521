"""Everything that one worker process runs besides Celery: built, started and stopped in order."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import structlog
from prometheus_client import disable_created_metrics

from judges.endpoints.client import LimitedModel, Retries
from judges.endpoints.limiter import EndpointLimiter
from judges.models.registry import ModelSettingsError, build
from judges.registry import configured
from worker.config.graders import CODE, Graders
from worker.config.loading import place_of, redis_fix
from worker.config.redaction import keep_secrets
from worker.config.settings import Settings, SettingsError
from worker.dead_letters.retry import AutoRetry
from worker.export.registry import enabled
from worker.ingest.consumer import IngestConsumer
from worker.ingest.conversations import SessionPasses, SessionSelector
from worker.ingest.late_feedback import LateFeedbackPasses
from worker.ingest.plan import Planner
from worker.judging.consumer import JudgingConsumer, Serves, Sweeper
from worker.judging.evaluator import CODE_IN_HAND, BatchEvaluator
from worker.judging.fetching import Limits, NoEndpoint
from worker.maintenance import Maintenance
from worker.queue.ledger import Ledger
from worker.queue.notify import Notifier
from worker.selection.sampling import Sampler
from worker.service import OUTAGE, ServiceThread
from worker.storage.client import LayoutError, Store, StoreError, address
from worker.storage.keys import Keys
from worker.telemetry import logs
from worker.telemetry.backlog import Backpressure
from worker.telemetry.calls import CallMetrics, measure_python
from worker.telemetry.health import Pulse, Readiness, flows
from worker.telemetry.heartbeat import Heartbeat
from worker.telemetry.http_server import HttpAuth, HttpServer, tls_context
from worker.telemetry.metrics import Metrics, push

if TYPE_CHECKING:
    from worker.telemetry.metrics_push import MetricsPush

log = structlog.get_logger("tracejudge.worker")
_THREAD_STOP_S: Final = 3.0
_LOOK_S: Final = 0.05
_PANELS_AT_ONCE: Final = 256
"""Evaluations of one panel at a time: each only reads the verdicts of its members."""


class _Pool:
    """Celery's thread pool, as a thread that readiness watches."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    @property
    def pulse(self) -> Pulse:
        """Dead once it accepts no more tasks."""
        return Pulse(time.monotonic(), dead=self._pool.executor._shutdown)  # noqa: SLF001 - there is no other way


class Runtime:
    """The threads and the judging of one worker process."""

    def __init__(
        self, settings: Settings, *, send: Callable[[str, int], None], serves: Serves, config: str | None = None
    ) -> None:
        """Build what the configured roles need.

        Args:
            settings: The settings.
            send: Sends a notification unless its queue holds so many.
            serves: Returns whether this worker consumes a queue now.
            config: The configuration file, for errors.

        Raises:
            SettingsError: A model cannot be made from its settings.
        """
        self.settings = settings
        self._config = config
        self.store = Store(settings.redis_url, Keys(settings.prefix))
        self.metrics = Metrics(settings)
        logs.count_dropped(self.metrics.log_records_dropped.inc)
        self._readiness = Readiness()
        access = HttpAuth.of(settings, os.environ)
        self._push: MetricsPush | None = None
        self._http_server = HttpServer(self.metrics.registry, self._readiness, access, tls_context(settings))
        self._judges = configured(settings.judges)
        keep_secrets(settings)
        measure_python(self._judges.values(), self.metrics)
        self._graders = Graders(settings, self._judges)
        for judge, judge_model in self._graders.outvoted:
            self.metrics.panel_member.labels(judge, judge_model).set(1)
        ledger, models = Ledger(self.store, settings), self._build_models()
        sampler = Sampler(settings, self._graders)
        limits: dict[str, Limits] = {model.judge_model: model.limiter for model in models.values()}
        limits |= {judge_model: NoEndpoint(_PANELS_AT_ONCE) for judge_model in self._graders.panels}
        if self._graders.code:
            limits[CODE.judge_model] = NoEndpoint(CODE_IN_HAND)
        self._notifier = Notifier(self.store, send, limits)
        self.judging = JudgingConsumer(
            settings,
            self.store,
            BatchEvaluator(
                *(settings, self._judges, models, ledger),
                graders=self._graders,
                sampler=sampler,
                refused=lambda budget: self.metrics.budget_refused.labels(budget).inc(),
            ),
            ledger,
            limits=limits,
            notifier=self._notifier,
            serves=serves,
        )
        # Panels add no backlog of their own: their batches are small, and end with their members.
        called = {CODE.judge_model, *(model.judge_model for model in settings.models.values())}
        self._backpressure = Backpressure(settings.max_waiting_bytes, called)
        heartbeat = Heartbeat(self.store, self.judging.circuits if self._has("judge") else dict)
        exporters = enabled(settings)
        groups = tuple(exporters)
        self._maintenance = Maintenance(
            settings,
            self.store,
            self.metrics,
            groups=groups,
            readiness=self._readiness,
            capacity=self.judging.capacity if self._has("judge") else dict,
            backpressure=self._backpressure,
            heartbeat=heartbeat,
        )
        self._ingest: list[ServiceThread] = []
        if self._has("ingest"):
            planner = Planner(settings, self.store.keys, sampler)
            for kind in (IngestConsumer, LateFeedbackPasses):
                parts = settings, self.store, self.metrics
                self._ingest.append(kind(*parts, planner=planner, notifier=self._notifier, pressure=self._backpressure))
            selector = SessionSelector(settings, self.store, self._judges, self._graders)
            self._ingest.append(
                SessionPasses(*parts, selector=selector, notifier=self._notifier, pressure=self._backpressure)
            )
        self._notifiers = [self._notifier] if self._has("ingest") or self._has("judge") else []
        self._sweepers: list[ServiceThread] = []
        if self._has("judge"):
            auto_retry = AutoRetry(
                *(settings, self.store),
                healthy=self.judging.healthy_models,
                probed=self.judging.models_to_probe,
                sampler=sampler,
            )
            self._sweepers = [Sweeper(settings, self.store, self.judging, self._notifier, heartbeat), auto_retry]
        made = [exporter for exporter in exporters.values() if self._has(exporter.role)]
        self._exporters = [exporter.make(settings, self.store, self.metrics) for exporter in made]
        self._watch_threads({name: exporter.role for name, exporter in exporters.items()}, list(limits))

    def start(self) -> None:
        """Serve metrics and start all threads.

        Raises:
            SettingsError: The metrics port is in use, or Redis holds keys of another version.
        """
        settings = self.settings
        OUTAGE.fix = redis_fix(self._config)
        try:
            self.store.open()
        except LayoutError as error:
            raise SettingsError(f"{place_of('redis_url', os.environ, self._config)}: redis_url: {error}") from error
        except StoreError as error:
            OUTAGE.report(error)
        # A creation time per series would double the page, and nothing of ours reads it.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        try:
            page = self._http_server.start(settings.metrics_host, settings.metrics_port)
        except OSError as error:
            raise SettingsError(
                f"metrics_port: {settings.metrics_host}:{settings.metrics_port} cannot be used ({error.strerror}); "
                "set metrics_port, TRACEJUDGE_METRICS_PORT or --metrics-port; 0 takes any free one"
            ) from error
        self._push = push(settings, self.metrics.registry, os.environ)
        if self._has("judge"):
            self.judging.start()
        for thread in (self._maintenance, *self._notifiers, *self._ingest, *self._sweepers, *self._exporters):
            thread.start()
        judge_models = {model.judge_model for model in settings.models.values()}
        log.info(
            "worker started",
            roles=settings.roles,
            redis=address(settings.redis_url),
            metrics=page,
            judge_models=sorted(judge_models | ({CODE.judge_model} if self._graders.code else set())),
            pid=os.getpid(),
        )

    def stop(self) -> None:
        """Stop in order.

        First ingest, so that no new evaluation is chosen; then judging: no further call begins, those in flight have
        their grace, and leases are released; exporters last, so that verdicts of that time still leave.
        """
        began = time.monotonic()
        self._readiness.begin_stop()
        log.info("worker stopping", grace_s=self.settings.grace_s)
        # In a hurry ingest is not waited for: it may be in the middle of a second's wait for entries.
        _stop(self._ingest, unless=lambda: self.judging.hurried)
        for thread in self._notifiers:
            # It may hang on a broker, and nothing is lost with it: waited for when everything else is done.
            thread.stopping.set()
        _stop(self._sweepers)
        if self._has("judge"):
            self.judging.stop(self.settings.grace_s)
        _stop(self._exporters)
        late = self._ingest if self.judging.hurried else []
        _stop([*late, *self._notifiers, self._maintenance])
        self.store.close()
        if self._push is not None:
            self._push.stop()
        self._http_server.stop()
        log.info("worker stopped", seconds=round(time.monotonic() - began, 2))

    def hurry(self) -> None:
        """Cut the grace of a stop short: leases of evaluations in progress are released at once."""
        self.judging.hurry()

    def pause_ingest(self, *, paused: bool) -> None:
        """Pause or resume ingest; any thread may call it."""
        self._backpressure.hold(paused=paused)

    def state(self) -> dict[str, Any]:
        """Return the shifts, roles and backlog for remote control, without asking Redis."""
        roles = {each.role: {"state": each.state, "why": each.why} for each in self._readiness.roles()}
        return {"shifts": self.judging.shifts(), "roles": roles, "lag": self._maintenance.lag}

    def watch_pool(self, pool: Any) -> None:
        """Watch Celery's pool: the worker is unhealthy once it has ended."""
        self._readiness.watch("task-pool", None, _Pool(pool))

    def _has(self, role: str) -> bool:
        return role in self.settings.roles

    def _watch_threads(self, groups: Mapping[str, str], judge_models: Sequence[str]) -> None:
        """Register the threads and flows that readiness reports on."""
        readiness = self._readiness
        for thread in (*self._ingest, *self._sweepers, *self._exporters):
            readiness.watch(thread.name, thread.role, thread)
        if self._has("judge"):
            readiness.watch("event-loop", "judge", self.judging)
        for thread in (*self._notifiers, self._maintenance):
            readiness.watch(thread.name, None, thread)
        for flow in flows(self.settings.roles, groups, judge_models):
            readiness.add_flow(flow)
        readiness.publish(self.metrics.ready)

    def _build_models(self) -> Mapping[str, LimitedModel]:
        """Build the models by name; those of one judge model share its endpoint, and so its limiter and retries."""
        models: dict[str, LimitedModel] = {}
        shared: dict[str, tuple[EndpointLimiter, Retries]] = {}
        observers: dict[str, CallMetrics] = {}
        all_settings = self.settings.models.values()
        for name, settings in self.settings.models.items():
            judge_model = settings.judge_model
            if judge_model not in shared:
                most = min(model.max_in_flight for model in all_settings if model.judge_model == judge_model)
                limiter = EndpointLimiter(judge_model, most)
                shared[judge_model] = limiter, Retries()
                observers[judge_model] = CallMetrics(self.metrics, judge_model, limiter)
            try:
                model = build(settings, os.environ, self.settings.proxy)
            except ModelSettingsError as error:
                place = place_of("models", os.environ, self._config)
                raise SettingsError(f"{place}: models.{name}.{error}") from error
            models[name] = LimitedModel(model, *shared[judge_model], observer=observers[judge_model])
        return models


def _stop(threads: Sequence[ServiceThread], unless: Callable[[], bool] = bool) -> None:
    """Stop threads together, each within a bound, unless a condition comes to hold."""
    for thread in threads:
        thread.stopping.set()
    for thread in threads:
        deadline = time.monotonic() + _THREAD_STOP_S
        while not thread.stop(_LOOK_S) and not unless():
            if time.monotonic() > deadline:
                log.warning("thread not stopped in time", thread=thread.name)
                break
