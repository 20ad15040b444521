"""A further exporter is one file and one row: the outbox, its thread, the gauges and the doctor know it by that."""

from collections.abc import Sequence
from unittest.mock import MagicMock

import msgspec
import pytest
from click.testing import CliRunner
from support.stage_parts import Keyspace, make_verdict, samples, select_metrics, settings_of

from worker.base.doctor.command import diagnose
from worker.base.doctor.finding import Check, ok
from worker.cli import cli
from worker.core import features
from worker.core.config.settings import Settings
from worker.core.export.consumer import ExportConsumer
from worker.core.features import ExporterSpec, Feature, installed
from worker.core.queue.ledger import OutboxEntry
from worker.core.runtime.runtime import Runtime
from worker.core.telemetry.metrics import Metrics


class ListExporter(ExportConsumer):
    """What would stand in a file of its own."""

    exporter = "list"
    drop_reasons = ("unreadable", "refused")

    def deliver(self, entries: Sequence[OutboxEntry]) -> None:
        self.acknowledge([entry.entry_id for entry in entries])
        self.count_dropped("refused", sum(entry.verdict.outcome == "unscored" for entry in entries))


@pytest.fixture(autouse=True)
def _row(monkeypatch: pytest.MonkeyPatch) -> None:
    def checks(settings: Settings) -> Sequence[Check]:
        return [Check("list", lambda: [ok("list", settings.prefix)])]

    def keeps(settings: Settings) -> str:
        return f"the list keeps everything of {settings.prefix}"

    row = ExporterSpec(ListExporter.role, ListExporter, checks, keeps)
    feature = Feature(name="list", exporters=lambda _: {"list": row})
    monkeypatch.setattr(features, "installed", lambda: (*installed(), feature))


def test_doctor_checks_an_exporter_and_forget_names_its_data(keyspace: Keyspace) -> None:
    settings = settings_of(keyspace)
    assert ok("list", settings.prefix) in diagnose(settings, {})
    environment = {"TRACEJUDGE_REDIS_URL": settings.redis_url, "TRACEJUDGE_PREFIX": settings.prefix}
    # By the group: click keeps the names of the help option from the first call of a command, and the group names -h.
    ended = CliRunner().invoke(cli, ["forget", "--trace-id", "1" * 32, "--json"], env=environment)
    kept = msgspec.json.decode(ended.stdout)["kept"]
    assert f"the list keeps everything of {settings.prefix}" in kept
    assert [line for line in kept if line.startswith("Prometheus keeps")]


def test_a_receiver_that_is_not_named_has_no_exporter() -> None:
    assert list(features.find_exporters(Settings())) == ["metrics", "monitor", "list"]
    assert list(features.find_exporters(Settings.from_keys(otlp_endpoint="http://collector:4318"))) == [
        "metrics",
        "monitor",
        "otel",
        "list",
    ]


def test_the_worker_runs_and_watches_it(keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.core.runtime.partition.JudgingConsumer", MagicMock())
    runtime = Runtime(settings_of(keyspace, roles=("export",)), send=lambda *_: None, serves=lambda *_, **__: False)
    assert [exporter.name for exporter in runtime.partitions[0].exporters] == ["export-metrics", "export-list"]
    runtime.stores[0].close()
    runtime._process.loop.stop()


@pytest.mark.usefixtures("_short_reads")
def test_an_exporter_reads_all_verdicts_and_counts_dropped_ones(keyspace: Keyspace) -> None:
    settings = settings_of(keyspace)
    metrics = Metrics(settings)
    exporter = ListExporter(settings, keyspace.store, metrics)
    exporter.gather_s = 0.0
    exporter.prepare()
    keyspace.send(make_verdict(1), make_verdict(2, outcome="unscored", reason="refusal"))
    exporter.run_once()

    assert list(select_metrics(samples(metrics), "export_dropped_total").values()) == [1.0]
    reasons = {labels[1] for labels in metrics.export_dropped._metrics if labels[0] == "list"}
    assert reasons == {"unreadable", "refused"}, "each reason exists from the start"
    assert keyspace.measure(groups=("list",)).outbox["list"].lag == 0
