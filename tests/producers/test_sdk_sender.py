"""Delivery without Redis: the sender stepped by hand and its small parts, the buffer before it, sizes, and entries."""

import json
import logging
import random
import signal
import threading
from collections import deque
from collections.abc import Callable
from sys import getsizeof
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lookalikes import table
from msgspec import structs
from msgspec.structs import replace
from sdk_rig import SETTINGS

from tracejudge.delivery.buffer import (
    MAX_ITEMS,
    Batch,
    Buffer,
    Entry,
    Flush,
    Flushes,
    Item,
    Kind,
    Reason,
    Totals,
    copy_collections,
    weigh,
)
from tracejudge.delivery.encoding import MAX_ENTRY_BYTES, ItemEncoder
from tracejudge.delivery.fork import Wakeup
from tracejudge.delivery.sender import Backoff, BatchBuilder, Reporter, Sender
from tracejudge.ids import place_of
from tracejudge.log import DeliveryError, Once
from tracejudge.model import Document, Message, ProducerReport
from tracejudge.settings import Drop

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

    def outputs(self) -> list[list[str]]:
        traces = [[each for each in batch.entries if each.kind is Kind.TRACE] for batch in self.stream.attempts]
        return [[json.loads(entry.payload)["output"] for entry in entries] for entries in traces]

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


def test_queued_items_are_sent_as_one_numbered_batch_with_feedback_in_order(bench: Bench) -> None:
    bench.put("a", "b")
    bench.steps()
    bench.put("c")
    bench.buffer.put(Item(Kind.FEEDBACK, {"trace_id": "1", "score": 1}, 1))
    bench.steps()
    assert bench.numbers() == [1, 2]
    assert bench.outputs() == [["a", "b"], ["c"]]
    assert bench.buffer.settled == 4
    assert [entry.kind for entry in bench.stream.attempts[1].entries] == [Kind.TRACE, Kind.FEEDBACK]


def test_a_batch_holds_at_most_500_entries_and_about_2_mib(bench: Bench) -> None:
    bench.put_many(501)
    bench.steps(2)
    assert bench.sizes() == [500, 1]
    bench.put("a", "b", "c", size_bytes=1_200_000)
    bench.steps(2)
    assert bench.outputs()[2:] == [["a", "b"], ["c"]]


def test_an_unconfirmed_batch_goes_again_under_its_number_and_before_any_other(bench: Bench) -> None:
    bench.stream.failures = [GONE, GONE]
    bench.put("a")
    bench.steps()
    bench.put("b")
    bench.steps(2)
    first, second, third = bench.stream.attempts
    assert first is second is third
    assert (first.number, bench.buffer.settled) == (1, 1)
    bench.steps()
    assert (bench.numbers()[3], bench.outputs()[3]) == (2, ["b"])


def test_failures_space_the_attempts_out_up_to_a_cap_and_a_flush_makes_the_delays_short_again(bench: Bench) -> None:
    bench.stream.failures = [GONE] * 11
    bench.put("a")
    bench.awake()
    bench.steps(9)
    assert bench.wakeup.waits == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    bench.wakeup.open()
    bench.steps(2)
    assert bench.wakeup.waits[9:] == [5.0, 0.05]


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
    bench.stream.during = lambda: bench.put_many(100)
    bench.put("a")
    bench.awake()
    bench.steps()
    assert (bench.buffer.queued, bench.buffer.settled, bench.buffer.taken) == (0, 1, 101)
    assert bench.wakeup.waits == []
    bench.stream.during = lambda: None
    bench.put("z")
    bench.steps()
    assert bench.outputs()[1] == [*map(str, range(100)), "z"]
    assert bench.buffer.settled == 102
    bench.stream.during = lambda: bench.put_many(99)
    bench.put("a")
    bench.steps()
    assert bench.buffer.queued == 99, "few items wait for others"
    bench = Bench()
    bench.stream.during = lambda: bench.put(*["p"] * 100, size_bytes=15_001)
    bench.put("a")
    bench.steps()
    bench.stream.during = lambda: None
    bench.put("x", "y", "z", size_bytes=1_200_001)
    bench.steps()
    assert bench.sizes() == [1, 101], "what is prepared counts towards the bytes of its batch"


