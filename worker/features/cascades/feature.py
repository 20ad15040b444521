"""Cascades: a second judge model for verdicts that the first model is unsure of."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from worker.core.features import Feature, Follower, Parts
from worker.features.cascades.settings import CASCADES, cascade_faults, cascade_models

if TYPE_CHECKING:
    from worker.base.monitor.counts import MonitorParts


def _counters(_: "MonitorParts") -> Sequence[Any]:
    from worker.features.cascades.shares import count_cascades

    return (count_cascades,)


def _watches(parts: "MonitorParts") -> Sequence[Any]:
    from worker.features.cascades.shares import CascadeWatch

    return (CascadeWatch(parts.store, parts.settings, parts.metrics),)


def _after_verdict(parts: Parts) -> Follower | None:
    if not CASCADES.of(parts.settings):
        return None
    from worker.features.cascades.choosing import Cascades

    return Cascades(parts.settings, parts.ledger.store.first, parts.sampler)


FEATURE: Final = Feature(
    name="cascades",
    tables=(CASCADES,),
    aliases=cascade_models,
    rule_faults=cascade_faults,
    counters=_counters,
    watches=_watches,
    after_verdict=_after_verdict,
)
