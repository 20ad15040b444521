"""Labels: people's verdicts, the judges' agreement with them, and shares corrected by them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from worker.core.features import Command, Feature

if TYPE_CHECKING:
    from worker.base.monitor.counts import MonitorParts

_COMMANDS: Final = {
    "calibrate": Command("worker.features.labels.calibrate", "Measure a judge against human labels"),
    "labels": Command("worker.features.labels.command", "Import, list and export human labels of traces"),
}


def _watches(parts: "MonitorParts") -> Sequence[Any]:
    from worker.features.labels.correction import CorrectionWatch

    return (CorrectionWatch(parts.store, parts.metrics),)


FEATURE: Final = Feature(
    name="labels",
    commands=_COMMANDS,
    watches=_watches,
    warnings="worker.features.labels.calibration.find_stale",
)