def test_what_is_prepared_survives_an_outage(bench: Bench) -> None:
    bench.stream.failures = [GONE] * 2
    bench.stream.during = lambda: bench.put_many(100)
    bench.put("a")
    bench.steps(2)
    bench.stream.during = lambda: None
    ticket = bench.flushes.request(bench.buffer.accepted)
    bench.steps(2)
    assert bench.numbers() == [1, 1, 1, 2]
    assert bench.outputs()[3] == [*map(str, range(100))] * 2
    bench.flushes.wait(ticket, timeout_s=60)
    assert bench.buffer.settled == 201


def test_publishers_get_their_turn_between_pieces_of_a_batch_unless_the_buffer_fills(bench: Bench) -> None:
    bench.put_many(48)
    bench.steps()
    assert len(bench.turns) == 1, "nobody published after the first piece"
    bench.put_many(5_001)
    bench.steps()
    assert len(bench.turns) == 1


def test_with_nothing_to_send_it_sleeps_until_an_item_or_a_report_and_answers_a_flush(bench: Bench) -> None:
    bench.steps()
    assert bench.wakeup.waits == [10.0]
    bench.flushes.request(0)
    bench.steps()
    assert not bench.flushes.pending
    assert bench.stream.attempts == []
    bench.put("a")
    assert bench.wakeup.wait(0)


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


def test_reports_go_with_the_batches_every_10_s_and_each_hour_that_it_lives(bench: Bench) -> None:
    for now_s in (0.0, 5.0, 10.0, 12.0, 20.0):
        bench.now_s = now_s
        bench.put("a")
        bench.steps()
    assert [(report["seq"], report["published"], report["accepted"]) for report in bench.reports()] == [
        *((1, 3, 3), (2, 5, 5))
    ]
    assert bench.sizes() == [1, 1, 2, 1, 2]
    bench = Bench()
    bench.put("a")
    bench.flushes.request(1)
    for now_s in (0.0, 60.0, 3599.0, 3600.0, 3660.0, 7199.0, 7200.0):
        bench.now_s = now_s
        bench.steps()
    assert [(report["seq"], report["published"]) for report in bench.reports()] == [(1, 1), (2, 1), (3, 1)]
    assert bench.sizes() == [2, 1, 1]
    bench = Bench()
    bench.buffer.refuse(Kind.TRACE, Reason.INVALID)
    bench.now_s = 10.0
    bench.steps()
    report = {"producer": "p", "seq": 1, "service": "shop", "published": 1, "accepted": 0, "dropped": {"invalid": 1}}
    assert bench.reports() == [report], "drops without any trace to send"


def test_a_flush_is_reported_by_the_batch_that_completes_it(bench: Bench) -> None:
    bench.put_many(501)
    bench.flushes.request(501)
    bench.put("later")
    bench.steps()
    assert bench.flushes.pending
    assert bench.reports() == []
    bench.steps()
    assert not bench.flushes.pending
    assert [report["accepted"] for report in bench.reports()] == [502]
    # One that was due stands before: the report of a flush stands behind all it waited for.
    bench = Bench()
    bench.put_many(500)
    bench.now_s = 11.0
    bench.steps()
    assert len(bench.reports()) == 1
    bench.put("later", "latest")
    bench.flushes.request(502)
    bench.steps()
    assert bench.stream.attempts[-1].entries[-1].kind is Kind.REPORT
    assert bench.reports()[-1]["accepted"] == 502


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


def test_a_latch_opened_before_the_wait_or_by_another_thread_ends_it_once() -> None:
    wakeup = Wakeup()
    wakeup.open()
    wakeup.open()
    assert wakeup.wait(60)
    assert not wakeup.wait(0)
    other = threading.Thread(target=wakeup.open)
    other.start()
    assert wakeup.wait(60)
    other.join()
    assert not wakeup.wait(-1)


@given(st.integers(0, 200))
def test_delays_stay_within_the_cap(failures: int) -> None:
    backoff = Backoff()
    assert all(0 <= backoff.next_delay_s() <= 5 for _ in range(failures))


