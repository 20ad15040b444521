"""Labels: people's verdicts, the judges' agreement with them, and shares corrected by them."""

from typing import Final

from worker.core.features import Command, Feature

_COMMANDS: Final = {
    "calibrate": Command("worker.features.labels.calibrate", "Measure a judge against human labels"),
    "labels": Command("worker.features.labels.command", "Import, list and export human labels of traces"),
}
FEATURE: Final = Feature(name="labels", commands=_COMMANDS, watch="worker.features.labels.correction.CorrectionWatch")
