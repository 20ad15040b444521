"""The OpenTelemetry exporter on a real outbox and a real receiver: what arrives there, once, though answers are lost.

Spans and events are those of data/otel.json; UPDATE_GOLDEN=1 writes them.
"""

import json
import os
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import msgspec
import pytest
import redis
from otel_parts import (
    BEGAN_S,
    GROUP,
    SCORED,
    VERDICTS,
    Senders,
    Sending,
    numbered,
    pending,
    read_verdict,
    senders,
)
from support.otlp import Accept, OtlpReceiver, failing
from support.proxy import PASSES, Behaviour, Proxy
from support.replies import sequence
from support.stages import Keyspace, make_verdict, samples, select_metrics, settings_of

from judges.core.verdict import Call
from worker.base.delivery.otlp_receiver import OtlpExporter
from worker.base.delivery.settings import OtlpSettings
from worker.base.embedded import EmbeddedRedis
from worker.core.config.settings import SettingsError
from worker.core.export.consumer import ExportConsumer
from worker.core.export.prometheus import PrometheusExporter
from worker.core.storage.client import StoreError
from worker.core.telemetry.metrics import Metrics

pytestmark = pytest.mark.usefixtures("_short_reads")
GOLDEN = Path(__file__).parent / "data/otel.json"
SCHEMA = "https://opentelemetry.io/schemas/1.41.1"
RESOURCE = {"service.name": "tracejudge", "service.version": version("tracejudge-worker")}
ORIGIN = {"resource": RESOURCE, "scope_name": "tracejudge", "scope_version": "", "schema_url": SCHEMA}
STALE_MS = 45_000


@pytest.fixture
def sender(keyspace: Keyspace, otlp: OtlpReceiver) -> Iterator[Senders]:
    yield from senders(keyspace, otlp)


def telemetry(otlp: OtlpReceiver) -> dict[str, list[dict[str, object]]]:
    """Return spans and events as the golden file has them; all have the same origin."""
    kinds = {"spans": otlp.spans, "events": otlp.logs}
    rows = {name: [item._asdict() for item in items] for name, items in kinds.items()}
    for row in (row for items in rows.values() for row in items):
        assert {name: row.pop(name) for name in ORIGIN} == ORIGIN
    return json.loads(json.dumps(rows))


def test_a_verdict_becomes_spans_and_events(keyspace: Keyspace, otlp: OtlpReceiver, sender: Senders) -> None:
    worker, explaining, rows = sender(), sender(export_explanations=True), {}
    for name, fields in VERDICTS.items():
        otlp.forget()
        keyspace.send(read_verdict(7 if name == "scored" else 1, fields))
        assert worker.turn()[2:] == ({}, [], 0), name
        rows[name] = telemetry(otlp)
    otlp.forget()
    keyspace.send(read_verdict(1, VERDICTS["two rationales"]))
    explaining.turn()
    rows["explained"] = telemetry(otlp)
    assert [(export.path, export.status) for export in otlp.exports] == [("/v1/traces", 200), ("/v1/logs", 200)]
    assert keyspace.accounting()["exported:otel"] == len(rows)
    if os.environ.get("UPDATE_GOLDEN"):
        lines = [f'"{name}": {{"spans": [' for name in rows]
        for number, row in enumerate(rows.values()):
            spans, events = (",\n".join(map(json.dumps, row[kind])) for kind in ("spans", "events"))
            lines[number] += f'\n{spans}], "events": [\n{events}]}}'
        GOLDEN.write_text("{{\n{}\n}}\n".format(",\n".join(lines)), encoding="utf-8")
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert rows.keys() == golden.keys()
    assert {name: row for name, row in rows.items() if row != golden[name]} == {}


