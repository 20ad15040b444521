"""What becomes of spans and events that a receiver does not take: they wait, go in parts, or are counted."""

import email.utils
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from otel_parts import Senders, evaluated, names, numbered, pending, senders
from structlog.testing import capture_logs
from support import otlp as collector
from support.cases import each_case
from support.otlp import Dribbler, Log, OtlpReceiver
from support.processes import PATIENCE_S
from support.stage_parts import Keyspace, make_verdict, samples, select_metrics, settings_of

from judges.core.verdict import Verdict
from worker.base.delivery import receiver_delivery as delivery
from worker.base.delivery.receiver_client import Destination, ReceiverClient, Request
from worker.core.export.prometheus import PrometheusExporter
from worker.core.telemetry.metrics import Metrics

pytestmark = pytest.mark.usefixtures("_short_reads")


@pytest.fixture
def sender(keyspace: Keyspace, otlp: OtlpReceiver) -> Iterator[Senders]:
    yield from senders(keyspace, otlp)


@pytest.mark.parametrize("status", [401, 403, 404, 307, 405, 415, 408, 429, 502, 503, 504])
def test_a_receiver_that_is_busy_or_misconfigured_is_waited_for(
    keyspace: Keyspace, otlp: OtlpReceiver, sender: Senders, status: int
) -> None:
    otlp.behaviour = collector.sequence(*[collector.failing(status)] * 3, collector.Accept())
    keyspace.send(*numbered(2))
    worker = sender()
    worker.meanwhile = lambda: waiting.append(pending(keyspace))
    waiting: list[int] = []
    worker.turn()
    assert (worker.waits, waiting) == ([0.5, 1.0, 2.0], [2, 2, 2])
    assert (evaluated(otlp), len(otlp.logs), pending(keyspace), worker.dropped) == (names(numbered(2)), 2, 0, {})


def test_the_waits_grow_up_to_a_bound(keyspace: Keyspace, otlp: OtlpReceiver, sender: Senders) -> None:
    otlp.behaviour = collector.sequence(*map(collector.failing, [503] * 7 + [429]), collector.Accept())
    keyspace.send(make_verdict(1))
    worker = sender()
    with capture_logs() as logged:
        worker.turn()
    assert worker.waits == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 20.0, 20.0]
    events = [(line["event"], line.get("seconds")) for line in logged]
    # The reason is logged when it changes.
    assert events == [("export retrying", 0.5), ("export retrying", 20.0), ("export resumed", None)]


@pytest.mark.parametrize("status", [429, 503])
def test_the_receiver_says_how_long_it_is_left_alone(
    keyspace: Keyspace, otlp: OtlpReceiver, sender: Senders, status: int
) -> None:
    began_s = time.time()
    asked = [7, 0, email.utils.formatdate(time.time() + 60, usegmt=True), "soon", 1e9, "-5"]
    otlp.behaviour = collector.sequence(
        *(collector.failing(status, retry_after=each) for each in asked), collector.Accept()
    )
    keyspace.send(make_verdict(1))
    worker = sender()
    worker.turn()
    # The date is one of whole seconds, and comes nearer until it is read.
    passed_s = time.time() - began_s + 1
    assert worker.waits == [7.0, 1.0, pytest.approx(60 - passed_s / 2, abs=passed_s / 2), 4.0, 300.0, 16.0]
    assert (len(otlp.spans), len(otlp.logs), pending(keyspace)) == (1, 1, 0)


def test_while_spans_wait_no_event_is_sent(keyspace: Keyspace, otlp: OtlpReceiver, sender: Senders) -> None:
    otlp.behaviour = lambda export: collector.failing(503) if export.path == "/v1/logs" else collector.Accept()
    keyspace.send(make_verdict(1))
    worker = sender()
    worker.meanwhile = lambda: setattr(otlp, "behaviour", collector.Accept())
    worker.turn()
    assert [(export.path, export.status) for export in otlp.exports] == [
        ("/v1/traces", 200),
        ("/v1/logs", 503),
        ("/v1/logs", 200),
    ]


