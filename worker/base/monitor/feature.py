"""The monitor: shares of passing verdicts, their drops, and alerts."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from worker.base.monitor.settings import MONITOR, monitor_faults
from worker.core.features import Exporter, Feature

if TYPE_CHECKING:
    from worker.core.config.errors import Faults
    from worker.core.config.reading import Given
    from worker.core.config.settings import Settings
    from worker.core.storage.client import Store
    from worker.core.telemetry.metrics import Metrics
    from worker.core.telemetry.service import ServiceThread


def _complete(settings: "Settings", given: "Given", _: frozenset[str]) -> "Faults[Settings]":
    from worker.base.monitor.objectives import with_objectives

    return with_objectives(settings, given)


def _exporters(settings: "Settings") -> Mapping[str, Exporter]:
    if not MONITOR.of(settings).enabled:
        return {}
    from worker.base.monitor.sums import QualitySums

    return {QualitySums.exporter: Exporter(QualitySums.role, QualitySums)}


def _process_threads(settings: "Settings", metrics: "Metrics", stores: "Sequence[Store]") -> "Sequence[ServiceThread]":
    """Make a thread a server: the sums are on the first one, whichever this worker serves."""
    from worker.base.monitor.sums import QualitySums, ShardSums

    if not MONITOR.of(settings).enabled or QualitySums.role not in settings.roles:
        return ()
    sums = QualitySums(settings, stores[0], metrics)
    return sums, *(ShardSums(store, sums) for store in stores[1:])


FEATURE: Final = Feature(
    name="monitor",
    tables=(MONITOR,),
    verdict_tags=lambda settings: MONITOR.of(settings).tags,
    rule_faults=monitor_faults,
    complete=_complete,
    exporters=_exporters,
    process_threads=_process_threads,
)
