"""The examples of docs/examples, run as their README says, and OpenAI's client of Node.js: the traces that arrive."""

import json
import os
import re
import shlex
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from clients.replay import trace_ids
from example_parts import (
    EXAMPLES,
    NODE_RECORDED,
    PINS,
    RECORDED,
    SCENARIOS,
    SOURCES,
    Bodies,
    blocks,
    copied,
    install_sdk,
    model_variables,
    node_client,
    normalised,
    programs,
    recorded,
    recorded_digests,
    redirected,
    run_block,
    run_client,
    source_digest,
    start_block,
)
from gateway_parts import GatewayProcess, Start, Stored
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from support.model_server import ModelServer
from support.pipeline import Pipeline
from support.processes import free_port, wait_until
from support.tables import read_table

Fields = dict[str, Any]
TABLE: Final = read_table(__file__, "examples")
FAST: Final = {"gather_s": 0.3}
TOKEN: Final = "0123456789abcdef-shop"  # noqa: S105 - of this test
EXPECTED: Final[dict[str, Fields]] = {name: TABLE[f"trace of {name}"] for name in TABLE["sources"]}
"""The trace of each example, as `normalised` returns it."""
NODE_CLIENT: Final[dict[str, Fields | None]] = read_table(__file__, "node_client")
"""The trace of each scenario; embedding a text is none."""
PRINTED: Final = TABLE["printed"]


@pytest.fixture
def variables(redis_url: str, prefix: str) -> Iterator[dict[str, str]]:
    """The variables that lead an example to the Redis and to a model of the tests."""
    with ModelServer() as model:
        yield {**model_variables(model), "TRACEJUDGE_REDIS_URL": redis_url, "TRACEJUDGE_PREFIX": prefix}


def test_the_readme_shows_every_example_and_the_packages_that_are_tested() -> None:
    assert blocks().keys() == SOURCES.keys() == EXPECTED.keys()
    paths = {path.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.glob("*/*") if path.is_file()}
    assert paths - {"ci/github.yml", "ci/gitlab.yml"} == set(SOURCES.values())
    for name, pins in PINS.items():
        line = next(line for line in blocks()[name][-1].splitlines() if re.match(r"(pip|npm) install ", line))
        words = {re.sub(r"(?<!^)@\d+$", "", word) for word in shlex.split(line)[2:]}
        assert words == {re.sub(r"(==|(?<!^)@).*", "", pin) for pin in pins}, name


def test_recordings_are_of_the_examples_as_they_are() -> None:
    """After a change of an example its recording is made anew, see example_parts."""
    assert recorded_digests() == {name: source_digest(name) for name in ("LangGraph", "Pydantic AI", "Node.js", "Go")}
    assert set(SCENARIOS) == set(NODE_CLIENT) == set(node_client())
    assert max(sum(file.stat().st_size for file in folder.iterdir()) for folder in (RECORDED, NODE_RECORDED)) < 20_000


def test_recorded_requests_become_the_expected_traces(start: Start, stored: Stored) -> None:
    """Those of the examples, and of the client of Node.js."""
    gateway, traces = start(**FAST), {}
    for number, name in enumerate(recorded_digests()):
        for path, body in recorded(name).items():
            send(gateway, path, body)
        traces[name] = normalised(stored.wait(number + 1)[number])
    assert traces == {name: EXPECTED[name] for name in traces}
    stored.redis.delete(f"{stored.prefix}:traces")
    assert arrived(gateway, stored, node_client()) == NODE_CLIENT


def test_the_events_of_a_conversation_keep_their_order_over_several_requests(start: Start, stored: Stored) -> None:
    gateway, bodies = start(**FAST), node_client()["tool"]
    for resource in ExportLogsServiceRequest.FromString(bodies["/v1/logs"]).resource_logs:
        for scope in resource.scope_logs:
            for record in scope.log_records:
                request = ExportLogsServiceRequest()
                part = request.resource_logs.add(resource=resource.resource)
                part.scope_logs.add(scope=scope.scope, log_records=[record])
                send(gateway, "/v1/logs", request.SerializeToString())
    own = {"tool": {"/v1/traces": bodies["/v1/traces"]}}
    assert arrived(gateway, stored, own) == {"tool": NODE_CLIENT["tool"]}


def test_curl(start: Start, stored: Stored, tmp_path: Path) -> None:
    tokens = {"shop": {"token_env": "SHOP_TOKEN", "service": "support-bot"}}
    gateway = start(tokens=tokens, env={"SHOP_TOKEN": TOKEN})
    (text,) = blocks()["curl"]
    variables = {"GATEWAY": gateway.url, "TOKEN": TOKEN}
    printed = run_block(text, copied("curl", tmp_path), variables)
    (trace,), (rating,) = stored.entries(), stored.entries("f")
    assert printed.count('"accepted":1') == 2
    assert rating == {"trace_id": trace["trace_id"], "score": -1, "comment": "Mine left on Tuesday."}
    assert normalised(trace) == EXPECTED["curl"]
    with pytest.raises(AssertionError, match="401"):
        run_block(text, tmp_path / "example", variables | {"TOKEN": "wrong"})


