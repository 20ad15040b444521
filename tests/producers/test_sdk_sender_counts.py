"""Counts, reports and logs of the sender."""

import logging

import pytest
from sdk_bench import Bench

from tracejudge.delivery.buffer import Kind, Reason, Totals
from tracejudge.log import DeliveryError


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_nothing_of_what_is_dropped_after_acceptance_is_sent(bench: Bench) -> None:
    bench.put("a", "x" * (4 * 1024 * 1024), "b")
    ticket = bench.flushes.request(3)
    bench.steps(1)
    assert bench.outputs(0) == ["a", "b"]
    assert bench.buffer.totals() == Totals(published=3, accepted=3, dropped={"too_large": 1})
    assert bench.buffer.settled == 3
    bench.flushes.wait(ticket, timeout_s=60)


def test_a_batch_of_drops_only_needs_no_redis(bench: Bench) -> None:
    bench.put("x" * (4 * 1024 * 1024))
    bench.steps(1)
    assert bench.stream.attempts == []
    assert bench.buffer.settled == 1


def test_reports_go_with_the_batches_every_10_s(bench: Bench) -> None:
    for now_s in (0.0, 5.0, 10.0, 12.0, 20.0):
        bench.now_s = now_s
        bench.put("a")
        bench.steps(1)
    counted = [(report["seq"], report["published"], report["accepted"]) for report in bench.reports()]
    assert counted == [(1, 3, 3), (2, 5, 5)]
    assert [len(batch.entries) for batch in bench.stream.attempts] == [1, 1, 2, 1, 2]


def test_one_that_publishes_nothing_reports_each_hour_that_it_lives(bench: Bench) -> None:
    bench.put("a")
    bench.flushes.request(1)
    for now_s in (0.0, 60.0, 3599.0, 3600.0, 3660.0, 7199.0, 7200.0):
        bench.now_s = now_s
        bench.steps(1)
    assert [(report["seq"], report["published"]) for report in bench.reports()] == [(1, 1), (2, 1), (3, 1)]
    assert [len(batch.entries) for batch in bench.stream.attempts] == [2, 1, 1]


def test_drops_are_reported_without_any_trace_to_send(bench: Bench) -> None:
    bench.buffer.refuse(Kind.TRACE, Reason.INVALID)
    bench.now_s = 10.0
    bench.steps(1)
    assert bench.reports() == [
        {"producer": "p", "seq": 1, "service": "shop", "published": 1, "accepted": 0, "dropped": {"invalid": 1}}
    ]


def test_a_report_counts_the_drops_of_its_own_batch(bench: Bench) -> None:
    bench.put("a", "x" * (4 * 1024 * 1024))
    bench.flushes.request(2)
    bench.steps(1)
    assert bench.reports()[0]["dropped"] == {"too_large": 1}


def test_a_flush_is_reported_by_the_batch_that_completes_it(bench: Bench) -> None:
    bench.put(*map(str, range(501)))
    bench.flushes.request(501)
    bench.put("later")
    bench.steps(1)
    assert bench.flushes.pending
    assert bench.reports() == []
    bench.steps(1)
    assert not bench.flushes.pending
    assert [report["accepted"] for report in bench.reports()] == [502]


def test_the_report_of_a_flush_stands_behind_all_it_waited_for(bench: Bench) -> None:
    bench.put(*map(str, range(500)))
    bench.now_s = 11.0
    bench.steps(1)
    assert len(bench.reports()) == 1, "it was due"
    bench.put("later", "latest")
    bench.flushes.request(502)
    bench.steps(1)
    kinds = [entry.kind for entry in bench.stream.attempts[-1].entries]
    assert kinds[-1] is Kind.REPORT
    assert bench.reports()[-1]["accepted"] == 502


def test_a_flush_with_nothing_to_send_is_answered(bench: Bench) -> None:
    bench.flushes.request(0)
    bench.steps(1)
    assert not bench.flushes.pending
    assert bench.stream.attempts == []


def test_trouble_is_logged_once_a_minute_and_its_end_too(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tracejudge")
    bench.stream.failures = [DeliveryError("ConnectionError: Connection refused")] * 3
    bench.put("secret words", "b")
    for now_s in (0.0, 30.0, 60.0, 61.0):
        bench.now_s = now_s
        bench.steps(1)
    trouble = "Publishing to Redis at redis://host:6379/0 failed (ConnectionError: Connection refused); 2 waiting"
    assert caplog.record_tuples == [
        ("tracejudge", logging.WARNING, trouble),
        ("tracejudge", logging.WARNING, trouble),
        ("tracejudge", logging.INFO, "Publishing to Redis at redis://host:6379/0 resumed"),
    ]


def test_drops_are_logged_with_their_reasons(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.put("x" * (4 * 1024 * 1024))
    bench.buffer.refuse(Kind.TRACE, Reason.INVALID)
    bench.flushes.request(1)
    bench.steps(1)
    assert caplog.record_tuples == [
        ("tracejudge", logging.WARNING, "Trace dropped: too_large (4,194,402 bytes); trace id 1"),
        ("tracejudge", logging.WARNING, "Traces dropped since the start, by reason: invalid 1, too_large 1"),
    ]
