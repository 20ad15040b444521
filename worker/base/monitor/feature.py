"""The monitor: shares of passing verdicts, their drops, and alerts."""

from collections.abc import Mapping, Sequence
from typing import Final

from worker.base.monitor.sums import QualitySums, ShardSums
from worker.core.config.settings import Settings
from worker.core.features import Exporter, Feature
from worker.core.storage.client import Store
from worker.core.storage.keys import MONITOR_GROUP
from worker.core.telemetry.metrics import Metrics
from worker.core.telemetry.service import ServiceThread


def _exporters(settings: Settings) -> Mapping[str, Exporter]:
    return {MONITOR_GROUP: Exporter(QualitySums.role, QualitySums)} if settings.monitor.enabled else {}


def _process_threads(settings: Settings, metrics: Metrics, stores: Sequence[Store]) -> Sequence[ServiceThread]:
    """Make a thread a server: the sums are on the first one, whichever this worker serves."""
    if not settings.monitor.enabled or QualitySums.role not in settings.roles:
        return ()
    sums = QualitySums(settings, stores[0], metrics)
    return sums, *(ShardSums(store, sums) for store in stores[1:])


FEATURE: Final = Feature(name="monitor", exporters=_exporters, process_threads=_process_threads)
