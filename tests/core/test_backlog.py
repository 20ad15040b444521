"""Where the readers of both streams stand, whether Redis tells it or not; what is cut off is counted and told once."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.stage_parts import (
    IngestHarness,
    Keyspace,
    make_maintenance,
    make_trace,
    make_traces,
    make_verdict,
    samples,
    settings_of,
)

from tracejudge import Trace
from worker.base.accounting import read_account
from worker.core.config.settings import Rule
from worker.core.queue.leases import Leases
from worker.core.storage.client import Entry
from worker.core.storage.keys import INGEST_GROUP
from worker.core.telemetry.backlog import Backlog, Position, measure
from worker.core.telemetry.metrics import Metrics

NOTHING = (Rule(name="nothing", judges=("safety",), rate=0.0),)
PADDING = "x" * 4100
MINUTE_MS = 60_000


def big(numbers: range) -> list[Trace]:
    """Make traces of which each fills a node of the stream, so that approximate trimming is exact."""
    return make_traces(numbers, output=PADDING)


def length(keyspace: Keyspace) -> int:
    return keyspace.client.xlen(keyspace.keys.traces)


def old(keyspace: Keyspace, minutes: int, count: int = 1) -> None:
    """Add entries of some age."""
    milliseconds = int((time.time() - minutes * 60) * 1000)
    for number in range(count):
        fields = {"v": "1", "t": b'{"trace_id":"%d","service":"s","output":"%s"}' % (number, PADDING.encode())}
        keyspace.client.xadd(keyspace.keys.traces, fields, id=f"{milliseconds}-{number}")


@pytest.fixture
def reader(keyspace: Keyspace) -> IngestHarness:
    """An ingest that samples nothing."""
    return IngestHarness(keyspace, rules=NOTHING)


def test_without_streams_the_backlog_is_zero(keyspace: Keyspace) -> None:
    nothing = Position(lag=0, newly_cut=0, oldest_ms=0)
    nowhere = dict.fromkeys(("traces", "outbox", "batches", "dead_letters", "sessions"), 0)
    expected = Backlog(nothing, 7, 0, 0, 0, 0, outbox={"metrics": nothing}, bytes=nowhere)
    assert keyspace.measure(groups=("metrics",), max_entries=7) == expected
    keyspace.client.delete(keyspace.keys.traces)
    assert keyspace.measure(groups=("metrics",), max_entries=7) == expected
    assert measure(keyspace.store).traces == nothing, "without any caps as well"


def test_lag_counts_unread_and_pending_entries(keyspace: Keyspace, reader: IngestHarness) -> None:
    keyspace.append("p1", make_traces(range(10)))
    lags = [keyspace.measure().traces.lag]
    first = keyspace.read(4)
    lags.append(keyspace.measure().traces.lag)
    reader.process(first)
    lags.append(keyspace.measure().traces.lag)
    keyspace.append("p1", make_traces(range(10, 13)))
    lags.append(keyspace.measure().traces.lag)
    reader.process()
    lags.append(keyspace.measure().traces.lag)
    assert lags == [10, 10, 6, 9, 0]
    assert keyspace.counted("cut_off", "drift") == {"cut_off": 0, "drift": 0}


def test_without_a_group_the_lag_is_the_whole_stream(keyspace: Keyspace) -> None:
    keyspace.client.xgroup_destroy(keyspace.keys.traces, INGEST_GROUP)
    keyspace.append("p1", make_traces(range(10)))
    assert keyspace.measure().traces == Position(10, 0, 0)


def test_age_is_that_of_the_oldest_not_dealt_with(keyspace: Keyspace, reader: IngestHarness) -> None:
    for minutes in (9, 6, 3):
        old(keyspace, minutes)
    first, second = keyspace.read(1), keyspace.read(1)
    ages = [keyspace.measure().traces.oldest_ms]
    reader.process(first)
    ages.append(keyspace.measure().traces.oldest_ms)
    reader.process(second)
    ages.append(keyspace.measure().traces.oldest_ms)
    reader.process()
    ages.append(keyspace.measure().traces.oldest_ms)
    assert ages == [pytest.approx(minutes * MINUTE_MS, abs=MINUTE_MS) for minutes in (9, 6, 3)] + [0]


def test_capacity_is_the_smaller_of_both_caps(keyspace: Keyspace) -> None:
    keyspace.append("p1", big(range(20)))
    used = keyspace.client.memory_usage(keyspace.keys.traces)
    assert keyspace.measure(max_entries=500, max_bytes=1 << 40).capacity == 500
    assert keyspace.measure(max_entries=500, max_bytes=10 * used).capacity == pytest.approx(200, abs=1)
    assert keyspace.measure(max_entries=10**15, max_bytes=1 << 60).capacity > 10**9
    assert length(keyspace) == 20


def test_the_stream_is_trimmed_by_age(keyspace: Keyspace) -> None:
    old(keyspace, 90, count=3)
    old(keyspace, 30, count=4)
    hour_ago = f"{int((time.time() - 3600) * 1000)}-0"
    assert keyspace.measure(oldest=hour_ago).traces.lag == length(keyspace) == 4


def test_the_stream_is_trimmed_by_count(keyspace: Keyspace) -> None:
    keyspace.append("p1", big(range(30)))
    assert keyspace.measure(max_entries=10).capacity == 10
    assert length(keyspace) == 10


def test_the_stream_is_trimmed_by_bytes(keyspace: Keyspace) -> None:
    keyspace.append("p1", big(range(60)))
    cap = keyspace.client.memory_usage(keyspace.keys.traces) // 3
    keyspace.measure(max_bytes=cap)
    assert length(keyspace) == pytest.approx(20, abs=2)
    assert keyspace.client.memory_usage(keyspace.keys.traces) <= cap * 1.1


def test_batches_their_bytes_and_dead_letters_are_counted(keyspace: Keyspace) -> None:
    chosen = IngestHarness(keyspace, batch_size=1)
    keyspace.append("p1", make_traces(range(4)))
    chosen.process()
    leases = Leases(keyspace.store, tries_ttl_s=60)
    _, second = leases.take("lexical", "a", 2)
    leases.put_back(second.lease, delay_s=10)
    keyspace.client.hset(keyspace.keys.dead, mapping={"1": "{}", "2": "{}", "3": "{}"})
    backlog = keyspace.measure()
    waiting = sum(keyspace.client.strlen(keyspace.keys.batch(batch_id)) for batch_id in keyspace.batches())
    assert (backlog.batches, backlog.parked, backlog.waiting, backlog.dead) == (4, 1, {"lexical": waiting}, 3)
    assert measure(keyspace.store, open_circuits=["lexical", "other"]).parked == 3, (
        "two that nobody holds are parked too"
    )


def by_producer(keyspace: Keyspace) -> None:
    keyspace.append("p1", big(range(30, 31)), cap=10)


def by_count(keyspace: Keyspace) -> None:
    keyspace.append("p1", big(range(30, 31)))
    keyspace.measure(max_entries=10)


def by_age(keyspace: Keyspace) -> None:
    time.sleep(0.002)
    seconds, microseconds = keyspace.client.time()
    keyspace.append("p1", big(range(30, 40)))
    keyspace.measure(oldest=f"{seconds * 1000 + microseconds // 1000}-0")


@pytest.mark.parametrize("cut", [by_producer, by_count, by_age])
@pytest.mark.parametrize("group", [True, False], ids=["idle reader", "no reader yet"])
def test_entries_trimmed_before_a_group_reads_count_once_as_cut_off(
    keyspace: Keyspace, reader: IngestHarness, cut: Callable[[Keyspace], None], *, group: bool
) -> None:
    if not group:
        keyspace.client.xgroup_destroy(keyspace.keys.traces, INGEST_GROUP)
    keyspace.append("p1", big(range(30)))
    cut(keyspace)
    assert length(keyspace) == 10
    keyspace.store.make_group(keyspace.keys.traces, INGEST_GROUP)
    assert keyspace.measure().traces.lag == 10
    reader.process()
    cut_off = 30 if cut is by_age else 21
    assert [keyspace.measure(report_cuts=True).traces for _ in range(3)] == [
        Position(0, cut_off, 0),
        Position(0, 0, 0),
        Position(0, 0, 0),
    ]
    account = read_account(keyspace.store)
    assert (account.cut_off, account.not_sampled, account.unread, account.lost) == (cut_off, 10, 0, 0)


def test_entries_that_aged_out_unread_are_cut_off_and_no_lag(keyspace: Keyspace, reader: IngestHarness) -> None:
    keyspace.append("p1", big(range(30)))
    reader.process(keyspace.read(5))
    assert keyspace.measure(oldest="99999999999999-0", report_cuts=True).traces == Position(0, 25, 0)
    assert length(keyspace) == 0
    account = read_account(keyspace.store)
    assert (account.cut_off, account.unread, account.lost) == (25, 0, 0)


def test_one_of_many_concurrent_measurements_reports_a_cut(keyspace: Keyspace) -> None:
    keyspace.append("p1", big(range(50)))
    with ThreadPoolExecutor(8) as pool:
        turns = range(24)
        reported = pool.map(
            lambda turn: keyspace.measure(report_cuts=turn % 3 > 0, max_entries=10).traces.newly_cut, turns
        )
    assert sorted(reported)[-2:] == [0, 40]
    assert keyspace.accounting()["cut_off"] == keyspace.accounting()["told:cut_off"] == 40


def test_of_two_workers_one_counts_a_cut_off_in_its_metrics(keyspace: Keyspace) -> None:
    both = [Metrics(settings_of(keyspace)) for _ in range(2)]
    keepers = [make_maintenance(keyspace, metrics, groups=("metrics",), max_stream=10) for metrics in both]
    keyspace.append("p1", big(range(50)))
    for keeper in keepers * 2:
        keeper.run_once()
    counted = [samples(metrics).get(("cut_off_total",), 0) for metrics in both]
    assert counted == [40, 0]
    assert [samples(metrics)["stream_lag",] for metrics in both] == [10, 10]
    assert [samples(metrics)["stream_capacity",] for metrics in both] == [10, 10]


def test_a_late_reader_that_catches_up_reports_all_trimmed_entries(keyspace: Keyspace, reader: IngestHarness) -> None:
    keyspace.append("p1", big(range(30)))
    reader.process(keyspace.read(5))
    keyspace.append("p1", big(range(30, 40)), cap=20)  # 15 of those unread go
    reader.process(keyspace.read(5))  # and nobody measured while that could be seen
    behind = keyspace.measure(report_cuts=True).traces
    assert (behind.lag + behind.newly_cut, behind.lag <= length(keyspace)) == (30, True)
    reader.process()
    reported = (
        behind.newly_cut
        + keyspace.measure(report_cuts=True).traces.newly_cut
        + keyspace.measure(report_cuts=True).traces.newly_cut
    )
    assert (reported, keyspace.accounting()["cut_off"], keyspace.measure().traces.lag) == (15, 15, 0)
    account = read_account(keyspace.store)
    assert (account.published, account.cut_off, account.not_sampled, account.lost) == (40, 15, 25, 0)


def test_a_reader_that_stays_behind_still_reports_trimmed_entries(keyspace: Keyspace, reader: IngestHarness) -> None:
    reported = 0
    for turn in range(10):
        keyspace.append("p1", big(range(turn * 20, turn * 20 + 20)), cap=20)
        reader.process(keyspace.read(5))
        backlog = keyspace.measure(report_cuts=True).traces
        reported += backlog.newly_cut
        assert backlog.lag <= 20
    # 200 came, 50 were read, 15 are there; those of the last round may not be noticed yet.
    assert 120 <= reported <= 135
    reader.process()
    reported += keyspace.measure(report_cuts=True).traces.newly_cut
    assert (reported, keyspace.accounting()["cut_off"]) == (135, 135)


def test_trimming_entries_that_were_read_cuts_nothing_off(keyspace: Keyspace, reader: IngestHarness) -> None:
    keyspace.append("p1", big(range(30)))
    reader.process()
    keyspace.append("p1", big(range(30, 40)), cap=15)
    assert keyspace.measure(max_entries=12, report_cuts=True).traces.newly_cut == 0
    reader.process()
    assert keyspace.measure(report_cuts=True).traces == Position(0, 0, 0)
    assert "cut_off" not in keyspace.accounting()


def test_entries_trimmed_by_another_client_after_reading_are_not_cut_off(
    keyspace: Keyspace, reader: IngestHarness
) -> None:
    keyspace.append("p1", big(range(30)))
    reader.process()
    keyspace.client.xtrim(keyspace.keys.traces, maxlen=3, approximate=False)
    assert [keyspace.measure(report_cuts=True).traces for _ in range(2)] == [Position(0, 0, 0)] * 2
    keyspace.append("p1", big(range(30, 40)))
    assert keyspace.measure(report_cuts=True).traces[:2] == (10, 0)
    keyspace.measure(max_entries=4)
    reader.process()
    assert keyspace.measure(report_cuts=True).traces[:2] == (0, 6), "what is really cut off afterwards is still seen"


def test_a_foreign_trim_beside_pending_entries_cuts_nothing_off(keyspace: Keyspace, reader: IngestHarness) -> None:
    keyspace.append("p1", big(range(30)))
    reader.process(keyspace.read(20))
    pending = keyspace.read(5)
    keyspace.client.xtrim(keyspace.keys.traces, maxlen=10, approximate=False)
    keyspace.measure()
    reader.process(pending)
    keyspace.measure()
    reader.process()
    assert [keyspace.measure(report_cuts=True).traces for _ in range(2)] == [Position(0, 0, 0)] * 2
    assert "cut_off" not in keyspace.accounting()


def test_entries_trimmed_between_reading_and_accounting_are_not_cut_off(
    keyspace: Keyspace, reader: IngestHarness
) -> None:
    """At its cap a stream loses an old entry for each new one: measured between reading and dealing with these."""
    keyspace.append("p1", big(range(20)), cap=20)
    reader.process()
    keyspace.append("p1", big(range(20, 40)), cap=20)
    entries = keyspace.read()
    assert keyspace.measure(report_cuts=True).traces[:2] == (20, 0)
    reader.process(entries)
    assert keyspace.measure(report_cuts=True).traces == Position(0, 0, 0)
    assert "cut_off" not in keyspace.accounting()


def test_pending_entries_of_a_dead_reader_that_were_trimmed_are_cut_off(
    keyspace: Keyspace, reader: IngestHarness
) -> None:
    keyspace.append("p1", big(range(30)))
    dead = keyspace.read(20, consumer="dead")
    keyspace.measure(max_entries=15)
    claimed = keyspace.claim()
    assert claimed == [(each, None) for each, _ in dead[:15]] + dead[15:]
    reader.process(claimed)
    behind = keyspace.measure(report_cuts=True).traces
    assert behind.lag + behind.newly_cut == 25, "in the midst of the stream some of it is seen later"
    reader.process()
    assert keyspace.measure(report_cuts=True).traces == Position(0, 15 - behind.newly_cut, 0)
    account = read_account(keyspace.store)
    assert (account.published, account.cut_off, account.not_sampled, account.lost) == (30, 15, 15, 0)


def test_trimmed_entries_that_are_still_chosen_from_count_as_read(keyspace: Keyspace, reader: IngestHarness) -> None:
    keyspace.append("p1", big(range(30)))
    entries = keyspace.read(20)
    assert keyspace.measure(max_entries=5, report_cuts=True).traces[:2] == (25, 5)
    reader.process(entries)
    assert keyspace.measure(report_cuts=True).traces[:2] == (5, 0)
    assert keyspace.counted("read", "cut_off", "not_sampled") == {"read": 20, "cut_off": 5, "not_sampled": 20}


def test_a_stream_that_vanished_begins_anew(keyspace: Keyspace, reader: IngestHarness) -> None:
    keyspace.append("p1", make_traces(range(10)))
    reader.process()
    keyspace.client.delete(keyspace.keys.traces)
    assert keyspace.measure(report_cuts=True).traces == Position(0, 0, 0)
    keyspace.append("p1", make_traces(range(10, 15)))
    assert keyspace.measure(report_cuts=True).traces == Position(5, 0, 0)
    assert keyspace.read() == [], "the group is made anew"
    reader.process()
    assert keyspace.measure(report_cuts=True).traces == Position(0, 0, 0)
    keyspace.append("p1", make_traces(range(15, 18)))
    assert keyspace.measure(report_cuts=True).traces.lag == 3
    reader.process()
    assert keyspace.measure(report_cuts=True).traces == Position(0, 0, 0)
    assert keyspace.counted("read", "cut_off") == {"read": 18, "cut_off": 0}


class Exporter:
    """Reads the outbox for one group and acknowledges as the exporters do."""

    def __init__(self, keyspace: Keyspace, group: str) -> None:
        keyspace.store.make_group(keyspace.keys.verdicts, group)
        self._keyspace, self._group = keyspace, group

    def read(self, count: int = 1000) -> list[Entry]:
        return self._keyspace.store.read_group(self._keyspace.keys.verdicts, self._group, "a", count=count, block_ms=1)

    def acknowledge(self, entries: list[Entry]) -> None:
        keys, ids = self._keyspace.keys, [entry_id for entry_id, _ in entries]
        names = (keys.verdicts, keys.account_all, keys.groups)
        self._keyspace.store.run("acknowledge", names, (self._group, ids[-1], *ids))


def test_each_exporter_has_its_own_lag_and_cut_offs(keyspace: Keyspace) -> None:
    groups = ("metrics", "otel", "idle")
    metrics, otel, _ = (Exporter(keyspace, group) for group in groups)

    def values(**options: Any) -> dict[str, tuple[int, int]]:
        return {group: each[:2] for group, each in keyspace.measure(groups=groups, **options).outbox.items()}

    keyspace.send(*(make_verdict(number) for number in range(30)))
    metrics.acknowledge(metrics.read())
    otel.acknowledge(otel.read(5))
    held = otel.read(3)
    assert values(report_cuts=True) == {"metrics": (0, 0), "otel": (25, 0), "idle": (30, 0)}
    keyspace.client.xtrim(keyspace.keys.verdicts, maxlen=10, approximate=False)
    assert values() == {"metrics": (0, 0), "otel": (13, 0), "idle": (10, 0)}
    assert values(report_cuts=True) == {"metrics": (0, 0), "otel": (13, 12), "idle": (10, 20)}
    assert values(report_cuts=True) == {"metrics": (0, 0), "otel": (13, 0), "idle": (10, 0)}
    otel.acknowledge(held + otel.read())
    keyspace.send(make_verdict(50))
    assert values(report_cuts=True) == {"metrics": (1, 0), "otel": (1, 0), "idle": (11, 0)}
    assert {name: amount for name, amount in keyspace.accounting().items() if ":" in name} == {
        "exported:metrics": 30,
        "exported:otel": 18,
        "outbox_cut_off:otel": 12,
        "outbox_cut_off:idle": 20,
        "told:outbox_cut_off:otel": 12,
        "told:outbox_cut_off:idle": 20,
    }


def test_the_outbox_is_trimmed_by_bytes_and_unsent_verdicts_are_cut_off(keyspace: Keyspace) -> None:
    metrics = Exporter(keyspace, "metrics")
    keyspace.store.make_group(keyspace.keys.verdicts, "otel")
    keyspace.send(*(make_verdict(number, rationale=PADDING) for number in range(40)))
    metrics.acknowledge(metrics.read())
    used = keyspace.client.memory_usage(keyspace.keys.verdicts, samples=0)
    assert keyspace.measure(max_outbox_bytes=used).bytes["outbox"] == pytest.approx(used, rel=0.02)
    backlog = keyspace.measure(groups=("metrics", "otel"), report_cuts=True, max_outbox_bytes=used // 4)
    left = keyspace.client.xlen(keyspace.keys.verdicts)
    assert 8 <= left <= 10
    assert {group: each[:2] for group, each in backlog.outbox.items()} == {"metrics": (0, 0), "otel": (left, 40 - left)}
    assert backlog.bytes["outbox"] <= used // 4
    assert keyspace.measure(max_outbox_bytes=1).bytes["outbox"] > 0, "the newest one always stays"


def test_metrics_hold_the_bytes_of_each_store(keyspace: Keyspace) -> None:
    metrics = Metrics(settings_of(keyspace))
    keyspace.append("p1", big(range(20)))
    keyspace.send(*(make_verdict(number) for number in range(5)))
    keyspace.client.hset(keyspace.keys.waiting, mapping={"a": 100, "b": 30})
    keyspace.client.hset(keyspace.keys.dead_refs, "bytes", 77)
    bounds = {"max_stream_bytes": 10**8, "max_dead_bytes": 10**7}
    keeper = make_maintenance(keyspace, metrics, groups=("metrics",), **bounds)
    keeper.run_once()
    metric_values = samples(metrics)
    assert metric_values["stored_bytes", "what=traces"] == pytest.approx(
        keyspace.client.memory_usage(keyspace.keys.traces), rel=0.02
    )
    assert metric_values["stored_bytes", "what=outbox"] > 0
    assert [metric_values["stored_bytes", f"what={what}"] for what in ("batches", "dead_letters")] == [130, 77]
    caps = [
        metric_values["stored_max_bytes", f"what={what}"] for what in ("traces", "outbox", "batches", "dead_letters")
    ]
    assert caps == [10**8, 2**29, 2**28, 10**7]
    assert metric_values["redis_used_bytes",] > 500_000
    assert ("redis_max_bytes",) not in metric_values, "0: without a bound"


def test_a_new_exporter_does_not_count_older_trimmed_verdicts_as_cut_off(keyspace: Keyspace) -> None:
    """An OTLP endpoint that was configured after a month used to begin with a month of cut-off verdicts."""
    ids = keyspace.send(*(make_verdict(number) for number in range(10)))
    keyspace.client.xdel(keyspace.keys.verdicts, *ids[:7])
    for _ in range(2):
        keyspace.store.make_group(keyspace.keys.verdicts, "otel")
    assert keyspace.measure(groups=("otel",)).outbox["otel"].lag == 3
    entries = keyspace.store.read_group(keyspace.keys.verdicts, "otel", "reader", count=100, block_ms=1)
    keys = keyspace.keys
    names = (keys.verdicts, keys.account_all, keys.groups)
    keyspace.store.run("acknowledge", names, ("otel", entries[-1][0], *(entry_id for entry_id, _ in entries)))
    assert keyspace.measure(groups=("otel",), report_cuts=True).outbox["otel"] == Position(
        lag=0, newly_cut=0, oldest_ms=0
    )


def test_an_exporter_whose_position_is_lost_keeps_its_counts(keyspace: Keyspace) -> None:
    exporter = Exporter(keyspace, "otel")
    keyspace.send(*(make_verdict(number) for number in range(20)))
    exporter.acknowledge(exporter.read(5))
    keyspace.client.xtrim(keyspace.keys.verdicts, maxlen=12, approximate=False)
    assert keyspace.measure(groups=("otel",), report_cuts=True).outbox["otel"][:2] == (12, 3)
    keyspace.client.xgroup_destroy(keyspace.keys.verdicts, "otel")
    keyspace.client.delete(keyspace.keys.groups)
    again = Exporter(keyspace, "otel")
    assert keyspace.measure(groups=("otel",), report_cuts=True).outbox["otel"][:2] == (12, 0)
    again.acknowledge(again.read())
    keyspace.send(*(make_verdict(number) for number in range(20, 30)))
    keyspace.client.xtrim(keyspace.keys.verdicts, maxlen=6, approximate=False)
    assert keyspace.measure(groups=("otel",), report_cuts=True).outbox["otel"][:2] == (6, 4)


def test_an_exporter_that_was_not_there_yet_has_all_of_the_outbox_ahead(keyspace: Keyspace) -> None:
    keyspace.send(*(make_verdict(number) for number in range(5)))
    assert keyspace.measure(groups=("later",)).outbox["later"] == Position(5, 0, 0)


@pytest.fixture
def fresh_keyspaces(any_redis_url: str, prefix: str) -> Iterator[Callable[[], Keyspace]]:
    """The same keyspace, cleared for each example, since hypothesis keeps a test's fixtures."""
    with Keyspace(any_redis_url, prefix) as keyspace:

        def fresh() -> Keyspace:
            for key in keyspace.client.scan_iter(match=f"{prefix}:*", count=1000):
                keyspace.client.delete(key)
            keyspace.store.make_group(keyspace.keys.traces, INGEST_GROUP)
            return keyspace

        yield fresh