@pytest.mark.parametrize("status", [400, 413, 422])
def test_one_that_the_receiver_rejects_goes_alone_and_is_counted(
    keyspace: Keyspace, otlp: OtlpReceiver, sender: Senders, status: int
) -> None:
    verdicts = numbered(9)
    poison = verdicts[4].evaluation_id
    otlp.behaviour = collector.refuses_items(
        lambda item: item.attributes.get("tracejudge.evaluation.id") == poison, status=status
    )
    keyspace.send(*verdicts)
    worker = sender()
    worker.turn()
    assert evaluated(otlp) == [name for name in names(verdicts) if name != poison]
    assert len(otlp.logs) == 9
    assert (worker.dropped, worker.waits, pending(keyspace)) == ({"rejected": 1}, [], 0)


def test_a_rejected_event_is_counted_as_well(keyspace: Keyspace, otlp: OtlpReceiver, sender: Senders) -> None:
    otlp.behaviour = collector.refuses_items(
        lambda item: isinstance(item, Log) and item.attributes["gen_ai.response.id"] == "response 0"
    )
    keyspace.send(*numbered(3))
    worker = sender()
    worker.turn()
    assert (len(otlp.spans), len(otlp.logs), worker.dropped, pending(keyspace)) == (3, 2, {"rejected": 1}, 0)


def test_a_request_that_is_too_large_is_sent_in_parts(keyspace: Keyspace, otlp: OtlpReceiver, sender: Senders) -> None:
    otlp.behaviour = lambda export: collector.failing(413) if len(export.items) > 3 else collector.Accept()
    keyspace.send(*numbered(10))
    worker = sender()
    worker.turn()
    assert (evaluated(otlp), len(otlp.logs), worker.dropped) == (names(numbered(10)), 10, {})
    assert [event.attributes["gen_ai.response.id"] for event in otlp.logs] == [
        verdict.response_id for verdict in numbered(10)
    ]


def test_a_receiver_that_is_busy_in_between_gets_no_part_twice(
    keyspace: Keyspace, otlp: OtlpReceiver, sender: Senders
) -> None:
    busy = iter([False, True])

    def behaviour(export: collector.Export) -> collector.Accept:
        if len(export.items) > 2:
            return collector.failing(413)
        return collector.failing(503) if next(busy, False) else collector.Accept()

    otlp.behaviour = behaviour
    keyspace.send(*numbered(4))
    worker = sender()
    worker.turn()
    assert (evaluated(otlp), worker.waits) == (names(numbered(4)), [0.5])


def test_partial_success_of_a_receiver_is_counted(keyspace: Keyspace, otlp: OtlpReceiver, sender: Senders) -> None:
    otlp.behaviour = collector.sequence(collector.partial(2), collector.partial(1))
    keyspace.send(*numbered(4))
    worker = sender()
    worker.turn()
    assert (len(otlp.spans), len(otlp.logs)) == (2, 3)
    assert (worker.dropped, worker.waits, pending(keyspace)) == ({"partial_success": 3}, [], 0)


ABSURD = {
    "negative": collector.partial(-1),
    "more than was sent": collector.partial(5),
    "huge": collector.partial(2**63 - 1),
    "a text": collector.Accept(body=b"ok", content_type="text/plain"),
    "not a number": collector.Accept(
        body=b'{"partialSuccess":{"rejectedSpans":"many","rejectedLogRecords":"many"}}', content_type="application/json"
    ),
    "nested without end": collector.Accept(body=b"[" * 100_000, content_type="application/json"),
    "larger than the bound": collector.Accept(body=b"\x0a" * (1024 * 1024 + 1)),
}


def test_a_partial_success_that_cannot_be_true_drops_nothing_and_is_counted(
    keyspace: Keyspace, otlp: OtlpReceiver, sender: Senders
) -> None:
    worker = sender()
    for case, behaviour in ABSURD.items():
        otlp.behaviour = behaviour
        ignored = sum(select_metrics(samples(worker.metrics), "export_answers_ignored_total").values())
        keyspace.send(*numbered(4))
        worker.turn()
        assert (len(otlp.spans), len(otlp.logs), worker.dropped, worker.waits, pending(keyspace)) == (
            4,
            4,
            {},
            [],
            0,
        ), case
        assert sum(select_metrics(samples(worker.metrics), "export_answers_ignored_total").values()) == ignored + 2, (
            case
        )
        otlp.forget()


