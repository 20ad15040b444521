"""OpenTelemetry: verdicts as spans and events, to `otlp_endpoint` and to receivers of the kind `otlp`."""

from collections.abc import Mapping
from typing import Final

from worker.base.delivery.receiver_delivery import receivers_of
from worker.base.otlp.receiver import OtlpExporter
from worker.core.config.settings import Settings
from worker.core.features import Exporter, Feature


def _exporters(settings: Settings) -> Mapping[str, Exporter]:
    return receivers_of(settings, {OtlpExporter.kind: OtlpExporter})


FEATURE: Final = Feature(name="otlp", exporters=_exporters)
