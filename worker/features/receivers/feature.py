"""Receivers of verdicts beside OpenTelemetry: platforms, webhooks and files."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from worker.core.features import Exporter, Feature

if TYPE_CHECKING:
    from worker.core.config.settings import Settings


def _exporters(settings: "Settings") -> Mapping[str, Exporter]:
    if not settings.receivers:
        return {}
    from worker.base.delivery.receiver_delivery import receivers_of
    from worker.features.receivers.kinds import RECEIVERS

    return receivers_of(settings, RECEIVERS)


FEATURE: Final = Feature(
    name="receivers", exporters=_exporters, eraser="worker.features.receivers.eraser.ArchiveEraser"
)
