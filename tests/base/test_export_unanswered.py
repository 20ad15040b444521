"""What exporters do when an answer is lost: nothing waits for long, counts twice, or is sent twice."""

import time
from collections.abc import Iterator

import pytest
import redis
from otel_parts import Sending, evaluated, names, numbered
from support import otlp as collector
from support.otlp import OtlpReceiver
from support.proxy import PASSES, Proxy, cuts_replies
from support.stage_parts import Ground, make_verdict, only, samples, settings_of

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
def far(proxy: Proxy, prefix: str) -> Iterator[Ground]:
    """The same Redis, behind a network that fails."""
    with Ground(f"redis://127.0.0.1:{proxy.port}/0", prefix) as ground:
        yield ground


class Counting:
    """A metrics exporter whose network may fail."""

    def __init__(self, ground: Ground) -> None:
        self.metrics = Metrics(settings_of(ground))
        self.exporter = PrometheusExporter(settings_of(ground), ground.store, self.metrics)
        self.exporter.gather_s = 0.0
        self.exporter.prepare()
        self.exporter.acknowledge([])  # so that Redis knows the script: an answer that it does not is another loss

    @property
    def counted(self) -> float:
        return sum(only(samples(self.metrics), "verdicts_total").values())


@pytest.fixture
def counting(far: Ground) -> Counting:
    return Counting(far)


@pytest.fixture
def sending(far: Ground, otlp: OtlpReceiver) -> Iterator[Sending]:
    made = Sending(far, otlp.endpoint)
    made.exporter.stale_ms = STALE_MS
    yield made
    made.exporter._client.close()


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


def test_an_acknowledgement_that_was_not_answered_counts(ground: Ground, proxy: Proxy, counting: Counting) -> None:
    ground.send(*numbered(5))
    lose_answers_to(proxy, counting.exporter, "acknowledge")
    with pytest.raises(StoreError):
        counting.exporter.run_once()
    assert (counting.counted, ground.pending("metrics", ground.keys.verdicts)) == (0, 0)
    counting.exporter.run_once()
    counting.exporter.run_once()
    assert counting.counted == 5


