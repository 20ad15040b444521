"""What becomes of spans and events that a receiver does not take: they wait, go in parts, or are counted."""

import email.utils
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

import pytest
from otel_parts import Delivered, Senders, numbered, pending, senders
from structlog.testing import capture_logs
from support.cases import each_case
from support.fixtures import one_redis
from support.otlp import (
    Accept,
    Behaviour,
    Dribbler,
    Export,
    Log,
    OtlpReceiver,
    failing,
    partial,
    refuses_items,
)
from support.processes import PATIENCE_S
from support.replies import sequence
from support.stages import Keyspace, make_verdict, samples, select_metrics, settings_of

from worker.base.delivery import receiver_delivery as delivery
from worker.base.delivery.receiver_client import Destination, ReceiverClient, Request
from worker.core.export.prometheus import PrometheusExporter
from worker.core.telemetry.metrics import Metrics

pytestmark = pytest.mark.usefixtures("_short_reads")
any_redis_server = one_redis  # test_otel_export.py runs on both
ACCEPT = Accept()
JSON = "application/json"
NUMBERS = b'{"partialSuccess":{"rejectedSpans":"1","rejectedLogRecords":2,"more":0}}'
WORDS = b'{"partialSuccess":{"rejectedSpans":"many","rejectedLogRecords":"many"}}'


@pytest.fixture
def sender(keyspace: Keyspace, otlp: OtlpReceiver) -> Iterator[Senders]:
    yield from senders(keyspace, otlp)


class Case(NamedTuple):
    """A receiver's behaviour towards some verdicts, and what becomes of them; None is not compared."""

    behaviour: Behaviour
    count: int = 1
    waits: Sequence[float] | None = ()
    dropped: Mapping[str, int] = {}
    spans: Sequence[int] | None = None
    events: int | None = None
    ignored: int = 0
    """Answers that are not believed."""


def at_logs(refusal: Accept) -> Behaviour:
    return lambda export: refusal if export.path == "/v1/logs" else ACCEPT


def poison(*numbers: int, status: int = 500) -> Behaviour:
    names = {f"{number + 1:032x}" for number in numbers}
    return refuses_items(lambda item: item.attributes.get("tracejudge.evaluation.id") in names, status=status)


def too_large_and_busy() -> Callable[[Export], Accept]:
    busy = iter([False, True])

    def behaviour(export: Export) -> Accept:
        if len(export.items) > 2:
            return failing(413)
        return failing(503) if next(busy, False) else ACCEPT

    return behaviour


def cases() -> Iterator[tuple[str, Case]]:
    """Behaviours of receivers, some of which count their requests."""
    for status in (401, 404, 307, 415, 408, 429, 503):
        yield f"busy or misconfigured: {status}", Case(sequence(*[failing(status)] * 3, ACCEPT), 2, [0.5, 1.0, 2.0])
    growing = [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 20.0, 20.0]
    yield "busy for long", Case(sequence(*map(failing, [503] * 7 + [429]), ACCEPT), 1, growing)
    for status in (400, 413):
        others = [0, 1, 2, 3, 5, 6, 7, 8]
        yield f"rejects one: {status}", Case(poison(4, status=status), 9, dropped={"rejected": 1}, spans=others)
    first = refuses_items(lambda item: isinstance(item, Log) and item.attributes["gen_ai.response.id"] == "response 0")
    yield "rejects an event", Case(first, 3, dropped={"rejected": 1}, events=2)
    yield "no large request", Case(lambda export: failing(413) if len(export.items) > 3 else ACCEPT, 10)
    yield "no large request, and busy between", Case(too_large_and_busy(), 4, [0.5])
    parts = sequence(partial(2), partial(1))
    yield "takes a part", Case(parts, 4, dropped={"partial_success": 3}, spans=[0, 1], events=3)
    yield "takes a part, in JSON", Case(Accept(body=NUMBERS, content_type=JSON), 4, dropped={"partial_success": 3})
    page = Accept(body=b"\n<!doctype html><title>Sign in</title>", content_type="text/html")
    yield "a web page", Case(sequence(page, page, ACCEPT), 1, [0.5, 1.0], spans=[0, 0, 0])
    yield "a warning with success", Case(partial(0, "please use gRPC"), 2)
    yield "fails over all events", Case(at_logs(failing(500)), 5, None, {"server_error": 5}, events=0)
    # A proxy whose routes change loses both paths for a moment, perhaps between spans and events.
    absent = failing(404)
    yield "no path for a moment", Case(sequence(ACCEPT, absent, absent, ACCEPT), 1, [0.5])
    for absurd in (
        *(partial(-1), partial(5), partial(2**63 - 1), Accept(body=b"ok", content_type="text/plain")),
        Accept(body=WORDS, content_type=JSON),
        Accept(body=b"[" * 100_000, content_type=JSON),
        Accept(body=b"\x0a" * (1024 * 1024 + 1)),
    ):
        yield f"an answer that cannot be true: {absurd!r:.150}", Case(absurd, 4, ignored=2)


