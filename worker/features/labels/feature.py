"""Labels: people's verdicts, the judges' agreement with them, and shares corrected by them."""

from typing import Final

from worker.core.features import Command, Feature
from worker.core.storage.keys import Key, KeySpace


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
FEATURE: Final = Feature(
    name="labels",
    keys=LabelKeys,
    commands=_COMMANDS,
    watch="worker.features.labels.correction.CorrectionWatch",
    warnings="worker.features.labels.calibration.find_stale",
)
