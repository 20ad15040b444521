"""Receivers of verdicts beside OpenTelemetry: platforms, webhooks and files."""

from collections.abc import Mapping
from typing import Final

from worker.base.delivery.receiver_delivery import ReceiverExporter, receivers_of
from worker.core.config.settings import Settings
from worker.core.features import Exporter, Feature
from worker.features.receivers.files import FileExporter
from worker.features.receivers.langfuse import LangfuseExporter
from worker.features.receivers.langsmith import LangsmithExporter
from worker.features.receivers.mlflow import MlflowExporter
from worker.features.receivers.opik import OpikExporter
from worker.features.receivers.phoenix import PhoenixExporter
from worker.features.receivers.webhook import WebhookExporter

_KINDS: Final[tuple[type[ReceiverExporter], ...]] = (
    PhoenixExporter,
    LangfuseExporter,
    MlflowExporter,
    OpikExporter,
    LangsmithExporter,
    WebhookExporter,
    FileExporter,
)
RECEIVERS: Final[Mapping[str, type[ReceiverExporter]]] = {
    **{each.kind: each for each in _KINDS},
    "stdout": FileExporter,
}


def _exporters(settings: Settings) -> Mapping[str, Exporter]:
    return receivers_of(settings, RECEIVERS)


FEATURE: Final = Feature(name="receivers", exporters=_exporters)
