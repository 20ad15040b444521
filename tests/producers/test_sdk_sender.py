"""Delivery without Redis: the sender stepped by hand, and its small parts."""

import json
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from msgspec.structs import replace
from sdk_rig import SETTINGS

from tracejudge.delivery.buffer import Batch, Buffer, Entry, Flush, Flushes, Item, Kind, Reason, Totals
from tracejudge.delivery.encoding import ItemEncoder
from tracejudge.delivery.fork import Wakeup
from tracejudge.delivery.sender import Backoff, BatchBuilder, Reporter, Sender
from tracejudge.ids import place_of
from tracejudge.log import DeliveryError, Once

GONE = DeliveryError("gone")
TOO_LARGE = "x" * (4 * 1024 * 1024)


class ScriptedStream:
    """Records each attempt, runs `during`, and raises the next of `failures`."""

    def __init__(self) -> None:
        self.attempts: list[Batch] = []
        self.failures: list[Exception] = []
        self.connected = False
        self.during: Callable[[], None] = lambda: None

    def partitions(self) -> int:
        return 1

    def append(self, batch: Batch, meanwhile: Callable[[], None]) -> None:
        self.connected = True
        self.attempts.append(batch)
        self.during()
        meanwhile()
        if self.failures:
            raise self.failures.pop(0)

    def disconnect(self) -> None:
        self.connected = False


class RecordedWakeup(Wakeup):
    """Never sleeps: records each timeout, and returns whether it is open."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def wait(self, timeout_s: float) -> bool:
        self.waits.append(timeout_s)
        return super().wait(0)


class Bench:
    """A sender and all its parts, with a clock set by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.wakeup = RecordedWakeup()
        self.buffer = Buffer(max_items=10_000, max_bytes=10**9, wake=self.wakeup.open)
        self.flushes = Flushes()
        self.stream = ScriptedStream()
        self.turns: list[float] = []
        settings = replace(SETTINGS, max_field_bytes=10**8, max_trace_bytes=10**8)  # nothing is cut
        builder = BatchBuilder(
            buffer=self.buffer,
            load_encoder=lambda: ItemEncoder(settings),
            sleep=self.turns.append,
            clock=lambda: self.now_s,
        )
        self.sender = Sender(
            buffer=self.buffer,
            flushes=self.flushes,
            reporter=Reporter(producer="p", service="shop", now_s=0.0),
            builder=builder,
            open_stream=lambda: self.stream,
            address="redis://host:6379/0",
            clock=lambda: self.now_s,
            wakeup=self.wakeup,
            backoff=Backoff(draw=lambda _, bound: bound),
        )

    def put(self, *outputs: Any, size_bytes: int = 1) -> None:
        for output in outputs:
            self.buffer.put(Item(Kind.TRACE, {"output": output}, size_bytes, trace_id="1"))

    def put_many(self, count: int) -> None:
        self.put(*map(str, range(count)))

    def steps(self, count: int = 1) -> None:
        for _ in range(count):
            self.sender.step()

    def awake(self) -> None:
        """Begin to record waits, awake."""
        self.wakeup.wait(0)
        self.wakeup.waits.clear()

    @staticmethod
    def outputs_of(batch: Batch) -> list[str]:
        return [json.loads(entry.payload)["output"] for entry in batch.entries if entry.kind is Kind.TRACE]

    def outputs(self) -> list[list[str]]:
        return [*map(self.outputs_of, self.stream.attempts)]

    def numbers(self) -> list[int]:
        return [batch.number for batch in self.stream.attempts]

    def sizes(self) -> list[int]:
        return [len(batch.entries) for batch in self.stream.attempts]

    def reports(self) -> list[dict[str, Any]]:
        entries = [entry for batch in self.stream.attempts for entry in batch.entries]
        return [json.loads(entry.payload) for entry in entries if entry.kind is Kind.REPORT]


@pytest.fixture
def bench() -> Bench:
    return Bench()


STEPS = st.tuples(
    st.sampled_from(["put", "meanwhile", "refuse", "flush", "fail", "step", "later"]), st.integers(1, 120)
)


