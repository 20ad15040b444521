"""SIGTERM and Ctrl-C, sent to this very process: what the stages are told, and what Celery is."""

import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest
from celery.worker import state
from support.cases import each_case
from support.processes import PATIENCE_S, stopped_at_start, wait_until

from worker.core.runtime.worker_control import Signals

GRACE_S = 20.0
NUMBERS = (signal.SIGINT, signal.SIGTERM)


@each_case(
    ("command", "is_first", "codes"),
    [
        ("tracejudge worker --metrics-port 0", 1, (0, 0)),
        ("celery -A worker worker", 0, (0, 0)),
        # The usual codes of what is no service.
        ("tracejudge account", 1, (130, 143)),
    ],
)
def test_a_service_that_is_stopped_while_it_starts_ends_with_0(
    command: str, is_first: int, codes: tuple[int, int]
) -> None:
    assert stopped_at_start(command, is_first) == codes


@pytest.mark.slow("the same as another process than the first, and another command of Celery")
@each_case(
    ("command", "codes"),
    [
        ("tracejudge worker", (0, 0)),
        ("celery -A worker inspect ping", (-signal.SIGINT, -signal.SIGTERM)),
        ("tracejudge account", (130, -signal.SIGTERM)),
    ],
)
def test_a_command_that_is_stopped_while_it_starts_has_its_usual_codes(command: str, codes: tuple[int, int]) -> None:
    assert stopped_at_start(command, is_first=0) == codes


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

    def check(self, *what: str) -> None:
        wait_until(lambda: len(self.told) >= len(what), what="the stages to be told")
        assert sorted(self.told) == sorted(what)


class Timer:
    """Never comes to its end; tells what it would do then."""

    begun: list[tuple[float, object]]

    def __init__(self, seconds: float, action: object, arguments: tuple[object, ...]) -> None:
        self._what = (seconds, (action, *arguments))

    def start(self) -> None:
        Timer.begun.append(self._what)


Install = Callable[..., tuple[Signals, Stages, list[int]]]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs the handlers for new stages, and returns these and the codes with which the process would end."""
    former = [(number, signal.getsignal(number)) for number in NUMBERS]
    made: list[Stages] = []

    def make(should_stop: int | None = None) -> tuple[Signals, Stages, list[int]]:
        codes: list[int] = []
        monkeypatch.setattr(os, "_exit", codes.append)
        monkeypatch.setattr(state, "should_stop", should_stop)
        monkeypatch.setattr(Timer, "begun", [], raising=False)
        monkeypatch.setattr(threading, "Timer", Timer)
        made.append(Stages())
        signals = Signals(made[-1], GRACE_S)
        signals.install()
        return signals, made[-1], codes

    try:
        yield make
    finally:
        for stages in made:
            stages.let.set()
        for number, handler in former:
            signal.signal(number, handler)


def test_the_first_stops_the_second_hurries_and_the_third_ends_the_process(install: Install) -> None:
    for number in NUMBERS:
        signals, stages, codes = install()
        signals.started()
        signal.raise_signal(number)
        stages.check("stop")
        ((seconds, action),) = Timer.begun
        assert (state.should_stop, action) == (0, (os._exit, 1))
        assert GRACE_S + 5 < seconds < GRACE_S + 10, "a stop that hangs ends in time all the same"
        signal.raise_signal(number)
        stages.check("stop", "hurry")
        (_, (seconds, action)) = Timer.begun
        assert action == (os._exit, 1)
        assert 1 < seconds < 2, "the last resort"
        assert codes == []
        signal.raise_signal(number)
        stages.check("stop", "hurry")
        assert codes == [1]
        stages.let.set()
        signals.stop()
        assert stages.stopped.is_set(), "Celery waits for it"
        stages.check("stop", "hurry")
    # Signals during the start stop the started stages.
    for count, told in ((1, ("stop",)), (2, ("stop", "hurry"))):
        signals, stages, _ = install()
        for _ in range(count):
            signal.raise_signal(signal.SIGTERM)
        assert (stages.told, state.should_stop) == ([], 0)
        signals.started()
        stages.check(*told)
    *_, codes = install()
    for _ in range(3):
        signal.raise_signal(signal.SIGINT)
    assert codes == [1], "a start that hangs"
    signals, stages, _ = install(should_stop=0)
    signal.raise_signal(signal.SIGTERM)
    signals.started()
    stages.check("stop", "hurry")  # a signal that Celery had received counts


def test_celery_stops_a_worker_once(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    signals, stages, _ = install()
    signals.started()
    stages.let.set()
    signals.stop()
    assert stages.told == ["stop"], "without a signal"
    signals, stages, _ = install()
    signals.started()
    stages.let.set()
    stop = stages.stop

    def signalled() -> None:
        signal.raise_signal(signal.SIGTERM)
        stop()

    monkeypatch.setattr(stages, "stop", signalled)
    signals.stop()
    assert stages.told == ["stop"], "with a signal while Celery stops it"

    # Without memory for a thread Celery stops the worker.
    def full(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    signals, stages, _ = install()
    signals.started()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", full)
        signal.raise_signal(signal.SIGTERM)
    assert (stages.told, state.should_stop) == ([], 0)
    stages.let.set()
    signals.stop()
    assert stages.told == ["stop"]
