"""The exporters by name, and the receivers by kind. A further one is a file with a subclass and its row here."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from worker.config.settings import Settings
from worker.export.consumer import ExportConsumer
from worker.export.prometheus import PrometheusExporter
from worker.export.receiver_delivery import ReceiverExporter, group_of
from worker.export.receivers.files import FileExporter
from worker.export.receivers.langfuse import LangfuseExporter
from worker.export.receivers.langsmith import LangsmithExporter
from worker.export.receivers.mlflow import MlflowExporter
from worker.export.receivers.opik import OpikExporter
from worker.export.receivers.otlp_receiver import OtlpExporter
from worker.export.receivers.phoenix import PhoenixExporter
from worker.export.receivers.webhook import WebhookExporter
from worker.export.sums import QualitySums
from worker.storage.client import Store
from worker.telemetry.finding import Check
from worker.telemetry.metrics import Metrics

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
