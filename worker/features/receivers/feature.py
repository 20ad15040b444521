"""Receivers of verdicts beside OpenTelemetry: platforms, webhooks and files."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from worker.base.delivery.settings import RECEIVERS
from worker.core.features import Exporter, Feature
from worker.core.storage.keys import KeySpace
from worker.features.receivers.settings import KINDS

if TYPE_CHECKING:
    from worker.core.config.settings import Settings


class ReceiverKeys(KeySpace):
    def receiver_sent(self, name: str, day: int) -> str:
        """Hash of what a receiver without idempotency was sent on a day since 1970; TTL of three days."""
        return f"{self.prefix}:receiver:{name}:sent:{day}"


def _exporters(settings: "Settings") -> Mapping[str, Exporter]:
    if not RECEIVERS.of(settings):
        return {}
    from worker.base.delivery.receiver_delivery import receivers_of
    from worker.features.receivers.kinds import EXPORTERS

    return receivers_of(settings, EXPORTERS)


FEATURE: Final = Feature(
    name="receivers",
    tables=(replace(RECEIVERS, kinds=KINDS),),
    keys=ReceiverKeys,
    exporters=_exporters,
    eraser="worker.features.receivers.eraser.ArchiveEraser",
)
