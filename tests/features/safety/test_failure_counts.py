"""Failing verdicts of safety judges are counted for series that the monitor keeps."""

import msgspec
from support.stage_parts import Keyspace, make_verdict, rules_of

from judges.core.verdict import Score
from worker.base.monitor.counts import read_counts
from worker.base.monitor.feature import Monitor
from worker.base.monitor.series import read_series
from worker.base.monitor.sums import QualitySums
from worker.core.config.settings import Settings
from worker.core.queue.ledger import read_outbox_entry
from worker.core.telemetry.metrics import Metrics

DAY_MS = 1_760_000_000_000


def test_failures_of_a_series_beyond_the_bound_are_not_counted(keyspace: Keyspace) -> None:
    keyspace.store.make_group(keyspace.keys.verdicts, "monitor")
    for number in range(20):
        verdict = make_verdict(
            number, service=f"s{number % 5}", outcome="scored", scores=(Score("safety", 0.0, passed=False),)
        )
        written = {"v": 1, "j": msgspec.json.encode(verdict)}
        keyspace.client.xadd(keyspace.keys.verdicts, written, id=f"{DAY_MS + number}-0")
    settings = Settings.from_keys(prefix=keyspace.prefix, redis_url=keyspace.url, monitor=Monitor(max_series=3))
    sums = QualitySums(settings, keyspace.store, Metrics(settings), rules_of(settings))
    sums.prepare()
    entries = keyspace.store.read_group(keyspace.keys.verdicts, "monitor", "reader", count=100, block_ms=1)
    sums.deliver([entry for entry in map(read_outbox_entry, entries) if entry is not None])
    counts = read_counts(keyspace.store, "safety", DAY_MS / 1000, DAY_MS / 1000)
    assert len(counts) > 0
    assert {labels[0] for labels in counts} == set(read_series(keyspace.store))