@hypothesis_settings(max_examples=30, deadline=None)
@given(st.lists(STEPS, max_size=20))
def test_every_item_goes_once_and_in_order_and_the_report_behind_it_says_so(steps: list[tuple[str, int]]) -> None:
    """The attempts of a batch are one batch under one number, before any other; a flush waits for what it asked for."""
    bench = Bench()
    published = refused = target = 0

    def publish(count: int) -> None:
        nonlocal published
        bench.put(*map(str, range(published, published + count)))
        published += count

    for step, number in [*steps, ("flush", 1)]:
        if step == "put":
            publish(5 * number)
        elif step == "meanwhile":  # while Redis works
            bench.stream.during = partial(publish, number)
            bench.steps()
            bench.stream.during = lambda: None
        elif step == "refuse":
            bench.buffer.refuse(Kind.TRACE, Reason.INVALID)
            refused += 1
        elif step == "flush":
            target = bench.buffer.accepted
            bench.flushes.request(target)
        elif step == "fail":
            bench.stream.failures.append(GONE)
        elif step == "step":
            bench.steps(number % 4)
        else:
            bench.now_s += number / 10
        assert bench.flushes.pending or bench.buffer.settled >= target
    bench.steps(60)
    attempts = bench.stream.attempts
    batches = [batch for place, batch in enumerate(attempts) if not place or batch is not attempts[place - 1]]
    assert [batch.number for batch in batches] == list(range(1, len(batches) + 1))
    outputs = [bench.outputs_of(batch) for batch in batches]
    assert max(map(len, outputs), default=0) <= 500
    assert [output for each in outputs for output in each] == [str(number) for number in range(published)]
    assert not bench.flushes.pending
    assert bench.buffer.settled == published
    if attempts:
        dropped = {"invalid": refused} if refused else {}
        assert bench.reports()[-1].items() >= {"accepted": published, "dropped": dropped}.items()


def test_a_batch_holds_at_most_500_entries_and_about_2_mib(bench: Bench) -> None:
    bench.put_many(501)
    bench.flushes.request(501)
    bench.steps()
    assert (bench.flushes.pending, bench.reports()) == (True, []), "one item is not there yet"
    bench.steps()
    assert (bench.flushes.pending, bench.sizes()) == (False, [500, 2]), "with the report"
    bench.put("a", "b", "c", size_bytes=1_200_000)
    bench.buffer.put(Item(Kind.FEEDBACK, {"trace_id": "1", "score": 1}, 1))
    bench.steps(2)
    assert bench.outputs()[2:] == [["a", "b"], ["c"]]
    assert [entry.kind for entry in bench.stream.attempts[-1].entries] == [Kind.TRACE, Kind.FEEDBACK]


def test_failures_space_the_attempts_out_up_to_a_cap_and_a_flush_makes_the_delays_short_again(bench: Bench) -> None:
    bench.stream.failures = [GONE] * 11
    bench.put("a")
    bench.awake()
    bench.steps(9)
    assert bench.wakeup.waits == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    bench.wakeup.open()
    bench.steps(2)
    assert bench.wakeup.waits[9:] == [5.0, 0.05]
    backoff = Backoff()
    assert all(0 <= backoff.next_delay_s() <= 5 for _ in range(100)), "the bench draws the bounds"


