"""SIGTERM and Ctrl-C, sent to this very process: what the stages are told, and what Celery is."""

import os
import signal
import threading
from collections.abc import Iterator

import pytest
from celery.worker import state
from support.cases import each_case
from support.processes import PATIENCE_S, wait_until
from support.signals import stopped_at_start

from worker.core.runtime.worker_control import Signals

PROMISED_S = 2
GRACE_S = 20.0


@each_case(
    ("command", "is_first", "codes"),
    [
        ("tracejudge worker", 0, (0, 0)),
        ("tracejudge worker --metrics-port 0", 1, (0, 0)),
        ("celery -A worker worker", 0, (0, 0)),
        ("celery -A worker inspect ping", 0, (-signal.SIGINT, -signal.SIGTERM)),
        # The usual codes of what is no service.
        ("tracejudge account", 0, (130, -signal.SIGTERM)),
        ("tracejudge account", 1, (130, 143)),
    ],
)
def test_a_service_that_is_stopped_while_it_starts_ends_with_0(
    command: str, is_first: int, codes: tuple[int, int]
) -> None:
    assert stopped_at_start(command, is_first) == codes


class Stages:
    """Stops when it is let, and notes what it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.let = threading.Event()
        self.stopped = threading.Event()

    def stop(self) -> None:
        self.told.append("stop")
        assert self.let.wait(PATIENCE_S)
        self.stopped.set()

    def hurry(self) -> None:
        self.told.append("hurry")


class Timer:
    """Never comes to its end; tells what it would do then."""

    begun: list[tuple[float, object]]

    def __init__(self, seconds: float, action: object, arguments: tuple[object, ...]) -> None:
        self._what = (seconds, (action, *arguments))

    def start(self) -> None:
        Timer.begun.append(self._what)


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    return codes


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch, exits: list[int]) -> Iterator[Stages]:  # noqa: ARG001 - nothing ends us
    former = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
    monkeypatch.setattr(state, "should_stop", None)
    monkeypatch.setattr(Timer, "begun", [], raising=False)
    monkeypatch.setattr(threading, "Timer", Timer)
    stages = Stages()
    try:
        yield stages
    finally:
        stages.let.set()
        for number, handler in former:
            signal.signal(number, handler)


@pytest.fixture
def taken(stages: Stages) -> Signals:
    taken = Signals(stages, GRACE_S)
    taken.install()
    return taken


def told(stages: Stages, *what: str) -> None:
    wait_until(lambda: len(stages.told) >= len(what), what="the stages to be told")
    assert sorted(stages.told) == sorted(what)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
class TestRunning:
    def test_the_first_stops_at_once_and_asks_celery_to_end(
        self, taken: Signals, stages: Stages, number: signal.Signals
    ) -> None:
        taken.started()
        signal.raise_signal(number)
        told(stages, "stop")
        ((seconds, action),) = Timer.begun
        assert (state.should_stop, action) == (0, (os._exit, 1))
        assert GRACE_S + 5 < seconds < GRACE_S + 10, "a stop that hangs ends in time all the same"
        stages.let.set()
        taken.stop()
        assert stages.stopped.is_set(), "Celery waits for it"
        told(stages, "stop")

    def test_the_second_hurries_and_has_a_last_resort(
        self, taken: Signals, stages: Stages, exits: list[int], number: signal.Signals
    ) -> None:
        taken.started()
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(number)
        told(stages, "stop", "hurry")
        (_, (seconds, action)) = Timer.begun
        assert action == (os._exit, 1)
        assert 1 < seconds < PROMISED_S
        assert exits == []

    def test_the_third_ends_the_process(
        self, taken: Signals, stages: Stages, exits: list[int], number: signal.Signals
    ) -> None:
        taken.started()
        for _ in range(3):
            signal.raise_signal(number)
        told(stages, "stop", "hurry")
        assert exits == [1]


class TestStarting:
    def test_one_signal_during_the_start_stops_the_started_stages(self, taken: Signals, stages: Stages) -> None:
        signal.raise_signal(signal.SIGTERM)
        assert (stages.told, state.should_stop) == ([], 0)
        taken.started()
        told(stages, "stop")

    def test_two_signals_during_the_start_stop_without_a_grace(self, taken: Signals, stages: Stages) -> None:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert stages.told == []
        taken.started()
        told(stages, "stop", "hurry")

    def test_a_start_that_hangs_is_ended_by_the_third(self, taken: Signals, exits: list[int]) -> None:  # noqa: ARG002
        for _ in range(3):
            signal.raise_signal(signal.SIGINT)
        assert exits == [1]

    def test_a_signal_that_celery_had_received_counts(self, stages: Stages, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(state, "should_stop", 0)
        taken = Signals(stages, GRACE_S)
        taken.install()
        signal.raise_signal(signal.SIGTERM)
        taken.started()
        told(stages, "stop", "hurry")


class TestOtherwise:
    def test_a_worker_without_a_signal_is_stopped_by_celery(self, taken: Signals, stages: Stages) -> None:
        taken.started()
        stages.let.set()
        taken.stop()
        assert stages.told == ["stop"]

    def test_a_signal_while_celery_stops_it_stops_nothing_twice(
        self, taken: Signals, stages: Stages, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        taken.started()
        stages.let.set()
        stop = stages.stop

        def signalled() -> None:
            signal.raise_signal(signal.SIGTERM)
            stop()

        monkeypatch.setattr(stages, "stop", signalled)
        taken.stop()
        assert stages.told == ["stop"]

    def test_without_memory_for_a_thread_celery_stops_the_worker(
        self, taken: Signals, stages: Stages, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(_: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        taken.started()
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", full)
            signal.raise_signal(signal.SIGTERM)
        assert (stages.told, state.should_stop) == ([], 0)
        stages.let.set()
        taken.stop()
        assert stages.told == ["stop"]
