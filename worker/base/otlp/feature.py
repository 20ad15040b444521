"""OpenTelemetry: verdicts as spans and events, to `otlp_endpoint` and to receivers of the kind `otlp`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from worker.base.delivery.settings import OTLP_ENDPOINT, RECEIVERS, all_receivers, receiver_faults
from worker.core.features import Exporter, Feature

if TYPE_CHECKING:
    from worker.core.config.settings import Settings


def _exporters(settings: "Settings") -> Mapping[str, Exporter]:
    if not all_receivers(settings):
        return {}
    from worker.base.delivery.receiver_delivery import receivers_of
    from worker.base.otlp.receiver import OtlpExporter

    return receivers_of(settings, {OtlpExporter.kind: OtlpExporter})


FEATURE: Final = Feature(
    name="otlp",
    tables=(OTLP_ENDPOINT, RECEIVERS),
    faults=receiver_faults,
    verdict_tags=lambda settings: [receiver.tag for receiver in RECEIVERS.of(settings).values() if receiver.tag],
    receivers=all_receivers,
    metrics="worker.base.delivery.receiver_delivery.DeliveryMetrics",
    exporters=_exporters,
)
