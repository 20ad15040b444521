"""A stage's thread: it survives whatever a turn does, tells when it last got on, and stops when it is asked to."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from worker.core.config.settings import Settings
from worker.core.storage.client import StoreError, make_stores
from worker.core.telemetry import service as stage
from worker.core.telemetry.service import ServiceThread, share_threads, stop_threads

PROMPTLY_S = 30.0
"""Far more than needed, so that a busy machine fails no test."""
TEXT = "Redis does not answer (ConnectionError)"
UNAVAILABLE, AVAILABLE = "redis unavailable, retrying", "redis available again"
Step = Callable[[], None]


def raising(error: BaseException) -> Step:
    def step() -> None:
        raise error

    return step


def nothing() -> None:
    pass


AWAY = raising(StoreError(TEXT))
BROKEN = raising(KeyError("SECRET of a trace"))


class ScriptedStage(ServiceThread):
    """Follows its steps, one a turn, and then waits to be stopped. Its pauses are noted and take no time."""

    role = "test"

    def __init__(self, *turns: Step, prepares: tuple[Step, ...] = (), before: Step = nothing) -> None:
        super().__init__("scripted")
        self.prepared = 0
        self.turned = 0
        self.waits: list[float] = []
        self.finished = threading.Event()
        self._prepares = iter(prepares)
        self.turns = iter(turns)
        self.before = before

    def pause(self, seconds: float) -> None:
        self.waits.append(seconds)

    def prepare(self) -> None:
        next(self._prepares, nothing)()
        self.prepared += 1

    def run_once(self) -> None:
        step = next(self.turns, None)
        if step is None:
            self.finished.set()
            self.stopping.wait()
            return
        self.before()
        step()
        self.turned += 1

    def followed(self) -> "ScriptedStage":
        """Run all steps to the end."""
        self.start()
        assert self.finished.wait(PROMPTLY_S)
        assert self.stop(PROMPTLY_S)
        return self


def test_a_thread_prepares_once_and_turns_until_it_is_stopped_whatever_fails() -> None:
    """After Redis was away all is prepared anew: it may be back without its groups, and ingest stood still for ever."""
    thread = ScriptedStage()
    assert (thread._thread.name, thread._thread.daemon) == ("tracejudge-scripted", True)  # the thread is not public
    assert (thread.stop(0.0), thread.turned) == (True, 0), "it never started"
    with capture_logs():
        for turns, prepares, expected in (
            ((nothing, AWAY, AWAY, nothing), (), (3, 2, 2)),
            ((nothing, BROKEN, BROKEN, nothing), (), (1, 2, 2)),
            ((nothing,), (AWAY, BROKEN), (1, 1, 2)),
        ):
            thread = ScriptedStage(*turns, prepares=prepares).followed()
            assert (thread.prepared, thread.turned, len(thread.waits)) == expected
    thread = ScriptedStage()
    thread.turns = iter([thread.stopping.set, nothing])
    thread.start()
    assert (thread.stop(PROMPTLY_S), thread.turned) == (True, 1), "a stopped stage begins no further turn"
    # A turn that does not end is told.
    began, release = threading.Event(), threading.Event()
    thread = ScriptedStage(lambda: release.wait(PROMPTLY_S), before=began.set)
    thread.start()
    assert began.wait(PROMPTLY_S)
    assert not thread.stop(0.0)
    release.set()
    assert thread.stop(PROMPTLY_S)


def test_waits_double_up_to_five_seconds_and_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    with capture_logs():
        waits = ScriptedStage(*[AWAY, nothing] * 20).followed().waits
        assert all(0.05 <= wait <= 0.1 for wait in waits), "shortened by chance to at most a half"
        assert len(set(waits)) > 1, "workers that lost the same Redis do not come back in step"
        monkeypatch.setattr("random.uniform", lambda _low, high: high)
        assert ScriptedStage(*[AWAY] * 8).followed().waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
        assert ScriptedStage(AWAY, AWAY, nothing, AWAY, BROKEN).followed().waits == [0.1, 0.2, 0.1, 0.2]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_progress_and_pulse_tell_the_last_turn_that_got_on_and_what_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(1.0)
    monkeypatch.setattr(stage, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    times, pulses = list[float](), []
    with capture_logs():
        thread = ScriptedStage(nothing, nothing, AWAY, AWAY, nothing, nothing)
        made_at = thread.progressed_at
        thread.before = lambda: (times.append(thread.progressed_at), pulses.append(thread.pulse))  # type: ignore[assignment]
        thread.followed()
    assert times[0] == made_at, "nothing is done yet"
    assert times[0] < times[1] < times[2] == times[3] == times[4] < times[5], "what fails is no progress"
    assert times[5] <= thread.progressed_at < next(clock)
    assert [pulse.blocked_by for pulse in pulses] == [None, None, None, TEXT, TEXT, None]
    assert pulses[3].blocked_since == pulses[4].blocked_since, "since the first failure"
    assert [pulse.begun for pulse in pulses] == [False, *[True] * 5]
    assert not any(pulse.has_ended for pulse in (*pulses, thread.pulse)), "it was stopped"
    fallen = ScriptedStage(raising(SystemExit()))
    assert not fallen.pulse.has_ended, "not started yet"
    fallen.start()
    fallen._thread.join(PROMPTLY_S)
    assert fallen.pulse.has_ended


def test_an_outage_of_redis_is_one_line_for_all_threads_and_its_end_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends with the last thread, and is repeated each minute."""
    monkeypatch.setattr(stage, "OUTAGE", stage.Outage())
    away, address = StoreError(TEXT), "redis://host:6379/0"
    away.address = address
    with capture_logs() as lines:
        for _ in range(3):
            ScriptedStage(raising(away), raising(away)).followed()
            stage.OUTAGE.report(away)
    begin = {"event": UNAVAILABLE, "log_level": "warning", "error": TEXT, "redis": address}
    begin["fix"] = "start Redis there, or correct redis_url"
    end = {"event": AVAILABLE, "log_level": "info", "redis": address}
    assert lines == [begin, end] * 3 + lines[-1:]
    # Ingest waits within its turn, and goes on with what it has read.
    monkeypatch.setattr(stage, "OUTAGE", stage.Outage())
    thread = ScriptedStage()
    thread.turns = iter([lambda: thread.backoff(StoreError("Redis is full")), nothing])
    with capture_logs() as lines:
        thread.followed()
    assert [line["event"] for line in lines] == [UNAVAILABLE, AVAILABLE]
    # An unexpected error is logged by type and place, without its text.
    with capture_logs() as lines:
        ScriptedStage(BROKEN).followed()
    first, second = lines
    assert first.pop("where").startswith("test_service_thread.py:")
    assert first == {"event": "unexpected error", "log_level": "error", "thread": "scripted", "error": "KeyError"}
    assert (second["event"], second["error"], "SECRET" in repr(lines)) == ("service retrying", "KeyError", False)
    # A turn without a command to Redis succeeds while Redis is away.
    outage, one, another = stage.Outage(), ScriptedStage(), ScriptedStage()
    with capture_logs() as lines:
        for thread in (one, another, another, one):
            outage.report(StoreError(TEXT), thread)
        outage.end("", one)
        assert [line["event"] for line in lines] == [UNAVAILABLE]
        outage.end("", another)
        outage.end("", another)
    assert [line["event"] for line in lines[1:]] == [AVAILABLE]
    now = [0.0]
    outage = stage.Outage(lambda: now[0])
    with capture_logs() as lines:
        for now[0], text in ((0, "a"), (1, "a"), (2, "b"), (59, "a"), (61, "a"), (61.5, "b"), (63, "b")):
            outage.report(StoreError(text))
        for address in ("", "", "redis://another"):
            outage.end(address)
        outage.report(StoreError("a"))
    events = [(line["event"], line.get("error")) for line in lines]
    assert events == [*((UNAVAILABLE, text) for text in "abab"), (AVAILABLE, None), (UNAVAILABLE, "a")]


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


