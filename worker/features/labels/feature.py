"""Labels: people's verdicts, the judges' agreement with them, and shares corrected by them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from worker.core.features import Command, Feature
from worker.core.storage.keys import Key, KeySpace

if TYPE_CHECKING:
    from worker.base.monitor.counts import MonitorParts


class LabelKeys(KeySpace):
    annotators = Key(
        "labels:annotators",
        "Hash of annotator, a keyed hash of a name, to the time of the last answer in seconds. No TTL.",
    )

    def label_lock(self, label: str) -> str:
        """String, the annotator who is asked for a label; TTL of ten minutes."""
        return f"{self.prefix}:labels:lock:{label}"


_COMMANDS: Final = {
    "calibrate": Command("worker.features.labels.calibrate", "Measure a judge against human labels"),
    "labels": Command("worker.features.labels.command", "Import, list and export human labels of traces"),
}


def _watches(parts: "MonitorParts") -> Sequence[Any]:
    from worker.features.labels.correction import CorrectionWatch

    return (CorrectionWatch(parts.store, parts.metrics),)


FEATURE: Final = Feature(name="labels", keys=LabelKeys, commands=_COMMANDS, watches=_watches)