def test_variables_of_opentelemetry_are_read(
    keyspace: Keyspace, otlp: OtlpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{otlp.root_url}/v1/traces")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=eval%20team,authorization=Bearer s3cret")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=prod,service.name=judges")
    receivers = {"plain": OtlpSettings(resource={"openinference.project.name": "scores"})}
    settings = settings_of(keyspace, receivers=receivers)
    exporter = OtlpExporter(settings, keyspace.store, Metrics(settings), "plain")
    exporter.gather_s = 0.0
    exporter.prepare()
    keyspace.send(SCORED)
    exporter.run_once()
    exporter.client.close()
    assert [span.name for span in otlp.spans][:1] == ["evaluate safety"]
    variables = {"service.name": "judges", "deployment.environment.name": "prod"}
    assert otlp.spans[0].resource == {**RESOURCE, **variables, "openinference.project.name": "scores"}
    headers = otlp.exports[0].headers
    assert (headers["x-team"], headers["authorization"]) == ("eval team", "Bearer s3cret")
    for name, value, says in (
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "collector:4317", "must be http"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "ask for grpc"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon", "no number of seconds"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            with pytest.raises(SettingsError, match=says):
                OtlpExporter.destination_of(settings, "plain")
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT")
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    with pytest.raises(SettingsError, match="set it, or the variable OTEL_EXPORTER_OTLP_ENDPOINT"):
        OtlpExporter.destination_of(settings, "plain")


def test_spans_sent_twice_are_equal(keyspace: Keyspace, otlp: OtlpReceiver, sender: Senders) -> None:
    keyspace.send(SCORED, *numbered(3))
    worker = sender(endpoint=f"{otlp.root_url}/")  # a slash at its end
    worker.turn()
    first = otlp.spans, otlp.logs
    otlp.forget()
    keyspace.client.xgroup_setid(keyspace.keys.verdicts, GROUP, "0")
    worker.turn()
    assert (otlp.spans, otlp.logs) == first
    assert len({span.span_id for span in otlp.spans}) == len(otlp.spans) == 6
    keyspace.next_case("dead letters, repeats and canaries are not sent")
    otlp.forget()
    worker = sender()
    for origin in ("repeat", "canary"):
        keyspace.send(make_verdict(9, origin=origin))
    dead = make_verdict(9, outcome="unscored", reason="timeout")
    keyspace.send(dead, kind="d")
    assert worker.turn() == ([], 0, {}, [], 0)
    assert otlp.exports == ()
    keyspace.send(make_verdict(9, origin="canary"), *numbered(2), make_verdict(3, origin="replay"))
    keyspace.send(dead, kind="d")
    assert worker.turn() == ([0, 1, 3], 3, {}, [], 0)
    assert [span.attributes["tracejudge.origin"] for span in otlp.spans] == ["live", "live", "replay"]


def test_what_cannot_be_a_span_is_counted_or_waits(keyspace: Keyspace, otlp: OtlpReceiver, sender: Senders) -> None:
    worker = sender()
    assert sorted(
        (sample.labels["reason"], sample.value)
        for family in worker.metrics.registry.collect()
        for sample in family.samples
        if sample.name == "tracejudge_export_dropped_total"
    ) == [("partial_success", 0), ("rejected", 0), ("server_error", 0), ("unreadable", 0)]
    good = numbered(2)
    broken = (
        {"evaluation_id": "no hexadecimal"},
        {"evaluation_id": "1" * 33},
        {"started_at": -1.0},
        {"started_at": 1e30},
        {"calls": (Call(BEGAN_S, 0.5, "ok", input_tokens=2**63),)},
    )
    for number, fields in enumerate(broken, 1):
        otlp.forget()
        keyspace.send(good[0], msgspec.structs.replace(make_verdict(7), **fields), good[1])
        assert worker.turn() == ([0, 1], 2, {"unreadable": number}, [], 0), fields
    otlp.forget()
    keyspace.client.xadd(keyspace.keys.verdicts, {"v": "1", "j": "{"})
    keyspace.client.xadd(keyspace.keys.verdicts, {"v": "2", "j": "{"})
    keyspace.send(good[0])
    assert worker.turn() == ([0], 1, {"unreadable": len(broken) + 1}, [], 1)


# --- answers that are lost: nothing waits for long, counts twice, or is sent twice ---
@pytest.fixture
def proxy(any_redis_server: EmbeddedRedis) -> Iterator[Proxy]:
    with Proxy(any_redis_server.port) as proxy:
        yield proxy


@pytest.fixture
def far(proxy: Proxy, prefix: str) -> Iterator[Keyspace]:
    """The same Redis, behind a network that fails."""
    with Keyspace(f"redis://127.0.0.1:{proxy.port}/0", prefix) as keyspace:
        yield keyspace


@pytest.fixture
def sending(far: Keyspace, keyspace: Keyspace, otlp: OtlpReceiver) -> Iterator[tuple[Sending, Sending]]:
    """An exporter behind that network, and one of another worker."""
    both = Sending(far, otlp), Sending(keyspace, otlp)
    for each in both:
        each.exporter.stale_ms = STALE_MS
    yield both
    for each in both:
        each.exporter.client.close()


def lose_answers_to(proxy: Proxy, exporter: ExportConsumer, method: str) -> None:
    """Lose the answer to one call of a method."""
    usual = getattr(exporter, method)

    def call(*arguments: object, **options: object) -> object:
        proxy.behaviour = Behaviour(reply_share=0)
        setattr(exporter, method, usual)
        try:
            return usual(*arguments, **options)
        finally:
            proxy.behaviour = PASSES

    setattr(exporter, method, call)


def lose_acknowledgement(exporter: ExportConsumer) -> None:
    """Make one acknowledgement fail before it is sent."""
    usual = exporter.acknowledge

    def away(_: object) -> list[bool]:
        exporter.acknowledge = usual  # type: ignore[method-assign]
        raise StoreError("away")

    exporter.acknowledge = away  # type: ignore[assignment,method-assign]


@pytest.mark.slow("waits for other workers' entries")
def test_metrics_count_each_once(
    keyspace: Keyspace, proxy: Proxy, far: Keyspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = Metrics(settings_of(far))
    exporter = PrometheusExporter(settings_of(far), far.store, metrics)
    exporter.gather_s = 0.0
    exporter.prepare()
    exporter.acknowledge([])  # so that Redis knows the script: an answer that it does not is another loss

    def counted() -> tuple[float, int]:
        """What is counted so far, and the number of entries that wait for their acknowledgement."""
        verdicts = sum(select_metrics(samples(metrics), "verdicts_total").values())
        return verdicts, keyspace.pending("metrics", keyspace.keys.verdicts)

    def fail() -> tuple[float, int]:
        with pytest.raises(StoreError):
            exporter.run_once()
        return counted()

    def run() -> tuple[float, int]:
        exporter.run_once()
        return counted()

    keyspace.send(*numbered(5))
    lose_answers_to(proxy, exporter, "acknowledge")
    assert [fail(), run(), run()] == [(0, 0), (5, 0), (5, 0)], "the answer to an acknowledgement"
    keyspace.send(*numbered(5))
    lose_acknowledgement(exporter)
    assert [fail(), run()] == [(5, 5), (10, 0)], "an acknowledgement"
    keyspace.send(*numbered(5))
    lose_answers_to(proxy, exporter, "_read")
    assert [fail(), run()] == [(10, 5), (15, 0)], "what was read"
    for body in (bodies := (b"[" * 100_000, b'{"details":' + b"[" * 5_000, b"\xff\xfe", b"{}")):
        keyspace.client.xadd(keyspace.keys.verdicts, {"v": "1", "j": body})
    keyspace.send(make_verdict(1))
    assert run() == (16, 0), "an entry that cannot be read holds up nothing"
    dropped = ("export_dropped_total", "exporter=metrics", "reason=unreadable")
    assert select_metrics(samples(metrics), "export_dropped_total") == {dropped: len(bodies)}
    keyspace.send(*numbered(2))
    lose_answers_to(proxy, exporter, "_read")
    fail()
    keyspace.client.delete(keyspace.keys.verdicts)
    run()
    keyspace.send(make_verdict(7))
    assert run()[0] == 17, "Redis came back without its data"
    keyspace.send(*numbered(5))
    lose_answers_to(proxy, exporter, "acknowledge")
    fail()
    clock = time.monotonic() + exporter.stale_ms / 1000
    monkeypatch.setattr(time, "monotonic", lambda: clock)
    assert run()[0] == 17, "others may have counted them meanwhile"
    keyspace.send(*numbered(5))
    lose_answers_to(proxy, exporter, "_read")
    fail()
    clock += 0.6 * exporter.stale_ms / 1000
    lose_acknowledgement(exporter)
    fail()
    group = (keyspace.keys.verdicts, "metrics")
    keyspace.client.xack(*group, *(row["message_id"] for row in keyspace.client.xpending_range(*group, "-", "+", 5)))
    clock += 0.5 * exporter.stale_ms / 1000
    assert run()[0] == 17, "a worker that claims by the time of the first reading counted them"


def grow_old(keyspace: Keyspace) -> None:
    """Make pending entries stale."""
    group = (keyspace.keys.verdicts, GROUP)
    for entry in keyspace.client.xpending_range(*group, min="-", max="+", count=100):
        keyspace.client.xclaim(*group, entry["consumer"], 0, [entry["message_id"]], idle=2 * STALE_MS, justid=True)


def test_spans_are_sent_once_whoever_stalls(
    keyspace: Keyspace, proxy: Proxy, sending: tuple[Sending, Sending], otlp: OtlpReceiver
) -> None:
    worker, successor = sending

    def keeps() -> None:
        grow_old(keyspace)
        worker.exporter._keep_at = 0.0  # the next time to keep what waits
        worker.exporter._keep()
        successor.turn()

    def stalls() -> None:
        grow_old(keyspace)
        successor.turn()
        worker.exporter._keep_at = 0.0

    def without_redis() -> None:
        worker.exporter._keep_at = 0.0
        lose_answers_to(proxy, worker.exporter, "keep")

    for meanwhile, refusals in ((keeps, 3), (stalls, 1), (without_redis, 1)):
        otlp.forget()
        otlp.behaviour = sequence(*[failing(503)] * refusals, Accept())
        keyspace.send(*numbered(3))
        worker.meanwhile = meanwhile
        spans, events, *_ = worker.turn()
        assert (spans, events, pending(keyspace), successor.waits) == ([0, 1, 2], 3, 0, []), meanwhile.__name__
    otlp.forget()
    keyspace.send(*numbered(3))
    lose_acknowledgement(worker.exporter)
    with pytest.raises(StoreError):
        worker.turn()
    assert (worker.turn().spans, pending(keyspace)) == ([0, 1, 2], 0), "what was delivered is not sent again"


def test_a_worker_keeps_only_its_own_pending_entries(keyspace: Keyspace, sending: tuple[Sending, Sending]) -> None:
    keyspace.send(*numbered(2))
    exporter = sending[0].exporter
    ours, theirs = [entry_id.decode() for entry_id, _ in exporter._read(1)]  # read and not exported
    group: tuple[str, str] = (keyspace.keys.verdicts, GROUP)
    assert isinstance(keyspace.client, redis.Redis)
    keyspace.client.xclaim(*group, "another", 0, [theirs], justid=True)
    grow_old(keyspace)
    assert exporter.keep([ours, theirs]) == 1
    entries = keyspace.client.xpending_range(*group, min="-", max="+", count=9)
    idle = {each["message_id"].decode(): each for each in entries}
    assert idle[ours]["time_since_delivered"] < STALE_MS < idle[theirs]["time_since_delivered"]
    assert idle[theirs]["consumer"] == b"another"
