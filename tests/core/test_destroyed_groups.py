"""A consumer group that somebody destroys or sets back goes on where it was: nothing counts twice or is left out."""

from collections.abc import Callable, Sequence

import pytest
from support.stage_parts import (
    IngestHarness,
    Keyspace,
    make_trace,
    make_traces,
    make_verdict,
    rules_of,
    samples,
    settings_of,
)

from worker.base.accounting import read_account
from worker.base.monitor.sums import QualitySums
from worker.core.config.settings import Rule, Settings, Where
from worker.core.export.consumer import ExportConsumer
from worker.core.export.prometheus import PrometheusExporter
from worker.core.storage.client import Entry, Store
from worker.core.storage.keys import INGEST_GROUP, MONITOR_GROUP
from worker.core.telemetry.metrics import Metrics


def publish(keyspace: Keyspace, numbers: range) -> None:
    for trace in make_traces(numbers):
        keyspace.add(trace)


def read(keyspace: Keyspace, consumer: str = "reader") -> list[Entry]:
    """Read as ingest does: the first answer after the group is gone makes it anew."""
    return keyspace.read(consumer=consumer) or keyspace.read(consumer=consumer)


@pytest.mark.parametrize("how", ["group", "stream"])
def test_ingest_goes_on_where_it_stood(keyspace: Keyspace, how: str) -> None:
    chosen = IngestHarness(keyspace)
    publish(keyspace, range(5))
    chosen.process()
    publish(keyspace, range(5, 8))
    held = keyspace.read(count=3)
    if how == "group":
        keyspace.client.xgroup_destroy(keyspace.keys.traces, INGEST_GROUP)
    else:
        keyspace.client.delete(keyspace.keys.traces)
    chosen.process(held)  # what was in its hands: nobody knows of it any more
    publish(keyspace, range(8, 10))
    entries = read(keyspace)
    numbers = [5, 6, 7, 8, 9] if how == "group" else [8, 9]
    assert len(entries) == len(numbers)
    chosen.process(entries)
    account = read_account(keyspace.store)
    assert account.sampled == 5 + len(numbers)
    assert account.duplicate == 0
    if how == "group":
        assert (account.published, account.lost, account.unread) == (10, 0, 0)


def test_entries_pending_for_another_reader_are_cut_off(keyspace: Keyspace) -> None:
    chosen = IngestHarness(keyspace)
    keyspace.append("p1", make_traces(range(10)))
    keyspace.read(count=4, consumer="other")
    chosen.process(keyspace.read(count=6))
    keyspace.client.xgroup_destroy(keyspace.keys.traces, INGEST_GROUP)
    assert read(keyspace) == []
    assert keyspace.measure(report_cuts=True).traces[:2] == (0, 4)
    account = read_account(keyspace.store)
    assert (account.sampled, account.duplicate, account.cut_off, account.unread) == (6, 0, 4, 0)


def test_an_exporter_goes_on_where_it_stood(keyspace: Keyspace) -> None:
    def deliver(entries: Sequence[Entry]) -> list[int]:
        ids = [entry_id for entry_id, _ in entries]
        names = (keyspace.keys.verdicts, keyspace.keys.account_all, keyspace.keys.groups)
        return keyspace.store.run("acknowledge", names, ("metrics", ids[-1], *ids))

    keyspace.store.make_group(keyspace.keys.verdicts, "metrics")

    def take(count: int) -> list[Entry]:
        return keyspace.store.read_group(keyspace.keys.verdicts, "metrics", "one", count=count, block_ms=1)

    keyspace.send(*(make_verdict(number) for number in range(10)))
    assert deliver(take(6)) == [1] * 6
    take(2)
    keyspace.client.xgroup_destroy(keyspace.keys.verdicts, "metrics")
    keyspace.send(make_verdict(10))
    assert take(100) == []
    assert deliver(take(100)) == [1] * 5
    assert keyspace.measure(groups=("metrics",), report_cuts=True).outbox["metrics"][:2] == (0, 0)
    assert keyspace.accounting()["exported:metrics"] == 11


def test_a_stream_that_is_younger_than_the_position_is_read_from_its_beginning(keyspace: Keyspace) -> None:
    chosen = IngestHarness(keyspace)
    publish(keyspace, range(2))
    chosen.process()
    keyspace.client.delete(keyspace.keys.traces)
    keyspace.client.xadd(keyspace.keys.traces, {"v": "1", "t": "{"}, id="5-1")
    assert [entry_id for entry_id, _ in read(keyspace)] == [b"5-1"]


