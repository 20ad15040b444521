"""The examples of docs/examples, run as their README says, and OpenAI's client of Node.js: the traces that arrive.

    PYTHONPATH=. python features/gateway/test_examples.py NAME …        # from tests/: record what an example sends
    PYTHONPATH=. python features/gateway/test_examples.py --client

An example with packages of its own runs in an environment below the folder that TRACEJUDGE_CLIENT_ENVS names. The
example in Go was recorded with Go 1.19 and version 1.16 of OpenTelemetry's SDK and otlptracehttp; recording it again
takes `go` from the PATH.
"""

import gzip
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from clients.recording import environment
from clients.replay import trace_ids
from gateway_parts import GatewayProcess, Start, Stored
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from support.model_server import ModelServer
from support.pipeline import Pipeline
from support.processes import free_port, wait_until
from support.tables import read_table

ROOT: Final = Path(__file__).parents[3]
EXAMPLES: Final = ROOT / "docs" / "examples"
RECORDED: Final = Path(__file__).parent / "recorded"
NODE_RECORDED: Final = RECORDED / "node_client"
NODE_SOURCE: Final = Path(__file__).parent / "node_client.js"
TABLE: Final = read_table(__file__, "examples")
SCENARIOS: Final = re.findall(r"^  (?:async )?(\w+)(?:: |\(\) \{)", NODE_SOURCE.read_text(), re.MULTILINE)
Bodies = dict[str, bytes]
LONGEST_S: Final = 120
SOURCES: Final[dict[str, str]] = TABLE["sources"]
PINS: Final[dict[str, list[str]]] = TABLE["pins"]
NODE: Final = "node@24.21.0"
"""The interpreter, as a package of npm: OpenTelemetry's SDK needs a newer one than many machines have."""
_SECTION: Final = re.compile(r"^## (?P<name>.+?)\n(?P<text>.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_BLOCK: Final = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# What was installed before is not installed again; `installed` lists what a block asks for.
_STUBS: Final = 'pip() { shift; printf "%s\\n" "$@" >> installed; }\nnpm() { pip "$@"; }\n'


def blocks() -> dict[str, list[str]]:
    """Read the commands of each example in the README, one text for each block."""
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    return {matches["name"]: _BLOCK.findall(matches["text"]) for matches in _SECTION.finditer(text)}


def copied(name: str, folder: Path) -> Path:
    """Copy an example, so that nothing is written into the checkout."""
    return shutil.copytree((EXAMPLES / SOURCES[name]).parent, folder / "example")


def start_block(
    text: str, folder: Path, variables: Mapping[str, str], path: Path | None = None
) -> subprocess.Popen[str]:
    """Start the commands of a block in a folder, with the programs of `path` before those of the machine."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("OTEL_", "TRACEJUDGE_", "OPENAI_"))}
    searched = f"{path or Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}"
    return subprocess.Popen(
        ["bash", "-euc", _STUBS + text],
        cwd=folder,
        env={**kept, "PATH": searched, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a group of its own, so that a server ends with it
    )


def run_block(text: str, folder: Path, variables: Mapping[str, str], path: Path | None = None) -> str:
    """Run the commands of a block to their end, and return what they print."""
    out, err = (program := start_block(text, folder, variables, path)).communicate(timeout=LONGEST_S)
    assert program.returncode == 0, f"{out}\n{err}"
    return out


def model_variables(server: ModelServer) -> dict[str, str]:
    """Return the variables that lead clients to a model of the tests."""
    return {"OPENAI_BASE_URL": f"{server.root_url}/v1", "OPENAI_API_KEY": "none"}


def exporter_variables(server: ModelServer) -> dict[str, str]:
    """Return the variables that lead clients to a model of the tests, which records what they export."""
    return model_variables(server) | {
        "OTEL_EXPORTER_OTLP_ENDPOINT": server.root_url,
        "OTEL_NODE_RESOURCE_DETECTORS": "service",  # not the host, the process and its paths
    }


def stem(name: str) -> str:
    """Return the folder of an example, after which its environment and recording are named."""
    return SOURCES[name].partition("/")[0]


def programs(name: str, folder: Path) -> Path | None:
    """Return the folder of an example's programs; its environment is built if it is missing."""
    if name == "Node.js":
        built = _node_modules()
        (folder / "node_modules").symlink_to(built)
        return built / ".bin"
    if name not in PINS:
        return None
    return environment(f"example-{stem(name)}", PINS[name]).parent


def _node_modules() -> Path:
    folder = environment("example-node", ()).parents[1]
    if not (folder / "node_modules").exists():
        # npm chooses packages by the version of the interpreter that runs it, so versions are exact.
        command = ["npm", "install", "--no-audit", "--no-fund", "--no-save", "--prefix", folder, NODE, *PINS["Node.js"]]
        subprocess.run(command, check=True, capture_output=True)
    return folder / "node_modules"


def install_sdk(path: Path) -> None:
    """Install the SDK of this checkout in an example's environment."""
    command = [path / "python", "-m", "pip", "install", "--quiet"]
    subprocess.run([*command, "redis", "msgspec"], check=True)
    subprocess.run([*command, "--force-reinstall", "--no-deps", ROOT / "producers"], check=True)


def source_digest(name: str) -> str:
    """Return the digest of an example's source, which a recording belongs to."""
    return hashlib.sha256((EXAMPLES / SOURCES[name]).read_bytes()).hexdigest()


def recorded(folder: Path = RECORDED) -> dict[str, Bodies]:
    """Return what was sent: bodies by path, log records first, of each example or scenario of a folder."""
    bodies: dict[str, Bodies] = {}
    for file in sorted(folder.glob("*.gz")):
        name, kind = file.name.removesuffix(".gz").split(".")
        bodies.setdefault(name, {})[f"/v1/{kind}"] = gzip.decompress(file.read_bytes())
    return bodies


def write_recording(folder: Path, name: str, bodies: Bodies) -> None:
    """Replace the recording of an example or scenario."""
    folder.mkdir(exist_ok=True)
    for old in folder.glob(f"{name}.*.gz"):
        old.unlink()
    for path, body in bodies.items():
        (folder / f"{name}.{path.rpartition('/')[2]}.gz").write_bytes(gzip.compress(body, mtime=0))


def recorded_digests() -> dict[str, str]:
    """Return the digest of the source that each recording was made with."""
    digests: dict[str, str] = json.loads((RECORDED / "sources.json").read_text())
    return digests


def record(name: str) -> None:
    """Replace the recording of an example: the last block of its section is run against a recorder."""
    with ModelServer(port=8899) as server, tempfile.TemporaryDirectory() as home:
        folder = copied(name, Path(home))
        # The addresses of the README are those of a default installation.
        variables = exporter_variables(server)
        run_block(redirected(blocks()[name][-1], variables), folder, variables, programs(name, folder))
        sent = {"/v1/logs": server.logs, "/v1/traces": server.traces}
        write_recording(RECORDED, stem(name), {path: body for path, kept in sent.items() for body in kept.values()})
    digests = recorded_digests() | {name: source_digest(name)}
    (RECORDED / "sources.json").write_text(json.dumps(digests, indent=1, sort_keys=True) + "\n")


def redirected(text: str, variables: Mapping[str, str]) -> str:
    """Leave out the assignments of variables that the test sets."""
    return re.sub(rf"\b(?:{'|'.join(variables)})=\S+", "", text)


def normalised(trace: dict[str, Any]) -> dict[str, Any]:
    """Replace ids and times by names, and spans by `kind: name`."""
    assert len(trace.pop("id")) == 16
    assert len(trace.pop("trace_id")) == 32
    assert trace.pop("started_at", 0.0) <= trace.pop("ended_at", 0.0)
    names = {span["span_id"]: span["name"] for span in trace.get("spans", ())}
    if "spans" in trace:
        trace["spans"] = [f"{span['kind']}: {span['name']}" for span in trace["spans"]]
    return trace | {"span_id": names.get(trace["span_id"], "span")}


def run_client() -> dict[str, Bodies]:
    """Run each scenario of the client of Node.js in a process of its own, and return what it sends."""
    with ModelServer(port=8899) as server, tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        shutil.copy(NODE_SOURCE, folder)
        path = programs("Node.js", folder)
        variables = exporter_variables(server) | {"OTEL_SERVICE_NAME": "shop", "OTEL_METRICS_EXPORTER": "none"}
        for scenario in SCENARIOS:
            server.scenario = scenario
            run_block(f"node {NODE_SOURCE.name} {scenario}", folder, variables, path)
        sent = {"/v1/logs": server.logs, "/v1/traces": server.traces}
        return {each: {where: kept[each] for where, kept in sent.items() if each in kept} for each in SCENARIOS}


# --- tests ---
Fields = dict[str, Any]
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
    """After a change of an example its recording is made anew, see above."""
    assert recorded_digests() == {name: source_digest(name) for name in ("LangGraph", "Pydantic AI", "Node.js", "Go")}
    assert set(SCENARIOS) == set(NODE_CLIENT) == set(recorded(NODE_RECORDED))
    assert max(sum(file.stat().st_size for file in folder.iterdir()) for folder in (RECORDED, NODE_RECORDED)) < 20_000


def test_recorded_requests_become_the_expected_traces(start: Start, stored: Stored) -> None:
    """Those of the examples, and of the client of Node.js."""
    gateway, traces = start(**FAST), {}
    for number, name in enumerate(recorded_digests()):
        for path, body in recorded()[stem(name)].items():
            send(gateway, path, body)
        traces[name] = normalised(stored.wait(number + 1)[number])
    assert traces == {name: EXPECTED[name] for name in traces}
    stored.redis.delete(f"{stored.prefix}:traces")
    assert arrived(gateway, stored, recorded(NODE_RECORDED)) == NODE_CLIENT


def test_the_events_of_a_conversation_keep_their_order_over_several_requests(start: Start, stored: Stored) -> None:
    gateway, bodies = start(**FAST), recorded(NODE_RECORDED)["tool"]
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
    tokens = {"shop": {"token_env": "PYTEST_SHOP", "service": "support-bot"}}
    gateway = start(tokens=tokens, env={"PYTEST_SHOP": TOKEN})
    (text,) = blocks()["curl"]
    variables = {"GATEWAY": gateway.url, "TOKEN": TOKEN}
    printed = run_block(text, copied("curl", tmp_path), variables)
    (trace,), (rating,) = stored.entries(), stored.entries("f")
    assert printed.count('"accepted":1') == 2
    assert rating == {"trace_id": trace["trace_id"], "score": -1, "comment": "Mine left on Tuesday."}
    assert normalised(trace) == EXPECTED["curl"]
    with pytest.raises(AssertionError, match="401"):
        run_block(text, tmp_path / "example", variables | {"TOKEN": "wrong"})


@pytest.mark.parametrize(
    "command",
    [
        pytest.param("node", marks=pytest.mark.slow("starts Node.js")),
        pytest.param("java", marks=pytest.mark.endurance("compiles a program for 4 s of CPU")),
    ],
)
def test_programs_of_the_page_about_other_languages(start: Start, stored: Stored, tmp_path: Path, command: str) -> None:
    gateway = start(tokens={"shop": {"token_env": "PYTEST_SHOP"}}, env={"PYTEST_SHOP": TOKEN})
    variables = {"GATEWAY": gateway.url, "TOKEN": TOKEN}
    page = (EXAMPLES.parent / "gateway.md").read_text(encoding="utf-8")
    programs_of_page = re.findall(r"^`([\w.]+)`, run by `(\w+) .*?^```\w+\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert [program for _, program, _ in programs_of_page] == ["node", "java"]
    ((name, _, text),) = (each for each in programs_of_page if each[1] == command)
    (tmp_path / name).write_text(text, encoding="utf-8")
    run_block(f"{command} {name}", tmp_path, variables)
    (trace,) = stored.wait(1)
    sent = [trace.get(key) for key in ("service", "input", "output", "context", "session_id")]
    assert sent == ["shop-bot", "When do you open?", "At nine.", ["We open at nine."], "chat-17"]


@pytest.mark.slow("several real programs")
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


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        if argument != "--client":
            record(argument)
            continue
        for scenario, sent_bodies in run_client().items():
            write_recording(NODE_RECORDED, scenario, sent_bodies)
