"""Delivery of verdicts: as spans and events of OpenTelemetry, and to receivers whose kinds features add."""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from worker.base.delivery.settings import OTLP_ENDPOINT, RECEIVERS, ReceiverSettings, all_receivers, receiver_faults
from worker.core.features import ExporterSpec, Feature, import_attribute
from worker.core.storage.keys import KeySpace

if TYPE_CHECKING:
    from worker.base.delivery.receiver_delivery import ReceiverExporter
    from worker.core.config.settings import Settings


class DeliveryKeys(KeySpace):
    def receiver_parked(self, name: str) -> tuple[str, str]:
        """Hash and sorted set of verdicts whose traces a receiver does not know yet; TTL of a week."""
        return f"{self.prefix}:receiver:{name}:parked", f"{self.prefix}:receiver:{name}:due"


def receiver_group(receiver: str) -> str:
    """Name the consumer group of a receiver; `otel` is the short form's."""
    return receiver if receiver == "otel" else f"receiver:{receiver}"


def _exporters(settings: "Settings") -> Mapping[str, ExporterSpec]:
    return {receiver_group(name): _exporter(name, options) for name, options in all_receivers(settings).items()}


def _exporter(name: str, options: ReceiverSettings) -> ExporterSpec:
    make: type[ReceiverExporter] = import_attribute(options.exporter)
    return ExporterSpec(
        make.role, partial(make, name=name), partial(make.checks, name=name), partial(make.retained_data, name=name)
    )


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
