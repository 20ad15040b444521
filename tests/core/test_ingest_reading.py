"""Reading by ingest: entries that are repeated, claimed, deleted or too many at once are accounted for once.

So are entries of consumer groups that somebody destroys or sets back, and names of dead readers go.
"""

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest
from support.judging import refuse
from support.processes import PATIENCE_S, wait_until
from support.stages import (
    IngestHarness,
    Keyspace,
    make_trace,
    make_traces,
    make_verdict,
    read_amounts,
    rules_of,
    samples,
    settings_of,
)

from worker.base.monitor.sums import QualitySums
from worker.core.config.settings import MIB, Rule, Settings, Where
from worker.core.export.consumer import ExportConsumer
from worker.core.export.prometheus import PrometheusExporter
from worker.core.ingest import consumer as ingest_module
from worker.core.storage import client as store_module
from worker.core.storage import group_reader
from worker.core.storage.client import Entry, Store, StoreError
from worker.core.storage.group_reader import GroupReader
from worker.core.storage.keys import INGEST_GROUP
from worker.core.telemetry.metrics import Metrics


def add(keyspace: Keyspace, first: int, last: int) -> None:
    for trace in make_traces(range(first, last)):
        keyspace.add(trace)


def read_again(keyspace: Keyspace, consumer: str = "reader") -> list[Entry]:
    """Read as ingest does: the first answer after the group is gone makes it anew."""
    return keyspace.read(consumer=consumer) or keyspace.read(consumer=consumer)


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest_module, "_BLOCK_MS", 1)


@pytest.fixture
def reader(keyspace: Keyspace) -> Iterator[GroupReader]:
    reader = GroupReader(keyspace.store, keyspace.keys.traces, INGEST_GROUP, "one")
    yield reader
    reader.close()


def published(keyspace: Keyspace) -> list[bytes]:
    return [entry_id for entry_id, _ in keyspace.client.xrange(keyspace.keys.traces)]


def read(keyspace: Keyspace, reader: GroupReader) -> list[bytes]:
    """Read once and acknowledge everything, as ingest does."""
    entry_ids = [entry_id for entry_id, _ in reader.read(1)]
    if entry_ids:
        keyspace.client.xack(keyspace.keys.traces, INGEST_GROUP, *entry_ids)
    return entry_ids


