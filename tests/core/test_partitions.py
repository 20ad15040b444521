"""Several partitions in one installation: the monitor's sums, fairness, refusals."""

import re
import time
from contextlib import closing
from types import SimpleNamespace

import pytest
from support.processes import free_port
from support.stages import Keyspace, make_verdict, rules_of, samples, settings_of

from judges.core.verdict import Score
from worker.base.lookup.label_store import Label, OutboxMatcher, read_labels, write_labels
from worker.base.monitor.counts import read_horizon
from worker.base.monitor.series import HOUR_S, read_buckets, read_series
from worker.base.monitor.sums import PartitionSums, QualitySums
from worker.core.judging.fetching import NoEndpoint, PrefetchWindow, Slots
from worker.core.runtime.partition import BacklogGauges
from worker.core.storage.client import LayoutError, Store, StoreError
from worker.core.storage.keys import INGEST_GROUP, MONITOR_GROUP, Keys
from worker.core.telemetry.backlog import Backlog, Memory, Position
from worker.core.telemetry.health import Pulse, Readiness
from worker.core.telemetry.metrics import Metrics


class Monitored:
    """The monitor of one worker, with the reader of each further outbox, turned by hand."""

    def __init__(self, keyspaces: list[Keyspace]) -> None:
        settings = settings_of(keyspaces[0])
        self.sums = QualitySums(settings, keyspaces[0].store, Metrics(settings), rules_of(settings))
        self.sums.gather_s = 0.0
        self.readers = [PartitionSums(keyspace.store, self.sums) for keyspace in keyspaces[1:]]
        for thread in (self.sums, *self.readers):
            thread.stopping.set()
            thread.prepare()
        self._store = keyspaces[0].store

    def turn(self) -> None:
        for thread in (self.sums, *self.readers):
            thread.run_once()

    def judgements(self) -> int:
        now = time.time()
        buckets = read_buckets(self._store, list(read_series(self._store)), now - HOUR_S, now + HOUR_S, fine=True)
        return sum(bucket.sums.total.judgements for of_series in buckets for bucket in of_series)


def send(keyspace: Keyspace, first: int, count: int) -> None:
    scores = (Score("safety", 1.0, passed=True),)
    keyspace.send(*(make_verdict(first + number, outcome="scored", scores=scores) for number in range(count)))


def test_the_sums_hold_each_verdict_of_every_partition_once(keyspaces: list[Keyspace]) -> None:
    def lags() -> list[int]:
        return [keyspace.measure(groups=(MONITOR_GROUP,)).outbox[MONITOR_GROUP].lag for keyspace in keyspaces]

    first, second = Monitored(keyspaces), Monitored(keyspaces)
    for number, keyspace in enumerate(keyspaces):
        send(keyspace, 100 * number, 20 + number)
    first.turn()
    assert (first.judgements(), lags()) == (20 + 21 + 22, [0, 0, 0])
    # A worker that was stopped in between adds what another one has added meanwhile.
    reader, last = first.readers[0], second.readers[1]
    position = reader.after_id
    send(keyspaces[1], 300, 10)
    second.sums.is_active = True
    second.readers[0].run_once()
    assert (first.judgements(), reader.after_id) == (73, position)
    reader.run_once()
    assert (first.judgements(), reader.after_id) == (73, None), "the position has moved, so that nothing is added"
    reader.run_once()
    assert reader.after_id == second.readers[0].after_id
    # The group of a worker that ended after adding does not lag for ever.
    send(keyspaces[2], 400, 5)
    pass_group, last.pass_group = last.pass_group, lambda _: None
    last.run_once()
    assert lags()[2] == 5
    last.after_id, last.pass_group = None, pass_group
    last.run_once()
    assert (lags()[2], first.judgements()) == (0, 78)
    assert [keyspace.accounting()[f"exported:{MONITOR_GROUP}"] for keyspace in keyspaces] == [20, 31, 27]


def test_detection_waits_for_the_furthest_outbox_and_not_for_one_that_is_away(keyspaces: list[Keyspace]) -> None:
    Monitored(keyspaces).turn()
    store, now = keyspaces[0].store, time.time() + 100
    assert read_horizon(store, now) == now
    send(keyspaces[2], 0, 1)
    assert read_horizon(store, now) < now
    keyspaces[2].store.is_away = True
    assert read_horizon(store, now) == now


