"""Health pages of real workers, in normal operation and without Redis."""

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.otlp import OtlpReceiver
from support.pipeline import Pipeline, Worker, make_traces
from support.processes import Program, wait_until

from worker.base.embedded import EmbeddedRedis
from worker.core.telemetry.health import live_workers

AtRedis = Callable[[str], Pipeline]
ROLES = ["ingest", "judge", "export", "monitor"]
SAID_AFTER_S = 10
"""Seconds without Redis after which a role reports that it is stalled."""
TOKEN = "metrics-t0ken"  # noqa: S105 - nobody's


CLIENT = httpx.Client(timeout=30, trust_env=False, verify=False)  # noqa: S501 - HTTP alone, and asked very often


def get(worker: Worker, path: str, **headers: str) -> httpx.Response:
    return CLIENT.get(f"http://127.0.0.1:{worker.port}{path}", headers=headers)


def roles(worker: Worker) -> list[dict[str, Any]]:
    return get(worker, "/readyz", accept="application/json").json()["roles"]


def is_ready(worker: Worker) -> bool:
    return get(worker, "/readyz").status_code == 200


def test_a_worker_is_ready_within_seconds_and_stays_ready_without_work(pipeline: Pipeline) -> None:
    worker = pipeline.worker()
    wait_until(lambda: is_ready(worker), what="the worker to be ready")
    assert get(worker, "/healthz").text == "alive\n"
    assert [(role["role"], role["state"]) for role in roles(worker)] == [(role, "ready") for role in ROLES]
    log_lines = get(worker, "/readyz").text.splitlines()
    assert [line.split(", ")[0] for line in log_lines] == [f"{role} ready" for role in ROLES]
    assert [worker.scrape().value("tracejudge_ready", role=role) for role in ROLES] == [1, 1, 1, 1]
    pipeline.publish(make_traces(10))
    pipeline.settled(10)
    assert is_ready(worker)


@pytest.mark.slow("a start of a worker, or seconds of CPU, for what shorter tests touch too")
def test_a_worker_reports_only_its_own_roles(pipeline: Pipeline) -> None:
    worker = pipeline.worker(roles="ingest")
    wait_until(lambda: is_ready(worker), what="the worker to be ready")
    assert [role["role"] for role in roles(worker)] == ["ingest"]


def test_doctor_finds_nothing_broken_with_an_idle_worker(at_redis: AtRedis, tmp_path: Path, stack: ExitStack) -> None:
    server = stack.enter_context(EmbeddedRedis(appendonly=True))
    pipeline = at_redis(server.url)
    worker = pipeline.worker()
    wait_until(lambda: is_ready(worker), what="the worker to be ready")
    # Its first heartbeat may be older, with roles that have not started.
    wait_until(lambda: [all(each.roles.values()) for each in live_workers(pipeline.store)] == [True], what="its word")
    environment = {"TRACEJUDGE_REDIS_URL": server.url, "TRACEJUDGE_PREFIX": pipeline.prefix}
    (tmp_path / "tracejudge.toml").write_text('shift_s = "5s"\n')  # without a file doctor warns
    doctor = stack.enter_context(Program("-m", "worker.cli", "doctor", "--json", folder=tmp_path, env=environment))
    assert (doctor.wait(), doctor.stderr) == (0, "")
    parts = {part["name"]: part["result"] for part in json.loads(doctor.stdout)["parts"]}
    assert set(parts.values()) == {"ok"}
    assert {f"role {role}" for role in ROLES} < set(parts)


@pytest.mark.slow("waits until roles count as not ready")
def test_without_redis_a_worker_is_alive_and_not_ready_until_it_is_back(at_redis: AtRedis) -> None:
    with EmbeddedRedis() as server:
        worker = at_redis(server.url).worker()
        wait_until(lambda: is_ready(worker), what="the worker to be ready")
        server.kill()
        wait_until(lambda: not is_ready(worker), what="the worker to notice")
        assert get(worker, "/healthz").status_code == 200
        wait_until(lambda: {role["state"] for role in roles(worker)} == {"stalled"}, what="all roles to notice")
        assert all("Redis does not answer" in role["why"] for role in roles(worker))
        assert [worker.scrape().value("tracejudge_ready", role=role) for role in ROLES] == [0, 0, 0, 0]
        server.restart()
        wait_until(lambda: is_ready(worker), what="the worker to be ready again")


