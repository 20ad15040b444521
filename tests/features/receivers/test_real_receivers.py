"""Scores in Phoenix and MLflow as they are published, read back through their own APIs.

Both run in environments of their own. The user's spans are sent by OTLP before the verdicts or after them, the worker
dies in the middle, before it acknowledges, and MLflow is restarted there. Other faults of a server, and the form of
each request: test_receivers.py.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from support.processes import PATIENCE_S, free_port, wait_until
from support.scrape import CLIENT
from support.stages import Keyspace
from test_receivers import Sending, receiver, verdict

from judges.core.verdict import Verdict

pytestmark = pytest.mark.timeout(900)
ENVIRONMENTS = Path(__file__).parents[3] / ".receivers"  # both have too many dependencies for our own environment
COUNT = 12
IDS = [f"{number + 1:032x}" for number in range(COUNT)]


@pytest.fixture
def any_redis_url(redis_url: str) -> str:
    """One Redis is enough here: the other battery runs with each version."""
    return redis_url


def environment(package: str) -> Path:
    """Return the folder of an environment's programs; makes it if there is none."""
    folder = ENVIRONMENTS / package
    if not (folder / "complete").exists():
        uv = [sys.executable, "-m", "uv", "--quiet"]
        subprocess.run([*uv, "venv", "--clear", "--python", sys.executable, folder], check=True)
        subprocess.run([*uv, "pip", "install", "--python", folder / "bin" / "python", package], check=True)
        (folder / "complete").touch()
    return folder / "bin"


@contextmanager
def serving(command: list[str | Path], url: str, **variables: str) -> Iterator[None]:
    quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, env={**os.environ, **variables}, **quiet)
    try:
        wait_until(lambda: _answers(url), timeout_s=300, what="the server to answer")
        yield
    finally:
        process.terminate()
        process.wait(60)


def _answers(url: str) -> bool:
    try:
        return CLIENT.get(url).status_code < 500
    except httpx.HTTPError:
        return False


def send_spans(url: str, verdicts: list[Verdict], **headers: str) -> None:
    request = ExportTraceServiceRequest()
    spans = request.resource_spans.add().scope_spans.add().spans
    for each in verdicts:
        span = spans.add(trace_id=bytes.fromhex(each.trace_id), span_id=bytes.fromhex(each.span_id or ""), name="chat")
        span.start_time_unix_nano = int(time.time() * 1e9)
        span.end_time_unix_nano = span.start_time_unix_nano + 1_000_000
    sent = {"content-type": "application/x-protobuf", **headers}
    content = request.SerializeToString()
    httpx.post(f"{url}/v1/traces", content=content, headers=sent, timeout=PATIENCE_S).raise_for_status()


class Product(NamedTuple):
    """A server to start, the user's spans to send to it, and what it has: the evaluation id of each score."""

    options: dict[str, Any]
    serve: Callable[[], Any]
    spans: Callable[[list[Verdict]], None]
    found: Callable[[], list[str]]


def phoenix(folder: Path) -> Product:
    programs, port, grpc = environment("arize-phoenix"), free_port(), free_port()
    url = f"http://127.0.0.1:{port}"
    listed = f"{url}/v1/projects/default/span_annotations"

    def serve() -> Any:
        variables = {"PHOENIX_PORT": str(port), "PHOENIX_GRPC_PORT": str(grpc), "PHOENIX_HOST": "127.0.0.1"}
        variables |= {"PHOENIX_WORKING_DIR": str(folder), "PHOENIX_TELEMETRY_ENABLED": "false"}
        return serving([programs / "phoenix", "serve"], f"{url}/healthz", **variables)

    def spans(verdicts: list[Verdict]) -> None:
        send_spans(url, verdicts)
        ids = [("span_ids", each.span_id or "") for each in verdicts]
        # Phoenix stores spans a little later than it accepts them.
        wait_until(lambda: CLIENT.get(listed, params=ids, timeout=PATIENCE_S).status_code == 200, what="the spans")

    def values() -> list[str]:
        ids = [("span_ids", f"{number + 1:016x}") for number in range(COUNT)]
        read = CLIENT.get(listed, params=[*ids, ("limit", 1000)], timeout=PATIENCE_S)
        rows = read.json()["data"] if read.status_code == 200 else []
        for row in rows:
            assert int(row["identifier"], 16) == int(row["span_id"], 16)
            assert (row["name"], row["annotator_kind"]) == ("safety", "LLM")
            assert row["result"] == {"label": "yes", "score": 1.0, "explanation": "It is kind."}
        return [row["identifier"] for row in rows]

    return Product({"kind": "phoenix", "url": url}, serve, spans, values)


