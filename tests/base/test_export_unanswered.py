"""What exporters do when an answer is lost: nothing waits for long, counts twice, or is sent twice."""

import time
from collections.abc import Iterator

import pytest
import redis
from otel_parts import Sending, evaluated, names, numbered
from support import otlp as collector
from support.otlp import OtlpReceiver
from support.proxy import PASSES, Proxy, cuts_replies
from support.stage_parts import Keyspace, make_verdict, samples, select_metrics, settings_of

from worker.base.embedded import EmbeddedRedis
from worker.core.export.consumer import ExportConsumer
from worker.core.export.prometheus import PrometheusExporter
from worker.core.storage.client import StoreError
from worker.core.telemetry.metrics import Metrics

pytestmark = pytest.mark.usefixtures("_short_reads")
STALE_MS = 45_000


@pytest.fixture
def proxy(any_redis_server: EmbeddedRedis) -> Iterator[Proxy]:
    with Proxy(any_redis_server.port) as proxy:
        yield proxy


@pytest.fixture
def far(proxy: Proxy, prefix: str) -> Iterator[Keyspace]:
    """The same Redis, behind a network that fails."""
    with Keyspace(f"redis://127.0.0.1:{proxy.port}/0", prefix) as keyspace:
        yield keyspace


class Counting:
    """A metrics exporter whose network may fail."""

    def __init__(self, keyspace: Keyspace) -> None:
        self.metrics = Metrics(settings_of(keyspace))
        self.exporter = PrometheusExporter(settings_of(keyspace), keyspace.store, self.metrics)
        self.exporter.gather_s = 0.0
        self.exporter.prepare()
        self.exporter.acknowledge([])  # so that Redis knows the script: an answer that it does not is another loss

    @property
    def counted(self) -> float:
        return sum(select_metrics(samples(self.metrics), "verdicts_total").values())


@pytest.fixture
def counting(far: Keyspace) -> Counting:
    return Counting(far)


@pytest.fixture
def sending(far: Keyspace, otlp: OtlpReceiver) -> Iterator[Sending]:
    made = Sending(far, otlp.endpoint)
    made.exporter.stale_ms = STALE_MS
    yield made
    made.exporter.client.close()


def lose_answers_to(proxy: Proxy, exporter: ExportConsumer, method: str) -> None:
    """Lose the answer to one call of a method."""
    usual = getattr(exporter, method)

    def call(*arguments: object, **options: object) -> object:
        proxy.behaviour = cuts_replies(0)
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


def test_an_acknowledgement_that_was_not_answered_counts(keyspace: Keyspace, proxy: Proxy, counting: Counting) -> None:
    keyspace.send(*numbered(5))
    lose_answers_to(proxy, counting.exporter, "acknowledge")
    with pytest.raises(StoreError):
        counting.exporter.run_once()
    assert (counting.counted, keyspace.pending("metrics", keyspace.keys.verdicts)) == (0, 0)
    counting.exporter.run_once()
    counting.exporter.run_once()
    assert counting.counted == 5


