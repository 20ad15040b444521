"""Everything that one worker process runs besides Celery: built, started and stopped in order."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import structlog
from prometheus_client import disable_created_metrics

from judges.endpoints.circuit_log import CircuitLog
from judges.endpoints.client import LimitedModel, Retries
from judges.endpoints.limiter import EndpointLimiter
from judges.models.registry import ModelSettingsError, build
from judges.registry import load_judges
from worker.core.config.graders import CODE, Graders, queue_label
from worker.core.config.reading import place_of
from worker.core.config.serving import Listen
from worker.core.config.settings import Settings, SettingsError
from worker.core.features import collect_all, find_exporters, installed
from worker.core.judging.consumer import QueueStatus
from worker.core.judging.evaluator import CODE_IN_HAND, close_all
from worker.core.judging.fetching import Limits, NoEndpoint
from worker.core.runtime.partition import Partition, ProcessContext
from worker.core.selection.sampling import Rules
from worker.core.storage.client import make_stores
from worker.core.storage.keys import MONITOR_GROUP
from worker.core.telemetry import logs
from worker.core.telemetry.health import Pulse, Readiness, flows
from worker.core.telemetry.http_server import HttpServer
from worker.core.telemetry.metrics import CallMetrics, Metrics
from worker.core.telemetry.service import LoopEndedError, open_stores, share_threads, stop_threads

log = structlog.get_logger("tracejudge.worker")
_PARTITION_STOP_S: Final = 5.0  # How long a partition may take to stop beside the grace.
_PANELS_AT_ONCE: Final = 256  # Evaluations of one panel at a time: each only reads the verdicts of its members.


class _Pool:
    """Celery's thread pool, as a thread that readiness watches."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    @property
    def pulse(self) -> Pulse:
        """Ended once it accepts no more tasks."""
        return Pulse(time.monotonic(), has_ended=self._pool.executor._shutdown)  # noqa: SLF001 - there is no other way