def test_an_answer_counts_for_every_earlier_ticket() -> None:
    flushes = Flushes()
    first, second, third = flushes.request(3), flushes.request(5), flushes.request(5)
    flushes.complete(second)
    flushes.wait(first, timeout_s=60)
    for timeout_s in (0, -1):
        flushes.wait(third, timeout_s)
    assert flushes.pending
    flushes.complete(third)
    flushes.complete(first)
    assert not flushes.pending
    flushes = Flushes()
    flushes.request(12)
    flushes.request(10)
    assert flushes.latest == Flush(ticket=2, target=12), "a later request for less keeps the target of the earlier"


def report(seq: int, totals: Totals) -> ProducerReport:
    return ProducerReport("p", seq, "shop", totals.published, totals.accepted, totals.dropped)


def test_reports_come_when_something_changed_and_10_s_went_by_or_a_flush_asks() -> None:
    reporter = Reporter(producer="p", service="shop", now_s=100)
    one, two = Totals(1, 1, {}), Totals(2, 1, {"invalid": 1})
    assert reporter.next_report(one, 109.9, at_once=False) is None
    assert reporter.next_report(one, 110, at_once=False) == report(1, one)
    assert reporter.next_report(one, 130, at_once=False) is None, "nothing changed"
    assert reporter.next_report(two, 131, at_once=False) == report(2, two)
    reporter = Reporter(producer="p", service="shop", now_s=100)
    assert reporter.needs_report(one)
    assert reporter.next_report(one, 100, at_once=True) == report(1, one)
    assert not reporter.needs_report(one)
    assert reporter.next_report(one, 100, at_once=True) is None, "nothing changed"


def test_a_report_that_entries_came_behind_is_said_again() -> None:
    """A cap may have cut it off before anybody read it."""
    reporter = Reporter(producer="p", service="shop", now_s=100)
    totals = Totals(1, 1, {})
    assert reporter.next_report(totals, 110, at_once=False) == report(1, totals)
    reporter.mark_overtaken()
    assert reporter.needs_report(totals)
    assert reporter.next_report(totals, 115, at_once=False) is None, "without haste not too often"
    assert reporter.next_report(totals, 120, at_once=False) == report(2, totals)
    assert reporter.next_report(totals, 140, at_once=False) is None, "nothing came behind it"


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
    now_s = 5.0
    once = Once(lambda: now_s, most=2)
    taken = []
    attempts = ((5.0, "a"), (6.0, "a"), (7.0, "b"), (8.0, "c"), (64.9, "a"), (65.0, "a"), (66.0, "c"), (126.0, "c"))
    for now_s, subject in attempts:
        assert once.is_due(subject) is once.is_due(subject), "asking begins nothing"
        if once.take(subject):
            taken.append((now_s, subject))
    assert taken == [(5.0, "a"), (7.0, "b"), (65.0, "a"), (126.0, "c")]


# --- the buffer: its counts and bounds ---
def item(size_bytes: int = 1, kind: Kind = Kind.TRACE) -> Item:
    return Item(kind, {"output": ""}, size_bytes)


def batch(items: list[Item], buffer: Buffer) -> Batch:
    entries = tuple(Entry(item.kind, b"{}") for item in items)
    size_bytes, through = sum(item.size_bytes for item in items), buffer.settles_through
    return Batch(1, entries, items=len(items), size_bytes=size_bytes, settles_through=through, flush_ticket=0)


class Filled(Buffer):
    """A buffer with items of these weights, which counts how often it woke the sender."""

    def __init__(self, *weights: int, max_items: int = 100, max_bytes: int = 1000, drop: Drop = "newest") -> None:
        self.wakes = 0
        super().__init__(max_items=max_items, max_bytes=max_bytes, wake=self._count, drop=drop)
        self.items = [item(weight) for weight in weights]
        for each in self.items:
            self.put(each)

    def _count(self) -> None:
        self.wakes += 1

    def take_all(self) -> list[Item]:
        return self.take(max_items=10**9, max_bytes=10**12)


