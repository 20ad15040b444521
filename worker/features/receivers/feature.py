"""Receivers of verdicts beside OpenTelemetry: platforms, webhooks and files."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from worker.core.features import Exporter, Feature
from worker.core.storage.keys import KeySpace

if TYPE_CHECKING:
    from worker.core.config.settings import Settings


class ReceiverKeys(KeySpace):
    def receiver_sent(self, name: str, day: int) -> str:
        """Hash of what a receiver without idempotency was sent on a day since 1970; TTL of three days."""
        return f"{self.prefix}:receiver:{name}:sent:{day}"


def _exporters(settings: "Settings") -> Mapping[str, Exporter]:
    if not settings.receivers:
        return {}
    from worker.base.delivery.receiver_delivery import receivers_of
    from worker.features.receivers.kinds import RECEIVERS

    return receivers_of(settings, RECEIVERS)


FEATURE: Final = Feature(
    name="receivers",
    keys=ReceiverKeys,
    exporters=_exporters,
    eraser="worker.features.receivers.eraser.ArchiveEraser",
)
