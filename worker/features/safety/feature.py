"""Safety: alerts on single failing verdicts of safety judges."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from worker.base.monitor.settings import MONITOR
from worker.core.features import Feature

if TYPE_CHECKING:
    from worker.base.monitor.counts import MonitorParts


def _counters(parts: "MonitorParts") -> Sequence[Any]:
    from worker.features.safety.watch import count_safety

    return (partial(count_safety, MONITOR.of(parts.settings).safety, parts.is_listed),)


def _watches(parts: "MonitorParts") -> Sequence[Any]:
    from worker.features.safety.watch import SafetyWatch

    return (SafetyWatch(parts.store, parts.settings, parts.metrics),)


FEATURE: Final = Feature(name="safety", counters=_counters, watches=_watches)