class Alone(Member):
    shares = False


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


def test_members_of_one_name_share_a_thread_and_a_wake(shared: Callable[..., None]) -> None:
    members = [Member(), Member(), Member("other"), Alone(), Alone()]
    shared(*members)
    first, second, other, *alone = [member.turn() for member in members]
    assert (first == second, len({first, other, *alone})) == (True, 4)
    assert members[0]._thread.name == members[1]._thread.name == "tracejudge-shared"
    wake = threading.Event()
    woken = [Member("woken", wake=wake) for _ in range(3)]
    shared(*woken)
    for _ in range(3):
        assert len({member.turn() for member in woken}) == 1
        wake.set()
    for member in woken:
        member.turn()
    assert not woken[0].stop(0.0), "its thread is the others' too"
    assert woken[1].turn(), "the others go on"
    assert woken[0].turns.empty()


def test_a_failing_or_busy_member_delays_no_other(shared: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_FIRST_BACKOFF_S", "_MAX_BACKOFF_S"):
        monkeypatch.setattr(stage, name, 3600.0)
    away, broken, busy, quiet = members = [Member(), Member(), Member(pause_s=None), Member(pause_s=0.01)]
    away.error, broken.error = StoreError(TEXT), KeyError("SECRET")
    with capture_logs():
        shared(*members)
        for _ in range(3):
            assert busy.turn() == quiet.turn()
    assert [member.turns.qsize() for member in (away, broken)] == [1, 1]
    assert [member.pulse.blocked_by is None for member in members] == [False, False, True, True]
    assert not any(member.pulse.has_ended for member in members)


def test_a_refused_login_and_a_port_without_tls_get_a_fix_soon(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
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