def test_a_partial_success_in_json_is_read_too(keyspace: Keyspace, otlp: OtlpReceiver, sender: Senders) -> None:
    body = b'{"partialSuccess":{"rejectedSpans":"1","rejectedLogRecords":2,"more":0}}'
    otlp.behaviour = collector.Accept(body=body, content_type="application/json")
    keyspace.send(*numbered(4))
    worker = sender()
    worker.turn()
    assert (worker.dropped, pending(keyspace)) == ({"partial_success": 3}, 0)


def test_a_web_page_is_no_receiver(keyspace: Keyspace, otlp: OtlpReceiver, sender: Senders) -> None:
    page = collector.Accept(body=b"\n<!doctype html><title>Sign in</title>", content_type="text/html")
    otlp.behaviour = collector.sequence(page, page, collector.Accept())
    keyspace.send(make_verdict(1))
    worker = sender()
    worker.turn()
    assert (worker.waits, worker.dropped, pending(keyspace)) == ([0.5, 1.0], {}, 0)


def poison(*verdicts: Verdict, status: int = 500) -> collector.Behaviour:
    names_of = set(names(list(verdicts)))
    return collector.refuses_items(
        lambda item: item.attributes.get("tracejudge.evaluation.id") in names_of, status=status
    )


@pytest.mark.parametrize("places", [[0], [9], [3, 4, 5, 6], [0, 5, 9]], ids=str)
@pytest.mark.parametrize("status", [500, 507])
def test_an_item_that_the_receiver_fails_over_is_found_and_dropped_alone(
    keyspace: Keyspace, otlp: OtlpReceiver, sender: Senders, status: int, places: list[int]
) -> None:
    verdicts = numbered(10)
    bad = [verdicts[place] for place in places]
    otlp.behaviour = poison(*bad, status=status)
    keyspace.send(*verdicts)
    worker = sender()
    worker.turn()
    assert sorted(evaluated(otlp)) == [name for name in names(verdicts) if name not in names(bad)]
    assert [len(export.items) for export in otlp.exports][:4] == [10, 10, 10, 5]
    assert (len(otlp.logs), worker.dropped, pending(keyspace)) == (10, {"server_error": len(bad)}, 0)
    assert worker.waits[:2] == [0.5, 1.0]
    assert len(worker.waits) <= 4


def test_a_receiver_that_fails_over_everything_gets_all_of_it_later(
    keyspace: Keyspace, otlp: OtlpReceiver, sender: Senders
) -> None:
    otlp.behaviour = collector.failing(500)
    keyspace.send(*numbered(10))
    worker = sender()
    worker.meanwhile = lambda: len(worker.waits) == 30 and setattr(otlp, "behaviour", collector.Accept())
    worker.turn()
    assert (sorted(evaluated(otlp)), len(otlp.logs), worker.dropped, pending(keyspace)) == (
        names(numbered(10)),
        10,
        {},
        0,
    )
    assert worker.waits[:8] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 20.0, 20.0]
    assert len(otlp.exports) < 60


def test_a_single_verdict_that_always_fails_is_given_up(
    keyspace: Keyspace, otlp: OtlpReceiver, sender: Senders, monkeypatch: pytest.MonkeyPatch
) -> None:
    (verdict,) = numbered(1)
    otlp.behaviour = poison(verdict)
    keyspace.send(verdict)
    worker = sender()
    worker.meanwhile = lambda: len(worker.waits) == 12 and monkeypatch.setattr(delivery, "_GIVE_UP_AFTER_S", 0.0)
    worker.turn()
    assert (len(worker.waits), worker.dropped, otlp.spans, len(otlp.logs)) == (12, {"server_error": 1}, (), 1)


def test_events_that_a_receiver_fails_over_hold_up_no_span(
    keyspace: Keyspace, otlp: OtlpReceiver, sender: Senders
) -> None:
    otlp.behaviour = lambda export: collector.failing(500) if export.path == "/v1/logs" else collector.Accept()
    keyspace.send(*numbered(5))
    worker = sender()
    worker.turn()
    assert (len(otlp.spans), worker.dropped, pending(keyspace)) == (5, {"server_error": 5}, 0)


