"""Pauses and quotas: no call begins before the endpoint's time, and never is it waited for without end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judges.core.model import Quota, Window
from judges.endpoints.availability import RateLimitState


def make_rate_limits() -> RateLimitState:
    return RateLimitState(lambda _low, high: high)


def test_a_pause_is_as_long_as_was_asked_for() -> None:
    rate_limits = make_rate_limits()
    rate_limits.pause(7.0, 0, 1, 100.0)
    assert (rate_limits.is_paused, rate_limits.resumes_at) == (True, 107.0)
    rate_limits.resume()
    assert not rate_limits.is_paused


def test_a_pause_is_never_longer_than_an_hour() -> None:
    rate_limits = make_rate_limits()
    rate_limits.pause(1e9, 0, 1, 100.0)
    assert rate_limits.resumes_at == 3700.0


def test_a_pause_replaces_the_hold_after_a_single_refusal() -> None:
    rate_limits = make_rate_limits()
    rate_limits.record_answer()
    assert not rate_limits.record_refusal(20, 100.0)
    assert rate_limits.held_until(20) > 100.5
    rate_limits.pause(7.0, 0, 1, 100.5)
    assert rate_limits.held_until(20) == 0.0


def test_without_a_word_pauses_double_up_to_twenty_seconds() -> None:
    rate_limits, waits = make_rate_limits(), []
    for number in range(7):
        rate_limits.pause(None, number, number + 1, rate_limits.resumes_at)
        waits.append(rate_limits.resumes_at - sum(waits))
    assert waits == [1, 2, 4, 8, 16, 20, 20]


def test_of_many_turned_away_together_the_first_begins_the_pause() -> None:
    rate_limits = make_rate_limits()
    for number in range(100):
        rate_limits.pause(None, number, 100, 5.0)
    assert rate_limits.resumes_at == 6.0
    rate_limits.pause(30.0, 50, 100, 6.0)
    assert rate_limits.resumes_at == 36.0, "a later word may lengthen it"
    rate_limits.pause(1.0, 51, 100, 6.0)
    assert rate_limits.resumes_at == 36.0, "and not shorten it"


def test_moments_asked_for_again_and_again_become_longer() -> None:
    rate_limits, waits = make_rate_limits(), []
    for number in range(4):
        rate_limits.pause(0.0, number, number + 1, rate_limits.resumes_at)
        waits.append(rate_limits.resumes_at - sum(waits))
    assert waits == [0, 1, 2, 4]


@given(st.lists(st.none() | st.floats(0, 1e6), max_size=60))
def test_pauses_are_bounded(asked: list[float | None]) -> None:
    rate_limits, now = make_rate_limits(), 0.0
    for number, seconds in enumerate(asked):
        rate_limits.pause(seconds, number, number + 1, now)
        assert 0 <= rate_limits.resumes_at - now <= 3600 + 1e-6
        now = rate_limits.resumes_at


def test_calls_begun_since_the_reply_use_the_quota_up() -> None:
    rate_limits = make_rate_limits()
    rate_limits.record_quota(Quota(Window(3, 60.0), None), number=10, now=100.0, unix_now=0.0)
    assert [rate_limits.exhausted_until(begun, 100.0) for begun in (11, 12, 13, 14)] == [None, None, None, 160.0]
    assert rate_limits.exhausted_until(50, 160.0) is None, "the window is over"


def test_a_quota_of_an_earlier_call_does_not_replace_a_later_one() -> None:
    rate_limits = make_rate_limits()
    rate_limits.record_quota(Quota(Window(0, 60.0), None), 20, 100.0, 0.0)
    rate_limits.record_quota(Quota(Window(50, 60.0), None), 10, 100.0, 0.0)
    assert rate_limits.exhausted_until(21, 100.0) == 160.0
    rate_limits.record_quota(Quota(Window(50, 60.0), None), 21, 101.0, 0.0)
    assert rate_limits.exhausted_until(22, 101.0) is None


def test_tokens_are_counted_by_the_mean_of_a_call() -> None:
    rate_limits = make_rate_limits()
    rate_limits.record_usage(100)
    rate_limits.record_quota(Quota(None, Window(1000, 10.0)), 0, 0.0, 0.0)
    assert rate_limits.exhausted_until(10, 0.0) is None
    assert rate_limits.exhausted_until(11, 0.0) == 10.0


@pytest.mark.parametrize(("window", "until"), [(Window(0, 1e9), 3600), (Window(0, None, 1030.0), 30.0)])
def test_a_reset_is_a_time_or_a_length_and_at_most_an_hour(window: Window, until: float) -> None:
    rate_limits = make_rate_limits()
    rate_limits.record_quota(Quota(window, None), 0, 0.0, 1000.0)
    assert rate_limits.exhausted_until(1, 0.0) == until