def test_items_come_out_in_order_and_a_batch_ends_with_the_item_that_passes_its_bytes() -> None:
    buffer = Filled(1, 2, 3)
    assert buffer.take(max_items=2, max_bytes=1000) == buffer.items[:2]
    assert buffer.take(max_items=2, max_bytes=1000) == buffer.items[2:]
    assert buffer.take(max_items=2, max_bytes=1000) == []
    buffer = Filled(60, 60, 60)
    assert buffer.take(max_items=10, max_bytes=100) == buffer.items[:2]


def test_what_is_over_a_cap_is_dropped_until_a_batch_is_confirmed() -> None:
    buffer = Filled(1, 1, 1, max_items=2)
    taken = buffer.take_all()
    buffer.put(item())
    assert buffer.totals() == Totals(published=4, accepted=2, dropped={"buffer_full": 2})
    buffer.settle(batch(taken, buffer))
    buffer.put(item())
    assert buffer.totals() == Totals(published=5, accepted=3, dropped={"buffer_full": 2})
    buffer = Filled(60, 41, 40, max_bytes=100)
    taken = buffer.take_all()
    buffer.put(item(1))
    assert buffer.totals() == Totals(published=4, accepted=2, dropped={"buffer_bytes": 2})
    buffer.settle(batch(taken, buffer))
    buffer.put(item(100))
    assert buffer.totals() == Totals(published=5, accepted=3, dropped={"buffer_bytes": 2})


def test_only_the_item_the_sender_waits_for_wakes_it() -> None:
    buffer = Filled(1, 1)
    assert buffer.wakes == 1, "the first ever starts the thread"
    assert not buffer.wake_after(2), "so many are here"
    assert buffer.wake_after(4)
    for wakes in (1, 2, 2):
        buffer.put(item())
        assert buffer.wakes == wakes
    buffer.wake_on_next_item()
    buffer.put(item())
    assert buffer.wakes == 3


def test_feedback_is_counted_separately_and_a_closed_buffer_refuses() -> None:
    buffer = Filled(1)
    buffer.put(item(kind=Kind.FEEDBACK))
    buffer.refuse(Kind.FEEDBACK, Reason.INVALID)
    assert buffer.totals() == Totals(published=1, accepted=1, dropped={})
    assert buffer.totals(Kind.FEEDBACK) == Totals(published=2, accepted=1, dropped={"invalid": 1})
    buffer = Filled()
    assert buffer.close()
    assert not buffer.close()
    buffer.put(item())
    buffer.refuse(Kind.TRACE, Reason.INVALID)
    assert buffer.totals() == Totals(published=2, accepted=0, dropped={"shutdown": 2})


def test_what_is_neither_confirmed_nor_dropped_is_abandoned_once() -> None:
    buffer = Filled(1, 1, 1, 1, 1)
    confirmed = batch(buffer.take(max_items=2, max_bytes=1000), buffer)
    buffer.drop(Kind.TRACE, Reason.TOO_LARGE)
    buffer.abandon_queued()
    assert buffer.totals().dropped == {"too_large": 1, "abandoned": 3}
    assert buffer.abandon_all() == 4
    buffer.settle(confirmed)
    buffer.drop(Kind.TRACE, Reason.INVALID)
    assert buffer.abandon_all() == 4
    assert buffer.totals() == Totals(published=5, accepted=5, dropped={"too_large": 1, "abandoned": 4})


class InterruptionError(Exception):
    """What the signal handler of a host raises."""


def test_what_a_signal_handler_raises_anywhere_loses_no_item_and_leaves_the_lock_free() -> None:
    def interrupt(*_: object) -> NoReturn:
        raise InterruptionError

    buffer = Filled()
    with buffer._lock:  # held where a signal handler or a finalizer publishes
        buffer.put(item())
    assert buffer.totals().accepted == 1
    buffer = Filled(max_items=10**9, max_bytes=10**12)
    begun = returned = raised = 0
    former = signal.signal(signal.SIGALRM, interrupt)
    try:
        while raised < 300:
            begun += 1
            try:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 1e-4))
                for _ in range(200):
                    buffer.put(Item(Kind.TRACE, {"output": ["a", 1]}))
                    returned += 1
            except InterruptionError:
                raised += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
    thread = threading.Thread(target=buffer.put, args=(item(),), daemon=True)
    thread.start()
    thread.join(10)
    assert returned < buffer.accepted <= returned + raised + 1
    assert buffer.totals() == (buffer.accepted, buffer.accepted, {})
    assert buffer.queued == buffer.accepted == len(buffer.take_all())


