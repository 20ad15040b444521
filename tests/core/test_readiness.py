"""Readiness: a role is ready while it makes real progress, and says in a word why it is not."""

from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from prometheus_client import CollectorRegistry, Gauge

from worker.core.telemetry.health import Flow, Pulse, Readiness, RoleState

READS_NOTHING = "entries wait and none is read"


@dataclass
class Clock:
    """Seconds that pass when a test says so."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Thread:
    """A thread that ends a turn whenever it is asked how it fares, unless a test says otherwise."""

    clock: Clock
    fixed: Pulse | None = None
    begun: bool = True

    @property
    def pulse(self) -> Pulse:
        return self.fixed or Pulse(self.clock.now, begun=self.begun)


@dataclass
class Worker:
    """A worker with one role, one thread and one flow."""

    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.thread = Thread(self.clock)
        self.readiness = Readiness(clock=self.clock)
        self.readiness.watch("reader", "ingest", self.thread)
        self.readiness.add_flow(Flow("flow", "ingest", READS_NOTHING))

    def pass_seconds(self, seconds: int, mark: str | None = None, paused: tuple[str, ...] = ()) -> RoleState:
        """Advance the time, with maintenance's report once a second."""
        for _ in range(seconds):
            self.clock.now += 1
            self.readiness.update({"flow": mark}, paused)
        return self.state

    @property
    def state(self) -> RoleState:
        return self.readiness.role("ingest")


@pytest.fixture
def worker() -> Worker:
    return Worker()


def test_a_role_with_nothing_to_do_stays_ready(worker: Worker) -> None:
    assert worker.pass_seconds(3600) == RoleState("ingest", ready=True, state="ready", seconds=0)


def test_a_consumer_that_turns_and_reads_nothing_is_stalled_within_60_s_and_not_before_50(worker: Worker) -> None:
    assert worker.pass_seconds(51, "5-0").ready, "one second for the first word"
    assert worker.pass_seconds(1, "5-0") == RoleState(
        "ingest", ready=False, state="stalled", seconds=51, why=f"{READS_NOTHING} for 51 s"
    )
    assert not worker.pass_seconds(8, "5-0").ready, "not ready at 60"


def test_entries_that_wait_without_end_are_no_standstill_while_some_are_read(worker: Worker) -> None:
    for number in range(300):
        assert worker.pass_seconds(1, f"{number}-0").ready
    assert worker.pass_seconds(49, "299-0").ready
    assert not worker.pass_seconds(3, "299-0").ready
    assert worker.pass_seconds(1, "300-0").ready, "it moves again"


def test_reading_that_pauses_on_purpose_is_ready_and_says_so(worker: Worker) -> None:
    assert worker.pass_seconds(600, "5-0", paused=("ingest",)).state == "paused"
    assert worker.state.ready
    assert worker.pass_seconds(30, "5-0").state == "ready", "a while to begin reading again"
    assert worker.pass_seconds(40, "5-0").state == "stalled"


def test_a_turn_that_does_not_end_is_told_by_the_name_of_its_thread(worker: Worker) -> None:
    worker.thread.fixed = Pulse(worker.clock.now)
    assert worker.pass_seconds(50).ready
    assert worker.pass_seconds(1).why == "reader: no run completed for 51 s"


def test_a_known_outage_is_reported_after_a_fifth_of_the_time(worker: Worker) -> None:
    at = worker.clock.now
    worker.thread.fixed = Pulse(at, blocked_by="Redis does not answer", blocked_since=at)
    assert worker.pass_seconds(10).ready, "one failure, or a restart, is none"
    assert worker.pass_seconds(1).why == "reader: Redis does not answer for 11 s"


def test_an_unmeasured_backlog_is_not_taken_for_progress(worker: Worker) -> None:
    worker.clock.now += 51
    assert worker.state.why == "backlog not measured for 51 s"


def test_a_role_is_starting_until_each_thread_has_ended_a_turn(worker: Worker) -> None:
    worker.thread.begun = False
    assert worker.state == RoleState("ingest", ready=False, state="starting", seconds=0)
    worker.thread.begun = True
    assert worker.state.ready


def test_a_role_fares_as_the_worst_of_its_threads_and_other_roles_are_not_touched(worker: Worker) -> None:
    dead = Thread(worker.clock, Pulse(worker.clock.now, has_ended=True))
    worker.readiness.watch("second", "ingest", dead)
    worker.readiness.watch("loop", "judge", Thread(worker.clock))
    assert [(role.role, role.ready, role.why) for role in worker.readiness.roles()] == [
        ("ingest", False, "second: its thread has ended"),
        ("judge", True, ""),
    ]
    assert worker.readiness.ended_threads() == ["second"]


def test_a_thread_without_a_role_counts_for_liveness_alone(worker: Worker) -> None:
    worker.readiness.watch("maintenance", None, Thread(worker.clock, Pulse(0.0, has_ended=True)))
    assert worker.readiness.ended_threads() == ["maintenance"]
    assert [role.ready for role in worker.readiness.roles()] == [True]


def test_a_worker_that_stops_is_not_ready_and_its_threads_end_in_peace(worker: Worker) -> None:
    worker.thread.fixed = Pulse(worker.clock.now, has_ended=True)
    worker.readiness.begin_stop()
    assert (worker.state.ready, worker.state.state, worker.readiness.ended_threads()) == (False, "stopping", [])


def test_seconds_since_progress_are_those_of_the_slowest(worker: Worker) -> None:
    seconds = [worker.pass_seconds(1, "5-0").seconds for _ in range(20)]
    assert all(later - earlier == 1 for earlier, later in pairwise(seconds))


def test_all_limits_of_readiness_follow_stalled_s() -> None:
    clock = Clock()
    readiness = Readiness(stalled_s=0.6, clock=clock)
    readiness.watch("reader", "ingest", Thread(clock))
    readiness.add_flow(Flow("flow", "ingest", READS_NOTHING))
    readiness.update({"flow": "5-0"})
    clock.now += 0.7
    readiness.update({"flow": "5-0"})
    assert not readiness.role("ingest").ready


def test_unknown_flows_are_ignored(worker: Worker) -> None:
    for _ in range(100):
        worker.clock.now += 1
        worker.readiness.update({"flow": None, "export:otel": "5-0"})
    assert worker.state.ready


def test_the_ready_gauge_follows_the_state(worker: Worker) -> None:
    registry = CollectorRegistry()
    worker.readiness.publish(Gauge("ready", "Whether", ["role"], registry=registry).labels)
    assert registry.get_sample_value("ready", {"role": "ingest"}) == 1
    worker.pass_seconds(62, "5-0")
    assert registry.get_sample_value("ready", {"role": "ingest"}) == 0
