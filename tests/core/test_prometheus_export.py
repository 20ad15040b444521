"""Exporters on a real outbox: each verdict counts once, whoever reads it, dies over it or cannot read it.

A further exporter is one file and one row: the outbox, its thread, the gauges and the doctor know it by that.
"""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import MagicMock

import msgspec
import pytest
from click.testing import CliRunner
from support.stages import InstantEvent, Keyspace, make_verdict, samples, select_metrics, settings_of

from judges.core.verdict import Score, Verdict
from worker.base.doctor.command import diagnose
from worker.base.doctor.finding import Check, ok
from worker.cli import cli
from worker.core import features
from worker.core.config.settings import Settings
from worker.core.export import consumer as outbox
from worker.core.export.consumer import ExportConsumer
from worker.core.export.prometheus import PrometheusExporter
from worker.core.features import ExporterSpec, Feature, installed
from worker.core.queue.ledger import OutboxEntry
from worker.core.runtime.runtime import Runtime
from worker.core.telemetry.metrics import Metrics

GROUP = "metrics"
DEADLINE_S = 60.0
pytestmark = pytest.mark.usefixtures("_short_reads")


class Counting:
    """One worker's metrics exporter."""

    def __init__(self, keyspace: Keyspace) -> None:
        self.metrics = Metrics(settings_of(keyspace))
        self.exporter = PrometheusExporter(settings_of(keyspace), keyspace.store, self.metrics)
        self.exporter.stale_ms = 0
        self.exporter.gather_s = 0.0
        self.exporter.prepare()
        self._keyspace = keyspace

    def turn(self, *sent: Verdict, count: int | None = None) -> None:
        """Send verdicts and read once; claim first, as it is done every few seconds."""
        if sent:
            self._keyspace.send(*sent)
        if count is not None:
            self.exporter.read_count = count
        self.exporter._next_claim = 0.0  # the time of the next claim has no setter
        self.exporter.run_once()

    @property
    def verdicts(self) -> float:
        return sum(select_metrics(samples(self.metrics), "verdicts_total").values())

    @property
    def dropped(self) -> dict[tuple[str, ...], float]:
        return select_metrics(samples(self.metrics), "export_dropped_total")


def scored(number: int) -> Verdict:
    return make_verdict(number, outcome="scored", scores=(Score("safety", 1.0, passed=True),))


def pending(keyspace: Keyspace) -> int:
    return keyspace.pending(GROUP, keyspace.keys.verdicts)


def test_two_workers_reading_at_once_count_each_verdict_once(keyspace: Keyspace) -> None:
    workers = [Counting(keyspace) for _ in range(2)]
    ended = threading.Event()

    def work(worker: Counting) -> None:
        while not ended.is_set() or keyspace.measure(groups=(GROUP,)).outbox[GROUP].lag:
            worker.turn(count=7)

    with ThreadPoolExecutor(2) as pool:
        works = [pool.submit(work, worker) for worker in workers]
        for start in range(0, 300, 20):
            keyspace.send(*(scored(number) for number in range(start, start + 20)))
        ended.set()
        assert [each.result(DEADLINE_S) for each in works] == [None, None]
    assert sum(worker.verdicts for worker in workers) == 300
    assert keyspace.accounting()["exported:metrics"] == 300
    assert [worker.dropped for worker in workers] == [{}, {}]


def test_entries_of_dead_and_slow_workers_are_counted_once(keyspace: Keyspace) -> None:
    worker, keys = Counting(keyspace), keyspace.keys
    keyspace.send(*(scored(number) for number in range(6)))
    keyspace.store.read_group(keys.verdicts, GROUP, "dead", count=4, block_ms=1)
    keyspace.client.xtrim(keys.verdicts, maxlen=3, approximate=False)
    for _ in range(2):
        worker.turn()
        assert (worker.verdicts, worker.dropped, pending(keyspace)) == (3, {}, 0), "trimmed ones are not dropped"
    assert keyspace.measure(groups=(GROUP,), report_cuts=True).outbox[GROUP][:2] == (0, 3), "but cut off"
    assert keyspace.accounting()["exported:metrics"] == 3
    worker.exporter.stale_ms = 60_000
    keyspace.send(scored(7))
    keyspace.store.read_group(keys.verdicts, GROUP, "busy", count=3, block_ms=1)
    worker.turn()
    assert (worker.verdicts, pending(keyspace)) == (3, 1), "recently read entries are left to their reader"
    keyspace.next_case("a slow worker")
    slow, quick, held = Counting(keyspace), Counting(keyspace), list[Any]()
    deliver, slow.exporter.deliver = slow.exporter.deliver, held.append
    slow.turn(scored(1))
    quick.turn()
    deliver(held[0])
    assert (slow.verdicts, quick.verdicts) == (0, 1)
    keyspace.next_case("unreadable entries")
    worker, keys = Counting(keyspace), keyspace.keys
    wrong: list[dict[str, Any]] = [{"j": "{"}, {"j": "{}"}, {"d": '{"evaluation_id": 1}'}, {"x": "?"}, {"j": b"\xff"}]
    for number, fields in enumerate(wrong, 1):
        keyspace.send(scored(0))
        keyspace.client.xadd(keys.verdicts, {"v": "1", **fields})
        worker.turn(scored(1))
        worker.turn()
        assert (worker.verdicts, pending(keyspace)) == (2 * number, 0), fields
        assert worker.dropped == {("export_dropped_total", "exporter=metrics", "reason=unreadable"): number}
    keyspace.next_case("another version")
    worker = Counting(keyspace)
    others = [keyspace.client.xadd(keys.verdicts, fields) for fields in ({"v": "2", "j": "{}"}, {"j": "{}"})]
    worker.turn(scored(1))
    worker.turn()
    waiting = keyspace.client.xpending_range(keys.verdicts, GROUP, "-", "+", 10)
    assert [entry["message_id"] for entry in waiting] == others
    assert (worker.verdicts, worker.dropped) == (1, {})


