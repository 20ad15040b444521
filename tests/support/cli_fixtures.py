"""Commands run in this process, in an empty folder."""

import importlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tracejudge
from judges.core.verdict import Score
from support.cli_parts import Ended, Run, write_lines
from support.cluster import Cluster
from support.partition_parts import PARTITIONS, home, three_partitions
from support.processes import PATIENCE_S
from support.published import TRACES
from support.stage_parts import IngestHarness, Keyspace, make_verdict
from tracejudge import api
from worker.base.doctor.finding import Check
from worker.cli import main


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
WORDS_COUNT = (("worker.core.telemetry.health", "HEARTBEAT_MS"), ("worker.base.doctor.command", "HEARTBEAT_MS"))


@pytest.fixture
def _patient_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengthen the doctor's waits and the age of workers' reports: this machine may be busy."""
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
