"""Safety: alerts on single failing verdicts of safety judges."""

from functools import partial
from typing import Final

from worker.base.monitor.counts import MonitorParts, VerdictCounter
from worker.core.features import Feature
from worker.features.safety.watch import SafetyWatch, count_safety


def _counters(parts: MonitorParts) -> tuple[VerdictCounter]:
    return (partial(count_safety, parts.settings.monitor.safety, parts.is_listed),)


def _watches(parts: MonitorParts) -> tuple[SafetyWatch]:
    return (SafetyWatch(parts.store, parts.settings, parts.metrics),)


FEATURE: Final = Feature(name="safety", counters=_counters, watches=_watches)
