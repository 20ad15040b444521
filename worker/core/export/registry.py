"""The exporters by name, and the receivers by kind. A further one is a file with a subclass and its row here."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from worker.base.delivery.receiver_delivery import ReceiverExporter, group_of
from worker.base.doctor.finding import Check
from worker.base.monitor.sums import QualitySums
from worker.base.otlp.receiver import OtlpExporter
from worker.core.config.settings import Settings
from worker.core.export.consumer import ExportConsumer
from worker.core.export.prometheus import PrometheusExporter
from worker.core.storage.client import Store
from worker.core.telemetry.metrics import Metrics
from worker.features.receivers.files import FileExporter
from worker.features.receivers.langfuse import LangfuseExporter
from worker.features.receivers.langsmith import LangsmithExporter
from worker.features.receivers.mlflow import MlflowExporter
from worker.features.receivers.opik import OpikExporter
from worker.features.receivers.phoenix import PhoenixExporter
from worker.features.receivers.webhook import WebhookExporter

_EXPORTERS: Final[tuple[type[ExportConsumer], ...]] = (PrometheusExporter, QualitySums)
EXPORTERS: Final[Mapping[str, type[ExportConsumer]]] = {each.exporter: each for each in _EXPORTERS}
_RECEIVERS: Final[tuple[type[ReceiverExporter], ...]] = (
    OtlpExporter,
    PhoenixExporter,
    LangfuseExporter,
    MlflowExporter,
    OpikExporter,
    LangsmithExporter,
    WebhookExporter,
    FileExporter,
)
RECEIVERS: Final[Mapping[str, type[ReceiverExporter]]] = {
    **{each.kind: each for each in _RECEIVERS},
    "stdout": FileExporter,
}


class Enabled(NamedTuple):
    """An exporter that the settings ask for."""

    role: str
    make: Callable[[Settings, Store, Metrics], ExportConsumer]
    checks: Callable[[Settings], Sequence[Check]]
    keeps: Callable[[Settings], str | None]


def enabled(settings: Settings) -> dict[str, Enabled]:
    """Return the exporters that the settings ask for; each name is also that of a consumer group of the outbox."""
    found = {
        name: _enabled(exporter, name, exporter)
        for name, exporter in EXPORTERS.items()
        if exporter.is_enabled(settings)
    }
    for name, options in settings.all_receivers.items():
        receiver = RECEIVERS[options.kind]
        found[group_of(name)] = _enabled(receiver, name, partial(receiver, name=name))
    return found


def _enabled(
    kind: type[ExportConsumer], name: str, make: Callable[[Settings, Store, Metrics], ExportConsumer]
) -> Enabled:
    return Enabled(kind.role, make, partial(kind.checks, name=name), partial(kind.keeps, name=name))