def test_a_stopping_worker_and_a_lost_answer_do_no_harm(keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = IngestHarness(keyspace)
    keyspace.append("p1", make_traces(range(3)))
    entries = keyspace.read()
    chosen.ingest.stopping.set()
    with monkeypatch.context() as away:
        away.setattr(keyspace.store, "run", refuse)
        with pytest.raises(StoreError):
            chosen.process(entries)
    IngestHarness(keyspace).process(keyspace.claim())
    assert keyspace.accounting()["sampled"] == 3, "unwritten entries are left to others"
    keyspace.next_case("an answer that was lost on its way")
    chosen = IngestHarness(keyspace)
    keyspace.append("p1", make_traces(range(3)))
    run, answers = keyspace.store.run, iter([False, True])

    def lossy(*arguments: Any) -> Any:
        answer = run(*arguments)
        return answer if next(answers) else refuse()

    monkeypatch.setattr(keyspace.store, "run", lossy)
    monkeypatch.setattr(chosen.ingest, "backoff", lambda _: None)
    chosen.process()
    assert keyspace.counted("published", "sampled", "chosen") == {"published": 3, "sampled": 3, "chosen": 3}
    assert sum(len(batch.items) for batch in keyspace.batches().values()) == 3


@pytest.mark.usefixtures("_short")
def test_entries_of_dead_readers_are_taken_over(keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest_module, "_STALE_MS", 0)
    chosen = IngestHarness(keyspace)
    keyspace.append("p1", make_traces(range(3)))
    assert len(keyspace.read(consumer="dead")) == 3
    keyspace.append("p1", make_traces(range(3, 5)))
    for sampled in (3, 5):  # before new ones are read
        chosen.ingest.run_once()
        assert keyspace.counted("read", "sampled") == {"read": sampled, "sampled": sampled}
    assert keyspace.pending() == 0
    keyspace.next_case("an entry that another reader just claimed")
    minute_ms = 60_000
    keyspace.append("p1", make_traces(range(3)))
    ids = [entry_id for entry_id, _ in keyspace.read(consumer="dead")]
    keyspace.client.xclaim(keyspace.keys.traces, INGEST_GROUP, "dead", 0, ids, idle=60 * minute_ms)
    keyspace.client.xclaim(keyspace.keys.traces, INGEST_GROUP, "rival", minute_ms, ids[:2])
    claimed = keyspace.store.claim_stale(keyspace.keys.traces, INGEST_GROUP, "successor", idle_ms=minute_ms, count=10)
    assert [entry_id for entry_id, _ in claimed] == ids[2:]
    keyspace.next_case("past the bound of waiting work nothing is read")
    monkeypatch.setattr(ingest_module, "_PRESSURE_PAUSE_S", 0.001)
    chosen = IngestHarness(keyspace, max_waiting_bytes=1000)
    chosen.pressure.set_waiting({"lexical": 1001})
    keyspace.add(make_trace(1))
    chosen.ingest.run_once()
    assert (keyspace.accounting(), keyspace.pending()) == ({}, 0)
    chosen.pressure.set_waiting({"lexical": 1000})
    chosen.ingest.run_once()
    assert keyspace.accounting()["sampled"] == 1


@pytest.mark.usefixtures("_short")
def test_reads_are_bounded_by_entries_and_8_mib(keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    rules, large = (Rule(name="none", judges=("safety",), rate=0.0),), {"output": "x" * (4 * MIB - 1000)}
    reads: list[tuple[int, int]] = []

    def weighed(entries: Iterable[Entry]) -> None:
        entries = list(entries)
        reads.append((len(entries), sum(sum(map(len, fields.values())) for _, fields in entries)))
        chosen.process(entries)

    for way, most in (("read", 1_000), ("claimed", 128)):
        keyspace.next_case(way)
        reads.clear()
        chosen, reading = IngestHarness(keyspace, rules=rules), IngestHarness(keyspace, rules=rules).ingest
        monkeypatch.setattr(reading, "process", weighed)
        for numbers, fields in (((0, 300), {}), ((300, 303), large), ((303, 400), {}), ((400, 405), large)):
            keyspace.append("p1", make_traces(range(*numbers), **fields))
        if way == "claimed":
            monkeypatch.setattr(ingest_module, "_STALE_MS", 0)
            keyspace.read(consumer="dead")
        while sum(count for count, _ in reads) < 405:
            reading.run_once()
        assert max(count for count, _ in reads) <= most, reads
        assert max(size for _, size in reads) < 8 * MIB, reads
        assert len(reads) <= 10, reads
        assert keyspace.counted("not_sampled", "read") == {"not_sampled": 405, "read": 405}
        assert keyspace.pending() == 0
    keyspace.next_case("more ids than Lua can spread over the arguments of one call are one step")
    keyspace.append("p1", make_traces(range(10_000)))
    chosen.process()
    assert keyspace.accounting()["not_sampled"] == 10_000


def test_new_entries_come_in_their_order_and_once(keyspace: Keyspace, reader: GroupReader) -> None:
    assert read(keyspace, reader) == []
    keyspace.append("p1", make_traces(range(1)))
    assert read(keyspace, reader) == published(keyspace)
    keyspace.append("p1", make_traces(range(1, 2_501)))
    reads = [read(keyspace, reader) for _ in range(4)]
    assert [len(each) for each in reads] == [1_000, 1_000, 500, 0]
    assert list(itertools.chain(*reads)) == published(keyspace)[1:]
    keyspace.next_case("a group that is gone is made again")
    keyspace.append("p1", make_traces(range(10)))
    keyspace.client.xgroup_destroy(keyspace.keys.traces, INGEST_GROUP)
    assert len(list(reader.read(1))) == 10
    assert read(keyspace, reader) == [], "entries that were read and not acknowledged are left to others"
    assert [entry_id for entry_id, _ in keyspace.claim()] == published(keyspace)
    keyspace.next_case("a pending entry that left the stream has no fields")
    keyspace.append("p1", make_traces(range(3)))
    assert len(keyspace.read(consumer="one")) == 3
    ids = published(keyspace)
    keyspace.client.xtrim(keyspace.keys.traces, maxlen=1, approximate=False)
    reader.close()
    assert [(entry_id, fields is None) for entry_id, fields in reader.read(1)] == [
        *zip(ids, (True, True, False), strict=True)
    ]


def test_entries_of_a_reply_that_was_lost_are_read_next(keyspace: Keyspace, reader: GroupReader) -> None:
    keyspace.append("p1", make_traces(range(10)))
    entries = reader.read(1)
    first = [next(entries)[0], next(entries)[0]]
    assert keyspace.client.xack(keyspace.keys.traces, INGEST_GROUP, *first) == 2
    # The next command is under way by now: Redis answers, and nobody receives it.
    wait_until(lambda: keyspace.pending() >= 4, what="the command whose reply is lost")
    reader._connection._sock.close()  # as the network does
    with pytest.raises(StoreError):
        next(entries)
    keyspace.append("p1", make_traces(range(10, 20)))
    assert first + read(keyspace, reader) == published(keyspace)
    assert (keyspace.pending(), read(keyspace, reader)) == (0, [])


def test_replies_are_bounded_in_bytes_but_an_entry_of_any_size_is_read(
    keyspace: Keyspace, reader: GroupReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_reader, "READ_BYTES", MIB)
    keyspace.append("p1", make_traces(range(62)))
    assert len(read(keyspace, reader)) == 62
    keyspace.append("p1", make_traces(range(100, 132), output="x" * (MIB // 2)))
    fed: list[int] = []

    class Replies(group_reader.hiredis.Reader):  # type: ignore[misc]
        def feed(self, buffer: bytearray, offset: int, size: int) -> None:
            fed.append(size)
            super().feed(buffer, offset, size)

    monkeypatch.setattr(group_reader.hiredis, "Reader", Replies)
    reader._replies = Replies()  # what it made before the patch
    assert read(keyspace, reader) == []
    assert sum(fed) <= 3 * MIB, "of 16 MiB"
    reads = [read(keyspace, reader) for _ in range(32)]
    assert list(itertools.chain(*reads)) == published(keyspace)[62:]
    assert {len(each) for each in reads} <= {0, 1}, "two of them exceed the bytes"
    monkeypatch.setattr(group_reader, "READ_BYTES", 1000)
    keyspace.append("p1", make_traces(range(200, 205), output="x" * 5000))
    reads = [read(keyspace, reader) for _ in range(10)]
    assert list(itertools.chain(*reads)) == published(keyspace)[94:]
    assert max(map(len, reads)) == 1


def read_as(keyspace: Keyspace, consumer: str, count: int = 1, *, acknowledge: bool = True) -> None:
    """Read new entries as a reader of this name."""
    keyspace.append("p1", make_traces(range(count)))
    ids = [entry_id for entry_id, _ in keyspace.read(consumer=consumer)]
    if acknowledge:
        keyspace.client.xack(keyspace.keys.traces, INGEST_GROUP, *ids)


def consumers(keyspace: Keyspace) -> set[str]:
    found = keyspace.client.xinfo_consumers(keyspace.keys.traces, INGEST_GROUP)
    return {consumer["name"].decode() for consumer in found}


def retired(keyspace: Keyspace, idle_ms: int = 0) -> int:
    return keyspace.store.retire_consumers(keyspace.keys.traces, INGEST_GROUP, idle_ms)


@pytest.mark.usefixtures("_short")
def test_names_of_readers_with_nothing_pending_go_and_no_entry_with_them(
    keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, keys = keyspace.store, keyspace.keys
    for name in "abc":
        read_as(keyspace, name)
    read_as(keyspace, "holds", 3, acknowledge=False)
    assert (retired(keyspace, idle_ms=60_000), len(consumers(keyspace))) == (0, 4), "silent for a moment only"
    for name in ("a", "unknown", "holds"):
        store.remove_consumer(keys.traces, INGEST_GROUP, name)
    assert (consumers(keyspace), keyspace.pending()) == ({"b", "c", "holds"}, 3), "one that leaves, without entries"
    assert (retired(keyspace), consumers(keyspace), keyspace.pending()) == (2, {"holds"}, 3)
    IngestHarness(keyspace).process(keyspace.claim("successor"))
    assert (retired(keyspace), consumers(keyspace)) == (2, set()), "once its entries were taken over"
    assert keyspace.accounting()["sampled"] == 3
    for number in range(1_200):
        keyspace.client.xgroup_createconsumer(keys.traces, INGEST_GROUP, f"dead-{number}")
    assert [retired(keyspace), retired(keyspace), retired(keyspace)] == [1_000, 200, 0]
    keyspace.next_case("a reader whose name goes gets the next entry")
    read_as(keyspace, "alive")
    entries: list[object] = []
    # As patient as the test: it would else have read in vain, should this thread have stood still meanwhile.
    monkeypatch.setattr(store_module, "_SOCKET_TIMEOUT_S", 2 * PATIENCE_S)
    readers, waits = Store(keyspace.url, keyspace.keys), {"count": 10, "block_ms": int(PATIENCE_S * 1000)}
    waiting = threading.Thread(
        target=lambda: entries.extend(readers.read_group(keyspace.keys.traces, INGEST_GROUP, "alive", **waits))
    )
    waiting.start()
    wait_until(lambda: keyspace.client.info("clients")["blocked_clients"], what="the reader to wait")
    assert retired(keyspace) == 1
    keyspace.append("p1", make_traces(range(1)))
    waiting.join(PATIENCE_S)
    readers.close()
    assert len(entries) == keyspace.pending() == 1
    assert consumers(keyspace) == {"alive"}
    keyspace.next_case("an ingest that stops takes its name out")
    first, second = IngestHarness(keyspace), IngestHarness(keyspace)
    for chosen in (first, second):
        keyspace.append("p1", make_traces(range(2)))
        chosen.ingest.run_once()
    assert len(consumers(keyspace)) == 2
    assert first.ingest.stop(60)
    assert len(consumers(keyspace)) == 1
    monkeypatch.setattr(keyspace.store, "run", refuse)
    assert second.ingest.stop(60), "a Redis that is away hinders no stop"


def test_ingest_goes_on_where_it_was_when_its_group_is_destroyed(keyspace: Keyspace) -> None:
    for how, numbers in (("group", 5), ("stream", 2)):
        keyspace.next_case(how)
        chosen = IngestHarness(keyspace)
        add(keyspace, 0, 5)
        chosen.process()
        add(keyspace, 5, 8)
        held = keyspace.read(count=3)
        if how == "group":
            keyspace.client.xgroup_destroy(keyspace.keys.traces, INGEST_GROUP)
        else:
            keyspace.client.delete(keyspace.keys.traces)
        chosen.process(held)  # what was in its hands: nobody knows of it any more
        add(keyspace, 8, 10)
        entries = read_again(keyspace)
        assert len(entries) == numbers
        chosen.process(entries)
        assert read_amounts(keyspace, "sampled duplicate") == (5 + numbers, 0)
        if how == "group":
            assert read_amounts(keyspace, "published lost unread") == (10, 0, 0)
    keyspace.client.delete(keyspace.keys.traces)
    keyspace.client.xadd(keyspace.keys.traces, {"v": "1", "t": "{"}, id="5-1")
    assert [entry_id for entry_id, _ in read_again(keyspace)] == [b"5-1"], "a stream younger than the position"
    keyspace.next_case("entries pending for another reader are cut off")
    chosen = IngestHarness(keyspace)
    keyspace.append("p1", make_traces(range(10)))
    keyspace.read(count=4, consumer="other")
    chosen.process(keyspace.read(count=6))
    keyspace.client.xgroup_destroy(keyspace.keys.traces, INGEST_GROUP)
    assert read_again(keyspace) == []
    assert keyspace.measure(report_cuts=True).traces[:2] == (0, 4)
    assert read_amounts(keyspace, "sampled duplicate cut_off unread") == (6, 0, 4, 0)
    keyspace.next_case("so does an exporter")
    keys, store = keyspace.keys, keyspace.store
    reading: dict[str, Any] = {"count": 100, "block_ms": 1}

    def deliver(entries: Sequence[Entry]) -> list[int]:
        ids = [entry_id for entry_id, _ in entries]
        return store.run("acknowledge", (keys.verdicts, keys.account_all, keys.groups), ("metrics", ids[-1], *ids))

    store.make_group(keys.verdicts, "metrics")
    keyspace.send(*map(make_verdict, range(10)))
    assert deliver(store.read_group(keys.verdicts, "metrics", "one", **reading | {"count": 6})) == [1] * 6
    keyspace.client.xgroup_destroy(keys.verdicts, "metrics")
    keyspace.send(make_verdict(10))
    assert store.read_group(keys.verdicts, "metrics", "one", **reading) == []
    assert deliver(store.read_group(keys.verdicts, "metrics", "one", **reading)) == [1] * 5
    assert keyspace.measure(groups=("metrics",), report_cuts=True).outbox["metrics"][:2] == (0, 0)


def test_an_ingest_that_is_set_back_counts_no_trace_twice(keyspace: Keyspace) -> None:
    rules = (Rule(name="some", judges=("safety",), where=Where(environment=("prod",))),)

    def send(producer: str | None, first: int, last: int) -> None:
        environments = ("test", "prod")
        traces = [make_trace(number, environment=environments[number % 2]) for number in range(first, last)]
        if producer is not None:
            keyspace.append(producer, traces)
        for trace in traces if producer is None else ():
            keyspace.add(trace)

    def take(consumer: str = "reader") -> None:
        while entries := keyspace.read(count=20, consumer=consumer):
            chosen.process(entries)

    for place, producer in ((0, "p1"), (30, None)):
        keyspace.next_case(f"to entry {place}")
        chosen = IngestHarness(keyspace, rules=rules)
        send(producer, 0, 60)
        take()
        back = published(keyspace)[place] if place else "0"
        keyspace.client.xgroup_setid(keyspace.keys.traces, INGEST_GROUP, back)
        before = samples(chosen.metrics)
        take()
        assert samples(chosen.metrics) == before
        # What one reader holds and another has acknowledged after it is not taken for counted.
        send(producer, 60, 70)
        held = keyspace.read(count=4, consumer="slow")
        take()
        keyspace.client.xgroup_setid(keyspace.keys.traces, INGEST_GROUP, "0")
        again = keyspace.read(count=20)
        chosen.process(held)
        chosen.process(again)
        send(producer, 70, 75)
        take("another")
        assert read_amounts(keyspace, "published lost duplicate unread sampled no_rule") == (75, 0, 0, 0, 37, 38)
        assert keyspace.measure(report_cuts=True).traces[:2] == (0, 0)
        assert keyspace.pending() == 0


def make_sums(settings: Settings, store: Store, metrics: Metrics) -> QualitySums:
    return QualitySums(settings, store, metrics, rules_of(settings))


@pytest.mark.usefixtures("_short_reads")
@pytest.mark.parametrize(("exporter", "make"), [(PrometheusExporter, PrometheusExporter), (QualitySums, make_sums)])
def test_an_exporter_that_is_set_back_counts_no_verdict_twice(
    keyspace: Keyspace,
    exporter: type[ExportConsumer],
    make: Callable[[Settings, Store, Metrics], ExportConsumer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def sums() -> dict[str, object]:
        return {name: value for name, value in keyspace.everything().items() if name.startswith("quality:")}

    monkeypatch.setattr(exporter, "gather_s", 0.0)
    metrics = Metrics(settings := settings_of(keyspace))
    reader, group = make(settings, keyspace.store, metrics), exporter.exporter
    reader.prepare()
    for round_ in range(3):
        keyspace.send(*(make_verdict(number) for number in range(50 * round_, 50 * round_ + 50)))
        reader.run_once()
        counted, before = samples(metrics), sums()
        if round_ == 1:
            # A worker that starts after it.
            reader = make(settings, keyspace.store, Metrics(settings))
            reader.prepare()
            keyspace.client.delete(keyspace.keys.monitor)
        keyspace.client.xgroup_setid(keyspace.keys.verdicts, group, "0")
        reader.run_once()
        reader.run_once()
        if round_ == 0:
            assert samples(metrics) == counted
        assert sums() == before
    assert keyspace.accounting()[f"exported:{group}"] == 150
    assert keyspace.measure(groups=(group,), report_cuts=True).outbox[group][:2] == (0, 0)
