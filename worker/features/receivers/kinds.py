"""The kinds of receivers beside OpenTelemetry. A further one is a file with a subclass and its row here."""

from collections.abc import Mapping
from typing import Final

from worker.base.delivery.receiver_delivery import ReceiverExporter
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
EXPORTERS: Final[Mapping[str, type[ReceiverExporter]]] = {
    **{each.kind: each for each in _KINDS},
    "stdout": FileExporter,
}