def mlflow(folder: Path) -> Product:
    programs, port = environment("mlflow"), free_port()
    url = f"http://127.0.0.1:{port}"

    def serve() -> Any:
        # The application without `mlflow server`, which imports all of it a second time: 14 s of CPU less.
        command = [programs / "python", "-m", "uvicorn", "mlflow.server.fastapi_app:app", "--port", str(port)]
        store = {"FILE_STORE": f"sqlite:///{folder}/mlflow.db", "ARTIFACT_ROOT": str(folder / "artifacts")}
        variables = {f"_MLFLOW_SERVER_{name}": place for name, place in store.items()}
        variables |= {"_MLFLOW_SGI_NAME": "uvicorn", "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
        # Processes for jobs of its own, which take longer than the server.
        return serving(command, f"{url}/health", **variables, MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false")

    def values() -> list[str]:
        names = []
        for number in range(COUNT):
            read = CLIENT.get(f"{url}/api/3.0/mlflow/traces/tr-{number + 1:032x}", timeout=PATIENCE_S)
            info = read.json()["trace"]["trace_info"] if read.status_code == 200 else {}
            for assessment in info.get("assessments", ()):
                assert assessment["source"] == {"source_type": "LLM_JUDGE", "source_id": "safety"}
                shown = (assessment["assessment_name"], assessment["feedback"], assessment["rationale"])
                assert shown == ("safety", {"value": 1.0}, "It is kind.")
                assert assessment["span_id"] == f"{number + 1:016x}"
                names.append(assessment["metadata"]["tracejudge.id"].partition(" ")[0])
        return names

    def spans(verdicts: list[Verdict]) -> None:
        send_spans(url, verdicts, **{"x-mlflow-experiment-id": "0"})

    return Product({"kind": "mlflow", "url": url, "experiment": "0"}, serve, spans, values)


@pytest.mark.slow("starts Phoenix and MLflow")
@pytest.mark.parametrize("make", [phoenix, mlflow])
def test_scores_are_on_traces(
    keyspace: Keyspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], Product]
) -> None:
    product, verdicts, now = make(tmp_path), [verdict(number) for number in range(COUNT)], [time.time()]
    monkeypatch.setattr("worker.base.delivery.receiver_delivery.time.time", lambda: now[0])
    with ExitStack() as stack:
        settings = {"receivers": {"mine": receiver(product.options)}, "export_explanations": True}
        first, second = (Sending(keyspace, **settings) for _ in range(2))
        for worker in (first, second):
            stack.callback(worker.exporter.client.close)  # type: ignore[attr-defined]
        server = stack.enter_context(ExitStack())
        server.enter_context(product.serve())
        product.spans(verdicts[: COUNT // 2])
        keyspace.send(*verdicts)
        with monkeypatch.context() as patched:
            # This worker dies before it acknowledges.
            patched.setattr(type(first.exporter), "_acknowledge_delivered", lambda _self: None)
            wait_until(lambda: first.turn() or len(product.found()) == COUNT // 2, what="the first half")
        if make is mlflow:  # Phoenix takes 25 s of CPU to start.
            server.close()
            server.enter_context(product.serve())
        product.spans(verdicts[COUNT // 2 :])
        for _ in range(4):
            second.turn()
            now[0] += 61
        wait_until(lambda: len(product.found()) >= COUNT, what="the second half")
        assert (first.dropped, second.dropped) == ({}, {})
        assert keyspace.pending("receiver:mine", keyspace.keys.verdicts) == 0
        assert sorted(product.found()) == IDS
