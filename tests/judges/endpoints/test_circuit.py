"""When an endpoint is left alone and for how long: the circuit, its log, pauses and quotas."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from limit_simulation import rejection
from structlog.testing import capture_logs

from judges.core.model import ModelError, ModelRejectedError, ModelTimeoutError, ModelUnavailableError, Quota, Window
from judges.endpoints.availability import Circuit, RateLimitState
from judges.endpoints.circuit_log import CircuitLog

AWAY = ModelUnavailableError("away")


def longest(_low: float, high: float) -> float:
    return high


def fail(circuit: Circuit, error: ModelError, first: int, last: int, older: int = 0, **fields: str) -> list[bool]:
    """Record failures of calls with these numbers, each the newest; return which of them opened the circuit."""
    numbers = range(first, last)
    return [circuit.record_failure(error, number, number + 1, older, 1.0, **fields) for number in numbers]


class TestCircuit:
    def test_a_refused_key_opens_it_at_once_unless_it_was_accepted_before(self) -> None:
        circuit = Circuit(longest)
        assert circuit.record_failure(rejection(), 0, 1, 0, 5.0)
        assert (circuit.is_open, circuit.opened_at, circuit.probe_at) == (True, 5.0, 6.0)
        for status in (401, 407):
            circuit = Circuit(longest)
            assert not circuit.record_failure(rejection(status), 2, 3, 2, 5.0), "two older calls may be answered"
            circuit.record_answer(3)
            assert fail(circuit, rejection(status), 4, 9) == [False] * 4 + [True], status

    def test_answers_to_calls_that_began_before_the_key_was_refused_change_nothing(self) -> None:
        circuit = Circuit(longest)
        circuit.record_answer(0)
        for number in range(50, 75):
            # Of fifty older calls one is answered between two refusals, as where a key is taken away under load.
            if circuit.record_failure(rejection(), number, number + 1, max(0, 98 - number), 5.0):
                break
            circuit.record_answer(number - 49)
        else:
            pytest.fail("it opens once there were as many refusals as older calls are left")

    def test_failures_and_refusals_by_chance_do_not_open_it(self) -> None:
        for error, share, older, seed in ((rejection(), 0.1, 30, 3), (AWAY, 0.3, 0, 7)):
            draw, circuit = random.Random(seed), Circuit(longest)
            for number in range(20_000):
                if draw.random() < share:
                    assert not circuit.record_failure(error, number, number + 1, older, 1.0)
                else:
                    circuit.record_answer(number)

    def test_ten_failures_in_a_row_open_it_or_as_many_as_calls_are_older(self) -> None:
        for error in (AWAY, ModelTimeoutError("slow")):
            circuit = Circuit(longest)
            assert fail(circuit, error, 0, 10) == [False] * 9 + [True]
            assert circuit.cause is error
        circuit = Circuit(longest)
        for first in range(0, 99, 9):
            assert not any(fail(circuit, AWAY, first, first + 9)), "an answer between begins the row anew"
            circuit.record_answer(first + 8)
        assert fail(Circuit(longest), AWAY, 0, 30, 30) == [False] * 29 + [True]

    def test_other_rejections_open_it_once_five_different_evaluations_were_refused(self) -> None:
        for status in (402, 403, 404, 405):
            circuit = Circuit(longest)
            assert not any(fail(circuit, rejection(status), 0, 100, evaluation="a")), "it says nothing of the others"
            assert not any(fail(circuit, rejection(status), 100, 101, evaluation=name)[0] for name in "bcd"), status
            circuit.record_answer(104)
            opened_by = [fail(circuit, rejection(status), 200, 201, evaluation=name)[0] for name in "abcde"]
            assert opened_by == [False] * 4 + [True], f"{status}: an answer between begins the row anew"
        circuit = Circuit(longest)
        opened_by = [
            fail(circuit, rejection(403), number, number + 1, 20, evaluation=str(number)) for number in range(20)
        ]
        assert opened_by == [[False]] * 19 + [[True]], "quick rejections wait for slower answers"

    def test_it_stays_open_twice_as_long_each_time_and_ignores_calls_from_before_it_closed(self) -> None:
        circuit, now, waits = Circuit(longest), 101.0, [1.0]
        assert [circuit.record_failure(AWAY, number, 10, 0, 100.0) for number in range(10)][-1]
        for _ in range(6):
            circuit.record_failed_probe(AWAY, 10, now)
            waits.append(circuit.probe_at - now)
        assert waits == [1, 2, 4, 8, 15, 15, 15]
        circuit.close(20)
        assert not circuit.is_open
        assert not any(circuit.record_failure(AWAY, number, 30, 0, 1.0) for number in range(29))
        assert circuit.record_failure(AWAY, 29, 30, 0, 1.0)
        circuit.close(40)
        circuit.record_failure(rejection(), 40, 41, 0, now)
        assert circuit.probe_at == now + 1, "after it was closed it begins anew"

    def test_intervals_differ_from_worker_to_worker(self) -> None:
        probe_times = set()
        for seed in range(50):
            circuit = Circuit(random.Random(seed).uniform)
            assert not circuit.record_failure(AWAY, 0, 1, 0, 0.0)
            circuit.record_failure(rejection(), 1, 2, 0, 0.0)
            probe_times.add(circuit.probe_at)
        assert len(probe_times) == 50
        assert all(0.75 <= at <= 1 for at in probe_times)


class TestLog:
    def test_the_log_names_model_reason_and_duration_of_an_open_circuit(self) -> None:
        with capture_logs() as lines:
            events = CircuitLog("gpt")
            events.circuit_opened(ModelRejectedError("HTTP 401"), 0.96)
            events.calls_delayed(ModelRejectedError("HTTP 401"), 2.0)
            events.circuit_closed(12.34)
        cause = {"reason": "judge_rejected", "note": "HTTP 401"}
        assert lines == [
            {"event": "circuit opened", "log_level": "warning", "judge_model": "gpt", **cause, "seconds": 1.0},
            {"event": "circuit closed", "log_level": "info", "judge_model": "gpt", "seconds": 12.3},
        ]

    def test_an_endpoint_error_is_logged_once_a_minute_for_each_reason(self) -> None:
        now, error, other = 0.0, rejection(403), ModelUnavailableError("the endpoint fails: HTTP 425")
        error.message, other.status = "You may not.", 425
        with capture_logs() as lines:
            events = CircuitLog("gpt", lambda: now)
            for now in (0.0, 1.0, 59.0, 61.0):  # noqa: B007 - read by the clock
                events.endpoint_error(error)
                events.endpoint_error(other)
        line = {"event": "endpoint error", "log_level": "warning", "judge_model": "gpt"}
        expected = [
            line | {"reason": each.reason, "note": str(each), "status": each.status, "said": each.message}
            for each in (error, other)
        ]
        assert lines == expected * 2


def pauses(*asked: float | None) -> list[float]:
    """Return how long each pause is, where each begins at the end of the last."""
    limits, waits = RateLimitState(longest), []
    for number, seconds in enumerate(asked):
        limits.pause(seconds, number, number + 1, limits.resumes_at)
        waits.append(limits.resumes_at - sum(waits))
    return waits


class TestRateLimits:
    def test_pauses_are_as_long_as_was_asked_for_up_to_an_hour_and_double_without_a_word(self) -> None:
        limits = RateLimitState(longest)
        limits.pause(7.0, 0, 1, 100.0)
        assert (limits.is_paused, limits.resumes_at) == (True, 107.0)
        limits.resume()
        assert not limits.is_paused
        limits.pause(1e9, 0, 1, 100.0)
        assert limits.resumes_at == 3700.0
        assert pauses(*[None] * 7) == [1, 2, 4, 8, 16, 20, 20]
        assert pauses(*[0.0] * 4) == [0, 1, 2, 4], "moments asked for again and again become longer"

    def test_a_pause_replaces_the_hold_after_a_single_refusal(self) -> None:
        limits = RateLimitState(longest)
        limits.record_answer()
        assert not limits.record_refusal(20, 100.0)
        assert limits.held_until(20) > 100.5
        limits.pause(7.0, 0, 1, 100.5)
        assert limits.held_until(20) == 0.0

    def test_of_many_turned_away_together_the_first_begins_the_pause(self) -> None:
        limits = RateLimitState(longest)
        for number in range(100):
            limits.pause(None, number, 100, 5.0)
        assert limits.resumes_at == 6.0
        limits.pause(30.0, 50, 100, 6.0)
        assert limits.resumes_at == 36.0, "a later word may lengthen it"
        limits.pause(1.0, 51, 100, 6.0)
        assert limits.resumes_at == 36.0, "and not shorten it"

    @given(st.lists(st.none() | st.floats(0, 1e6), max_size=60))
    def test_pauses_are_bounded(self, asked: list[float | None]) -> None:
        limits, now = RateLimitState(longest), 0.0
        for number, seconds in enumerate(asked):
            limits.pause(seconds, number, number + 1, now)
            assert 0 <= limits.resumes_at - now <= 3600 + 1e-6
            now = limits.resumes_at

    def test_a_quota_is_used_up_by_calls_since_its_reply_until_its_window_ends(self) -> None:
        limits = RateLimitState(longest)
        limits.record_quota(Quota(Window(3, 60.0), None), number=10, now=100.0, unix_now=0.0)
        assert [limits.exhausted_until(begun, 100.0) for begun in (11, 12, 13, 14)] == [None, None, None, 160.0]
        assert limits.exhausted_until(50, 160.0) is None, "the window is over"
        later = RateLimitState(longest)
        for window, number, at in ((Window(0, 60.0), 20, 100.0), (Window(50, 60.0), 10, 100.0)):
            later.record_quota(Quota(window, None), number, at, 0.0)
        assert later.exhausted_until(21, 100.0) == 160.0, "that of an earlier call does not replace a later one"
        later.record_quota(Quota(Window(50, 60.0), None), 21, 101.0, 0.0)
        assert later.exhausted_until(22, 101.0) is None
        tokens = RateLimitState(longest)
        tokens.record_usage(100)
        tokens.record_quota(Quota(None, Window(1000, 10.0)), 0, 0.0, 0.0)
        assert tokens.exhausted_until(10, 0.0) is None
        assert tokens.exhausted_until(11, 0.0) == 10.0, "tokens are counted by the mean of a call"
        assert tokens.exhausted_until(11, 10.0) is None, "the window is over"
        for window, until in ((Window(0, 1e9), 3600), (Window(0, None, 1030.0), 30.0)):
            limits = RateLimitState(longest)
            limits.record_quota(Quota(window, None), 0, 0.0, 1000.0)
            assert limits.exhausted_until(1, 0.0) == until
