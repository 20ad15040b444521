"""The sender, stepped by hand: a scripted stream, a clock that stands, and a latch that notes each wait."""

import json
import logging
from typing import Any

import pytest

from tracejudge.backoff import Backoff
from tracejudge.buffer import Buffer
from tracejudge.entries import Batch, Item, Kind
from tracejudge.errors import DeliveryError
from tracejudge.flushes import Flushes
from tracejudge.model import LateFeedback, Trace
from tracejudge.reports import Reporter
from tracejudge.sender import Sender
from tracejudge.tally import Reason, Totals
from tracejudge.wakeup import Wakeup


class ScriptedStream:
    """Notes each attempt; raises what `failures` holds first."""

    def __init__(self) -> None:
        self.attempts: list[Batch] = []
        self.failures: list[Exception] = []
        self.connected = False

    def append(self, batch: Batch) -> None:
        self.connected = True
        self.attempts.append(batch)
        if self.failures:
            raise self.failures.pop(0)

    def disconnect(self) -> None:
        self.connected = False


class NotedWakeup(Wakeup):
    """Never sleeps: notes how long it should, and tells whether it is open."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def wait(self, timeout_s: float) -> bool:
        self.waits.append(timeout_s)
        return super().wait(0)


class Bench:
    """A sender with all its parts in reach."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.wakeup = NotedWakeup()
        self.buffer = Buffer(max_items=10_000, max_bytes=10**9, wake=self.wakeup.open)
        self.flushes = Flushes()
        self.stream = ScriptedStream()
        self.sender = Sender(
            buffer=self.buffer,
            flushes=self.flushes,
            reporter=Reporter(producer="p", service="shop", now_s=0.0),
            open_stream=lambda: self.stream,
            address="redis://host:6379/0",
            clock=lambda: self.now_s,
            wakeup=self.wakeup,
            backoff=Backoff(draw=lambda _, bound: bound),
        )

    def put(self, *outputs: Any, weight_bytes: int = 1) -> None:
        for output in outputs:
            record = Trace(trace_id="1", service="shop", output=output)
            self.buffer.put(Item(Kind.TRACE, record, weight_bytes))

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.sender.step()

    def outputs(self, attempt: int) -> list[str]:
        entries = self.stream.attempts[attempt].entries
        return [json.loads(entry.payload)["output"] for entry in entries if entry.kind is Kind.TRACE]

    def reports(self) -> list[dict[str, Any]]:
        entries = [entry for batch in self.stream.attempts for entry in batch.entries]
        return [json.loads(entry.payload) for entry in entries if entry.kind is Kind.REPORT]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_what_has_gathered_goes_as_one_numbered_batch(bench: Bench) -> None:
    bench.put("a", "b")
    bench.steps(1)
    bench.put("c")
    bench.steps(1)
    assert [batch.number for batch in bench.stream.attempts] == [1, 2]
    assert [bench.outputs(0), bench.outputs(1)] == [["a", "b"], ["c"]]
    assert bench.buffer.settled == 3


def test_feedback_travels_in_order_with_the_traces(bench: Bench) -> None:
    bench.put("a")
    bench.buffer.put(Item(Kind.FEEDBACK, LateFeedback("1", 1), 1))
    bench.steps(1)
    assert [entry.kind for entry in bench.stream.attempts[0].entries] == [Kind.TRACE, Kind.FEEDBACK]


def test_a_batch_holds_at_most_500_entries(bench: Bench) -> None:
    bench.put(*map(str, range(501)))
    bench.steps(2)
    assert [len(batch.entries) for batch in bench.stream.attempts] == [500, 1]


def test_a_batch_holds_about_1_mib(bench: Bench) -> None:
    bench.put("a", "b", "c", weight_bytes=600_000)
    bench.steps(2)
    assert [bench.outputs(0), bench.outputs(1)] == [["a", "b"], ["c"]]


def test_an_unconfirmed_batch_goes_again_under_its_number_and_before_any_other(bench: Bench) -> None:
    bench.stream.failures = [DeliveryError("gone"), DeliveryError("gone")]
    bench.put("a")
    bench.steps(1)
    bench.put("b")
    bench.steps(2)
    first, second, third = bench.stream.attempts
    assert first is second is third
    assert (first.number, bench.buffer.settled) == (1, 1)
    bench.steps(1)
    assert (bench.stream.attempts[3].number, bench.outputs(3)) == (2, ["b"])


def test_failures_space_the_attempts_out(bench: Bench) -> None:
    bench.stream.failures = [DeliveryError("gone")] * 4
    bench.put("a")
    bench.wakeup.wait(0)
    bench.wakeup.waits.clear()
    bench.steps(4)
    assert bench.wakeup.waits == [0.05, 0.1, 0.2, 0.4]


