"""Safety: alerts on single failing verdicts of safety judges."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from worker.core.features import Feature

if TYPE_CHECKING:
    from worker.base.monitor.counts import MonitorParts


def _watches(parts: "MonitorParts") -> Sequence[Any]:
    from worker.features.safety.watch import SafetyWatch

    return (SafetyWatch(parts.store, parts.settings, parts.metrics, is_listed=parts.is_listed),)


FEATURE: Final = Feature(name="safety", metrics="worker.features.safety.watch.SafetyMetrics", watches=_watches)
