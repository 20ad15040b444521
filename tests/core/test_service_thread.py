"""A stage's thread: it survives whatever a turn does, tells when it last got on, and stops when it is asked to."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue

import pytest
from structlog.testing import capture_logs

from worker.core.config.settings import Settings
from worker.core.storage.client import StoreError, make_stores
from worker.core.telemetry import service as stage
from worker.core.telemetry.service import ServiceThread, share_threads, stop_threads

PROMPTLY_S = 30.0
"""Far more than needed, so that a busy machine fails no test."""

Step = Callable[[], None]


class ScriptedStage(ServiceThread):
    """Follows its steps, one a turn, and then waits to be stopped. Its pauses are noted and take no time."""

    role = "test"

    def __init__(self, *turns: Step, prepares: tuple[Step, ...] = ()) -> None:
        super().__init__("scripted")
        self.prepared = 0
        self.turned = 0
        self.waits: list[float] = []
        self.finished = threading.Event()
        self._prepares = iter(prepares)
        self.turns = iter(turns)

    def pause(self, seconds: float) -> None:
        self.waits.append(seconds)

    def prepare(self) -> None:
        next(self._prepares, _nothing)()
        self.prepared += 1

    def run_once(self) -> None:
        step = next(self.turns, None)
        if step is None:
            self.finished.set()
            self.stopping.wait()
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

        under_test.turns = iter([note, note, failing_and_noting(AWAY), failing_and_noting(BROKEN), note, note])
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

        under_test.turns = iter(map(note_and, [AWAY, AWAY, _nothing, _nothing]))
        under_test.followed()
    away = "Redis does not answer (ConnectionError)"
    assert [pulse.blocked_by for pulse in pulses] == [None, away, away, None]
    assert pulses[1].blocked_since == pulses[2].blocked_since, "since the first failure"
    assert [pulse.begun for pulse in pulses] == [False, False, False, True]
    assert not any(pulse.has_ended for pulse in pulses)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_ends_unasked_is_dead_and_one_that_was_stopped_is_not() -> None:
    fallen = ScriptedStage(raising(SystemExit()))
    assert not fallen.pulse.has_ended, "not started yet"
    fallen.start()
    fallen._thread.join(PROMPTLY_S)
    assert fallen.pulse.has_ended
    assert not ScriptedStage(_nothing).followed().pulse.has_ended


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
    under_test.turns = iter([lambda: under_test.backoff(StoreError("Redis is full")), _nothing])
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


class Member(ServiceThread):
    """One of several that share a thread. Its turns are noted with their thread."""

    role = "test"
    shares = True

    def __init__(
        self, name: str = "shared", pause_s: float | None = 3600.0, wake: threading.Event | None = None
    ) -> None:
        super().__init__(name, wake)
        self.turns = SimpleQueue[int]()
        self.error: Exception | None = None
        self._pause_s = pause_s

    def run_once(self) -> None:
        self.turns.put(threading.get_ident())
        if self.error is not None:
            raise self.error
        if self._pause_s is not None:
            self.pause(self._pause_s)

    def turn(self) -> int:
        """Wait for its next turn."""
        return self.turns.get(timeout=PROMPTLY_S)


@pytest.fixture
def shared() -> Iterator[Callable[..., None]]:
    """Starts members in shared threads, and stops them."""
    started: list[Member] = []

    def start(*members: Member) -> None:
        share_threads(members)
        started.extend(members)
        for member in members:
            member.start()

    yield start
    stop_threads(started)
    assert [member.name for member in started if member._thread.is_alive()] == [], "a stop ends their pauses"


def test_those_of_one_name_run_in_one_thread(shared: Callable[..., None]) -> None:
    class Alone(Member):
        shares = False

    members = [Member(), Member(), Member("other"), Alone(), Alone()]
    shared(*members)
    first, second, other, *alone = [member.turn() for member in members]
    assert first == second
    assert len({first, other, *alone}) == 4
    assert members[0]._thread.name == members[1]._thread.name == "tracejudge-shared"


def test_a_member_that_fails_or_never_pauses_delays_no_other(
    shared: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "_FIRST_BACKOFF_S", 3600.0)
    monkeypatch.setattr(stage, "_MAX_BACKOFF_S", 3600.0)
    away, broken, busy, quiet = members = [Member(), Member(), Member(pause_s=None), Member(pause_s=0.01)]
    away.error, broken.error = StoreError("Redis does not answer (ConnectionError)"), KeyError("SECRET")
    with capture_logs():
        shared(*members)
        for _ in range(3):
            assert busy.turn() == quiet.turn()
    assert [member.turns.qsize() for member in (away, broken)] == [1, 1]
    assert [member.pulse.blocked_by is None for member in members] == [False, False, True, True]
    assert not any(member.pulse.has_ended for member in members)


def test_a_wake_ends_the_pauses_of_all_that_share_it(shared: Callable[..., None]) -> None:
    wake = threading.Event()
    members = [Member(wake=wake) for _ in range(3)]
    shared(*members)
    for _ in range(3):
        assert len({member.turn() for member in members}) == 1
        wake.set()


def test_a_member_that_is_stopped_begins_no_further_turn_and_the_others_go_on(shared: Callable[..., None]) -> None:
    wake = threading.Event()
    first, second = Member(wake=wake), Member(wake=wake)
    shared(first, second)
    assert first.turn() == second.turn()
    assert not first.stop(0.0), "its thread is the other's too"
    assert second.turn()
    assert first.turns.empty()


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
    under_test.turns = iter([under_test.stopping.set, _nothing])
    under_test.start()
    assert under_test.stop(PROMPTLY_S)
    assert under_test.turned == 1


def test_a_service_thread_is_a_daemon_with_a_name() -> None:
    thread = ScriptedStage()._thread
    assert (thread.name, thread.daemon) == ("tracejudge-scripted", True)


def test_a_refused_login_and_a_port_without_tls_get_their_own_fix_within_3_s(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for url, fix in (
        (redis_url.replace("://", "://nobody:wrong@"), "correct user and password in redis_url, "),
        (redis_url.replace("redis://", "rediss://"), "; use redis:// if it speaks no TLS"),
    ):
        monkeypatch.setattr(stage, "OUTAGE", stage.Outage())
        settings, began = Settings.from_keys(redis_url=url), time.monotonic()
        with capture_logs() as lines:
            stage.open_stores(make_stores(url, "tj", 1), settings, None)
        (line,) = lines
        assert (fix in line["fix"], time.monotonic() - began < 3.0) == (True, True), line
