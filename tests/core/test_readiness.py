"""Readiness: a role is ready while it makes real progress, and says in a word why it is not, also on its pages."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from support.otlp import OtlpReceiver
from support.pipeline import Pipeline, Worker, make_traces
from support.processes import wait_until
from support.scrape import ACCEPT, parse

from worker.base.embedded import EmbeddedRedis
from worker.core.telemetry.health import Flow, Pulse, Readiness, RoleState, live_workers

READS_NOTHING = "entries wait and none is read"
AtRedis = Callable[[str], Pipeline]
ROLES = ["ingest", "judge", "export", "monitor"]
TOKEN = "metrics-t0ken"  # noqa: S105 - nobody's
IMPATIENT = """
from worker.core.telemetry.health import Readiness
Readiness.__init__.__kwdefaults__["stalled_s"] = 20.0  # a known cause counts after a fifth of it
from worker.cli import main
main(["worker"])
"""
CLIENT = httpx.Client(timeout=30, trust_env=False, verify=False)  # noqa: S501 - HTTP alone, and asked very often


class RoleWorker:
    """A worker with one role, one flow, and one thread, which ends a turn whenever it is asked how it fares."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.fixed: Pulse | None = None
        self.readiness = Readiness(clock=lambda: self.now)
        self.readiness.watch("reader", "ingest", self)
        self.readiness.add_flow(Flow("flow", "ingest", READS_NOTHING))

    @property
    def pulse(self) -> Pulse:
        return self.fixed or Pulse(self.now)

    @property
    def state(self) -> RoleState:
        return self.readiness.role("ingest")

    def pass_seconds(self, seconds: int, mark: str | None = None, paused: tuple[str, ...] = ()) -> RoleState:
        """Advance the time, with maintenance's report once a second."""
        for _ in range(seconds):
            self.now += 1
            self.readiness.update({"flow": mark, "export:otel": "5-0"}, paused)
        return self.state


def get(worker: Worker, path: str, **headers: str) -> httpx.Response:
    return CLIENT.get(f"http://127.0.0.1:{worker.port}{path}", headers=headers)


def roles(worker: Worker) -> list[dict[str, Any]]:
    return get(worker, "/readyz", accept="application/json").json()["roles"]


def is_ready(worker: Worker) -> bool:
    return get(worker, "/readyz").status_code == 200


def test_a_role_is_ready_while_it_makes_progress_or_pauses_on_purpose() -> None:
    """One that turns and reads nothing is stalled within 60 s, and not before 50."""
    worker = RoleWorker()
    assert worker.pass_seconds(3600) == RoleState("ingest", ready=True, state="ready", seconds=0), "nothing to do"
    assert worker.pass_seconds(51, "5-0").ready, "one second for the first word"
    stalled = RoleState("ingest", ready=False, state="stalled", seconds=51, why=f"{READS_NOTHING} for 51 s")
    assert worker.pass_seconds(1, "5-0") == stalled
    assert not worker.pass_seconds(8, "5-0").ready, "not ready at 60"
    assert all(worker.pass_seconds(1, f"{number}-0").ready for number in range(300)), "it moves again"
    assert [worker.pass_seconds(seconds, "299-0").ready for seconds in (49, 3)] == [True, False]
    worker = RoleWorker()
    paused = worker.pass_seconds(600, "5-0", paused=("ingest",))
    assert (paused.state, paused.ready) == ("paused", True)
    assert worker.pass_seconds(30, "5-0").state == "ready", "a while to begin reading again"
    assert worker.pass_seconds(40, "5-0").state == "stalled"


def test_a_role_says_in_a_word_why_it_is_not_ready() -> None:
    worker = RoleWorker()
    worker.fixed = Pulse(worker.now)
    assert worker.pass_seconds(50).ready
    assert worker.pass_seconds(1).why == "reader: no run completed for 51 s"
    worker = RoleWorker()
    worker.fixed = Pulse(worker.now, blocked_by="Redis does not answer", blocked_since=worker.now)
    assert worker.pass_seconds(10).ready, "one failure, or a restart, is none"
    assert worker.pass_seconds(1).why == "reader: Redis does not answer for 11 s"
    worker = RoleWorker()
    worker.now += 51
    assert worker.state.why == "backlog not measured for 51 s"
    worker = RoleWorker()
    worker.fixed = Pulse(worker.now, begun=False)
    assert worker.state == RoleState("ingest", ready=False, state="starting", seconds=0)
    # It fares as the worst of its threads.
    worker, dead = RoleWorker(), SimpleNamespace(pulse=Pulse(0.0, has_ended=True))
    worker.readiness.watch("maintenance", None, dead)
    assert worker.readiness.ended_threads() == ["maintenance"]
    assert [role.ready for role in worker.readiness.roles()] == [True], "a thread without a role"
    worker.readiness.watch("second", "ingest", dead)
    worker.readiness.watch("loop", "judge", SimpleNamespace(pulse=Pulse(worker.now)))
    roles = [(role.role, role.ready, role.why) for role in worker.readiness.roles()]
    assert roles == [("ingest", False, "second: its thread has ended"), ("judge", True, "")]
    worker.readiness.begin_stop()
    assert (worker.state.ready, worker.state.state, worker.readiness.ended_threads()) == (False, "stopping", [])