def test_but_not_when_others_may_have_counted_it_meanwhile(
    keyspace: Keyspace, proxy: Proxy, counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyspace.send(*numbered(5))
    lose_answers_to(proxy, counting.exporter, "acknowledge")
    with pytest.raises(StoreError):
        counting.exporter.run_once()
    later = time.monotonic() + counting.exporter.stale_ms / 1000
    monkeypatch.setattr(time, "monotonic", lambda: later)
    counting.exporter.run_once()
    assert counting.counted == 0


def test_an_acknowledgement_that_did_not_arrive_counts_once(keyspace: Keyspace, counting: Counting) -> None:
    keyspace.send(*numbered(5))
    lose_acknowledgement(counting.exporter)
    with pytest.raises(StoreError):
        counting.exporter.run_once()
    counting.exporter.run_once()
    assert (counting.counted, keyspace.pending("metrics", keyspace.keys.verdicts)) == (5, 0)


def test_entries_of_a_lost_read_are_read_again_at_once(keyspace: Keyspace, proxy: Proxy, counting: Counting) -> None:
    keyspace.send(*numbered(5))
    lose_answers_to(proxy, counting.exporter, "_read")
    with pytest.raises(StoreError):
        counting.exporter.run_once()
    assert (counting.counted, keyspace.pending("metrics", keyspace.keys.verdicts)) == (0, 5)
    counting.exporter.run_once()
    assert (counting.counted, keyspace.pending("metrics", keyspace.keys.verdicts)) == (5, 0)


def test_a_redis_that_comes_back_without_its_data_is_read_on(
    keyspace: Keyspace, proxy: Proxy, counting: Counting
) -> None:
    keyspace.send(*numbered(2))
    lose_answers_to(proxy, counting.exporter, "_read")
    with pytest.raises(StoreError):
        counting.exporter.run_once()
    keyspace.client.delete(keyspace.keys.verdicts)
    counting.exporter.run_once()
    keyspace.send(make_verdict(7))
    counting.exporter.run_once()
    assert counting.counted == 1


def test_delivered_verdicts_are_not_sent_again(keyspace: Keyspace, sending: Sending, otlp: OtlpReceiver) -> None:
    keyspace.send(*numbered(3))
    lose_acknowledgement(sending.exporter)
    with pytest.raises(StoreError):
        sending.turn()
    sending.turn()
    assert (evaluated(otlp), keyspace.pending("otel", keyspace.keys.verdicts)) == (names(numbered(3)), 0)


def grow_old(keyspace: Keyspace) -> None:
    """Make pending entries stale."""
    group = (keyspace.keys.verdicts, "otel")
    for entry in keyspace.client.xpending_range(*group, min="-", max="+", count=100):
        keyspace.client.xclaim(*group, entry["consumer"], 0, [entry["message_id"]], idle=2 * STALE_MS, justid=True)


@pytest.fixture
def successor(keyspace: Keyspace, otlp: OtlpReceiver) -> Iterator[Sending]:
    made = Sending(keyspace, otlp.endpoint)
    made.exporter.stale_ms = STALE_MS
    yield made
    made.exporter.client.close()


def test_a_delivery_that_waits_keeps_its_entries(
    keyspace: Keyspace, sending: Sending, successor: Sending, otlp: OtlpReceiver
) -> None:
    otlp.behaviour = collector.sequence(*[collector.failing(503)] * 3, collector.Accept())
    keyspace.send(*numbered(3))

    def meanwhile() -> None:
        grow_old(keyspace)
        sending.exporter._keep_at = 0.0
        sending.exporter._keep()
        successor.turn()

    sending.meanwhile = meanwhile
    sending.turn()
    assert (evaluated(otlp), len(otlp.logs), successor.waits) == (names(numbered(3)), 3, [])


def test_a_stalled_worker_leaves_its_entries_to_the_successor(
    keyspace: Keyspace, sending: Sending, successor: Sending, otlp: OtlpReceiver
) -> None:
    otlp.behaviour = collector.sequence(collector.failing(503), collector.Accept())
    keyspace.send(*numbered(3))

    def meanwhile() -> None:
        grow_old(keyspace)
        successor.turn()
        sending.exporter._keep_at = 0.0

    sending.meanwhile = meanwhile
    sending.turn()
    assert (evaluated(otlp), len(otlp.logs)) == (names(numbered(3)), 3)
    assert keyspace.pending("otel", keyspace.keys.verdicts) == 0


def test_without_redis_a_delivery_goes_on(
    keyspace: Keyspace, proxy: Proxy, sending: Sending, otlp: OtlpReceiver
) -> None:
    otlp.behaviour = collector.sequence(collector.failing(503), collector.Accept())
    keyspace.send(*numbered(3))

    def meanwhile() -> None:
        sending.exporter._keep_at = 0.0
        lose_answers_to(proxy, sending.exporter, "keep")

    sending.meanwhile = meanwhile
    sending.turn()
    assert (evaluated(otlp), keyspace.pending("otel", keyspace.keys.verdicts)) == (names(numbered(3)), 0)


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"details":' + b"[" * 5_000, b"\xff\xfe", b"{}"])
def test_an_entry_that_cannot_be_read_holds_up_nothing(keyspace: Keyspace, counting: Counting, body: bytes) -> None:
    keyspace.client.xadd(keyspace.keys.verdicts, {"v": "1", "j": body})
    keyspace.send(make_verdict(1))
    counting.exporter.run_once()
    assert (counting.counted, keyspace.pending("metrics", keyspace.keys.verdicts)) == (1, 0)
    assert select_metrics(samples(counting.metrics), "export_dropped_total") == {
        ("export_dropped_total", "exporter=metrics", "reason=unreadable"): 1
    }


def test_a_worker_keeps_only_its_own_pending_entries(keyspace: Keyspace, sending: Sending) -> None:
    keyspace.send(*numbered(2))
    entries = sending.exporter._read(1)
    ours, theirs = [entry_id.decode() for entry_id, _ in entries]
    group: tuple[str, str] = (keyspace.keys.verdicts, "otel")
    assert isinstance(keyspace.client, redis.Redis)
    keyspace.client.xclaim(*group, "another", 0, [theirs], justid=True)
    grow_old(keyspace)
    assert sending.exporter.keep([ours, theirs]) == 1
    idle = {
        each["message_id"].decode(): each for each in keyspace.client.xpending_range(*group, min="-", max="+", count=9)
    }
    assert idle[ours]["time_since_delivered"] < STALE_MS < idle[theirs]["time_since_delivered"]
    assert idle[theirs]["consumer"] == b"another"
