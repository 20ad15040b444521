"""What the tests of the monitor's watches share: their parts, and the outbox counted as the active monitor does."""

from support.stage_parts import Keyspace, rules_of
from worker.base.monitor.gauges import MonitorParts
from worker.base.monitor.sums import QualitySums
from worker.core.config.settings import Settings
from worker.core.queue.ledger import OutboxEntry, read_outbox_entry
from worker.core.telemetry.metrics import Metrics


def monitor_parts(keyspace: Keyspace, settings: Settings, metrics: Metrics | None = None) -> MonitorParts:
    return MonitorParts(settings, keyspace.store, metrics or Metrics(settings), rules_of(settings))


def quality_sums(keyspace: Keyspace, settings: Settings) -> QualitySums:
    sums = QualitySums(settings, keyspace.store, Metrics(settings), rules_of(settings))
    sums.prepare()
    return sums


def read_outbox(keyspace: Keyspace) -> list[OutboxEntry]:
    """Read what no monitor has read."""
    entries = keyspace.store.read_group(keyspace.keys.verdicts, "monitor", "reader", count=10_000, block_ms=1)
    return [entry for entry in map(read_outbox_entry, entries) if entry is not None]


def count_outbox(keyspace: Keyspace, settings: Settings) -> None:
    """Count what no monitor has read; what is delivered twice counts once."""
    sums = quality_sums(keyspace, settings)
    entries = read_outbox(keyspace)
    for _ in range(2 if entries else 0):
        sums.deliver(entries)