def test_verdicts_are_delivered_counted_or_wait(keyspace: Keyspace, otlp: OtlpReceiver, sender: Senders) -> None:
    for name, case in cases():
        waiting: list[int] = []
        otlp.forget()
        otlp.behaviour = case.behaviour
        keyspace.send(*numbered(case.count))
        worker = sender()
        worker.meanwhile = lambda waiting=waiting: waiting.append(pending(keyspace))
        delivered = worker.turn()
        expected = Delivered(
            list(range(case.count) if case.spans is None else case.spans),
            case.count if case.events is None else case.events,
            dict(case.dropped),
            delivered.waits if case.waits is None else list(case.waits),
        )
        assert delivered == expected, name
        if name.startswith("busy"):
            assert set(waiting) == {case.count}, name
        if name.startswith("no large"):
            names = [event.attributes["gen_ai.response.id"] for event in otlp.logs]
            assert names == [verdict.response_id for verdict in numbered(case.count)], name
        ignored = sum(select_metrics(samples(worker.metrics), "export_answers_ignored_total").values())
        assert ignored == case.ignored, name


def test_the_reason_of_a_wait_is_logged_once(keyspace: Keyspace, otlp: OtlpReceiver, sender: Senders) -> None:
    otlp.behaviour = sequence(*map(failing, [503] * 7 + [429]), ACCEPT)
    keyspace.send(make_verdict(1))
    with capture_logs() as logged:
        sender().turn()
    events = [(line["event"], line.get("seconds")) for line in logged]
    assert events == [("export retrying", 0.5), ("export retrying", 20.0), ("export resumed", None)]
    keyspace.next_case("while spans wait no event is sent")
    otlp.forget()
    otlp.behaviour = at_logs(failing(503))
    keyspace.send(make_verdict(1))
    worker = sender()
    worker.meanwhile = lambda: setattr(otlp, "behaviour", ACCEPT)
    worker.turn()
    exports = [(export.path, export.status) for export in otlp.exports]
    assert exports == [("/v1/traces", 200), ("/v1/logs", 503), ("/v1/logs", 200)]
    keyspace.next_case("events are switched off without their path")
    for status in (404, 405):
        otlp.forget()
        otlp.behaviour = at_logs(failing(status))
        worker = sender()
        for _ in range(2):
            keyspace.send(*numbered(3))
            delivered = worker.turn()
        assert [export.path for export in otlp.exports].count("/v1/logs") == 1, status
        assert delivered == ([0, 1, 2] * 2, 0, {}, [], 0), status


def test_the_receiver_says_how_long_it_is_left_alone(keyspace: Keyspace, otlp: OtlpReceiver, sender: Senders) -> None:
    began_s = time.time()
    asked = [7, 0, email.utils.formatdate(time.time() + 60, usegmt=True), "soon", 1e9, "-5"]
    statuses = (429, 503, 429, 503, 429, 503)
    refusals = (failing(status, retry_after=each) for status, each in zip(statuses, asked, strict=True))
    otlp.behaviour = sequence(*refusals, ACCEPT)
    keyspace.send(make_verdict(1))
    delivered = sender().turn()
    # The date is one of whole seconds, and comes nearer until it is read.
    passed_s = time.time() - began_s + 1
    near = pytest.approx(60 - passed_s / 2, abs=passed_s / 2)
    assert delivered == ([1], 1, {}, [7.0, 1.0, near, 4.0, 300.0, 16.0], 0)


