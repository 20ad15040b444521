"""The programs of compose.yaml with their own commands, variables, files and health checks, as far as they are here."""

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from compose_file import DEPLOY, mounts, services
from redis import Redis
from support.cases import each_case
from support.otlp import OtlpReceiver, failing
from support.processes import Program, free_port, wait_until

TRAFFIC = DEPLOY / "traffic.py"
INBOX = DEPLOY / "inbox.py"
SERVICES = {"support-bot", "code-helper", "summariser"}
PROGRAMS = {  # of services: where it is on this machine, what gives it a port of its own, and the paths of its image
    "redis": ("redis-server", ["--port", "{6379}", "--dir", "/data"], {"/data"}),
    "prometheus": ("prometheus", ["--web.listen-address=127.0.0.1:{9090}"], {"/etc/prometheus", "/prometheus"}),
    "alertmanager": (
        "prometheus-alertmanager",
        ["--web.listen-address=127.0.0.1:{9093}"],
        {"/etc/alertmanager", "/alertmanager"},
    ),
}


def placed(words: Sequence[str], numbers: Mapping[int, int], folders: Mapping[str, Path]) -> list[str]:
    """Replace the ports and the folders of a container by ours."""
    made = []
    for word in words:
        for inner, outer in numbers.items():
            word = re.sub(rf"\{{{inner}\}}|(?<=:){inner}\b|^{inner}$", str(outer), word)  # noqa: PLW2901 - step by step
        for path, folder in folders.items():
            word = re.sub(rf"(?<![\w.]){path}(?=/|$)", str(folder), word)  # noqa: PLW2901
        made.append(word)
    return made


def is_healthy(
    service: Mapping[str, Any], numbers: Mapping[int, int], folders: Mapping[str, Path] | None = None
) -> bool:
    """Run its health check, which compose runs in the container."""
    words = placed(service["healthcheck"]["test"][1:], numbers, folders or {})
    words = [sys.executable, *words[1:]] if words[0] == "python" else words
    if words[0] == "redis-cli":
        words[1:1] = ["-p", str(numbers[6379])]
    return subprocess.run(words, capture_output=True, check=False, timeout=30).returncode == 0


@pytest.mark.slow("starts Redis, Prometheus and Alertmanager")
@each_case("name", PROGRAMS)
def test_a_service_starts_by_its_command_and_is_healthy(name: str, tmp_path: Path) -> None:
    service = services()[name]
    program, own_port, paths = PROGRAMS[name]
    numbers = {int(re.findall(r"\{(\d+)\}", "".join(own_port))[0]): free_port()}
    folders = {path: tmp_path / path.strip("/").replace("/", "-") for path in paths}
    for folder in folders.values():
        folder.mkdir()
    for mount in mounts(service):
        (target,) = placed([mount.target], {}, folders)
        shutil.copytree(mount.source, target, dirs_exist_ok=True) if mount.source.is_dir() else shutil.copy(
            mount.source, target
        )
    command = [word for word in service["command"] if word != program]
    assert not is_healthy(service, numbers)
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [shutil.which(program) or program, *placed([*command, *own_port], numbers, folders)],
            stdout=log,
            stderr=log,
            cwd=tmp_path,
        )
    try:
        wait_until(lambda: is_healthy(service, numbers), what=f"{name} to be healthy")
    finally:
        process.terminate()
        assert process.wait(30) == 0, (tmp_path / "log").read_text()


@pytest.mark.slow("starts a worker, a gateway and a board")
@pytest.mark.parametrize("name", ["gateway", "board"])
def test_our_own_services_start_by_their_commands_and_are_healthy(
    name: str, redis_url: str, prefix: str, tmp_path: Path
) -> None:
    service = services()[name]
    token = f"{name.upper()}_TOKEN"
    numbers = {9811: free_port()} if name == "board" else {9809: free_port()}
    port = free_port()
    for mount in mounts(service):
        shutil.copy(mount.source, tmp_path / Path(mount.target).name)
    environment = {key: re.sub(r"\$\{\w+:-(.*)\}", r"\1", value) for key, value in service["environment"].items()}
    setting = f"TRACEJUDGE_{name.upper()}"
    own = json.loads(environment[setting]) | {"port": port, "metrics_port": next(iter(numbers.values()))}
    environment |= {setting: json.dumps(own), "TRACEJUDGE_REDIS_URL": redis_url, "TRACEJUDGE_PREFIX": prefix}
    command = placed(service["command"], numbers, {})
    with Program("-m", "worker.cli", *command, folder=tmp_path, env=environment) as program:
        wait_until(lambda: is_healthy(service, numbers), what=f"{name} to be healthy")
        path = {"gateway": "/v1/tracejudge", "board": "/"}[name]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30) as client:
            for header, allowed in ({}, False), ({"Authorization": f"Bearer {environment[token]}"}, True):
                reply = (
                    client.post(path, json=[], headers=header)
                    if name == "gateway"
                    else client.get(path, headers=header)
                )
                assert (reply.status_code != 401) is allowed, reply.text
        assert program.terminate() == 0


