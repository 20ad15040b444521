"""Bounds of the monitor's series: silent ones give their place to new ones, and a segment cannot take all places."""

from collections.abc import Iterable

import msgspec
import pytest
from support.stage_parts import Keyspace, make_judged, rules_of

from judges.core.verdict import Verdict
from worker.base.monitor.feature import MONITOR, Monitor, MonitorKeys
from worker.base.monitor.incidents import keep_examples
from worker.base.monitor.series import read_series
from worker.base.monitor.sums import QualitySums, SeriesPruning
from worker.core.config.settings import Settings
from worker.core.queue.ledger import read_outbox_entry
from worker.core.telemetry.metrics import Metrics

FIRST_S = 1_760_000_000
DAY_S = 86_400


def verdict(service: str, release: str | None = None) -> Verdict:
    return make_judged(service=service, release=release)


class Days:
    """The monitor of one worker; verdicts come on days after the first."""

    def __init__(self, keyspace: Keyspace, **monitor: object) -> None:
        self._keyspace = keyspace
        settings = Settings.from_keys(prefix=keyspace.prefix, redis_url=keyspace.url, monitor=Monitor(**monitor))  # type: ignore[arg-type]
        self.metrics = Metrics(settings)
        self.sums = QualitySums(settings, keyspace.store, self.metrics, rules_of(settings))
        self.sums.prepare()
        self.now = 0.0
        self._written = 0
        self.pruning = SeriesPruning(keyspace.store, MONITOR.read(settings), self.sums.relist, lambda: self.now)

    def count(self, day: int, verdicts: Iterable[Verdict]) -> None:
        for each in verdicts:
            self._written += 1
            name = f"{(FIRST_S + day * DAY_S) * 1000}-{self._written}"
            self._keyspace.client.xadd(self._keyspace.keys.verdicts, {"v": 1, "j": msgspec.json.encode(each)}, id=name)
        store, stream = self._keyspace.store, self._keyspace.keys.verdicts
        entries = store.read_group(stream, "monitor", "reader", count=1000, block_ms=1)
        self.sums.deliver([read for entry in entries if (read := read_outbox_entry(entry)) is not None])

    def prune(self, day: int) -> None:
        self.now = FIRST_S + day * DAY_S
        self.pruning.run_due()

    def listed(self) -> set[tuple[str, str]]:
        return {(series.service, series.value) for series in read_series(self._keyspace.store).values()}

    def dropped(self, reason: str) -> float | None:
        labels = {"exporter": "monitor", "reason": reason}
        return self.metrics.registry.get_sample_value("tracejudge_export_dropped_total", labels)


def test_series_without_verdicts_for_90_days_give_their_place_to_others(keyspace: Keyspace) -> None:
    days = Days(keyspace, max_series=2)
    days.count(0, [verdict("a"), verdict("b"), verdict("c")])
    days.count(60, [verdict("b")])
    for day in (60, 89):
        days.prune(day)
        assert days.listed() == {("a", ""), ("b", "")}, day
    (a,) = (series_id for series_id, series in read_series(keyspace.store).items() if series.service == "a")
    keyspace.client.set(MonitorKeys(keyspace.keys.prefix).quality_detector(a), b"state")
    keep_examples(keyspace.store, "drop", a, ["t:1"])
    days.prune(92)
    assert days.listed() == {("b", "")}
    assert not keyspace.client.exists(
        MonitorKeys(keyspace.keys.prefix).quality_detector(a), MonitorKeys(keyspace.keys.prefix).quality_examples
    )
    days.count(92, [verdict("c"), verdict("d")])
    assert days.listed() == {("b", ""), ("c", "")}
    assert days.dropped("too_many_series") == 2


def test_a_burst_of_release_names_is_bounded_and_passes(keyspace: Keyspace) -> None:
    days = Days(keyspace, segments=("release",), max_segment_values=2)
    days.count(0, [verdict("a", f"r{number}") for number in range(5)])
    days.count(0, [verdict("b", "r4")])
    assert days.listed() == {("a", ""), ("a", "r0"), ("a", "r1"), ("b", ""), ("b", "r4")}
    assert (days.dropped("too_many_values"), days.dropped("too_many_series")) == (3, 0)
    days.count(6, [verdict("a", "r1")])
    days.prune(6)
    assert ("a", "r0") in days.listed(), "silent for less than a week"
    days.prune(9)
    # The value of b is silent as well, but its segment has room.
    assert days.listed() == {("a", ""), ("a", "r1"), ("b", ""), ("b", "r4")}
    days.count(9, [verdict("a", "r5"), verdict("a", "r6")])
    assert ("a", "r5") in days.listed()
    assert days.dropped("too_many_values") == 4


def test_series_that_redis_lost_are_listed_again(keyspace: Keyspace) -> None:
    days = Days(keyspace)
    days.count(0, [verdict("a")])
    keyspace.client.delete(MonitorKeys(keyspace.keys.prefix).quality_series)
    days.prune(0)
    days.count(0, [verdict("a")])
    assert days.listed() == {("a", "")}


@pytest.mark.usefixtures("_short_reads")
def test_a_successor_knows_the_series_that_were_removed(keyspace: Keyspace) -> None:
    first, second = Days(keyspace), Days(keyspace)
    for each in (first, second):
        each.sums.stopping.set()  # no pause between reads
    first.count(0, [verdict("a")])
    second.sums.prepare()
    first.sums.run_once()
    second.sums.run_once()
    keyspace.client.delete(MonitorKeys(keyspace.keys.prefix).quality_series)
    first.sums.stop(1.0)
    keyspace.client.xadd(keyspace.keys.verdicts, {"v": 1, "j": msgspec.json.encode(verdict("a"))})
    second.sums.run_once()
    assert second.listed() == {("a", "")}