def test_a_flush_in_trouble_makes_the_delays_short_again(bench: Bench) -> None:
    bench.stream.failures = [DeliveryError("gone")] * 4
    bench.put("a")
    bench.wakeup.wait(0)
    bench.wakeup.waits.clear()
    bench.steps(2)
    bench.wakeup.open()
    bench.steps(2)
    assert bench.wakeup.waits == [0.05, 0.1, 0.2, 0.05]


@pytest.mark.swallows
def test_a_fault_of_our_own_keeps_the_batch(bench: Bench) -> None:
    bench.stream.failures = [RuntimeError("not expected")]
    bench.put("a")
    bench.steps(2)
    assert [batch.number for batch in bench.stream.attempts] == [1, 1]
    assert bench.buffer.settled == 1


def test_after_a_batch_that_was_not_full_it_lingers(bench: Bench) -> None:
    """Who publishes in these milliseconds need not wake it."""
    bench.put("a")
    bench.wakeup.wait(0)
    bench.wakeup.waits.clear()
    bench.steps(1)
    assert bench.wakeup.waits == [0.005]
    bench.put("b")
    assert not bench.wakeup.wait(0)


def test_a_full_batch_is_followed_at_once(bench: Bench) -> None:
    bench.put(*map(str, range(1_000)))
    bench.wakeup.wait(0)
    bench.wakeup.waits.clear()
    bench.steps(1)
    assert bench.wakeup.waits == []


def test_with_nothing_to_send_it_sleeps_until_an_item_or_a_report(bench: Bench) -> None:
    bench.steps(1)
    assert bench.wakeup.waits == [10.0]
    assert bench.stream.attempts == []
    bench.put("a")
    assert bench.wakeup.wait(0)


def test_nothing_of_what_is_dropped_after_acceptance_is_sent(bench: Bench) -> None:
    bench.put("a", "x" * (4 * 1024 * 1024), "b")
    ticket = bench.flushes.ask(3)
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


def test_drops_are_reported_without_any_trace_to_send(bench: Bench) -> None:
    bench.buffer.refuse(Kind.TRACE, Reason.INVALID)
    bench.now_s = 10.0
    bench.steps(1)
    assert bench.reports() == [
        {
            "producer": "p",
            "seq": 1,
            "service": "shop",
            "published": 1,
            "accepted": 0,
            "dropped": {"invalid": 1},
        }
    ]


def test_a_report_counts_the_drops_of_its_own_batch(bench: Bench) -> None:
    bench.put("a", "x" * (4 * 1024 * 1024))
    bench.flushes.ask(2)
    bench.steps(1)
    assert bench.reports()[0]["dropped"] == {"too_large": 1}


def test_a_flush_is_reported_by_the_batch_that_completes_it(bench: Bench) -> None:
    bench.put(*map(str, range(501)))
    bench.flushes.ask(501)
    bench.put("later")
    bench.steps(1)
    assert bench.flushes.waiting
    assert bench.reports() == []
    bench.steps(1)
    assert not bench.flushes.waiting
    assert [report["accepted"] for report in bench.reports()] == [502]


def test_a_flush_with_nothing_to_send_is_answered(bench: Bench) -> None:
    bench.flushes.ask(0)
    bench.steps(1)
    assert not bench.flushes.waiting
    assert bench.stream.attempts == []


def test_at_its_end_it_closes_the_connection(bench: Bench) -> None:
    bench.put("a")
    bench.steps(1)
    assert bench.stream.connected
    bench.sender.end()
    bench.sender.run()
    assert not bench.stream.connected


def test_trouble_is_logged_once_a_minute_and_its_end_too(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tracejudge")
    bench.stream.failures = [DeliveryError("ConnectionError: Connection refused")] * 3
    bench.put("secret words", "b")
    for now_s in (0.0, 30.0, 60.0, 61.0):
        bench.now_s = now_s
        bench.steps(1)
    trouble = "Redis at redis://host:6379/0 takes no traces (ConnectionError: Connection refused); 2 wait"
    assert caplog.record_tuples == [
        ("tracejudge", logging.WARNING, trouble),
        ("tracejudge", logging.WARNING, trouble),
        ("tracejudge", logging.INFO, "Redis at redis://host:6379/0 takes traces again"),
    ]


def test_drops_are_logged_with_their_reasons(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.put("x" * (4 * 1024 * 1024))
    bench.buffer.refuse(Kind.TRACE, Reason.INVALID)
    bench.flushes.ask(1)
    bench.steps(1)
    assert caplog.record_tuples == [
        ("tracejudge", logging.WARNING, "Traces dropped since the start, by reason: invalid 1, too_large 1")
    ]
