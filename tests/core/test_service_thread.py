"""A stage's thread: it survives whatever a turn does, tells when it last got on, and stops when it is asked to."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue

import pytest
from structlog.testing import capture_logs
from support.stage_parts import Passing

from worker.core.storage.client import StoreError
from worker.core.telemetry import service as stage
from worker.core.telemetry.service import ServiceThread

PROMPTLY_S = 30.0
"""Far more than needed, so that a busy machine fails no test."""

Step = Callable[[], None]


class ScriptedStage(ServiceThread):
    """Follows its steps, one a turn, and then waits to be stopped. Its waits are noted and take no time."""

    role = "test"

    def __init__(self, *turns: Step, prepares: tuple[Step, ...] = ()) -> None:
        super().__init__("scripted")
        self.prepared = 0
        self.turned = 0
        self.waits: list[float] = []
        self.finished = threading.Event()
        self._prepares = iter(prepares)
        self._turns = iter(turns)
        self.stopping = Passing(self.waits)

    def prepare(self) -> None:
        next(self._prepares, _nothing)()
        self.prepared += 1

    def run_once(self) -> None:
        step = next(self._turns, None)
        if step is None:
            self.finished.set()
            threading.Event.wait(self.stopping)
            return
        step()
        self.turned += 1

    def followed(self) -> "ScriptedStage":
        """Run all steps to the end."""
        self.start()
        assert self.finished.wait(PROMPTLY_S)
        assert self.stop(PROMPTLY_S)
        return self


def _nothing() -> None:
    pass


def raising(error: BaseException) -> Step:
    def step() -> None:
        raise error

    return step


AWAY = raising(StoreError("Redis does not answer (ConnectionError)"))
BROKEN = raising(KeyError("SECRET of a trace"))


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Waits without their jitter, and a clock that counts each look at it."""
    monkeypatch.setattr("random.uniform", lambda _low, high: high)
    clock = itertools.count(1.0)
    looks: list[float] = []

    def monotonic() -> float:
        looks.append(next(clock))
        return looks[-1]

    class Clock:
        pass

    Clock.monotonic = staticmethod(monotonic)
    monkeypatch.setattr(stage, "time", Clock)
    return looks


def test_a_service_thread_prepares_once_and_turns_until_it_is_stopped() -> None:
    under_test = ScriptedStage(_nothing, _nothing, _nothing).followed()
    assert (under_test.prepared, under_test.turned, under_test.waits) == (1, 3, [])


@pytest.mark.parametrize(("failure", "prepared"), [(AWAY, 3), (BROKEN, 1)], ids=["store", "unexpected"])
def test_a_turn_that_fails_is_not_the_last(failure: Step, prepared: int) -> None:
    """After Redis was away all is prepared anew: it may be back without its groups, and ingest stood still for ever."""
    with capture_logs():
        under_test = ScriptedStage(_nothing, failure, failure, _nothing).followed()
    assert (under_test.prepared, under_test.turned, len(under_test.waits)) == (prepared, 2, 2)


@pytest.mark.parametrize("failure", [AWAY, BROKEN], ids=["store", "unexpected"])
def test_a_service_thread_prepares_until_that_succeeds(failure: Step) -> None:
    with capture_logs():
        under_test = ScriptedStage(_nothing, prepares=(failure, failure)).followed()
    assert (under_test.prepared, under_test.turned, len(under_test.waits)) == (1, 1, 2)


@pytest.mark.usefixtures("steady")
def test_each_wait_is_twice_the_last_up_to_five_seconds() -> None:
    with capture_logs():
        under_test = ScriptedStage(*[AWAY] * 8).followed()
    assert under_test.waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


@pytest.mark.usefixtures("steady")
def test_waits_begin_anew_after_a_turn_that_got_on() -> None:
    with capture_logs():
        under_test = ScriptedStage(AWAY, AWAY, _nothing, AWAY, BROKEN).followed()
    assert under_test.waits == [0.1, 0.2, 0.1, 0.2]


def test_waits_are_shortened_by_chance_to_at_most_a_half() -> None:
    with capture_logs():
        waits = ScriptedStage(*[AWAY, _nothing] * 50).followed().waits
    assert len(waits) == 50
    assert all(0.05 <= wait <= 0.1 for wait in waits)
    assert len(set(waits)) > 1, "workers that lost the same Redis do not come back in step"


def test_progress_is_the_time_of_the_last_turn_that_got_on(steady: list[float]) -> None:
    times: list[float] = []
    with capture_logs():
        under_test = ScriptedStage()
        made_at = under_test.progressed_at
        note = lambda: times.append(under_test.progressed_at)  # noqa: E731 - a name for one expression

        def failing_and_noting(step: Step) -> Step:
            def both() -> None:
                note()
                step()

            return both

        under_test._turns = iter([note, note, failing_and_noting(AWAY), failing_and_noting(BROKEN), note, note])
        under_test.followed()
    assert times[0] == made_at, "nothing is done yet"
    assert times[0] < times[1] < times[2]
    assert times[2] == times[3] == times[4], "what fails is no progress"
    assert times[4] < times[5] <= under_test.progressed_at <= steady[-1]