@pytest.mark.swallows
def test_an_unexpected_error_leaves_a_step_and_keeps_the_batch_and_a_run_logs_it_and_goes_on(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.stream.failures = [RuntimeError("not expected")]
    bench.put("a")
    with pytest.raises(RuntimeError):
        bench.steps()
    bench.steps()
    assert (bench.numbers(), bench.buffer.settled, bench.stream.connected) == ([1, 1], 1, True)
    bench.stream.failures = [RuntimeError("not expected")]
    bench.stream.during = lambda: bench.sender.end() if len(bench.stream.attempts) == 4 else None
    bench.put("b")
    bench.sender.run()
    assert "Publishing to Redis at redis://host:6379/0 failed (RuntimeError); 1 waiting" in caplog.messages
    assert (bench.numbers(), bench.buffer.settled) == ([1, 1, 2, 2], 2)
    assert not bench.stream.connected, "at its end it closes the connection"


def test_after_a_batch_that_was_not_full_it_lingers(bench: Bench) -> None:
    """Who publishes in these milliseconds need not wake it."""
    bench.put_many(1_000)
    bench.awake()
    bench.steps()
    assert bench.wakeup.waits == [], "a full batch is followed at once"
    bench.steps()
    bench.put("a")
    bench.awake()
    bench.steps()
    assert bench.wakeup.waits == [0.02]
    bench.put_many(499)
    assert not bench.wakeup.wait(0)
    bench.put("b")
    assert bench.wakeup.wait(0), "a full batch need not wait"


def test_the_next_batch_is_prepared_while_redis_works(bench: Bench) -> None:
    """Once: what comes later still finds room in it."""
    bench.stream.during = lambda: bench.put(*["p"] * 100, size_bytes=15_001)
    bench.put("a")
    bench.awake()
    bench.steps()
    assert (bench.buffer.queued, bench.buffer.settled, bench.buffer.taken) == (0, 1, 101)
    assert bench.wakeup.waits == []
    bench.stream.during = lambda: bench.put_many(97)
    bench.put("x", "y", "z", size_bytes=1_200_001)
    bench.steps()
    assert bench.sizes() == [1, 101], "what is prepared counts towards the bytes of its batch"
    assert bench.buffer.queued == 97 + 2, "few items wait for others"


def test_with_nothing_to_send_it_sleeps_until_an_item_or_a_report_and_answers_a_flush(bench: Bench) -> None:
    bench.steps()
    assert bench.wakeup.waits == [10.0]
    bench.flushes.request(0)
    bench.steps()
    assert (bench.flushes.pending, bench.stream.attempts) == (False, [])
    bench.put_many(48)
    assert bench.wakeup.wait(0)
    bench.steps()
    assert len(bench.turns) == 1, "publishers get their turn between pieces, and nobody published after the first"
    bench.put_many(5_001)
    bench.steps()
    assert len(bench.turns) == 1, "unless the buffer fills"


def test_what_is_dropped_after_acceptance_is_not_sent_but_counted_reported_and_logged(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.put(TOO_LARGE)
    bench.steps()
    assert (bench.stream.attempts, bench.buffer.settled) == ([], 1), "a batch of drops only needs no Redis"
    bench.put("a", TOO_LARGE, "b")
    bench.buffer.refuse(Kind.TRACE, Reason.INVALID)
    ticket = bench.flushes.request(4)
    bench.steps()
    assert bench.outputs() == [["a", "b"]]
    dropped = {"too_large": 2, "invalid": 1}
    assert bench.buffer.totals() == Totals(published=5, accepted=4, dropped=dropped)
    assert bench.buffer.settled == 4
    bench.flushes.wait(ticket, timeout_s=60)
    assert bench.reports()[0]["dropped"] == dropped, "with those of its own batch"
    warning = ("tracejudge", logging.WARNING, "Trace dropped: too_large (4,194,402 bytes); trace id 1")
    total = ("tracejudge", logging.WARNING, "Traces dropped since the start, by reason: too_large 2, invalid 1")
    assert [record for record in caplog.record_tuples if record != warning] == [total]
    assert caplog.record_tuples[0] == warning


def test_reports_go_with_the_batches_every_10_s_and_each_hour_that_it_lives() -> None:
    """Each list: when something is published or a flush is requested, and when the sender steps."""
    for published_at, flushed_at, steps, expected in (
        ([0.0, 5.0, 10.0, 12.0, 20.0], [], [0.0, 5.0, 9.9, 10.0, 12.0, 20.0], [(10.0, 3), (20.0, 5)]),
        ([0.0], [0.0], [0.0, 60.0, 3599.0, 3600.0, 3660.0, 7199.0, 7200.0], [(0.0, 1), (3600.0, 1), (7200.0, 1)]),
        ([0.0], [1.0, 2.0], [0.0, 1.0, 2.0, 30.0], [(1.0, 1)]),
        # A report that entries came behind is said again: a cap may have cut it off before anybody read it.
        ([11.0, 12.0], [], [11.0, 12.0, 13.0, 22.0, 40.0], [(11.0, 1), (22.0, 2)]),
        ([], [], [0.0, 10.0, 3600.0], [(3600.0, 0)]),
    ):
        bench = Bench()
        reported = []
        for bench.now_s in steps:
            bench.put(*["a"] * (bench.now_s in published_at))
            if bench.now_s in flushed_at:
                bench.flushes.request(bench.buffer.accepted)
            before = len(bench.reports())
            bench.steps()
            reported += [(bench.now_s, each["published"]) for each in bench.reports()[before:]]
        assert reported == expected, steps
        assert [report["seq"] for report in bench.reports()] == list(range(1, len(expected) + 1))
    bench = Bench()
    bench.buffer.refuse(Kind.TRACE, Reason.INVALID)
    bench.now_s = 10.0
    bench.steps()
    report = {"producer": "p", "seq": 1, "service": "shop", "published": 1, "accepted": 0, "dropped": {"invalid": 1}}
    assert bench.reports() == [report], "drops without any trace to send"
    bench.put_many(500)
    bench.now_s = 21.0
    bench.steps()
    bench.put("later", "latest")
    bench.flushes.request(502)
    bench.steps()
    last = bench.stream.attempts[-1].entries[-1]
    assert json.loads(last.payload)["accepted"] == 502, "the report of a flush is behind all it waited for"


def test_trouble_is_logged_once_a_minute_and_its_end_too(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tracejudge")
    bench.stream.failures = [DeliveryError("ConnectionError: Connection refused")] * 3
    bench.put("secret words", "b")
    for now_s in (0.0, 30.0, 60.0, 61.0):
        bench.now_s = now_s
        bench.steps()
    trouble = "Publishing to Redis at redis://host:6379/0 failed (ConnectionError: Connection refused); 2 waiting"
    assert caplog.record_tuples == [
        ("tracejudge", logging.WARNING, trouble),
        ("tracejudge", logging.WARNING, trouble),
        ("tracejudge", logging.INFO, "Publishing to Redis at redis://host:6379/0 resumed"),
    ]


# --- latch, backoff, flush requests, reporter, throttled log ---------------------------------------------------------


def test_an_answer_counts_for_every_earlier_ticket_and_a_latch_ends_one_wait() -> None:
    flushes = Flushes()
    first, second, third = flushes.request(3), flushes.request(12), flushes.request(5)
    assert flushes.latest == Flush(third, target=12), "a later request for less keeps the target of the earlier"
    flushes.complete(second)
    flushes.wait(first, timeout_s=60)
    for timeout_s in (0, -1):
        flushes.wait(third, timeout_s)
    assert flushes.pending
    flushes.complete(third)
    flushes.complete(first)
    assert not flushes.pending
    wakeup = Wakeup()
    for _ in range(2):
        wakeup.open()
    assert (wakeup.wait(60), wakeup.wait(0), wakeup.wait(-1)) == (True, False, False)


def test_on_a_cluster_a_report_counts_drops_and_what_its_own_partition_got() -> None:
    """What is in the buffer has no partition yet, and other partitions account for what they got."""
    reporter = Reporter(producer="p", service="shop", now_s=0, is_cluster=True)
    totals = Totals(9, 8, {"buffer_full": 1})
    reports = [reporter.next_report(totals, 1, at_once=True)]
    place = place_of("p", None)
    for kind, number in ((Kind.TRACE, place), (Kind.TRACE, place + 8), (Kind.TRACE, place + 1), (Kind.FEEDBACK, place)):
        reporter.count_placed([Entry(kind, b"", number)], 8)
    reporter.mark_overtaken()
    reports.append(reporter.next_report(totals, 2, at_once=True))
    counts = [(each.published, each.accepted, each.dropped) for each in reports if each is not None]
    assert counts == [(1, 1, {"buffer_full": 1}), (3, 3, {"buffer_full": 1})]


def test_each_subject_is_taken_once_a_minute_and_only_so_many_at_a_time() -> None:
    now_s = 0.0
    once = Once(lambda: now_s, most=2)
    taken = []
    attempts = ((5.0, "a"), (6.0, "a"), (7.0, "b"), (8.0, "c"), (64.9, "a"), (65.0, "a"), (66.0, "c"), (126.0, "c"))
    for now_s, subject in attempts:
        assert once.is_due(subject) is once.is_due(subject), "asking begins nothing"
        taken += [(now_s, subject)] * once.take(subject)
    assert taken == [(5.0, "a"), (7.0, "b"), (65.0, "a"), (126.0, "c")]
