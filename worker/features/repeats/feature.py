"""Repeats: a share of traces is judged twice, and failures of safety judges are judged by a second model."""

from typing import Final

from worker.base.monitor.counts import MonitorParts
from worker.core.features import Feature, Parts
from worker.features.repeats.choosing import Repeats
from worker.features.repeats.flips import RepeatsWatch, count_repeats


def _watches(parts: MonitorParts) -> tuple[RepeatsWatch]:
    return (RepeatsWatch(parts.store, parts.metrics),)


def _after_verdict(parts: Parts) -> Repeats | None:
    asks = any(rule.repeat or rule.second_model for rule in parts.settings.rules)
    return Repeats(parts.settings, parts.sampler) if asks else None


FEATURE: Final = Feature(
    name="repeats", counters=lambda _: (count_repeats,), watches=_watches, after_verdict=_after_verdict
)
