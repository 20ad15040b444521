"""The stages of one worker process: built together, started together, stopped in order."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import structlog
from prometheus_client import disable_created_metrics, start_http_server

from judges.catalog import configured
from judges.models.build import ModelSettingsError, build
from worker.export.otel import OtelExporter
from worker.export.outbox import OutboxReader
from worker.export.prometheus import PrometheusExporter
from worker.housekeeping import Housekeeping
from worker.ingest.feedback import LateFeedbackPasses
from worker.ingest.reader import Ingest
from worker.judging.evaluations import Evaluations
from worker.judging.judging import Judging
from worker.judging.sweeper import Sweeper
from worker.keys import Keys, outbox_groups
from worker.ledger import Ledger
from worker.limits.gate import Gate
from worker.limits.model import LimitedModel
from worker.metrics import Metrics
from worker.pressure import Pressure
from worker.settings import Settings, SettingsError
from worker.stage import Stage
from worker.store import Store, address

__all__ = ["Runtime"]

log = structlog.get_logger("tracejudge.worker")

_STAGE_STOP_S: Final = 3.0


class Runtime:
    """Everything one worker process runs besides Celery."""

    def __init__(self, settings: Settings, *, wake: Callable[[str], None]) -> None:
        """Build the stages of the configured roles.

        Args:
            wake: Sends the wake-up for a batch.

        Raises:
            SettingsError: A model cannot be made from its settings.
        """
        self.settings = settings
        self.store = Store(settings.redis_url, Keys(settings.prefix))
        self.metrics = Metrics(settings)
        ledger = Ledger(self.store, settings)
        models = self._models()
        evaluations = Evaluations(settings, configured(settings.judges), models, ledger)
        gates = {model.settings.judge_model: model.gate for model in models.values()}
        self.judging = Judging(settings, self.store, evaluations, ledger, gates)
        self._pressure = Pressure(settings.max_waiting_bytes)
        progress: dict[str, Callable[[], float]] = {}
        groups = outbox_groups(otel=settings.otlp_endpoint is not None)
        self._housekeeping = Housekeeping(
            settings,
            self.store,
            self.metrics,
            groups=groups,
            progress=progress,
            pressure=self._pressure,
            circuits=lambda: self.judging.circuits if self._has("judge") else {},
        )
        self._ingest = self._readers(wake)
        self._sweepers = [Sweeper(self.judging)] if self._has("judge") else []
        self._exporters = self._make_exporters() if self._has("export") else []
        for stage in (*self._ingest, *self._sweepers, *self._exporters):
            progress[stage.role] = _latest(progress.get(stage.role), stage)
        if self._has("judge"):
            progress["judge"] = _latest(progress["judge"], self.judging)

    def start(self) -> None:
        """Serve metrics and start all stages.

        Raises:
            SettingsError: The metrics port is taken.
        """
        settings = self.settings
        # A time of creation per series would double the page, and nothing of ours reads it.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        try:
            server, _ = start_http_server(settings.metrics_port, settings.metrics_host, self.metrics.registry)
        except OSError as error:
            raise SettingsError(
                f"metrics_port: {settings.metrics_host}:{settings.metrics_port} cannot be used ({error.strerror}); "
                "set TRACEJUDGE_METRICS_PORT, 0 takes any free one"
            ) from error
        if self._has("judge"):
            self.judging.start()
        for stage in (self._housekeeping, *self._ingest, *self._sweepers, *self._exporters):
            stage.start()
        log.info(
            "worker started",
            roles=settings.roles,
            redis=address(settings.redis_url),
            metrics=f"http://{settings.metrics_host}:{server.server_port}/metrics",
            judge_models=sorted({model.judge_model for model in settings.models.values()}),
            pid=os.getpid(),
        )

    def stop(self) -> None:
        """Stop in order.

        Reading first, so that nothing new is chosen; then judging: no further call begins, those under way have their
        grace, and leases are given back; exporters last, so that what was judged meanwhile still leaves.
        """
        began = time.monotonic()
        _stop(self._ingest)
        _stop(self._sweepers)
        if self._has("judge"):
            self.judging.stop(self.settings.grace_s)
        _stop(self._exporters)
        _stop([self._housekeeping])
        self.store.close()
        log.info("worker stopped", seconds=round(time.monotonic() - began, 2))

    def hurry(self) -> None:
        """Cut the grace of a stop short: what is being judged is given back at once."""
        self.judging.hurry()

    def _has(self, role: str) -> bool:
        return role in self.settings.roles

    def _models(self) -> Mapping[str, LimitedModel]:
        """Make the models; those that share a judge model share its endpoint, and so one gate to it."""
        models: dict[str, LimitedModel] = {}
        gates: dict[str, Gate] = {}
        for name, settings in self.settings.models.items():
            try:
                model = build(settings, os.environ)
            except ModelSettingsError as error:
                raise SettingsError(f"models.{name}.{error}") from error
            models[name] = LimitedModel(model, self.metrics, gates.get(settings.judge_model))
            gates[settings.judge_model] = models[name].gate
        return models

    def _readers(self, wake: Callable[[str], None]) -> list[Stage]:
        if not self._has("ingest"):
            return []
        return [
            kind(self.settings, self.store, self.metrics, wake=wake, pressure=self._pressure)
            for kind in (Ingest, LateFeedbackPasses)
        ]

    def _make_exporters(self) -> list[OutboxReader]:
        exporters: list[OutboxReader] = [PrometheusExporter(self.settings, self.store, self.metrics)]
        if self.settings.otlp_endpoint is not None:
            exporters.append(OtelExporter(self.settings, self.store, self.metrics, self.settings.otlp_endpoint))
        return exporters


def _stop(stages: Sequence[Stage]) -> None:
    for stage in stages:
        stage.stopping.set()
    for stage in stages:
        if not stage.stop(_STAGE_STOP_S):
            log.warning("stage did not end in time", stage=stage.role)


def _latest(other: Callable[[], float] | None, stage: Stage | Judging) -> Callable[[], float]:
    """Tell when the slowest of a role's stages last made progress."""
    if other is None:
        return lambda: stage.progressed_at
    return lambda: min(other(), stage.progressed_at)
