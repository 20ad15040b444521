"""The canary: labelled traces that are judged every hour, so that a judge model that drifts is noticed."""

from typing import TYPE_CHECKING, Annotated, Final

from msgspec import Meta

from worker.core.features import Feature, Table
from worker.core.storage.keys import Key, KeySpace

if TYPE_CHECKING:
    from judges.core.faults import Faults
    from worker.core.config.reading import ConfigSources
    from worker.core.config.settings import Settings

CANARY_FILE: Final[Table[str | None]] = Table(
    "canary_file",
    Annotated[str, Meta(pattern=r"\S")] | None,
    None,
    "Labelled traces that show whether a judge changes, in place of the twenty built-in ones: JSONL, each trace"
    ' with `labels = {judge or metric: "pass" | "fail"}`; relative to the file that names it.',
)


class CanaryKeys(KeySpace):
    canary = Key(
        "canary",
        "Hash of the canary: ``due``, the time of its next judging in milliseconds; the begin of open drifts. No TTL.",
    )


def _complete_settings(settings: "Settings", sources: "ConfigSources", names: frozenset[str]) -> "Faults[Settings]":
    from worker.features.canary.canary_file import with_canary

    return with_canary(settings, sources, names)


FEATURE: Final = Feature(
    name="canary",
    tables=(CANARY_FILE,),
    keys=CanaryKeys,
    scripts=__package__,
    metrics="worker.features.canary.canary.CanaryMetrics",
    complete_settings=_complete_settings,
    watch="worker.features.canary.canary.CanaryWatch",
    warnings="worker.features.canary.canary_file.find_unlabelled",
)
