"""The exporters by name. A further one is a file with a subclass of ``ExportConsumer`` and its row here."""

from collections.abc import Mapping
from typing import Final

from worker.config.settings import Settings
from worker.export.consumer import ExportConsumer
from worker.export.otel import OtelExporter
from worker.export.prometheus import PrometheusExporter

EXPORTERS: Final[Mapping[str, type[ExportConsumer]]] = {"metrics": PrometheusExporter, "otel": OtelExporter}


def enabled(settings: Settings) -> dict[str, type[ExportConsumer]]:
    """Return the exporters that the settings ask for; each name is also that of a consumer group of the outbox."""
    return {name: exporter for name, exporter in EXPORTERS.items() if exporter.is_enabled(settings)}
