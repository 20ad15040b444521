"""Cascades: a second judge model for verdicts that the first model is unsure of."""

from typing import Final

from worker.base.monitor.counts import MonitorParts
from worker.core.features import Feature, Parts
from worker.features.cascades.choosing import Cascades
from worker.features.cascades.shares import CascadeWatch, count_cascades


def _watches(parts: MonitorParts) -> tuple[CascadeWatch]:
    return (CascadeWatch(parts.store, parts.settings, parts.metrics),)


def _after_verdict(parts: Parts) -> Cascades | None:
    if not parts.settings.cascades:
        return None
    return Cascades(parts.settings, parts.ledger.store.first, parts.sampler)


FEATURE: Final = Feature(
    name="cascades", counters=lambda _: (count_cascades,), watches=_watches, after_verdict=_after_verdict
)
