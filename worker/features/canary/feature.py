"""Canary: the same traces are judged each day, so that a judge model that drifts is noticed."""

from typing import Final

from worker.base.monitor.counts import MonitorParts, VerdictCounter
from worker.core.features import Feature
from worker.features.canary.canary import CanaryCounter, CanaryWatch
from worker.features.canary.canary_file import Canary


def _counters(parts: MonitorParts) -> tuple[VerdictCounter]:
    return (CanaryCounter(Canary.of(parts.settings)),)


def _watches(parts: MonitorParts) -> tuple[CanaryWatch]:
    return (CanaryWatch(parts.settings, parts.store, parts.metrics, Canary.of(parts.settings)),)


FEATURE: Final = Feature(name="canary", counters=_counters, watches=_watches)
