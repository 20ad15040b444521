"""The circuit: when an endpoint is left alone, for how long, and how it is found that it is back."""

import random

import pytest

from judges.core.model import ModelError, ModelRejectedError, ModelTimeoutError, ModelUnavailableError
from judges.endpoints.availability import Circuit

AWAY = ModelUnavailableError("away")


def make_circuit() -> Circuit:
    """Make a circuit with the longest possible intervals."""
    return Circuit(lambda _low, high: high)


def rejection(status: int = 401) -> ModelRejectedError:
    error = ModelRejectedError("no")
    error.status = status
    return error


def opened(error: ModelError = AWAY) -> Circuit:
    circuit = make_circuit()
    for number in range(10):
        circuit.record_failure(error, number, 10, 0, 100.0)
    assert circuit.is_open
    return circuit


def test_a_refused_key_opens_it_at_once() -> None:
    circuit = make_circuit()
    assert circuit.record_failure(rejection(), 0, 1, 0, 5.0)
    assert (circuit.is_open, circuit.opened_at, circuit.probe_at) == (True, 5.0, 6.0)


def test_a_key_that_was_accepted_is_refused_for_all_before_it_opens() -> None:
    for status in (401, 407):
        circuit = make_circuit()
        assert not circuit.record_failure(rejection(status), 2, 3, 2, 5.0), "two older calls may be answered"
        circuit.record_answer(3)
        alone = [circuit.record_failure(rejection(status), number, number + 1, 0, 5.0) for number in range(4, 9)]
        assert alone == [False] * 4 + [True], status


def test_answers_to_calls_that_began_before_the_key_was_refused_change_nothing() -> None:
    circuit = make_circuit()
    circuit.record_answer(0)
    opened_at = None
    for number in range(50, 150):
        # Of fifty older calls one is answered between two refusals, as where a key is taken away under load.
        if circuit.record_failure(rejection(), number, number + 1, max(0, 98 - number), 5.0):
            opened_at = number
            break
        circuit.record_answer(number - 49)
    assert opened_at is not None
    assert opened_at - 50 < 25, "as many refusals as older calls are left"


def test_a_key_that_is_refused_now_and_then_does_not_open_it() -> None:
    draw, circuit = random.Random(3), make_circuit()
    for number in range(20_000):
        if draw.random() < 0.1:
            assert not circuit.record_failure(rejection(), number, number + 1, 30, 1.0)
        else:
            circuit.record_answer(number)


@pytest.mark.parametrize("error", [AWAY, ModelTimeoutError("slow")])
def test_ten_failures_in_a_row_open_it(error: ModelError) -> None:
    circuit = make_circuit()
    assert [circuit.record_failure(error, number, number + 1, 0, 1.0) for number in range(10)] == [False] * 9 + [True]
    assert circuit.cause is error


def test_an_answer_between_begins_the_row_anew() -> None:
    circuit = make_circuit()
    for number in range(100):
        assert not circuit.record_failure(AWAY, number, number + 1, 0, 1.0)
        if number % 9 == 8:
            circuit.record_answer(number)


def test_quick_failures_wait_for_slower_answers() -> None:
    circuit = make_circuit()
    assert not any(circuit.record_failure(AWAY, number, number + 1, 30, 1.0) for number in range(29))
    assert circuit.record_failure(AWAY, 29, 30, 30, 1.0)


def test_it_stays_open_twice_as_long_each_time_up_to_a_bound() -> None:
    circuit, now, waits = opened(), 101.0, [1.0]
    for _ in range(6):
        circuit.record_failed_probe(AWAY, 10, now)
        waits.append(circuit.probe_at - now)
    assert waits == [1, 2, 4, 8, 15, 15, 15]
    circuit.close(20)
    assert not circuit.is_open
    circuit.record_failure(rejection(), 20, 21, 0, now)
    assert circuit.probe_at == now + 1, "after it was closed it begins anew"


def test_calls_begun_before_a_change_of_the_circuit_are_ignored() -> None:
    circuit = opened()
    circuit.close(20)
    assert not any(circuit.record_failure(AWAY, number, 30, 0, 1.0) for number in range(20))
    assert not any(circuit.record_failure(AWAY, number, 30, 0, 1.0) for number in range(20, 29))
    assert circuit.record_failure(AWAY, 29, 30, 0, 1.0)


def test_intervals_differ_from_worker_to_worker() -> None:
    ends = {Circuit(random.Random(seed).uniform).record_failure(AWAY, 0, 1, 0, 0.0) for seed in range(3)}
    assert ends == {False}
    probe_times = set()
    for seed in range(50):
        circuit = Circuit(random.Random(seed).uniform)
        circuit.record_failure(rejection(), 0, 1, 0, 0.0)
        probe_times.add(circuit.probe_at)
    assert len(probe_times) == 50
    assert all(0.75 <= at <= 1 for at in probe_times)


def test_failures_by_chance_practically_never_open_it() -> None:
    draw, circuit = random.Random(7), make_circuit()
    for number in range(20_000):
        if draw.random() < 0.3:
            circuit.record_failure(AWAY, number, number + 1, 0, 0.0)
        else:
            circuit.record_answer(number)
    assert not circuit.is_open


def test_other_rejections_open_it_once_five_different_evaluations_were_refused() -> None:
    for status in (402, 403, 404, 405):
        circuit = make_circuit()
        alone = [
            circuit.record_failure(rejection(status), number, number + 1, 0, 1.0, evaluation="a")
            for number in range(100)
        ]
        assert not any(alone), f"{status}: a request that is always refused says nothing of the others"
        others = [circuit.record_failure(rejection(status), 100, 101, 0, 1.0, evaluation=name) for name in "bcd"]
        assert not any(others), status
        circuit.record_answer(104)
        opened_by = [circuit.record_failure(rejection(status), 200, 201, 0, 1.0, evaluation=name) for name in "abcde"]
        assert opened_by == [False] * 4 + [True], f"{status}: an answer between begins the row anew"


def test_quick_rejections_wait_for_slower_answers() -> None:
    circuit = make_circuit()
    opened_by = [
        circuit.record_failure(rejection(403), number, number + 1, 20, 1.0, evaluation=str(number))
        for number in range(20)
    ]
    assert opened_by == [False] * 19 + [True]