@pytest.mark.slow("starts Node.js and Java")
def test_programs_of_the_page_about_other_languages(start: Start, stored: Stored, tmp_path: Path) -> None:
    gateway = start(tokens={"shop": {"token_env": "SHOP_TOKEN"}}, env={"SHOP_TOKEN": TOKEN})
    variables = {"GATEWAY": gateway.url, "TOKEN": TOKEN}
    page = (EXAMPLES.parent / "gateway.md").read_text(encoding="utf-8")
    programs_of_page = re.findall(r"^`([\w.]+)`, run by `(\w+) .*?^```\w+\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert [command for _, command, _ in programs_of_page] == ["node", "java"]
    for number, (name, command, text) in enumerate(programs_of_page, 1):
        (tmp_path / name).write_text(text, encoding="utf-8")
        run_block(f"{command} {name}", tmp_path, variables)
        trace = stored.wait(number)[number - 1]
        sent = [trace.get(key) for key in ("service", "input", "output", "context", "session_id")]
        assert sent == ["shop-bot", "When do you open?", "At nine.", ["We open at nine."], "chat-17"], name


def test_fastapi_and_a_worker(stored: Stored, variables: dict[str, str], tmp_path: Path, stack: ExitStack) -> None:
    serve, ask = blocks()["FastAPI"]
    port = free_port()
    server = start_block(serve, copied("FastAPI", tmp_path), variables | {"UVICORN_PORT": str(port)})
    stack.callback(server.communicate)
    stack.callback(os.killpg, server.pid, signal.SIGKILL)

    def serves() -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{port}/openapi.json").status_code == 200
        except httpx.TransportError:
            return False

    wait_until(serves, what="the example to serve")
    run_block(ask.replace("8000", str(port)), tmp_path / "example", variables)
    answer = json.loads((tmp_path / "example" / "answer.json").read_text())
    (trace,) = stored.wait(1)
    (rating,) = wait_until(lambda: stored.entries("f"), what="the rating")
    assert answer == {"answer": "On Mondays.", "trace_id": trace["trace_id"]}
    assert rating == {"trace_id": trace["trace_id"], "score": -1}
    assert normalised(dict(trace)) == EXPECTED["FastAPI"]
    pipeline = Pipeline(variables["TRACEJUDGE_REDIS_URL"], stored.prefix, tmp_path, stack)
    pipeline.worker()
    pipeline.settled(1)
    verdicts = {entry.verdict.judge: entry.verdict.trace_id for entry in pipeline.outbox()}
    assert verdicts == dict.fromkeys(("groundedness", "relevance_to_query", "safety"), trace["trace_id"])


@pytest.mark.endurance("installs an example's packages in an environment of its own")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", list(PINS))
def test_an_example_alone(name: str, start: Start, stored: Stored, variables: dict[str, str], tmp_path: Path) -> None:
    folder = copied(name, tmp_path)
    path = programs(name, folder)
    assert path is not None
    variables["OTEL_EXPORTER_OTLP_ENDPOINT"] = start(**FAST).url
    for number, text in enumerate(blocks()[name]):
        if "producers" in text:
            install_sdk(path)
        assert run_block(redirected(text, variables), folder, variables, path).splitlines()[-1] == PRINTED[name]
        trace = normalised(stored.wait(number + 1)[number])
        # The server counts the calls of all blocks.
        assert trace == EXPECTED[name] | {"response_id": trace["response_id"]}


@pytest.mark.endurance("installs an example's packages in an environment of its own")
@pytest.mark.timeout(1800)
def test_pydantic_ai_without_a_gateway(stored: Stored, variables: dict[str, str], tmp_path: Path) -> None:
    """The two expressions that its comment names take the place of the other exporter."""
    name = "Pydantic AI"
    folder = copied(name, tmp_path)
    path = programs(name, folder)
    assert path is not None
    install_sdk(path)
    source = (folder / "app.py").read_text()
    init, exporter = re.findall(r"`(tracejudge\..+?)`", source)
    begun = f"import tracejudge.otel\n\n{init}\nprovider = TracerProvider()"
    changed = source.replace("OTLPSpanExporter())", f"{exporter})").replace("provider = TracerProvider()", begun)
    (folder / "app.py").write_text(changed)
    run_block(blocks()[name][-1], folder, variables, path)
    assert normalised(stored.wait(1)[0]) == EXPECTED[name]


@pytest.mark.endurance("installs the packages of npm in an environment of its own")
@pytest.mark.timeout(1800)
def test_the_current_node_client_sends_the_recorded_traces(start: Start, stored: Stored) -> None:
    assert arrived(start(**FAST), stored, run_client()) == NODE_CLIENT


def arrived(gateway: GatewayProcess, stored: Stored, sent: dict[str, Bodies]) -> dict[str, Fields | None]:
    """Send the bodies of each scenario, and return its trace."""
    for bodies in sent.values():
        for path, body in bodies.items():
            send(gateway, path, body)
    traces = stored.wait(sum(NODE_CLIENT[name] is not None for name in sent))
    by_trace_id = {trace["trace_id"]: trace for trace in traces}
    own = {name: by_trace_id.pop(trace_ids(bodies["/v1/traces"]).pop(), None) for name, bodies in sent.items()}
    assert by_trace_id == {}
    ids = {name: trace.pop("response_id", "")[:5] for name, trace in own.items() if trace is not None}
    # The models of the tests count their responses.
    assert ids == {name: "" if name == "error" else "resp_" if "responses" in name else "chatc" for name in ids}
    return {name: trace and normalised(trace) for name, trace in own.items()}


def send(gateway: GatewayProcess, path: str, body: bytes) -> None:
    reply = gateway.post(path, body, "application/x-protobuf")
    assert (reply.status_code, reply.content) == (200, b"")