def test_but_not_when_others_may_have_counted_it_meanwhile(
    ground: Ground, proxy: Proxy, counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground.send(*numbered(5))
    lose_answers_to(proxy, counting.exporter, "acknowledge")
    with pytest.raises(StoreError):
        counting.exporter.run_once()
    later = time.monotonic() + counting.exporter.stale_ms / 1000
    monkeypatch.setattr(time, "monotonic", lambda: later)
    counting.exporter.run_once()
    assert counting.counted == 0


def test_an_acknowledgement_that_did_not_arrive_counts_once(ground: Ground, counting: Counting) -> None:
    ground.send(*numbered(5))
    usual = counting.exporter.acknowledge

    def away(_: object) -> list[bool]:
        counting.exporter.acknowledge = usual  # type: ignore[method-assign]
        raise StoreError("away")

    counting.exporter.acknowledge = away  # type: ignore[assignment,method-assign]
    with pytest.raises(StoreError):
        counting.exporter.run_once()
    counting.exporter.run_once()
    assert (counting.counted, ground.pending("metrics", ground.keys.verdicts)) == (5, 0)


def test_what_came_in_a_lost_answer_is_read_again_at_once(ground: Ground, proxy: Proxy, counting: Counting) -> None:
    ground.send(*numbered(5))
    lose_answers_to(proxy, counting.exporter, "_read")
    with pytest.raises(StoreError):
        counting.exporter.run_once()
    assert (counting.counted, ground.pending("metrics", ground.keys.verdicts)) == (0, 5)
    counting.exporter.run_once()
    assert (counting.counted, ground.pending("metrics", ground.keys.verdicts)) == (5, 0)


def test_a_redis_that_comes_back_without_its_data_is_read_on(ground: Ground, proxy: Proxy, counting: Counting) -> None:
    ground.send(*numbered(2))
    lose_answers_to(proxy, counting.exporter, "_read")
    with pytest.raises(StoreError):
        counting.exporter.run_once()
    ground.client.delete(ground.keys.verdicts)
    counting.exporter.run_once()
    ground.send(make_verdict(7))
    counting.exporter.run_once()
    assert counting.counted == 1


def test_what_was_delivered_is_not_sent_again(ground: Ground, sending: Sending, otlp: OtlpReceiver) -> None:
    ground.send(*numbered(3))
    usual = sending.exporter.acknowledge

    def away(_: object) -> list[bool]:
        sending.exporter.acknowledge = usual  # type: ignore[method-assign]
        raise StoreError("away")

    sending.exporter.acknowledge = away  # type: ignore[assignment,method-assign]
    with pytest.raises(StoreError):
        sending.turn()
    sending.turn()
    assert (evaluated(otlp), ground.pending("otel", ground.keys.verdicts)) == (names(numbered(3)), 0)


def grow_old(ground: Ground) -> None:
    """Make pending entries stale."""
    group = (ground.keys.verdicts, "otel")
    for entry in ground.client.xpending_range(*group, min="-", max="+", count=100):
        ground.client.xclaim(*group, entry["consumer"], 0, [entry["message_id"]], idle=2 * STALE_MS, justid=True)


@pytest.fixture
def heir(ground: Ground, otlp: OtlpReceiver) -> Iterator[Sending]:
    made = Sending(ground, otlp.endpoint)
    made.exporter.stale_ms = STALE_MS
    yield made
    made.exporter._client.close()


def test_a_delivery_that_waits_keeps_its_entries(
    ground: Ground, sending: Sending, heir: Sending, otlp: OtlpReceiver
) -> None:
    otlp.behaviour = collector.sequence(*[collector.failing(503)] * 3, collector.Accept())
    ground.send(*numbered(3))

    def meanwhile() -> None:
        grow_old(ground)
        sending.exporter._keep_at = 0.0
        sending.exporter._keep()
        heir.turn()

    sending.meanwhile = meanwhile
    sending.turn()
    assert (evaluated(otlp), len(otlp.logs), heir.waits) == (names(numbered(3)), 3, [])


def test_who_stood_still_leaves_a_delivery_to_who_has_taken_it_over(
    ground: Ground, sending: Sending, heir: Sending, otlp: OtlpReceiver
) -> None:
    otlp.behaviour = collector.sequence(collector.failing(503), collector.Accept())
    ground.send(*numbered(3))

    def meanwhile() -> None:
        grow_old(ground)
        heir.turn()
        sending.exporter._keep_at = 0.0

    sending.meanwhile = meanwhile
    sending.turn()
    assert (evaluated(otlp), len(otlp.logs)) == (names(numbered(3)), 3)
    assert ground.pending("otel", ground.keys.verdicts) == 0


def test_without_redis_a_delivery_goes_on(ground: Ground, proxy: Proxy, sending: Sending, otlp: OtlpReceiver) -> None:
    otlp.behaviour = collector.sequence(collector.failing(503), collector.Accept())
    ground.send(*numbered(3))

    def meanwhile() -> None:
        sending.exporter._keep_at = 0.0
        lose_answers_to(proxy, sending.exporter, "keep")

    sending.meanwhile = meanwhile
    sending.turn()
    assert (evaluated(otlp), ground.pending("otel", ground.keys.verdicts)) == (names(numbered(3)), 0)


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"details":' + b"[" * 5_000, b"\xff\xfe", b"{}"])
def test_an_entry_that_cannot_be_read_holds_up_nothing(ground: Ground, counting: Counting, body: bytes) -> None:
    ground.client.xadd(ground.keys.verdicts, {"v": "1", "j": body})
    ground.send(make_verdict(1))
    counting.exporter.run_once()
    assert (counting.counted, ground.pending("metrics", ground.keys.verdicts)) == (1, 0)
    assert only(samples(counting.metrics), "export_dropped_total") == {
        ("export_dropped_total", "exporter=metrics", "reason=unreadable"): 1
    }


def test_what_is_kept_is_only_what_is_ours(ground: Ground, sending: Sending) -> None:
    ground.send(*numbered(2))
    entries = sending.exporter._read(1)
    ours, theirs = [entry_id.decode() for entry_id, _ in entries]
    group: tuple[str, str] = (ground.keys.verdicts, "otel")
    assert isinstance(ground.client, redis.Redis)
    ground.client.xclaim(*group, "another", 0, [theirs], justid=True)
    grow_old(ground)
    assert sending.exporter.keep([ours, theirs]) == 1
    idle = {
        each["message_id"].decode(): each for each in ground.client.xpending_range(*group, min="-", max="+", count=9)
    }
    assert idle[ours]["time_since_delivered"] < STALE_MS < idle[theirs]["time_since_delivered"]
    assert idle[theirs]["consumer"] == b"another"
