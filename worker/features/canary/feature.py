"""Canary: the same traces are judged each day, so that a judge model that drifts is noticed."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

from msgspec import Meta

from worker.core.config.tables import Table
from worker.core.features import Feature

if TYPE_CHECKING:
    from worker.base.monitor.counts import MonitorParts
    from worker.core.config.errors import Faults
    from worker.core.config.reading import Given
    from worker.core.config.settings import Settings

CANARY_FILE: Final[Table[str | None]] = Table(
    "canary_file",
    Annotated[str, Meta(pattern=r"\S")] | None,
    None,
    "Labelled traces that show whether a judge changes, in place of the twenty built-in ones: JSONL, each trace"
    ' with `labels = {judge or metric: "pass" | "fail"}`; relative to the file that names it.',
)


def _complete(settings: "Settings", given: "Given", names: frozenset[str]) -> "Faults[Settings]":
    from worker.features.canary.canary_file import with_canary

    return with_canary(settings, given, names)


def _counters(parts: "MonitorParts") -> Sequence[Any]:
    from worker.features.canary.canary import CanaryCounter
    from worker.features.canary.canary_file import Canary

    return (CanaryCounter(Canary.of(parts.settings)),)


def _watches(parts: "MonitorParts") -> Sequence[Any]:
    from worker.features.canary.canary import CanaryWatch
    from worker.features.canary.canary_file import Canary

    return (CanaryWatch(parts.settings, parts.store, parts.metrics, Canary.of(parts.settings)),)


FEATURE: Final = Feature(name="canary", tables=(CANARY_FILE,), complete=_complete, counters=_counters, watches=_watches)
