"""OpenTelemetry: verdicts as spans and events, to `otlp_endpoint` and to receivers of the kind `otlp`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from worker.core.features import Exporter, Feature

if TYPE_CHECKING:
    from worker.core.config.settings import Settings


def _exporters(settings: "Settings") -> Mapping[str, Exporter]:
    if not settings.all_receivers:
        return {}
    from worker.base.delivery.receiver_delivery import receivers_of
    from worker.base.otlp.receiver import OtlpExporter

    return receivers_of(settings, {OtlpExporter.kind: OtlpExporter})


FEATURE: Final = Feature(
    name="otlp", metrics="worker.base.delivery.receiver_delivery.DeliveryMetrics", exporters=_exporters
)
