"""The stages of one worker process: built together, started together, stopped in order."""

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import structlog
from prometheus_client import disable_created_metrics

from judges.catalog import configured
from judges.models.build import ModelSettingsError, build
from worker.access import Access, tls_context
from worker.circuits import Circuits
from worker.dead.reviving import Reviving
from worker.export.otel import OtelExporter
from worker.export.outbox import OutboxReader
from worker.export.prometheus import PrometheusExporter
from worker.housekeeping import Housekeeping
from worker.ingest.feedback import LateFeedbackPasses
from worker.ingest.reader import Ingest
from worker.judging.evaluations import CODE_IN_HAND, Evaluations
from worker.judging.judging import Judging
from worker.judging.lane import Limits, NoEndpoint
from worker.judging.sweeper import Sweeper
from worker.keys import Keys, outbox_groups
from worker.ledger import Ledger
from worker.limits.code import keep_secrets, measure
from worker.limits.gate import Gate
from worker.limits.model import LimitedModel
from worker.limits.retries import Retries
from worker.metrics import Metrics
from worker.pressure import Pressure
from worker.readiness import Readiness
from worker.seats import CODE, Seats
from worker.serving import Serving
from worker.settings import Settings, SettingsError
from worker.stage import Stage
from worker.standing import expected
from worker.store import Store, address
from worker.waking import Waking

__all__ = ["Runtime"]

log = structlog.get_logger("tracejudge.worker")

_STAGE_STOP_S: Final = 3.0
_LOOK_S: Final = 0.05
_COMBINED_AT_ONCE: Final = 256
"""Evaluations of one panel that are looked at together: each only reads what its members found."""