def test_a_search_for_labelled_traces_leaves_out_a_partition_that_goes_away(
    keyspaces: list[Keyspace], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, keyspace in enumerate(keyspaces):
        send(keyspace, 10 * number, 5)
    store = keyspaces[0].store
    labels = [Label(f"{number + 1:032x}", "safety", "safety", passed=True, drawn=1.0) for number in range(30)]
    write_labels(store, labels)
    matcher = OutboxMatcher(store)

    def labelled() -> list[int]:
        while matcher.step():
            pass
        return sorted(int(label.label.trace_id, 16) - 1 for label in read_labels(store) if label.verdicts)

    with monkeypatch.context() as away:
        away.setattr(keyspaces[1].store, "call", lambda _: (_ for _ in ()).throw(StoreError("gone")))
        assert (labelled(), matcher.seen) == ([*range(5), *range(20, 25)], 10)
    # The next round reads what has come on each of them, and all of the one that is back.
    for number, keyspace in enumerate(keyspaces):
        send(keyspace, 10 * number + 5, 2)
    assert (labelled(), matcher.seen) == ([*range(7), *range(10, 17), *range(20, 27)], 21)


def test_a_backlog_of_one_partition_leaves_slots_for_another() -> None:
    slots, limits = Slots(2), NoEndpoint(64)
    windows = [PrefetchWindow("m", limits, 8, slots) for _ in range(2)]
    held = 0
    while (batches := windows[0].capacity()) > 0:
        windows[0].acquire(8 * batches, 1)
        held += 8 * batches
    assert held == 64 + 2 * 8, "as much as a single window may hold"
    while windows[1].capacity() > 0:
        windows[1].acquire(8, 1)
    assert windows[1].evaluations == 32, "half of the slots"
    windows[0].release(32, 0)
    assert (windows[0].capacity() > 0, windows[1].capacity() > 0) == (False, False), "the sum is bounded"
    windows[0].release(24, 0)
    assert windows[0].capacity() > 0
    woken: list[str] = []
    slots.on_release(lambda: woken.append("other"))
    slots.report_release()
    assert woken == ["other"]


def test_gauges_are_the_sums_over_partitions_and_name_one_that_is_away(keyspaces: list[Keyspace]) -> None:
    settings = settings_of(keyspaces[0])
    metrics = Metrics(settings)
    gauges = BacklogGauges(settings, metrics)
    for partition in range(2):
        traces, outbox = Position(10 + partition, 1, 1000.0 * partition), {"metrics": Position(4, 0, 0.0)}
        backlog = Backlog(traces, 100, 5, 2, 3, 0, outbox=outbox, bytes={"traces": 7})
        gauges.update(partition, backlog, Memory(50 + partition, 1000 - 900 * partition))
    gauges.report_away(1)
    backlog = samples(metrics)
    sums = {"stream_lag": 21, "stream_capacity": 200, "stream_oldest_seconds": 1, "batches_waiting": 6}
    sums |= {"batches_parked": 4, "dead_letters": 6}
    assert {name: backlog[name,] for name in sums} == sums
    assert backlog["outbox_lag", "exporter=metrics"] == 8
    assert backlog["stored_max_bytes", "what=traces"] == 2 * settings.max_stream_bytes
    assert (backlog["partition_up", "partition=0"], ("partition_up", "partition=1") in backlog) == (1, False)
    assert (backlog["redis_used_bytes",], backlog["redis_max_bytes",]) == (51, 100), "of the fullest"
    assert gauges.lag == {"stream": 21, "batches": 6, "parked": 4, "outbox": {"metrics": 8}}


def test_another_number_of_partitions_is_refused(keyspaces: list[Keyspace]) -> None:
    """The first that wrote it decides, also between two workers that found none."""
    url, key = keyspaces[0].url, keyspaces[0].keys.partitions
    assert [keyspace.client.get(keyspace.keys.partitions) for keyspace in keyspaces] == [b"3", None, None]
    first, further = (Store(url, keyspace.keys, number) for number, keyspace in enumerate(keyspaces[:2]))
    with closing(first), closing(further):
        first.partitions = further.partitions = first, further
        with pytest.raises(LayoutError, match=rf"has 3 partitions by its key {re.escape(key)}, not 2; set partitions"):
            first.open()
        further.open()
        keyspaces[0].client.delete(key)
        first.open()
        keyspaces[0].client.set(key, "3")
        with pytest.raises(StoreError, match=r"there are 3 partitions by .*, and 2 configured; set partitions to 3"):
            first.make_group(first.keys.traces, INGEST_GROUP)
        further.make_group(further.keys.traces, INGEST_GROUP)
    with closing(Store(f"redis://127.0.0.1:{free_port()}/0", Keys("t"))) as away:
        with pytest.raises(StoreError):
            away.now_ms()
        assert away.is_away, "a store knows it"


def test_a_role_is_ready_while_one_partition_lets_it_make_progress() -> None:
    now = [0.0]
    readiness = Readiness(clock=lambda: now[0])
    threads = [SimpleNamespace(pulse=Pulse(0.0)) for _ in range(3)]
    loop = threads.pop()
    for partition, thread in enumerate(threads):
        readiness.watch("ingest", "ingest", thread, partition)
    readiness.watch("event-loop", "ingest", loop, None)
    threads[0].pulse = Pulse(0.0, blocked_by="Redis does not answer", blocked_since=0.0)
    now[0] = 20.0
    threads[1].pulse = loop.pulse = Pulse(20.0)
    assert [state.ready for state in readiness.roles()] == [True]
    assert [readiness.roles(partition)[0].ready for partition in (0, 1)] == [False, True]
    threads[1].pulse = threads[0].pulse
    assert readiness.role("ingest").why == "ingest: Redis does not answer for 20 s"
    threads[1].pulse, loop.pulse = Pulse(20.0), Pulse(20.0, has_ended=True)
    assert not readiness.role("ingest").ready, "all partitions need the event loop"