def test_an_item_that_fails_is_found_and_dropped_alone(
    keyspace: Keyspace, otlp: OtlpReceiver, sender: Senders, monkeypatch: pytest.MonkeyPatch
) -> None:
    for status, bad in ((500, [0]), (507, [3, 4, 5, 6]), (500, [0, 5, 9])):
        otlp.forget()
        otlp.behaviour = poison(*bad, status=status)
        keyspace.send(*numbered(10))
        spans, events, dropped, waits, left = sender().turn()
        assert sorted(spans) == [number for number in range(10) if number not in bad], (status, bad)
        assert [len(export.items) for export in otlp.exports][:4] == [10, 10, 10, 5], (status, bad)
        assert (events, dropped, left) == (10, {"server_error": len(bad)}, 0), (status, bad)
        assert waits[:2] == [0.5, 1.0], (status, bad)
        assert len(waits) <= 4, (status, bad)
    keyspace.next_case("a receiver that fails gets everything later")
    otlp.forget()
    otlp.behaviour = failing(500)
    keyspace.send(*numbered(10))
    worker = sender()
    worker.meanwhile = lambda: len(worker.waits) == 30 and setattr(otlp, "behaviour", ACCEPT)
    spans, events, dropped, waits, left = worker.turn()
    assert (sorted(spans), events, dropped, left) == (list(range(10)), 10, {}, 0)
    assert waits[:8] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 20.0, 20.0]
    assert len(otlp.exports) < 60
    keyspace.next_case("one that always fails is given up")
    otlp.forget()
    otlp.behaviour = poison(0)
    keyspace.send(*numbered(1))
    worker = sender()
    worker.meanwhile = lambda: len(worker.waits) == 12 and monkeypatch.setattr(delivery, "_GIVE_UP_AFTER_S", 0.0)
    spans, events, dropped, waits, _ = worker.turn()
    assert (spans, events, dropped, len(waits)) == ([], 1, {"server_error": 1}, 12)


DRIBBLED = {
    "nothing": (b"", "unreachable"),
    "a header": (b"HTTP/1.1 200 OK\r\nx: ", "unreachable"),
    "a body": (b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n", "accepted"),
    "a body without an end": (b"HTTP/1.1 503 Busy\r\ntransfer-encoding: chunked\r\n\r\n", "busy"),
}


@each_case(("begins", "kind"), DRIBBLED.values(), ids=DRIBBLED.keys())
def test_an_answer_that_comes_byte_by_byte_ends_with_the_deadline(begins: bytes, kind: str) -> None:
    """The status decides where there is one; of the rest nothing is believed."""
    with (
        Dribbler(begins) as dribbler,
        closing(ReceiverClient(Destination(dribbler.endpoint, "url", "a receiver"))) as client,
    ):
        client.deadline_s = 1.0
        began = time.monotonic()
        reply = client.send(Request("/v1/traces", b"", {"content-type": "application/x-protobuf"}))
        assert (reply.kind, reply.body) == (kind, None)
        assert 0.9 < time.monotonic() - began < PATIENCE_S
        assert dribbler.ended.wait(PATIENCE_S), "the connection stays open"


def test_while_a_receiver_is_waited_for_metrics_go_on_and_nothing_is_lost(
    keyspace: Keyspace, otlp: OtlpReceiver, sender: Senders
) -> None:
    otlp.behaviour = sequence(failing(503), ACCEPT)
    keyspace.send(*numbered(3))
    worker = sender()
    metrics = Metrics(settings_of(keyspace))
    counting = PrometheusExporter(settings_of(keyspace), keyspace.store, metrics)
    counting.prepare()
    seen = []

    def count() -> None:
        counting.run_once()
        outbox = keyspace.measure(groups=("metrics", "otel")).outbox
        counted = sum(select_metrics(samples(metrics), "verdicts_total").values())
        seen.append((counted, outbox["metrics"].lag, outbox["otel"].lag))

    worker.meanwhile = count
    worker.turn()
    assert seen == [(3, 0, 3)]
    assert keyspace.measure(groups=("otel",)).outbox["otel"].lag == 0
    keyspace.next_case("a stop during a wait leaves entries to others")
    otlp.forget()
    otlp.behaviour = failing(503)
    keyspace.send(*numbered(3))
    stopped, successor = sender(), sender()
    stopped.halts = True
    assert stopped.turn() == ([], 0, {}, [0.5], 3)
    otlp.behaviour = ACCEPT
    assert successor.turn() == ([0, 1, 2], 3, {}, [], 0)
    assert keyspace.accounting()["exported:otel"] == 3
    keyspace.next_case("a receiver that is down loses nothing")
    otlp.forget()
    otlp.close()
    worker = sender()
    keyspace.send(*numbered(3))

    def come_up() -> None:
        assert pending(keyspace) == 3
        if len(worker.waits) == 2:
            otlp.start()

    worker.meanwhile = come_up
    assert worker.turn() == ([0, 1, 2], 3, {}, [0.5, 1.0], 0)
    otlp.close()
    worker.exporter.wait = lambda _: worker.exporter.stopping.wait(100)
    keyspace.send(make_verdict(1))
    worker.exporter.start()
    assert worker.exporter.stop(60), "its thread ends soon"
