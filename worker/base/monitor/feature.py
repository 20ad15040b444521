"""The monitor: shares of passing verdicts, their drops, and alerts."""

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from worker.base.monitor.settings import MONITOR, monitor_faults
from worker.core.features import Exporter, Feature
from worker.core.storage.keys import Key, KeySpace

if TYPE_CHECKING:
    from judges.core.faults import Faults
    from worker.core.config.reading import Given
    from worker.core.config.settings import Settings
    from worker.core.selection.sampling import Rules
    from worker.core.storage.client import Store
    from worker.core.telemetry.metrics import Metrics
    from worker.core.telemetry.service import ServiceThread


class MonitorKeys(KeySpace):
    quality_series = Key("quality:series", "Hash of the monitor's series: id to labels as JSON. No TTL.")
    quality_positions = Key(
        "quality:positions",
        "Hash of shard to the last entry of its outbox that is in the monitor's sums; only on the first. No TTL.",
    )
    quality_examples = Key(
        "quality:examples",
        "Hash of example traces of open incidents: series, kind and trace id to their order. "
        "Fields end with incidents.",
    )

    def quality(self, series: str, bucket: str) -> str:
        """Hash of the sums of one series, by day (TTL of 90 days), or by day and hour (TTL of 3 days)."""
        return f"{self.prefix}:quality:{series}:{bucket}"

    def quality_detector(self, series: str) -> str:
        """String, the detector of drops of one series; TTL of 90 days."""
        return f"{self.prefix}:quality:{series}:detector"

    def quality_counts(self, kind: str, day: dt.date) -> str:
        """Hash of the monitor's counts of one kind, as of repeated judgings, in a day (UTC); TTL of 90 days."""
        return f"{self.prefix}:quality:{kind}:{day.isoformat()}"

    def quality_clusters(self, series: str, period: int, part: int) -> str:
        """Hash of the sums of the sessions, or traces without one, of one series; TTL of two periods."""
        return f"{self.prefix}:quality:{series}:c{period}:{part}"


def _complete(settings: "Settings", given: "Given", _: frozenset[str]) -> "Faults[Settings]":
    from worker.base.monitor.objectives import with_objectives

    return with_objectives(settings, given)


def _exporters(settings: "Settings") -> Mapping[str, Exporter]:
    if not MONITOR.of(settings).enabled:
        return {}
    from worker.base.monitor.sums import QualitySums

    return {QualitySums.exporter: Exporter(QualitySums.role, None)}


def _process_threads(
    settings: "Settings", metrics: "Metrics", stores: "Sequence[Store]", rules: "Rules"
) -> "Sequence[ServiceThread]":
    """Make a thread a server: the sums are on the first one, whichever this worker serves."""
    from worker.base.monitor.sums import QualitySums, ShardSums

    if not MONITOR.of(settings).enabled or QualitySums.role not in settings.roles:
        return ()
    sums = QualitySums(settings, stores[0], metrics, rules)
    return sums, *(ShardSums(store, sums) for store in stores[1:])


FEATURE: Final = Feature(
    name="monitor",
    tables=(MONITOR,),
    verdict_tags=lambda settings: MONITOR.of(settings).tags,
    rule_faults=monitor_faults,
    metrics="worker.base.monitor.gauges.QualityMetrics",
    keys=MonitorKeys,
    scripts=__package__,
    complete=_complete,
    exporters=_exporters,
    process_threads=_process_threads,
)
