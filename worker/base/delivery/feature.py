"""Delivery of verdicts: as spans and events of OpenTelemetry, and to receivers whose kinds features add."""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from worker.base.delivery.settings import OTLP_ENDPOINT, RECEIVERS, all_receivers, receiver_faults
from worker.core.features import ExporterSpec, Feature
from worker.core.storage.keys import KeySpace

if TYPE_CHECKING:
    from worker.base.delivery.receiver_delivery import ReceiverExporter
    from worker.core.config.settings import Settings


class DeliveryKeys(KeySpace):
    def receiver_parked(self, name: str) -> tuple[str, str]:
        """Hash and sorted set of verdicts whose traces a receiver does not know yet; TTL of a week."""
        return f"{self.prefix}:receiver:{name}:parked", f"{self.prefix}:receiver:{name}:due"


def _exporters(settings: "Settings") -> Mapping[str, ExporterSpec]:
    if not all_receivers(settings):
        return {}
    from worker.base.delivery.otlp_receiver import OtlpExporter

    return receiver_exporters(settings, {OtlpExporter.kind: OtlpExporter})


def receiver_group(receiver: str) -> str:
    """Name the consumer group of a receiver; `otel` is the short form's."""
    return receiver if receiver == "otel" else f"receiver:{receiver}"


def receiver_exporters(settings: "Settings", kinds: "Mapping[str, type[ReceiverExporter]]") -> dict[str, ExporterSpec]:
    """Return the exporters of the configured receivers of some kinds, by their consumer groups."""
    return {
        receiver_group(name): ExporterSpec(
            exporter.role,
            partial(exporter, name=name),
            partial(exporter.checks, name=name),
            partial(exporter.retained_data, name=name),
        )
        for name, options in all_receivers(settings).items()
        if (exporter := kinds.get(options.kind)) is not None
    }


FEATURE: Final = Feature(
    name="delivery",
    keys=DeliveryKeys,
    scripts=__package__,
    tables=(OTLP_ENDPOINT, RECEIVERS),
    faults=receiver_faults,
    verdict_tags=lambda settings: filter(None, (each.trace_tag for each in RECEIVERS.read(settings).values())),
    receivers=all_receivers,
    metrics="worker.base.delivery.receiver_delivery.DeliveryMetrics",
    exporters=_exporters,
)