PRODUCERS = st.sampled_from(["p1", "p2"])
STEPS = st.one_of(
    st.tuples(st.just("append"), PRODUCERS, st.integers(1, 30), st.sampled_from([20, 1000])),
    st.tuples(st.just("add"), st.integers(1, 10)),
    st.tuples(st.just("read"), st.integers(1, 25)),
    st.tuples(st.just("take"), st.integers(0, 3)),
    st.tuples(st.just("claim"), st.booleans()),
    st.tuples(st.just("measure"), st.sampled_from([15, 10_000])),
)


class Play:
    """Producers, readers and caps in any order, and what is true whatever they did."""

    def __init__(self, keyspace: Keyspace) -> None:
        self.keyspace = keyspace
        self.chosen = IngestHarness(keyspace, rules=NOTHING)
        self.came = self.told = 0
        self.held: list[list[Entry]] = []

    def append(self, producer: str, count: int, cap: int) -> None:
        self.keyspace.append(producer, [make_trace(self.came + number) for number in range(count)], cap=cap)
        self.came += count

    def add(self, count: int) -> None:
        for _ in range(count):
            self.keyspace.add(make_trace(self.came, output=PADDING))
            self.came += 1

    def read(self, count: int) -> None:
        self.held.append(self.keyspace.read(count))

    def take(self, place: int) -> None:
        if place < len(self.held):
            self.chosen.process(self.held.pop(place))

    def claim(self, held: bool) -> None:  # noqa: FBT001 - drawn by hypothesis
        claimed = self.keyspace.claim()
        self.held += [claimed] if held else []
        self.chosen.process([] if held else claimed)

    def measure(self, cap: int) -> None:
        backlog = self.keyspace.measure(max_entries=cap, report_cuts=True).traces
        assert backlog.lag >= 0
        assert backlog.newly_cut >= 0
        self.told += backlog.newly_cut

    def end(self) -> None:
        """Deal with all there is; the last entries of the producers add all that they trimmed to the accounting."""
        for producer in ("p1", "p2"):
            self.append(producer, 1, 10**6)
        for entries in (*self.held, self.keyspace.read(), self.keyspace.claim()):
            self.chosen.process(entries)
        self.measure(10**6)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, min_size=5, max_size=40))
def test_each_entry_is_read_or_cut_off_and_reported_once_in_any_order(
    fresh_keyspaces: Callable[[], Keyspace], steps: list[tuple[Any, ...]]
) -> None:
    play = Play(fresh_keyspaces())
    for step, *arguments in steps:
        getattr(play, step)(*arguments)
    play.end()
    accounting = play.keyspace.counted("read", "cut_off")
    assert accounting["read"] + accounting["cut_off"] == play.came
    assert (play.told, play.keyspace.measure().traces.lag) == (accounting["cut_off"], 0)
    account = read_account(play.keyspace.store)
    assert (account.unread, account.lost) == (0, 0)
