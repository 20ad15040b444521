"""Failing verdicts of safety judges are counted for series that the monitor keeps."""

from collections import Counter

import msgspec
from support.stage_parts import Keyspace, make_verdict, rules_of

from judges.core.verdict import Score, Verdict
from worker.base.monitor.counts import read_counts
from worker.base.monitor.feature import Monitor
from worker.base.monitor.series import read_series
from worker.base.monitor.sums import QualitySums
from worker.core.config.settings import Settings
from worker.core.queue.batch import FirstVerdict
from worker.core.queue.ledger import read_outbox_entry
from worker.core.telemetry.metrics import Metrics

DAY_MS = 1_760_000_000_000


def count_failures(keyspace: Keyspace, verdicts: list[Verdict], **monitor: object) -> Counter[tuple[str, ...]]:
    """Deliver verdicts to the sums of the monitor, and return the counts of the day."""
    keyspace.store.make_group(keyspace.keys.verdicts, "monitor")
    for number, verdict in enumerate(verdicts):
        written = {"v": 1, "j": msgspec.json.encode(verdict)}
        keyspace.client.xadd(keyspace.keys.verdicts, written, id=f"{int(verdict.started_at * 1000)}-{number}")
    settings = Settings.from_keys(prefix=keyspace.prefix, redis_url=keyspace.url, monitor=Monitor(**monitor))
    sums = QualitySums(settings, keyspace.store, Metrics(settings), rules_of(settings))
    sums.prepare()
    entries = keyspace.store.read_group(keyspace.keys.verdicts, "monitor", "reader", count=100, block_ms=1)
    sums.deliver([entry for entry in map(read_outbox_entry, entries) if entry is not None])
    return read_counts(keyspace.store, "safety", DAY_MS / 1000 - 86_400, DAY_MS / 1000 + 86_400)


def test_a_second_judging_belongs_to_its_failure_across_the_edge_of_a_period(keyspace: Keyspace) -> None:
    """A session fails before the edge and after it; both second judgings come after it."""
    edge_s = DAY_MS // 1000 // 21_600 * 21_600
    failed = Score("safety", 0.0, passed=False)
    times = {1: edge_s - 120.0, 2: edge_s + 300.0}

    def make(number: int, at: float, **changes: object) -> Verdict:
        made = {"outcome": "scored", "session_id": "s1", "started_at": at, **changes}
        return make_verdict(number, **made)

    verdicts = [make(number, at, scores=(failed,)) for number, at in times.items()]
    for number, at in times.items():
        first = FirstVerdict(f"e{number}", "lexical", at, {"safety": False}, is_drawn=False, is_failure=True)
        cleared = Score("safety", 1.0, passed=True)
        details = {"repeat": msgspec.to_builtins(first)}
        verdicts.append(make(number + 10, at + 200.0, scores=(cleared,), origin="repeat", details=details))
    counts = Counter[str]()
    verdicts.sort(key=lambda verdict: verdict.started_at)
    for (_, _, word), count in count_failures(keyspace, verdicts).items():
        counts[word] += count
    assert counts == {"failed": 2, "answered": 2}


def test_failures_of_a_series_beyond_the_bound_are_not_counted(keyspace: Keyspace) -> None:
    score = Score("safety", 0.0, passed=False)
    verdicts = [
        make_verdict(number, service=f"s{number % 5}", outcome="scored", scores=(score,), started_at=DAY_MS / 1000)
        for number in range(20)
    ]
    counts = count_failures(keyspace, verdicts, max_series=3)
    assert len(counts) > 0
    assert {labels[0] for labels in counts} == set(read_series(keyspace.store))
