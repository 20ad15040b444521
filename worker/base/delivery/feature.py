"""Delivery of verdicts: as spans and events of OpenTelemetry, and to receivers whose kinds features add."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from worker.base.delivery.settings import OTLP_ENDPOINT, RECEIVERS, all_receivers, receiver_faults
from worker.core.features import Exporter, Feature
from worker.core.storage.keys import KeySpace

if TYPE_CHECKING:
    from worker.core.config.settings import Settings


class DeliveryKeys(KeySpace):
    def receiver_parked(self, name: str) -> tuple[str, str]:
        """Hash and sorted set of verdicts whose traces a receiver does not know yet; TTL of a week."""
        return f"{self.prefix}:receiver:{name}:parked", f"{self.prefix}:receiver:{name}:due"


def _exporters(settings: "Settings") -> Mapping[str, Exporter]:
    if not all_receivers(settings):
        return {}
    from worker.base.delivery.otlp_receiver import OtlpExporter
    from worker.base.delivery.receiver_delivery import receivers_of

    return receivers_of(settings, {OtlpExporter.kind: OtlpExporter})


FEATURE: Final = Feature(
    name="delivery",
    keys=DeliveryKeys,
    scripts=__package__,
    tables=(OTLP_ENDPOINT, RECEIVERS),
    faults=receiver_faults,
    verdict_tags=lambda settings: [receiver.tag for receiver in RECEIVERS.of(settings).values() if receiver.tag],
    receivers=all_receivers,
    metrics="worker.base.delivery.receiver_delivery.DeliveryMetrics",
    exporters=_exporters,
)
