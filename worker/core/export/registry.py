"""The exporters that the settings ask for: Prometheus, and those of base and features."""

from worker.core.config.settings import Settings
from worker.core.export.prometheus import PrometheusExporter
from worker.core.features import Exporter, installed


def enabled(settings: Settings) -> dict[str, Exporter]:
    """Return the exporters by name, which is also that of a consumer group of the outbox."""
    keeps = "Prometheus keeps counts, and exemplars with trace ids"
    found = {PrometheusExporter.exporter: Exporter(PrometheusExporter.role, PrometheusExporter, keeps=lambda _: keeps)}
    for feature in installed():
        if feature.exporters is not None:
            found |= feature.exporters(settings)
    return found