@pytest.mark.parametrize("status", [404, 405])
def test_events_are_switched_off_where_their_path_alone_is_absent(
    keyspace: Keyspace, otlp: OtlpReceiver, sender: Senders, status: int
) -> None:
    otlp.behaviour = lambda export: collector.failing(status) if export.path == "/v1/logs" else collector.Accept()
    worker = sender()
    for _ in range(2):
        keyspace.send(*numbered(3))
        worker.turn()
    assert [export.path for export in otlp.exports].count("/v1/logs") == 1
    assert (len(otlp.spans), worker.dropped, worker.waits, pending(keyspace)) == (6, {}, [], 0)


def test_events_are_not_switched_off_while_both_paths_are_absent(
    keyspace: Keyspace, otlp: OtlpReceiver, sender: Senders
) -> None:
    """A proxy whose routes change loses both for a moment, perhaps between spans and events."""
    absent = collector.failing(404)
    otlp.behaviour = collector.sequence(collector.Accept(), absent, absent, collector.Accept())
    keyspace.send(make_verdict(1))
    worker = sender()
    worker.turn()
    assert (len(otlp.spans), len(otlp.logs), worker.waits, pending(keyspace)) == (1, 1, [0.5], 0)


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


def test_a_warning_that_comes_with_success_drops_nothing(
    keyspace: Keyspace, otlp: OtlpReceiver, sender: Senders
) -> None:
    otlp.behaviour = collector.partial(0, "please use gRPC")
    keyspace.send(*numbered(2))
    worker = sender()
    worker.turn()
    assert (len(otlp.spans), worker.dropped) == (2, {})


def test_a_receiver_that_is_down_delays_and_loses_nothing(
    keyspace: Keyspace, otlp: OtlpReceiver, sender: Senders
) -> None:
    otlp.close()
    worker = sender()
    keyspace.send(*numbered(3))

    def come_up() -> None:
        assert pending(keyspace) == 3
        if len(worker.waits) == 2:
            otlp.start()

    worker.meanwhile = come_up
    worker.turn()
    assert worker.waits == [0.5, 1.0]
    assert (evaluated(otlp), len(otlp.logs), pending(keyspace), worker.dropped) == (names(numbered(3)), 3, 0, {})


def test_meanwhile_the_metrics_go_on(keyspace: Keyspace, otlp: OtlpReceiver, sender: Senders) -> None:
    otlp.behaviour = collector.sequence(collector.failing(503), collector.Accept())
    keyspace.send(*numbered(3))
    worker = sender()
    metrics = Metrics(settings_of(keyspace))
    counting = PrometheusExporter(settings_of(keyspace), keyspace.store, metrics)
    counting.prepare()
    seen = []

    def count() -> None:
        counting.run_once()
        outbox = keyspace.measure(groups=("metrics", "otel")).outbox
        seen.append(
            (
                sum(select_metrics(samples(metrics), "verdicts_total").values()),
                outbox["metrics"].lag,
                outbox["otel"].lag,
            )
        )

    worker.meanwhile = count
    worker.turn()
    assert seen == [(3, 0, 3)]
    assert keyspace.measure(groups=("otel",)).outbox["otel"].lag == 0


def test_a_stop_during_a_wait_leaves_the_entries_to_others(
    keyspace: Keyspace, otlp: OtlpReceiver, sender: Senders
) -> None:
    otlp.behaviour = collector.failing(503)
    keyspace.send(*numbered(3))
    stopped, successor = sender(), sender()
    stopped.halts = True
    stopped.turn()
    assert (stopped.waits, pending(keyspace), otlp.spans) == ([0.5], 3, ())
    otlp.behaviour = collector.Accept()
    successor.turn()
    assert (evaluated(otlp), pending(keyspace), keyspace.accounting()["exported:otel"]) == (names(numbered(3)), 0, 3)


def test_its_thread_ends_soon_though_the_receiver_is_down(
    keyspace: Keyspace, otlp: OtlpReceiver, sender: Senders
) -> None:
    otlp.close()
    worker = sender()
    worker.exporter.wait = lambda _: worker.exporter.stopping.wait(100)
    keyspace.send(make_verdict(1))
    worker.exporter.start()
    assert worker.exporter.stop(60)


def test_an_endpoint_may_have_a_path_and_a_slash_at_its_end(
    keyspace: Keyspace, otlp: OtlpReceiver, sender: Senders
) -> None:
    keyspace.send(make_verdict(1))
    sender(f"{otlp.endpoint}/").turn()
    assert len(otlp.spans) == len(otlp.logs) == 1
