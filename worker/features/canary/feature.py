"""Canary: the same traces are judged each day, so that a judge model that drifts is noticed."""

from typing import TYPE_CHECKING, Final

from worker.core.features import Feature

if TYPE_CHECKING:
    from worker.core.config.errors import Faults
    from worker.core.config.reading import Given
    from worker.core.config.settings import Settings


def _complete(settings: "Settings", given: "Given", names: frozenset[str]) -> "Faults[Settings]":
    from worker.features.canary.canary_file import with_canary

    return with_canary(settings, given, names)


FEATURE: Final = Feature(
    name="canary",
    metrics="worker.features.canary.canary.CanaryMetrics",
    complete=_complete,
    watch="worker.features.canary.canary.CanaryWatch",
)
