"""Labels: people's verdicts, the judges' agreement with them, and shares corrected by them."""

from typing import Final

from worker.base.monitor.counts import MonitorParts
from worker.core.features import Feature
from worker.features.labels.correction import CorrectionWatch


def _watches(parts: MonitorParts) -> tuple[CorrectionWatch]:
    return (CorrectionWatch(parts.store, parts.metrics),)


FEATURE: Final = Feature(name="labels", watches=_watches)