def test_a_worker_is_ready_within_seconds_and_stays_ready_without_work(at_redis: AtRedis, tmp_path: Path) -> None:
    """Its metrics require the token, the probes do not, and doctor finds nothing broken."""
    secret = tmp_path / "token"
    secret.write_text(f"{TOKEN}\n", encoding="utf-8")
    (tmp_path / "tracejudge.toml").write_text('shift_s = "5s"\n')  # without a file doctor warns
    with EmbeddedRedis(appendonly=True) as server:
        pipeline = at_redis(server.url)
        settings = {"metrics_token_file": str(secret), "metrics_host": "0.0.0.0"}  # noqa: S104 - any
        worker = pipeline.worker(wait=False, **settings)
        worker.program.wait_for("worker started")
        wait_until(lambda: is_ready(worker), what="the worker to be ready")
        assert get(worker, "/healthz").text == "alive\n"
        assert [(role["role"], role["state"]) for role in roles(worker)] == [(role, "ready") for role in ROLES]
        log_lines = get(worker, "/readyz").text.splitlines()
        assert [line.split(", ")[0] for line in log_lines] == [f"{role} ready" for role in ROLES]
        replies = [get(worker, "/metrics", accept=ACCEPT, authorization=each) for each in ("", "Bearer another")]
        assert [reply.status_code for reply in replies] == [401, 401]
        page = parse(get(worker, "/metrics", accept=ACCEPT, authorization=f"Bearer {TOKEN}").text)
        assert [page.value("tracejudge_ready", role=role) for role in ROLES] == [1, 1, 1, 1]
        # The first heartbeat may be older, with roles that have not started.
        told = lambda: [all(each.roles.values()) for each in live_workers(pipeline.store)] == [True]  # noqa: E731
        wait_until(told, what="its heartbeat")
        doctor = pipeline.program("doctor", "--json", **settings)
        assert (doctor.wait(), doctor.stderr) == (0, "")
        parts = {part["name"]: part["result"] for part in json.loads(doctor.stdout)["parts"]}
        assert set(parts.values()) == {"ok"}
        assert {f"role {role}" for role in ROLES} < set(parts)
        pipeline.publish(make_traces(10))
        pipeline.settled(10)
        assert is_ready(worker)
        assert not [word for word in (TOKEN, "another", "without credentials") if word in worker.program.output]


@pytest.mark.slow("waits until roles count as not ready")
def test_a_receiver_or_a_redis_that_is_down_is_reported_and_the_worker_is_alive(
    at_redis: AtRedis, otlp: OtlpReceiver
) -> None:
    with EmbeddedRedis() as server:
        otlp.close()
        pipeline = at_redis(server.url)
        worker = pipeline.worker("-c", IMPATIENT, otlp_endpoint=otlp.root_url)
        wait_until(lambda: is_ready(worker), what="the worker to be ready")
        pipeline.publish(make_traces(3))
        wait_until(lambda: not is_ready(worker), what="the worker to notice the receiver")
        states = {role["role"]: (role["state"], role["why"]) for role in roles(worker)}
        assert states["ingest"] == states["judge"] == ("ready", "")
        assert states["export"][0] == "stalled"
        assert states["export"][1].startswith("export-otel: receiver does not answer for ")
        otlp.start()
        wait_until(lambda: is_ready(worker), what="the worker to be ready again")
        server.kill()
        wait_until(lambda: {role["state"] for role in roles(worker)} == {"stalled"}, what="all roles to notice")
        assert [get(worker, path).status_code for path in ("/readyz", "/healthz")] == [503, 200]
        assert all("Redis does not answer" in role["why"] for role in roles(worker))
        assert [worker.scrape().value("tracejudge_ready", role=role) for role in ROLES] == [0, 0, 0, 0]
        server.restart()
        wait_until(lambda: is_ready(worker), what="the worker to be ready again")


@pytest.mark.slow("two workers")
def test_a_worker_reports_its_own_roles_and_is_ready_with_paused_ingest(pipeline: Pipeline) -> None:
    worker = pipeline.worker(roles="ingest", max_waiting_bytes=1)
    wait_until(lambda: is_ready(worker), what="the worker to be ready")
    assert [role["role"] for role in roles(worker)] == ["ingest"]
    for first in (0, 5):
        pipeline.publish(make_traces(5, first=first))
    wait_until(lambda: roles(worker)[0]["state"] == "paused", what="reading to pause")
    assert is_ready(worker)
    worker.program.wait_for("ingest paused")
    account = pipeline.account()
    assert (account.lost, account.reasons, account.unread > 0) == (0, {}, True)
    pipeline.worker(roles="judge")
    assert pipeline.settled(10).scored == 30, "what waits is judged, and the rest is read"