def variables(redis_url: str, prefix: str, otlp: OtlpReceiver) -> dict[str, str]:
    """Return the variables of compose.yaml, with the addresses of the test."""
    environment = services()["traffic"]["environment"]
    ours = {"TRACEJUDGE_REDIS_URL": redis_url, "OTEL_EXPORTER_OTLP_ENDPOINT": otlp.endpoint}
    assert set(ours) < set(environment)
    return environment | ours | {"TRACEJUDGE_PREFIX": prefix}


def published(redis: Redis, prefix: str) -> list[dict[str, object]]:
    entries = redis.xrange(f"{prefix}:traces")
    return [json.loads(fields[b"t"]) for _, fields in entries if b"t" in fields]


def test_traffic_goes_on_round_after_round_and_each_trace_is_a_span(
    redis: Redis, redis_url: str, prefix: str, otlp: OtlpReceiver, tmp_path: Path
) -> None:
    environment = variables(redis_url, prefix, otlp)
    with Program(
        TRAFFIC, "--round", "4", "--rate", "5", folder=tmp_path, env=environment | {"TMPDIR": str(tmp_path)}
    ) as traffic:
        wait_until(lambda: len(published(redis, prefix)) > 4 * 5 * len(SERVICES) * 1.2, what="a second round")
        traffic.signal(signal.SIGTERM)
        assert traffic.wait() == 0
    alive = ["python", "-c", services()["traffic"]["healthcheck"]["test"][-1].replace("/tmp/", f"{tmp_path}/")]  # noqa: S108
    assert subprocess.run([sys.executable, *alive[1:]], check=False).returncode == 0
    traces = published(redis, prefix)
    assert {trace["service"] for trace in traces} == SERVICES
    assert {trace["environment"] for trace in traces} == {"demo"}
    spans = {(span.trace_id, span.span_id): span for span in otlp.spans}
    assert {(trace["trace_id"], trace["span_id"]) for trace in traces} == set(spans)
    assert {span.resource["service.name"] for span in spans.values()} == SERVICES
    assert all(0 < span.end_ns - span.start_ns < 5e9 for span in spans.values())


def test_traffic_goes_on_without_a_collector(
    redis: Redis, redis_url: str, prefix: str, otlp: OtlpReceiver, tmp_path: Path
) -> None:
    otlp.behaviour = failing(503)
    environment = variables(redis_url, prefix, otlp)
    with Program(TRAFFIC, "--round", "60", "--rate", "20", folder=tmp_path, env=environment) as traffic:
        traffic.wait_for("no spans sent: HTTPStatusError")
        already = len(published(redis, prefix))
        wait_until(lambda: len(published(redis, prefix)) > already, what="more traffic")


def test_the_arguments_of_compose_are_taken(redis_url: str, prefix: str, otlp: OtlpReceiver, tmp_path: Path) -> None:
    command = services()["traffic"]["command"]
    with Program(TRAFFIC, *command, folder=tmp_path, env=variables(redis_url, prefix, otlp)) as traffic:
        traffic.wait_for("rounds of 7200 s, 1 traces a second of each service")


def test_the_inbox_prints_what_a_person_would_read(tmp_path: Path) -> None:
    port = free_port()
    message = {
        "attachments": [{"title": "[PAGE] it fell", "text": "61% passed.", "title_link": "http://localhost:3000"}]
    }
    with Program(INBOX, str(port), folder=tmp_path) as inbox, httpx.Client(trust_env=False, timeout=60) as client:
        inbox.wait_for("inbox on port")
        assert is_healthy(services()["inbox"], {8080: port})
        answer = client.post(f"http://127.0.0.1:{port}/page", json=message)
        assert (answer.status_code, answer.text) == (200, "ok")  # anything else is a failure to Alertmanager
        inbox.wait_for("^== page ==\n\\[PAGE\\] it fell\n61% passed.\nhttp://localhost:3000$")


def test_the_inbox_prints_messages_for_programs_on_a_line(tmp_path: Path) -> None:
    port = free_port()
    message = {"alerts": [{"status": "firing", "labels": {"alertname": "TraceJudgeNoVerdicts"}}]}
    with Program(INBOX, str(port), folder=tmp_path) as inbox, httpx.Client(trust_env=False, timeout=60) as client:
        inbox.wait_for("inbox on port")
        assert client.get(f"http://127.0.0.1:{port}/").text == "ok"
        assert client.post(f"http://127.0.0.1:{port}/webhook", content=b"no JSON").status_code == 400
        assert client.post(f"http://127.0.0.1:{port}/webhook", json=[1]).status_code == 400
        assert client.post(f"http://127.0.0.1:{port}/webhook", json=message).text == "ok"
        inbox.wait_for("^-- webhook: TraceJudgeNoVerdicts firing$")