def test_the_pulse_of_a_thread_holds_its_failure_and_since_when() -> None:
    pulses = []
    with capture_logs():
        under_test = ScriptedStage()

        def note_and(step: Step) -> Step:
            def both() -> None:
                pulses.append(under_test.pulse)
                step()

            return both

        under_test._turns = iter(map(note_and, [AWAY, AWAY, _nothing, _nothing]))
        under_test.followed()
    away = "Redis does not answer (ConnectionError)"
    assert [pulse.trouble for pulse in pulses] == [None, away, away, None]
    assert pulses[1].troubled_at == pulses[2].troubled_at, "since the first failure"
    assert [pulse.begun for pulse in pulses] == [False, False, False, True]
    assert not any(pulse.dead for pulse in pulses)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_ends_unasked_is_dead_and_one_that_was_stopped_is_not() -> None:
    fallen = ScriptedStage(raising(SystemExit()))
    assert not fallen.pulse.dead, "not started yet"
    fallen.start()
    fallen._thread.join(PROMPTLY_S)
    assert fallen.pulse.dead
    assert not ScriptedStage(_nothing).followed().pulse.dead


def test_an_outage_of_redis_is_one_line_for_all_threads_and_its_end_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "OUTAGE", stage.Outage())
    away = StoreError("Redis does not answer (ConnectionError)")
    away.address = "redis://host:6379/0"
    with capture_logs() as lines:
        for under_test in [ScriptedStage(raising(away), raising(away)) for _ in range(3)]:
            under_test.followed()
            stage.OUTAGE.report(away)
    fix = "start Redis there, or correct redis_url"
    begin = {"event": "redis unavailable, retrying", "log_level": "warning", "error": str(away), "fix": fix}
    end = {"event": "redis available again", "log_level": "info", "redis": "redis://host:6379/0"}
    assert lines == [{**begin, "redis": "redis://host:6379/0"}, end] * 3 + lines[-1:]


def test_an_outage_ends_when_no_thread_waits_for_redis_any_more() -> None:
    """A turn without a command to Redis succeeds while Redis is away."""
    outage, error = stage.Outage(), StoreError("Redis does not answer (ConnectionError)")
    first, another = ScriptedStage(), ScriptedStage()
    with capture_logs() as lines:
        for thread in (first, another, another, first):
            outage.report(error, thread)
        outage.end("", first)
        assert [line["event"] for line in lines] == ["redis unavailable, retrying"]
        outage.end("", another)
        outage.end("", another)
    assert [line["event"] for line in lines[1:]] == ["redis available again"]


def test_an_outage_that_a_turn_reports_itself_ends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ingest waits within its turn, and goes on with what it has read."""
    monkeypatch.setattr(stage, "OUTAGE", stage.Outage())
    under_test = ScriptedStage()
    under_test._turns = iter([lambda: under_test.backoff(StoreError("Redis is full")), _nothing])
    with capture_logs() as lines:
        under_test.followed()
    assert [line["event"] for line in lines] == ["redis unavailable, retrying", "redis available again"]


def test_an_outage_is_repeated_each_minute_and_another_error_at_once() -> None:
    now = [0.0]
    outage = stage.Outage(lambda: now[0])
    with capture_logs() as lines:
        for at_s, text in ((0, "a"), (1, "a"), (2, "b"), (59, "a"), (61, "a"), (61.5, "b"), (63, "b")):
            now[0] = at_s
            outage.report(StoreError(text))
        outage.end("")
        outage.end("")
        outage.end("redis://another")
        outage.report(StoreError("a"))
    events = [(line["event"], line.get("error")) for line in lines]
    begun = "redis unavailable, retrying"
    assert events == [*((begun, text) for text in "abab"), ("redis available again", None), (begun, "a")]


def test_an_unexpected_error_is_logged_by_type_and_place_without_its_text() -> None:
    with capture_logs() as lines:
        ScriptedStage(BROKEN).followed()
    first, second = lines
    where = first.pop("where")
    assert where.startswith("test_service_thread.py:")
    assert first == {"event": "unexpected error", "log_level": "error", "thread": "scripted", "error": "KeyError"}
    assert (second["event"], second["error"]) == ("service retrying", "KeyError")
    assert "SECRET" not in repr(lines)


def test_a_stage_that_waits_stops_at_once() -> None:
    """The wait is for the wish to stop, so that it never has to be sat out."""
    under_test = ScriptedStage()
    waited = SimpleQueue[float]()
    real = threading.Event()

    class Waiting(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waited.put(timeout or 0.0)
            return real.wait(60)

        def set(self) -> None:
            super().set()
            real.set()

    under_test.stopping = Waiting()
    under_test._turns = itertools.repeat(AWAY)
    began = time.monotonic()
    with capture_logs():
        under_test.start()
        waited.get(timeout=PROMPTLY_S)
        assert under_test.stop(PROMPTLY_S)
    assert time.monotonic() - began < 60
    assert not under_test._thread.is_alive()


def test_a_stage_that_never_started_is_stopped() -> None:
    under_test = ScriptedStage()
    assert under_test.stop(0.0)
    assert under_test.turned == 0


def test_a_turn_that_does_not_end_is_told() -> None:
    release = threading.Event()
    began = threading.Event()

    def hanging() -> None:
        began.set()
        release.wait(PROMPTLY_S)

    under_test = ScriptedStage(hanging)
    under_test.start()
    assert began.wait(PROMPTLY_S)
    assert not under_test.stop(0.0)
    release.set()
    assert under_test.stop(PROMPTLY_S)


def test_a_stopped_stage_begins_no_further_turn() -> None:
    under_test = ScriptedStage()
    under_test._turns = iter([under_test.stopping.set, _nothing])
    under_test.start()
    assert under_test.stop(PROMPTLY_S)
    assert under_test.turned == 1


def test_a_service_thread_is_a_daemon_with_a_name() -> None:
    thread = ScriptedStage()._thread
    assert (thread.name, thread.daemon) == ("tracejudge-scripted", True)