class Runtime:
    """Everything one worker process runs besides Celery."""

    def __init__(self, settings: Settings, *, waking: Waking) -> None:
        """Build the stages of the configured roles.

        Args:
            waking: Sends wake-ups.

        Raises:
            SettingsError: A model cannot be made from its settings.
        """
        self.settings = settings
        self.store = Store(settings.redis_url, Keys(settings.prefix))
        self.metrics = Metrics(settings)
        self._readiness = Readiness()
        access = Access.of(settings, os.environ)
        self._serving = Serving(self.metrics.registry, self._readiness, access, tls_context(settings))
        ledger = Ledger(self.store, settings)
        models = self._models()
        self._judges = configured(settings.judges)
        keep_secrets(settings)
        measure(self._judges.values(), self.metrics)
        self._seats = Seats(settings, self._judges)
        evaluations = Evaluations(settings, self._judges, models, ledger)
        gates = _gates(self._seats, models.values())
        for judge, judge_model in self._seats.outvoted:
            self.metrics.panel_member.labels(judge, judge_model).set(1)
        circuits = Circuits(self.store, lambda: self.judging.circuits if self._has("judge") else {})
        self.judging = Judging(settings, self.store, evaluations, ledger, gates=gates, asked=lambda: circuits.asked)
        # Panels add no work of their own: what waits of theirs ends with their members, and is small.
        asked = {CODE.judge_model, *(model.judge_model for model in settings.models.values())}
        self._pressure = Pressure(settings.max_waiting_bytes, asked)
        groups = outbox_groups(otel=settings.otlp_endpoint is not None)
        self._housekeeping = Housekeeping(
            settings,
            self.store,
            self.metrics,
            groups=groups,
            readiness=self._readiness,
            room=lambda: self.judging.room if self._has("judge") else {},
            pressure=self._pressure,
            circuits=circuits,
        )
        self._ingest = self._readers(waking.wake)
        self._waking = [waking] if self._has("ingest") else []
        self._sweepers = [Sweeper(self.judging), self._reviving(gates)] if self._has("judge") else []
        self._exporters = self._make_exporters() if self._has("export") else []
        self._be_watched(groups, list(gates))

    def start(self) -> None:
        """Serve metrics and start all stages.

        Raises:
            SettingsError: The metrics port is taken.
        """
        settings = self.settings
        # A time of creation per series would double the page, and nothing of ours reads it.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        try:
            page = self._serving.start(settings.metrics_host, settings.metrics_port)
        except OSError as error:
            raise SettingsError(
                f"metrics_port: {settings.metrics_host}:{settings.metrics_port} cannot be used ({error.strerror}); "
                "set TRACEJUDGE_METRICS_PORT, 0 takes any free one"
            ) from error
        if self._has("judge"):
            self.judging.start()
        for stage in (self._housekeeping, *self._waking, *self._ingest, *self._sweepers, *self._exporters):
            stage.start()
        log.info(
            "worker started",
            roles=settings.roles,
            redis=address(settings.redis_url),
            metrics=page,
            judge_models=sorted(
                {model.judge_model for model in settings.models.values()}
                | ({CODE.judge_model} if self._seats.code else set())
            ),
            pid=os.getpid(),
        )

    def stop(self) -> None:
        """Stop in order.

        Reading first, so that nothing new is chosen; then judging: no further call begins, those under way have their
        grace, and leases are given back; exporters last, so that what was judged meanwhile still leaves. In a hurry
        nobody waits for reading: it may be in the middle of a second's wait for entries.
        """
        began = time.monotonic()
        self._readiness.end()
        log.info("worker stopping", grace_s=self.settings.grace_s)
        _stop(self._ingest, unless=lambda: self.judging.hurried)
        for stage in self._waking:
            # It may hang on a broker, and nothing is lost with it: waited for when all that matters is done.
            stage.stopping.set()
        _stop(self._sweepers)
        if self._has("judge"):
            self.judging.stop(self.settings.grace_s)
        _stop(self._exporters)
        late = self._ingest if self.judging.hurried else []
        _stop([*late, *self._waking, self._housekeeping])
        self.store.close()
        self._serving.stop()
        log.info("worker stopped", seconds=round(time.monotonic() - began, 2))

    def hurry(self) -> None:
        """Cut the grace of a stop short: what is being judged is given back at once."""
        self.judging.hurry()

    def _be_watched(self, groups: Sequence[str], judge_models: Sequence[str]) -> None:
        """Make known whose progress the probes and the gauge tell of."""
        readiness = self._readiness
        for stage in (*self._ingest, *self._sweepers, *self._exporters):
            readiness.watch(stage.name, stage.role, stage)
        if self._has("judge"):
            readiness.watch("event-loop", "judge", self.judging)
        for stage in self._waking:
            readiness.watch(stage.name, None, stage)
        readiness.watch(self._housekeeping.name, None, self._housekeeping)
        for flow, role, what in expected(self.settings.roles, groups, judge_models):
            readiness.expect(flow, role, what)
        readiness.show(self.metrics.ready)

    def _has(self, role: str) -> bool:
        return role in self.settings.roles

    def _models(self) -> Mapping[str, LimitedModel]:
        """Make the models; those that share a judge model share its endpoint, and so its gate and its retries."""
        models: dict[str, LimitedModel] = {}
        shared: dict[str, tuple[Gate, Retries]] = {}
        for name, settings in self.settings.models.items():
            judge_model = settings.judge_model
            if judge_model not in shared:
                shared[judge_model] = Gate(judge_model, self._most_in_flight(judge_model)), Retries()
            try:
                models[name] = LimitedModel(build(settings, os.environ), self.metrics, *shared[judge_model])
            except ModelSettingsError as error:
                raise SettingsError(f"models.{name}.{error}") from error
        return models

    def _most_in_flight(self, judge_model: str) -> int:
        models = self.settings.models.values()
        return min(model.max_in_flight for model in models if model.judge_model == judge_model)

    def _readers(self, wake: Callable[[str], None]) -> list[Stage]:
        if not self._has("ingest"):
            return []
        return [
            kind(self.settings, self.store, self.metrics, wake=wake, pressure=self._pressure, judges=self._judges)
            for kind in (Ingest, LateFeedbackPasses)
        ]

    def _reviving(self, gates: Mapping[str, Limits]) -> Reviving:
        return Reviving(
            self.settings,
            self.store,
            healthy=lambda: [name for name, gate in gates.items() if gate.open_for_s == 0],
            probed=lambda: [name for name, gate in gates.items() if gate.open_for_s != 0 and gate.closed_for_s == 0],
            versions={name: judge.version for name, judge in self._judges.items()},
            seats=self._seats,
        )

    def _make_exporters(self) -> list[OutboxReader]:
        exporters: list[OutboxReader] = [PrometheusExporter(self.settings, self.store, self.metrics)]
        if self.settings.otlp_endpoint is not None:
            exporters.append(OtelExporter(self.settings, self.store, self.metrics, self.settings.otlp_endpoint))
        return exporters


def _gates(seats: Seats, models: Iterable[LimitedModel]) -> dict[str, Limits]:
    """List the limits of all who judge, by judge model."""
    gates: dict[str, Limits] = {model.settings.judge_model: model.gate for model in models}
    gates.update({judge_model: NoEndpoint(_COMBINED_AT_ONCE) for judge_model in seats.panels})
    return gates | ({CODE.judge_model: NoEndpoint(CODE_IN_HAND)} if seats.code else {})


def _stop(stages: Sequence[Stage], unless: Callable[[], bool] = bool) -> None:
    for stage in stages:
        stage.stopping.set()
    for stage in stages:
        deadline = time.monotonic() + _STAGE_STOP_S
        while not stage.stop(_LOOK_S) and not unless():
            if time.monotonic() > deadline:
                log.warning("stage did not end in time", stage=stage.name)
                break