class ListExporter(ExportConsumer):
    """What a file of its own would hold: keeps what it reads, and how long it was told to wait before."""

    exporter = "list"
    drop_reasons = ("unreadable", "refused")

    def __init__(self, settings: Settings, store: Any, metrics: Metrics) -> None:
        super().__init__(settings, store, metrics)
        self.reads: list[list[int]] = []
        self.waits: list[float] = []
        self.delivered = threading.Event()

    def deliver(self, entries: Sequence[OutboxEntry]) -> None:
        self.acknowledge([entry.entry_id for entry in entries])
        self.count_dropped("refused", sum(entry.verdict.outcome == "unscored" for entry in entries))
        self.reads.append([int(entry.verdict.evaluation_id, 16) - 1 for entry in entries])
        self.delivered.set()


@pytest.fixture
def _row(monkeypatch: pytest.MonkeyPatch) -> None:
    def checks(settings: Settings) -> Sequence[Check]:
        return [Check("list", lambda: [ok("list", settings.prefix)])]

    def keeps(settings: Settings) -> str:
        return f"the list keeps everything of {settings.prefix}"

    row = ExporterSpec(ListExporter.role, ListExporter, checks, keeps)
    feature = Feature(name="list", exporters=lambda _: {"list": row})
    monkeypatch.setattr(features, "installed", lambda: (*installed(), feature))


@pytest.mark.usefixtures("_row")
def test_a_further_exporter_is_found_run_checked_and_named(keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(features.find_exporters(Settings())) == ["metrics", "monitor", "list"], "no receiver is named"
    with_receiver = Settings.from_keys(otlp_endpoint="http://collector:4318")
    assert list(features.find_exporters(with_receiver)) == ["metrics", "monitor", "otel", "list"]
    settings = settings_of(keyspace)
    assert ok("list", settings.prefix) in diagnose(settings, {})
    environment = {"TRACEJUDGE_REDIS_URL": settings.redis_url, "TRACEJUDGE_PREFIX": settings.prefix}
    # By the group: click keeps the names of the help option from the first call of a command, and the group names -h.
    ended = CliRunner().invoke(cli, ["forget", "--trace-id", "1" * 32, "--json"], env=environment)
    kept = msgspec.json.decode(ended.stdout)["kept"]
    assert f"the list keeps everything of {settings.prefix}" in kept
    assert [line for line in kept if line.startswith("Prometheus keeps")]
    monkeypatch.setattr("worker.core.runtime.partition.JudgingConsumer", MagicMock())
    runtime = Runtime(settings_of(keyspace, roles=("export",)), send=lambda *_: None, serves=lambda *_, **__: False)
    assert [exporter.name for exporter in runtime.partitions[0].exporters] == ["export-metrics", "export-list"]
    runtime.stores[0].close()
    runtime._process.loop.stop()  # nothing else ends a loop that was never started by `start`


def test_an_exporter_gathers_verdicts_and_counts_dropped_ones(keyspace: Keyspace) -> None:
    """The first after a silence does not wait, nor the next if a read got all it may."""
    metrics = Metrics(settings := settings_of(keyspace))
    reader = ListExporter(settings, keyspace.store, metrics)
    reader.stopping = InstantEvent(reader.waits)
    reader.prepare()
    reader.run_once()
    for numbers in ((1,), (2, 3)):
        keyspace.send(*map(make_verdict, numbers))
        reader.run_once()
    assert (reader.reads, reader.waits) == ([[1], [2, 3]], [0.0, reader.gather_s, reader.gather_s])
    assert reader.gather_s == outbox._GATHER_S <= 0.2, "a verdict leaves soon"
    reader.read_count = 2
    reader.waits.clear()
    keyspace.send(make_verdict(4), make_verdict(5, outcome="unscored", reason="refusal"), make_verdict(6))
    reader.run_once()
    reader.run_once()
    assert (reader.reads[2:], reader.waits) == ([[4, 5], [6]], [0.0, reader.gather_s])
    assert list(select_metrics(samples(metrics), "export_dropped_total").values()) == [1.0]
    reasons = {names[1] for names in metrics.export_dropped._metrics if names[0] == "list"}
    assert reasons == {"unreadable", "refused"}, "each reason exists from the start"
    assert keyspace.measure(groups=("list",)).outbox["list"].lag == 0
    keyspace.next_case("what is gathered is delivered at the stop")
    settings = settings_of(keyspace)
    reader = ListExporter(settings, keyspace.store, Metrics(settings))
    reader.gather_s = 600.0
    reader.prepare()
    keyspace.send(make_verdict(1))
    reader.start()
    assert reader.delivered.wait(DEADLINE_S)
    keyspace.send(make_verdict(2))
    assert reader.stop(DEADLINE_S)
    assert reader.reads == [[1], [2]]
