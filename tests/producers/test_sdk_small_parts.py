"""The small parts of the delivery: latch, backoff, flush requests, reports, throttled log."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracejudge.delivery.buffer import Entry, Flush, Flushes, Kind, Totals
from tracejudge.delivery.fork import Wakeup
from tracejudge.delivery.sender import Backoff, Reporter
from tracejudge.ids import place_of
from tracejudge.log import Once
from tracejudge.model import ProducerReport


def test_a_latch_opened_before_the_wait_ends_it_once() -> None:
    wakeup = Wakeup()
    wakeup.open()
    wakeup.open()
    assert wakeup.wait(60)
    assert not wakeup.wait(0)


def test_a_latch_opened_by_another_thread_ends_the_wait() -> None:
    wakeup = Wakeup()
    other = threading.Thread(target=wakeup.open)
    other.start()
    assert wakeup.wait(60)
    other.join()


def test_a_negative_timeout_is_none() -> None:
    assert not Wakeup().wait(-1)


def test_the_bound_of_the_delay_doubles_up_to_the_cap_and_starts_again() -> None:
    backoff = Backoff(draw=lambda _, bound: bound)
    delays = [backoff.next_delay_s() for _ in range(9)]
    assert delays == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    backoff.reset()
    assert backoff.next_delay_s() == 0.05


@given(st.integers(0, 200))
def test_delays_stay_within_the_cap(failures: int) -> None:
    backoff = Backoff()
    assert all(0 <= backoff.next_delay_s() <= 5 for _ in range(failures))


def test_an_answer_counts_for_every_earlier_ticket() -> None:
    flushes = Flushes()
    first, second, third = flushes.request(3), flushes.request(5), flushes.request(5)
    flushes.complete(second)
    flushes.wait(first, timeout_s=60)
    assert flushes.pending
    flushes.complete(third)
    flushes.complete(first)
    assert not flushes.pending


def test_a_later_request_for_less_keeps_the_target_of_the_earlier() -> None:
    flushes = Flushes()
    flushes.request(12)
    flushes.request(10)
    assert flushes.latest == Flush(ticket=2, target=12)


@pytest.mark.parametrize("timeout_s", [0, -1])
def test_a_wait_without_time_returns_at_once(timeout_s: float) -> None:
    flushes = Flushes()
    flushes.wait(flushes.request(1), timeout_s)
    assert flushes.pending


def report(seq: int, totals: Totals) -> ProducerReport:
    return ProducerReport("p", seq, "shop", totals.published, totals.accepted, totals.dropped)


def test_reports_come_when_something_changed_and_10_s_went_by() -> None:
    reporter = Reporter(producer="p", service="shop", now_s=100)
    one, two = Totals(1, 1, {}), Totals(2, 1, {"invalid": 1})
    assert reporter.next_report(one, 109.9, at_once=False) is None
    assert reporter.next_report(one, 110, at_once=False) == report(1, one)
    assert reporter.next_report(one, 130, at_once=False) is None, "nothing changed"
    assert reporter.next_report(two, 131, at_once=False) == report(2, two)


def test_a_flush_has_the_changes_reported_at_once() -> None:
    reporter = Reporter(producer="p", service="shop", now_s=100)
    totals = Totals(1, 1, {})
    assert reporter.needs_report(totals)
    assert reporter.next_report(totals, 100, at_once=True) == report(1, totals)
    assert not reporter.needs_report(totals)
    assert reporter.next_report(totals, 100, at_once=True) is None, "nothing changed"


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


def test_each_subject_is_taken_once_a_minute_and_only_so_many_at_a_time() -> None:
    now_s = 5.0
    once = Once(lambda: now_s, most=2)
    taken = []
    for now_s, subject in (
        (5.0, "a"),
        (6.0, "a"),
        (7.0, "b"),
        (8.0, "c"),
        (64.9, "a"),
        (65.0, "a"),
        (66.0, "c"),
        (126.0, "c"),
    ):
        assert once.is_due(subject) is once.is_due(subject), "asking begins nothing"
        if once.take(subject):
            taken.append((now_s, subject))
    assert taken == [(5.0, "a"), (7.0, "b"), (65.0, "a"), (126.0, "c")]


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
    counts = [(report.published, report.accepted, report.dropped) for report in reports if report is not None]
    assert counts == [(1, 1, {"buffer_full": 1}), (3, 3, {"buffer_full": 1})]
