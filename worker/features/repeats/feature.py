"""Repeats: a share of traces is judged twice, and failures of safety judges are judged by a second model."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from worker.core.features import Feature, Follower, Parts

if TYPE_CHECKING:
    from worker.base.monitor.counts import MonitorParts


def _counters(_: "MonitorParts") -> Sequence[Any]:
    from worker.features.repeats.flips import count_repeats

    return (count_repeats,)


def _watches(parts: "MonitorParts") -> Sequence[Any]:
    from worker.features.repeats.flips import RepeatsWatch

    return (RepeatsWatch(parts.store, parts.metrics),)


def _after_verdict(parts: Parts) -> Follower | None:
    if not any(rule.repeat or rule.second_model for rule in parts.settings.rules):
        return None
    from worker.features.repeats.choosing import Repeats

    return Repeats(parts.settings, parts.rules)


FEATURE: Final = Feature(name="repeats", counters=_counters, watches=_watches, after_verdict=_after_verdict)
