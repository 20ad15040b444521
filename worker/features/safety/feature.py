"""Safety: alerts on single failing verdicts of safety judges."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from worker.core.features import Feature
from worker.core.storage.keys import KeySpace

if TYPE_CHECKING:
    from worker.base.monitor.counts import MonitorParts


class SafetyKeys(KeySpace):
    def quality_safety(self, series: str) -> str:
        """String, the state of the safety pages of one series; TTL of 90 days."""
        return f"{self.prefix}:quality:{series}:safety"


def _counters(parts: "MonitorParts") -> Sequence[Any]:
    from worker.features.safety.watch import count_safety

    return (partial(count_safety, parts.settings.monitor.safety, parts.is_listed),)


def _watches(parts: "MonitorParts") -> Sequence[Any]:
    from worker.features.safety.watch import SafetyWatch

    return (SafetyWatch(parts.store, parts.settings, parts.metrics),)


FEATURE: Final = Feature(name="safety", keys=SafetyKeys, counters=_counters, watches=_watches)
