"""Scores in Phoenix and MLflow as they are published, read back through their own APIs.

Both run in environments of their own. The user's span is sent by OTLP after the verdict, and both the server and the
worker are restarted in the middle.
"""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from stage_parts import Ground
from support.ports import free_port
from support.processes import PATIENCE_S, wait_until
from support.receiver_environments import environment
from test_receivers import Sending, receiver, verdict

from judges.core.verdict import Verdict

pytestmark = [pytest.mark.slow("starts Phoenix or MLflow twice, 60 s"), pytest.mark.timeout(900)]
COUNT = 12


@contextmanager
def serving(command: list[str | Path], url: str, **variables: str) -> Iterator[None]:
    process = subprocess.Popen(
        command, env={**os.environ, **variables}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: _answers(url), timeout_s=300, what="the server to answer")
        yield
    finally:
        process.terminate()
        process.wait(60)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url).status_code < 500
    except httpx.HTTPError:
        return False


def send_spans(url: str, verdicts: list[Verdict], **headers: str) -> None:
    request = ExportTraceServiceRequest()
    spans = request.resource_spans.add().scope_spans.add().spans
    for one in verdicts:
        span = spans.add(trace_id=bytes.fromhex(one.trace_id), span_id=bytes.fromhex(one.span_id or ""), name="chat")
        span.start_time_unix_nano = int(time.time() * 1e9)
        span.end_time_unix_nano = span.start_time_unix_nano + 1_000_000
    sent = {"content-type": "application/x-protobuf", **headers}
    httpx.post(
        f"{url}/v1/traces", content=request.SerializeToString(), headers=sent, timeout=PATIENCE_S
    ).raise_for_status()


def export(
    ground: Ground,
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    *,
    serve: Callable[[], Any],
    spans: Callable[[list[Verdict]], None],
    found: Callable[[], list[str]],
) -> list[str]:
    """Export verdicts over two lives of the server and of the worker; return what the server then has."""
    verdicts = [verdict(number) for number in range(COUNT)]
    now = [time.time()]
    monkeypatch.setattr("worker.export.receiver_delivery.time.time", lambda: now[0])
    settings = {"receivers": {"mine": receiver(options)}, "export_explanations": True}
    first, second = Sending(ground, **settings), Sending(ground, **settings)
    with serve():
        spans(verdicts[: COUNT // 2])
        ground.send(*verdicts)
        with monkeypatch.context() as patched:
            # This worker dies before it acknowledges.
            patched.setattr(type(first.exporter), "_acknowledge_delivered", lambda _self: None)
            wait_until(lambda: first.turn() or len(found()) == COUNT // 2, timeout_s=60, what="the first half")
    with serve():
        spans(verdicts[COUNT // 2 :])
        for _ in range(4):
            second.turn()
            now[0] += 61
        wait_until(lambda: len(found()) >= COUNT, timeout_s=60, what="the second half")
        assert (first.dropped, second.dropped) == ({}, {})
        assert ground.pending("receiver:mine", ground.keys.verdicts) == 0
        for each in (first, second):
            each.exporter._client.close()  # type: ignore[attr-defined]
        return sorted(found())


def test_phoenix_has_each_score_on_the_user_s_own_span(
    ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs, port, grpc = environment("phoenix"), free_port(), free_port()
    url = f"http://127.0.0.1:{port}"

    def serve() -> Any:
        variables = {"PHOENIX_PORT": str(port), "PHOENIX_GRPC_PORT": str(grpc), "PHOENIX_HOST": "127.0.0.1"}
        variables |= {"PHOENIX_WORKING_DIR": str(tmp_path), "PHOENIX_TELEMETRY_ENABLED": "false"}
        return serving([programs / "phoenix", "serve"], f"{url}/healthz", **variables)

    def spans(verdicts: list[Verdict]) -> None:
        send_spans(url, verdicts)
        ids = [("span_ids", one.span_id or "") for one in verdicts]
        # Phoenix stores spans a little later than it accepts them.
        listed = f"{url}/v1/projects/default/span_annotations"
        wait_until(
            lambda: httpx.get(listed, params=ids, timeout=PATIENCE_S).status_code == 200, timeout_s=60, what="the spans"
        )

    def found() -> list[str]:
        ids = [("span_ids", f"{number + 1:016x}") for number in range(COUNT)]
        read = httpx.get(
            f"{url}/v1/projects/default/span_annotations", params=[*ids, ("limit", 1000)], timeout=PATIENCE_S
        )
        rows = read.json()["data"] if read.status_code == 200 else []
        for row in rows:
            assert int(row["identifier"], 16) == int(row["span_id"], 16)
            assert (row["name"], row["annotator_kind"]) == ("safety", "LLM")
            assert row["result"] == {"label": "yes", "score": 1.0, "explanation": "It is kind."}
        return [row["identifier"] for row in rows]

    options = {"kind": "phoenix", "url": url}
    names = export(ground, options, monkeypatch, serve=serve, spans=spans, found=found)
    assert names == [f"{number + 1:032x}" for number in range(COUNT)]


def test_mlflow_has_each_score_on_the_user_s_own_trace(
    ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs, port = environment("mlflow"), free_port()
    url = f"http://127.0.0.1:{port}"

    def serve() -> Any:
        store = [f"sqlite:///{tmp_path}/mlflow.db", "--default-artifact-root", tmp_path / "artifacts"]
        command = [programs / "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
        path = f"{programs}:{os.environ['PATH']}"
        variables = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true", "PATH": path}
        return serving([*command, "--backend-store-uri", *store], f"{url}/health", **variables)

    def found() -> list[str]:
        names = []
        for number in range(COUNT):
            read = httpx.get(f"{url}/api/3.0/mlflow/traces/tr-{number + 1:032x}", timeout=PATIENCE_S)
            info = read.json()["trace"]["trace_info"] if read.status_code == 200 else {}
            for one in info.get("assessments", ()):
                assert one["source"] == {"source_type": "LLM_JUDGE", "source_id": "safety"}
                assert (one["assessment_name"], one["feedback"], one["rationale"]) == (
                    "safety",
                    {"value": 1.0},
                    "It is kind.",
                )
                assert one["span_id"] == f"{number + 1:016x}"
                names.append(one["metadata"]["tracejudge.id"].partition(" ")[0])
        return names

    def spans(verdicts: list[Verdict]) -> None:
        send_spans(url, verdicts, **{"x-mlflow-experiment-id": "0"})

    options = {"kind": "mlflow", "url": url, "experiment": "0"}
    names = export(ground, options, monkeypatch, serve=serve, spans=spans, found=found)
    assert names == [f"{number + 1:032x}" for number in range(COUNT)]
