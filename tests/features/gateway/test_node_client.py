"""What the OpenAI client of Node.js sends under OpenTelemetry's own instrumentation, and the traces that arrive."""

from collections.abc import Iterator
from typing import Any, Final

import pytest
from example_parts import normalised
from gateway_parts import GatewayProcess, Start, Stored
from node_client_parts import RECORDED, SCENARIOS, Bodies, recorded, run_client
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from support.model_server import FAILURE, MODEL

Fields = dict[str, Any]

BRIEF: Final = {"role": "system", "content": "Be brief."}
TURNS: Final = [{"role": "user", "content": "Where is my parcel?"}, {"role": "assistant", "content": "It is in Bern."}]
TRACKED: Final = {"name": "track", "arguments": {"number": 7}, "result": "Parcel 7 is in Bern."}
SINGLE: Final = {
    "service": "shop",
    "name": "POST /ask",
    "session_id": "session-1",
    "user_id": "user-1",
    "provider": "openai",
    "model": MODEL,
    "span_id": "chat small",
    "spans": ["internal: POST /ask", "llm: chat small"],
    "messages": [BRIEF],
    "input": "Where is my parcel?",
    "output": "It is in Bern.",
    "usage": {"input_tokens": 100, "output_tokens": 20},
}
AGAIN: Final = {**SINGLE, "output": "It is still in Bern.", "messages": [BRIEF, *TURNS]}
TWO_CALLS: Final = [*SINGLE["spans"], "llm: chat small"]
TOOL: Final = {
    **SINGLE,
    "input": "Where is parcel 7?",
    "output": "Parcel 7 has reached Bern.",
    "tool_calls": [TRACKED],
    "spans": TWO_CALLS,
}
FAILED: Final = {
    **SINGLE,
    "input": "Please fail.",
    "output": "",
    "model": "small",
    "error": f"BadRequestError: 400 {FAILURE}",
}
del FAILED["usage"]
EXPECTED: Final[dict[str, Fields | None]] = {
    "single": SINGLE,
    "stream": SINGLE,
    "history": AGAIN,
    "two_turns": AGAIN | {"spans": TWO_CALLS},
    "tool": TOOL,
    "typed": SINGLE | {"input": "Which city, and for how many days?", "output": '{"city": "Bern", "days": 2}'},
    "error": FAILED,
    "responses": SINGLE,
    "responses_stream": SINGLE,
    "responses_tool": TOOL,
    "responses_image": SINGLE | {"input": "Where is my parcel?\n[image]"},
    "embeddings": None,
}
"""The trace of each scenario; embedding a text is none."""
FAST: Final = {"gather_s": 0.3}


def test_each_scenario_is_recorded_and_small() -> None:
    assert set(SCENARIOS) == set(EXPECTED) == set(recorded())
    assert sum(file.stat().st_size for file in RECORDED.iterdir()) < 20_000


def test_recorded_requests_of_the_node_client_become_traces(start: Start, stored: Stored) -> None:
    assert arrived(start(**FAST), stored, recorded()) == EXPECTED


def test_the_events_of_a_conversation_keep_their_order_over_several_requests(start: Start, stored: Stored) -> None:
    bodies = recorded()["tool"]
    gateway = start(**FAST)
    for body in single_records(bodies["/v1/logs"]):
        send(gateway, "/v1/logs", body)
    assert arrived(gateway, stored, {"tool": {"/v1/traces": bodies["/v1/traces"]}}) == {"tool": TOOL}


@pytest.mark.endurance("installs the packages of npm in an environment of its own")
@pytest.mark.timeout(1800)
def test_the_current_node_client_sends_the_recorded_traces(start: Start, stored: Stored) -> None:
    assert arrived(start(**FAST), stored, run_client()) == EXPECTED


def arrived(gateway: GatewayProcess, stored: Stored, sent: dict[str, Bodies]) -> dict[str, Fields | None]:
    """Send the bodies of each scenario, and return its trace."""
    for bodies in sent.values():
        for path, body in bodies.items():
            send(gateway, path, body)
    by_trace_id = {trace["trace_id"]: trace for trace in stored.wait(sum(EXPECTED[name] is not None for name in sent))}
    traces = {name: by_trace_id.pop(trace_id(bodies), None) for name, bodies in sent.items()}
    assert by_trace_id == {}
    ids = {name: trace.pop("response_id", "")[:5] for name, trace in traces.items() if trace is not None}
    # The models of the tests count their responses.
    assert ids == {name: "" if name == "error" else "resp_" if "responses" in name else "chatc" for name in ids}
    return {name: trace and normalised(trace) for name, trace in traces.items()}


def send(gateway: GatewayProcess, path: str, body: bytes) -> None:
    reply = gateway.post(path, body, "application/x-protobuf")
    assert (reply.status_code, reply.content) == (200, b"")


def trace_id(bodies: Bodies) -> str:
    request = ExportTraceServiceRequest.FromString(bodies["/v1/traces"])
    return request.resource_spans[0].scope_spans[0].spans[0].trace_id.hex()


def single_records(body: bytes) -> Iterator[bytes]:
    """Divide a request of logs into one for each record."""
    for resource in ExportLogsServiceRequest.FromString(body).resource_logs:
        for scope in resource.scope_logs:
            for record in scope.log_records:
                request = ExportLogsServiceRequest()
                part = request.resource_logs.add(resource=resource.resource)
                part.scope_logs.add(scope=scope.scope, log_records=[record])
                yield request.SerializeToString()
