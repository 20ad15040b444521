"""The two programs that compose.yaml runs besides the worker: sample traffic, and an inbox for Alertmanager."""

import json
import signal
from pathlib import Path

import httpx
from compose_file import DEPLOY, services
from redis import Redis
from support.otlp import OtlpReceiver, failing
from support.processes import Program, free_port, wait_until

TRAFFIC = DEPLOY / "traffic.py"
INBOX = DEPLOY / "inbox.py"
SERVICES = {"support-bot", "code-helper", "summariser"}


def variables(redis_url: str, prefix: str, otlp: OtlpReceiver) -> dict[str, str]:
    """Return the variables of compose.yaml, with the addresses of the test."""
    given = services()["traffic"]["environment"]
    ours = {"TRACEJUDGE_REDIS_URL": redis_url, "OTEL_EXPORTER_OTLP_ENDPOINT": otlp.endpoint}
    assert set(ours) < set(given)
    return given | ours | {"TRACEJUDGE_PREFIX": prefix}


def published(redis: Redis, prefix: str) -> list[dict[str, object]]:
    entries = redis.xrange(f"{prefix}:traces")
    return [json.loads(fields[b"t"]) for _, fields in entries if b"t" in fields]


def test_traffic_goes_on_round_after_round_and_each_trace_is_a_span(
    redis: Redis, redis_url: str, prefix: str, otlp: OtlpReceiver, tmp_path: Path
) -> None:
    environment = variables(redis_url, prefix, otlp)
    with Program(TRAFFIC, "--round", "4", "--rate", "5", folder=tmp_path, env=environment) as traffic:
        wait_until(lambda: len(published(redis, prefix)) > 4 * 5 * len(SERVICES) * 1.2, what="a second round")
        traffic.signal(signal.SIGTERM)
        assert traffic.wait() == 0
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