@pytest.mark.parametrize(("back", "producer"), [("0", "p1"), ("middle", None)])
def test_an_ingest_that_is_set_back_counts_no_trace_twice(keyspace: Keyspace, back: str, producer: str | None) -> None:
    rules = (Rule(name="some", judges=("safety",), where=Where(environment=("prod",))),)
    chosen = IngestHarness(keyspace, rules=rules)

    def send(numbers: range) -> None:
        traces = [make_trace(number, environment="prod" if number % 2 else "test") for number in numbers]
        if producer is not None:
            keyspace.append(producer, traces)
        for trace in traces if producer is None else ():
            keyspace.add(trace)

    def take(consumer: str = "reader") -> None:
        while entries := keyspace.read(count=20, consumer=consumer):
            chosen.process(entries)

    send(range(60))
    take()
    ids = [entry_id for entry_id, _ in keyspace.client.xrange(keyspace.keys.traces)]
    keyspace.client.xgroup_setid(keyspace.keys.traces, INGEST_GROUP, "0" if back == "0" else ids[30])
    before = samples(chosen.metrics)
    take()
    assert samples(chosen.metrics) == before
    # What one reader holds and another has acknowledged after it is not taken for counted.
    send(range(60, 70))
    held = keyspace.read(count=4, consumer="slow")
    take()
    keyspace.client.xgroup_setid(keyspace.keys.traces, INGEST_GROUP, "0")
    again = keyspace.read(count=20)
    chosen.process(held)
    chosen.process(again)
    send(range(70, 75))
    take("another")
    account = read_account(keyspace.store)
    assert (account.published, account.lost, account.duplicate, account.unread) == (75, 0, 0, 0), account
    assert (account.sampled, account.no_rule) == (37, 38)
    assert keyspace.measure(report_cuts=True).traces[:2] == (0, 0)
    assert keyspace.pending() == 0


def make_sums(settings: Settings, store: Store, metrics: Metrics) -> QualitySums:
    return QualitySums(settings, store, metrics, rules_of(settings))


@pytest.mark.parametrize(("exporter", "make"), [(PrometheusExporter, PrometheusExporter), (QualitySums, make_sums)])
def test_an_exporter_that_is_set_back_counts_no_verdict_twice(
    keyspace: Keyspace,
    exporter: type[ExportConsumer],
    make: Callable[[Settings, Store, Metrics], ExportConsumer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("worker.core.export.consumer._BLOCK_MS", 1)
    monkeypatch.setattr(exporter, "gather_s", 0.0)
    metrics = Metrics(settings := settings_of(keyspace))
    reader, group = make(settings, keyspace.store, metrics), exporter.exporter
    reader.prepare()
    for round_ in range(4):
        keyspace.send(*(make_verdict(number) for number in range(50 * round_, 50 * round_ + 50)))
        reader.run_once()
        counted, sums = samples(metrics), keyspace.everything()
        if round_ == 2:
            # A worker that starts after it.
            reader = make(settings, keyspace.store, Metrics(settings))
            reader.prepare()
            keyspace.client.delete(keyspace.keys.monitor)
        keyspace.client.xgroup_setid(keyspace.keys.verdicts, group, "0")
        reader.run_once()
        reader.run_once()
        if round_ < 2:
            assert samples(metrics) == counted
        assert {name: value for name, value in keyspace.everything().items() if name.startswith("quality:")} == {
            name: value for name, value in sums.items() if name.startswith("quality:")
        }
    assert keyspace.accounting()[f"exported:{group}"] == 200
    assert keyspace.measure(groups=(group,), report_cuts=True).outbox[group][:2] == (0, 0)


def test_a_monitor_of_another_server_that_is_set_back_counts_no_verdict_twice(keyspace: Keyspace) -> None:
    keys = keyspace.keys
    names = (keys.verdicts, keys.account_all, keys.groups)
    keyspace.store.make_group(keys.verdicts, MONITOR_GROUP)
    for last in (keyspace.send(*map(make_verdict, range(5)))[-1], keyspace.send(make_verdict(5))[-1]):
        for _ in range(2):
            keyspace.store.run("pass_group", names, (MONITOR_GROUP, last))
            keyspace.client.xgroup_setid(keys.verdicts, MONITOR_GROUP, "0")
    assert keyspace.accounting()[f"exported:{MONITOR_GROUP}"] == 6
