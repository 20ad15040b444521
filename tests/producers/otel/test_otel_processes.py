"""The exporter in processes of its own: how they end, how they fork, what gevent does to them."""

import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest
import redis
from sdk_programs import LONGEST_S
from sdk_servers import RedisServer

PROGRAMS = Path(__file__).parent / "programs"


def run(program: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAMS / program), *arguments]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=LONGEST_S, check=True
    )


def variables(server: RedisServer) -> dict[str, str]:
    return {
        "TRACEJUDGE_SERVICE": "shop",
        "TRACEJUDGE_REDIS_URL": server.patient_url,
        "TRACEJUDGE_PREFIX": f"t{secrets.token_hex(4)}",
    }


def published(server: RedisServer, prefix: str) -> int:
    with redis.Redis(port=server.port) as client:
        return sum(b"t" in fields for _, fields in client.xrange(f"{prefix}:traces"))


@pytest.mark.parametrize(("order", "asked"), [("first", 1), ("last", 2)])
def test_a_short_script_loses_nothing_whoever_was_set_up_first(sdk_redis: RedisServer, order: str, asked: int) -> None:
    told = variables(sdk_redis)
    done = run("ending.py", order, **told)
    assert (published(sdk_redis, told["TRACEJUDGE_PREFIX"]), done.stderr) == (asked, "")


AUTOMATIC = {"OTEL_TRACES_EXPORTER": "tracejudge", "OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}


def test_a_service_needs_no_line_of_code(sdk_redis: RedisServer) -> None:
    told = variables(sdk_redis)
    done = run("ending.py", "automatic", **told, **AUTOMATIC)
    assert (published(sdk_redis, told["TRACEJUDGE_PREFIX"]), done.stderr) == (1, "")


def test_a_missing_variable_is_logged_and_breaks_nothing() -> None:
    done = run("ending.py", "automatic", **AUTOMATIC)
    first, *_ = done.stderr.splitlines()
    assert first.startswith("OTEL_TRACES_EXPORTER=tracejudge publishes nothing: service is missing")


def test_a_forked_child_begins_with_nothing_whatever_was_locked() -> None:
    done = run("forking.py")
    assert (done.stdout.splitlines(), done.stderr) == (["child 0 1", "parent 0 1"], "")


def test_greenlets_go_on_while_the_exporter_waits(sdk_redis: RedisServer) -> None:
    pytest.importorskip("gevent")
    told = variables(sdk_redis)
    run("greenlets.py", **told)
    assert published(sdk_redis, told["TRACEJUDGE_PREFIX"]) == 20