def test_the_oldest_make_room_for_the_newest_unless_they_are_on_the_wire_or_it_never_fits() -> None:
    buffer = Filled(10, 20, 30, 40, 60, max_items=3, max_bytes=100, drop="oldest")
    assert buffer.take_all() == buffer.items[3:]
    assert buffer.totals() == Totals(published=5, accepted=5, dropped={"buffer_full": 2, "buffer_bytes": 1})
    buffer = Filled(1, 1, max_items=2, drop="oldest")
    assert buffer.take_all() == buffer.items
    buffer.put(item())
    assert buffer.totals() == Totals(published=3, accepted=2, dropped={"buffer_full": 1})
    buffer = Filled(50, 101, max_bytes=100, drop="oldest")
    assert buffer.queued == 1
    assert buffer.totals() == Totals(published=2, accepted=1, dropped={"buffer_bytes": 1})


def test_an_item_that_made_room_settles_no_other() -> None:
    """Else a flush would call confirmed what is still on the wire."""
    buffer = Filled(1, 1, max_items=4, drop="oldest")
    first = batch(buffer.take(max_items=2, max_bytes=1000), buffer)
    for _ in range(3):
        buffer.put(item())
    second = batch(buffer.take(max_items=1, max_bytes=1000), buffer)
    buffer.settle(first)
    assert (buffer.accepted, buffer.settled) == (5, 2)
    buffer.settle(second)
    assert buffer.settled == 4


STEPS = st.tuples(st.sampled_from(["put", "take", "settle", "refuse", "close"]), st.integers(1, 60))


@given(st.lists(STEPS), st.sampled_from(["newest", "oldest"]))
def test_every_publication_is_delivered_dropped_or_held(steps: list[tuple[str, int]], drop: Drop) -> None:
    buffer = Filled(max_items=3, max_bytes=100, drop=drop)
    taken: list[Item] = []
    delivered = 0
    for step, number in steps:
        if step == "put":
            buffer.put(item(number))
        elif step == "take":
            taken += buffer.take(max_items=number, max_bytes=50)
        elif step == "settle":
            buffer.settle(batch(taken, buffer))
            delivered, taken = delivered + len(taken), []
        elif step == "refuse":
            buffer.refuse(Kind.TRACE, Reason.INVALID)
        elif number > 55:
            buffer.close()
        totals = buffer.totals()
        held = len(taken) + buffer.queued
        assert totals.published == delivered + sum(totals.dropped.values()) + held
        assert held <= 3
        assert buffer._held_bytes <= 100  # what bounds the memory, and no figure outside
        assert buffer._held_items == held
        assert buffer.settled <= buffer.accepted - held
        assert buffer.taken == buffer.accepted - buffer.queued


# --- sizes -----------------------------------------------------------------------------------------------------------

TEXT = "a" * 10_000


def test_text_counts_wherever_it_is_also_in_the_parts_of_a_long_list() -> None:
    rows = [{"result": {"rows": [{"cell": TEXT}]}}]
    for value in (TEXT, [TEXT], [{"text": TEXT}], [Document(text=TEXT)], {"key": TEXT}, (TEXT,), rows):
        assert 10_000 < weigh({"field": value}) < 12_500, type(value)
    assert weigh({"field": "\U0001f600" * 1_000}) > 4_000, "wide characters count with what they take"
    assert weigh({}) == 600, "a publication without content has a size"
    messages = [Message(role="user", content="word " * 100) for _ in range(MAX_ITEMS)]
    exact = sum(getsizeof(message.content) for message in messages)
    assert exact * 0.5 < weigh({"messages": messages}) < exact * 2
    words = ["word " * 20 for _ in range(20_000)]
    exact = sum(map(getsizeof, words))
    assert exact * 0.5 < weigh({"metadata": {"rows": words}}) < exact * 2
    assert 8_000_000 < weigh({"metadata": {"rows": [1] * 1_000_000}}) < 60_000_000
    small: list[Any] = [{"text": ""} for _ in range(1_500)]
    assert weigh({"context": [*small, TEXT * 10]}) > 100_000
    assert weigh({"context": [TEXT * 10, *small]}) > 100_000


