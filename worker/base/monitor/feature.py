"""The monitor: shares of passing verdicts, their drops, and alerts; its settings `[monitor]` and their checks.

Features read parts of this table too: safety `safety` and `judge_error`, the canary `canary_every_s`. Without them the
last two are accepted and have no effect.
"""

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Final

from msgspec import Meta, Struct

from judges.core.faults import Fault
from judges.custom.definition import unknown_name_fault
from worker.core.config.settings import HOUR_S, AtLeastOne, Settings, Share
from worker.core.features import ExporterSpec, Feature, PartitionThread, Table
from worker.core.storage.keys import Key, KeySpace

if TYPE_CHECKING:
    from judges.core.faults import Faults
    from judges.core.judge import Judge
    from worker.base.monitor.objectives import Objective
    from worker.core.config.reading import ConfigSources
    from worker.core.selection.sampling import Rules
    from worker.core.storage.client import Store
    from worker.core.telemetry.metrics import Metrics

Segment = Annotated[str, Meta(pattern=r"^(?:name|model|release|prompt_version|tags\.[^\s=]{1,64})\Z")]


def tag_of(segment: str) -> str | None:
    """Return the tag whose values make a segment; None if a field of the trace does."""
    return "prompt_version" if segment == "prompt_version" else segment.partition("tags.")[2] or None


class Monitor(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The monitor of quality: which series it keeps.

    Attributes:
        enabled: Whether workers of the role `monitor` keep sums of verdicts.
        segments: By whose values each series is kept once more, so that a drop can be assigned to one of them: `name`,
            `model`, `release`, `prompt_version`, or `tags.NAME` for a tag of the trace. `prompt_version` is the tag of
            that name.
        false_alarms_per_week: How many false alarms of a drop the whole installation may raise in a week, on average.
        max_series: Maximum of series with their segments; verdicts of further ones are counted as dropped.
        safety: Judges whose failures page, once they are more than the judge's own errors explain, besides those with
            `safety = true` in the file of objectives. A failure is judged a second time by its rule's `second_model`.
        judge_error: Share of the safe traces that a safety judge fails by mistake; the larger of this and what is
            measured in 28 days counts.
        canary_every_s: Seconds between two judgings of the labelled traces of the canary, by each judge and model that
            rules name; the first one is so long after the first start. At most 12 h; 0 for none.
        max_segment_values: Maximum of values of one segment of one series; verdicts of further ones are counted as
            dropped from the segment.
    """

    enabled: bool = True
    segments: tuple[Segment, ...] = ()
    false_alarms_per_week: Annotated[float, Meta(gt=0)] = 1.0
    max_series: AtLeastOne = 5_000
    safety: tuple[str, ...] = ("safety",)
    judge_error: Annotated[float, Meta(gt=0, lt=0.5)] = 0.01
    canary_every_s: Annotated[float, Meta(ge=0, le=12 * HOUR_S)] = HOUR_S
    max_segment_values: AtLeastOne = 100

    @property
    def tags(self) -> tuple[str, ...]:
        """The names of the tags that segments need, and that verdicts therefore carry."""
        return tuple(dict.fromkeys(tag for segment in self.segments if (tag := tag_of(segment)) is not None))


MONITOR: Final = Table("monitor", Monitor, Monitor(), "Which series the monitor keeps, as `[monitor]`.")
# No key of the configuration: the rows of the file beside it.
OBJECTIVES: "Final[Table[tuple[Objective, ...]]]" = Table("objectives", None, (), "")
# Keys of rules, for the feature `repeats`; others read them too.
# fmt: off
REPEAT: Final = Table("repeat", Share, 0.0,
    "Share of the scored verdicts whose trace is judged a second time by the same model, and by `second_model` if "
    "there is one, 0..1; how often the two verdicts differ is the metric `judge_flip_ratio`.")
SECOND_MODEL: Final[Table[str | None]] = Table("second_model", str | None, None,
    "Name of the `[models.NAME]` that judges the repeats, and a second time what a safety judge failed.")
# fmt: on


def monitor_faults(settings: Settings, _: "Mapping[str, Judge]", names: frozenset[str]) -> Iterator[Fault]:
    """Check the names of safety judges."""
    for judge in MONITOR.read(settings).safety:
        if judge not in names:
            yield unknown_name_fault("monitor.safety", f"there is no judge {judge!r}", judge, names)


class MonitorKeys(KeySpace):
    quality_series = Key("quality:series", "Hash of the monitor's series: id to labels as JSON. No TTL.")
    quality_positions = Key(
        "quality:positions",
        "Hash of partition to the last entry of its outbox that is in the monitor's sums; only on the first. No TTL.",
    )
    quality_examples = Key(
        "quality:examples",
        "Hash of example traces of open incidents: series, kind and trace id to their order. "
        "Fields end with incidents.",
    )

    def quality(self, series: str, bucket: str) -> str:
        """Hash of the sums of one series, by day (TTL of 90 days), hour (3 days), or ten minutes (70 minutes)."""
        return f"{self.prefix}:quality:{series}:{bucket}"

    def quality_detector(self, series: str) -> str:
        """String, the detector of drops of one series; TTL of 90 days."""
        return f"{self.prefix}:quality:{series}:detector"

    def quality_counts(self, kind: str, day: dt.date) -> str:
        """Hash of the monitor's counts of one kind, as of repeated judgings, in a day (UTC); TTL of 90 days."""
        return f"{self.prefix}:quality:{kind}:{day.isoformat()}"

    def quality_once(self, kind: str, period: int) -> str:
        """Hash of what counts once in six hours, as the failures of a session; TTL of two periods."""
        return f"{self.prefix}:quality:{kind}:once:{period}"

    def quality_clusters(self, series: str, period: int, part: int) -> str:
        """Hash of the sums of the sessions, or traces without one, of one series; TTL of two periods."""
        return f"{self.prefix}:quality:{series}:c{period}:{part}"


def _complete_settings(settings: Settings, sources: "ConfigSources", _: frozenset[str]) -> "Faults[Settings]":
    from worker.base.monitor.objectives import load_objectives

    return load_objectives(settings, sources)


def _exporters(settings: Settings) -> Mapping[str, ExporterSpec]:
    if not MONITOR.read(settings).enabled:
        return {}
    from worker.base.monitor.sums import QualitySums

    return {QualitySums.exporter: ExporterSpec(QualitySums.role, None)}


def _process_threads(
    settings: Settings, metrics: "Metrics", stores: "Sequence[Store]", rules: "Rules"
) -> Sequence[PartitionThread]:
    """Make a thread for each partition, also of those that this worker does not serve: the sums are on the first."""
    from worker.base.monitor.sums import PartitionSums, QualitySums

    if not MONITOR.read(settings).enabled or QualitySums.role not in settings.roles:
        return ()
    sums = QualitySums(settings, stores[0], metrics, rules)
    return [
        PartitionThread(sums, stores[0]),
        *(PartitionThread(PartitionSums(store, sums), store) for store in stores[1:]),
    ]


FEATURE: Final = Feature(
    name="monitor",
    tables=(MONITOR,),
    verdict_tags=lambda settings: MONITOR.read(settings).tags,
    rule_faults=monitor_faults,
    metrics="worker.base.monitor.gauges.QualityMetrics",
    keys=MonitorKeys,
    scripts=__package__,
    complete_settings=_complete_settings,
    exporters=_exporters,
    process_threads=_process_threads,
)
