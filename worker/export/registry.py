"""The exporters by name. A further one is a file with a subclass of ``ExportConsumer`` and its row in ``_ROWS``."""

from collections.abc import Mapping
from typing import Final

from worker.config.settings import Settings
from worker.export.consumer import ExportConsumer
from worker.export.otel import OtelExporter
from worker.export.prometheus import PrometheusExporter
from worker.export.sums import QualitySums

_ROWS: Final[tuple[type[ExportConsumer], ...]] = (PrometheusExporter, OtelExporter, QualitySums)
EXPORTERS: Final[Mapping[str, type[ExportConsumer]]] = {each.exporter: each for each in _ROWS}


def enabled(settings: Settings) -> dict[str, type[ExportConsumer]]:
    """Return the exporters that the settings ask for; each name is also that of a consumer group of the outbox."""
    return {name: exporter for name, exporter in EXPORTERS.items() if exporter.is_enabled(settings)}