def test_of_a_very_long_collection_only_what_a_trace_holds_is_copied() -> None:
    numbers = list(range(1_000_000))
    for value in (numbers, tuple(numbers), deque(numbers), set(numbers), dict.fromkeys(numbers).keys()):
        fields = {"context": value}
        copy_collections(fields)
        assert weigh(fields) < 200_000
        kept: Any = fields["context"]
        assert [*kept[:1_000], kept[1_000][:4]] == [*range(1_000), "[..."]
        assert type(value) is not list or kept[1_001:] == numbers[-1_000:]
    fields = {"tags": dict.fromkeys(map(str, numbers), "a")}
    copy_collections(fields)
    assert list(fields["tags"].items())[-2:] == [("499", "a"), ("...", "[... 999,500 values cut]")]


def test_lists_and_dicts_are_copied_and_what_is_in_them_is_not() -> None:
    inner = {"text": TEXT}
    given_fields = {"context": [inner], "tags": {"a": inner}, "output": TEXT}
    fields = dict(given_fields)
    copy_collections(fields)
    assert fields == given_fields
    assert fields["context"] is not given_fields["context"]
    assert fields["tags"] is not given_fields["tags"]
    assert fields["context"][0] is inner
    assert fields["tags"]["a"] is inner


# --- encoding --------------------------------------------------------------------------------------------------------

# Nothing is cut, so that what is too large can be seen.
ENCODING = structs.replace(SETTINGS, max_field_bytes=10**8, max_trace_bytes=10**8)
IDS = {"trace_id": "1", "id": "2", "span_id": "3", "started_at": 1_700_000_004}


def encoded(fields: dict[str, Any], encoder: ItemEncoder | None = None, published_at_s: float = 0.0) -> Any:
    encoder = encoder or ItemEncoder(ENCODING)
    entry = encoder.encode(Item(Kind.TRACE, {"output": "", **fields}, 1, published_at_s=published_at_s, trace_id="1"))
    assert isinstance(entry, Entry), (entry, fields)
    assert entry.kind is Kind.TRACE
    return json.loads(entry.payload)


def test_what_json_cannot_hold_does_not_cost_the_trace() -> None:
    recursive: list[Any] = []
    recursive.append([recursive])
    for value in (object(), "\ud800", recursive, {object(): "a"}, [["\ud800"]], {"a": {1, 2}}):
        for name in ("tags", "context", "messages", "input", "tool_calls", "spans", "usage", "guidelines"):
            assert encoded({**IDS, name: value})["trace_id"] == "1", (name, value)


def test_the_largest_entry_is_4_mib() -> None:
    encode = ItemEncoder(ENCODING).encode
    shell = len(encode(Item(Kind.TRACE, {**IDS, "output": ""}, 1)).payload)  # type: ignore[union-attr]
    fits = encode(Item(Kind.TRACE, {**IDS, "output": "x" * (MAX_ENTRY_BYTES - shell)}, 1))
    assert isinstance(fits, Entry)
    assert len(fits.payload) == 4 * 1024 * 1024
    too_large = {**IDS, "output": "x" * (MAX_ENTRY_BYTES - shell + 1)}
    assert encode(Item(Kind.TRACE, too_large, 1)) is Reason.TOO_LARGE


def test_results_of_named_tools_become_the_context() -> None:
    naming = ItemEncoder(structs.replace(ENCODING, context_tools=("kb_search",)))
    for name, body, context in table("tool_contexts"):
        assert encoded(body, naming).get("context") == context, name
        assert encoded(body).get("context") == body.get("context"), name