class Runtime:
    """The threads and the judging of one worker process."""

    def __init__(
        self,
        settings: Settings,
        *,
        send: Callable[[int, str, int], None],
        serves: QueueStatus,
        config: str | None = None,
    ) -> None:
        """Build what the roles need, or raise ``SettingsError``; ``send`` is ``BrokerSender.send``."""
        self.settings = settings
        self._config = config
        self.stores = make_stores(settings.redis_url, settings.prefix, settings.partition_count)
        self.metrics = Metrics(settings)
        logs.count_dropped(self.metrics.log_records_dropped.inc)
        self._readiness = Readiness()
        self._http_server = HttpServer.from_settings(settings, os.environ, self.metrics.registry, self._readiness)
        judges = load_judges(settings.judges)
        for feature in installed():
            if feature.prepare is not None:
                feature.prepare(settings, judges, self.metrics)
        self._graders = Graders(settings, judges)
        rules = Rules(settings, self._graders)
        models = self._build_models()
        limits: dict[str, Limits] = {model.judge_model: model.limiter for model in models.values()}
        limits |= {judge_model: NoEndpoint(_PANELS_AT_ONCE) for judge_model in self._graders.panels}
        if self._graders.serves_code:
            limits[CODE.judge_model] = NoEndpoint(CODE_IN_HAND)
        exporters = find_exporters(settings)
        self._process = ProcessContext(
            settings,
            self.metrics,
            judges=judges,
            models=models,
            rules=rules,
            limits=limits,
            readiness=self._readiness,
            exporters=exporters,
            serves=serves,
        )
        numbers = range(settings.partition_count) if self._process.has("judge") else settings.served
        self.partitions = {
            number: Partition(self._process, self.stores[number], partial(send, number)) for number in numbers
        }
        # The monitor reads the outboxes of all partitions, also of those that this worker does not serve.
        factories = (feature.process_threads for feature in installed())
        threads = collect_all(factories, settings, self.metrics, self.stores, rules)
        self._process_threads = [thread for thread, _ in threads]
        for thread, store in threads:
            # Only the first partition decides about readiness, because the sums are kept there.
            is_first = store is store.first
            self._readiness.watch(thread.name, thread.role if is_first else None, thread, store.partition)
        if any(thread.role == "monitor" for thread, _ in threads) and 0 in self.partitions:
            for flow in flows(("monitor",), {MONITOR_GROUP: "monitor"}, ()):
                self._readiness.add_flow(flow)
        self._readiness.publish(self.metrics.ready.labels)

    @property
    def labels(self) -> list[str]:
        """The labels of the queues of the judge models configured here."""
        return list(dict.fromkeys(map(queue_label, self._process.limits)))

    def start(self) -> None:
        """Serve metrics and start all threads, or raise ``SettingsError``, also for keys of another version."""
        settings = self.settings
        open_stores(self.stores, settings, self._config)
        # A creation time per series would double the page, and nothing of ours reads it.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        page = self._http_server.start(Listen.from_table(settings, "metrics_"))
        if self._process.has("judge"):
            self._process.loop.start()
        of_partitions = (thread for partition in self.partitions.values() for thread in partition.threads)
        share_threads([*self._process_threads, *of_partitions])
        for partition in self.partitions.values():
            partition.start()
        for thread in self._process_threads:
            thread.start()
        judge_models = {model.judge_model for model in settings.models.values()}
        log.info(
            "worker started",
            roles=settings.roles,
            redis=self.stores[0].address,
            metrics=page,
            judge_models=sorted(judge_models | ({CODE.judge_model} if self._graders.serves_code else set())),
            pid=os.getpid(),
        )

    def stop(self) -> None:
        """Stop all partitions at once, so that none uses up the grace of another, then what they share."""
        began = time.monotonic()
        self._readiness.begin_stop()
        log.info("worker stopping", grace_s=self.settings.grace_s)
        stops = [threading.Thread(target=partition.stop, daemon=True) for partition in self.partitions.values()]
        for thread in stops:
            thread.start()
        # One whose server hangs is left behind, so that what they share ends in order.
        for thread in stops:
            thread.join(max(0.0, began + self.settings.grace_s + _PARTITION_STOP_S - time.monotonic()))
        # Stop these after the partitions, because they count the verdicts of that time.
        stop_threads(self._process_threads)
        loop = self._process.loop
        if loop.running:
            with contextlib.suppress(TimeoutError, LoopEndedError):
                loop.wait(close_all(self._process.models, self._process.judges), timeout_s=2.0)
            loop.stop()
        for store in self.stores:
            store.close()
        self._http_server.stop()
        log.info("worker stopped", seconds=round(time.monotonic() - began, 2))

    def hurry(self) -> None:
        """Cut the grace of a stop short: leases of evaluations in progress are released at once."""
        for partition in self.partitions.values():
            partition.judging.hurry()

    def pause_ingest(self, *, paused: bool) -> None:
        """Pause or resume ingest; any thread may call it."""
        for partition in self.partitions.values():
            partition.pause_ingest(paused=paused)

    def state(self) -> dict[str, Any]:
        """Return the shifts, roles and backlog for remote control, without asking Redis."""
        roles = {role.role: {"state": role.state, "why": role.why} for role in self._readiness.roles()}
        shifts: dict[str, list[dict[str, Any]]] = {}
        for partition in self.partitions.values():
            for label, running in partition.judging.shifts().items():
                shifts.setdefault(label, []).extend(running)
        return {"shifts": shifts, "roles": roles, "lag": self._process.gauges.lag}

    def watch_pool(self, pool: Any) -> None:
        """Watch Celery's pool: the worker is unhealthy once it has ended."""
        self._readiness.watch("task-pool", None, _Pool(pool), None)

    def _build_models(self) -> Mapping[str, LimitedModel]:
        """Build the models by name; models with one judge model share its endpoint, and so its limiter and retries."""
        models: dict[str, LimitedModel] = {}
        shared: dict[str, tuple[EndpointLimiter, Retries]] = {}
        observers: dict[str, CallMetrics] = {}
        all_settings = self.settings.models.values()
        for name, settings in self.settings.models.items():
            judge_model = settings.judge_model
            if judge_model not in shared:
                most = min(model.max_in_flight for model in all_settings if model.judge_model == judge_model)
                limiter = EndpointLimiter(most, events=CircuitLog(judge_model))
                shared[judge_model] = limiter, Retries()
                observers[judge_model] = CallMetrics(self.metrics, judge_model, limiter)
            try:
                model = build(settings, os.environ, self.settings.proxy)
            except ModelSettingsError as error:
                place = place_of("models", os.environ, self._config)
                raise SettingsError(f"{place}: models.{name}.{error}") from error
            models[name] = LimitedModel(model, *shared[judge_model], observer=observers[judge_model])
        return models