def test_a_worker_that_never_reached_redis_is_alive_and_not_ready(at_redis: AtRedis) -> None:
    with EmbeddedRedis() as server:
        server.kill()
        worker = at_redis(server.url).worker()
        answer = roles(worker)
        states = {"starting"} if min(role["seconds"] for role in answer) < SAID_AFTER_S else {"starting", "stalled"}
        assert {role["state"] for role in answer} <= states
        assert (get(worker, "/readyz").status_code, get(worker, "/healthz").status_code) == (503, 200)


@pytest.mark.slow("waits until roles count as not ready")
def test_a_receiver_that_is_down_is_reported(pipeline: Pipeline, otlp: OtlpReceiver) -> None:
    otlp.close()
    worker = pipeline.worker(otlp_endpoint=otlp.endpoint)
    wait_until(lambda: is_ready(worker), what="the worker to be ready")
    pipeline.publish(make_traces(3))
    wait_until(lambda: not is_ready(worker), what="the worker to notice")
    states = {role["role"]: (role["state"], role["why"]) for role in roles(worker)}
    assert states["ingest"] == states["judge"] == ("ready", "")
    assert states["export"][0] == "stalled"
    assert states["export"][1].startswith("export-otel: receiver does not answer for ")
    otlp.start()
    wait_until(lambda: is_ready(worker), what="the worker to be ready again")


@pytest.mark.slow("a start of a worker, or seconds of CPU, for what shorter tests touch too")
def test_a_worker_with_paused_ingest_is_ready(pipeline: Pipeline) -> None:
    worker = pipeline.worker(roles="ingest", max_waiting_bytes=1)
    pipeline.publish(make_traces(5))
    pipeline.publish(make_traces(5, first=5))
    wait_until(lambda: roles(worker)[0]["state"] == "paused", what="reading to pause")
    assert is_ready(worker)


@pytest.mark.parametrize("by", ["variable", "file"])
def test_metrics_require_the_token_and_probes_do_not(pipeline: Pipeline, tmp_path: Path, by: str) -> None:
    secret = tmp_path / "token"
    secret.write_text(f"{TOKEN}\n", encoding="utf-8")
    settings = {"metrics_token_file": str(secret)}
    if by == "variable":
        # A variable without our prefix, as deployments name their secrets.
        settings = {"metrics_token_env": "TRACEJUDGE_TEST_TOKEN", "test_token": TOKEN}
    worker = pipeline.worker(wait=False, **settings)
    worker.program.wait_for("worker started")
    assert get(worker, "/metrics").status_code == 401
    assert get(worker, "/metrics", authorization="Bearer another").status_code == 401
    assert get(worker, "/metrics", authorization=f"Bearer {TOKEN}").status_code == 200
    assert get(worker, "/healthz").status_code == 200
    assert TOKEN not in worker.program.output
    assert "another" not in worker.program.output


def test_a_missing_secret_ends_the_start_with_one_line(pipeline: Pipeline) -> None:
    worker = pipeline.worker(wait=False, metrics_token_env="ABSENT_TOKEN")  # noqa: S106 - a name
    assert worker.program.wait() == 2
    assert worker.program.stderr.strip() == (
        "tracejudge: metrics_token_env: the variable ABSENT_TOKEN is empty; put the secret there"
    )


def test_an_open_page_on_a_public_address_is_served_and_logged_once(pipeline: Pipeline) -> None:
    worker = pipeline.worker(metrics_host="0.0.0.0")  # noqa: S104 - what is tested
    worker.program.wait_for("metrics readable without credentials")
    assert get(worker, "/metrics").status_code == 200
