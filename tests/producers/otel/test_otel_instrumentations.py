"""Real instrumentations around the real client of OpenAI: the traces that they leave in Redis, field by field.

`official` is OpenTelemetry's, `arize` OpenInference's, `traceloop` OpenLLMetry's; see programs/. The expected traces
are in `data/instrumentations.json`, which UPDATE_GOLDEN=1 writes anew, for review.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sdk_rig import Host
from support.endpoint import ChatEndpoint
from support.replies import Behaviour, Call, ToolCall, answers, calls_tools

pytestmark = pytest.mark.slow("programs with instrumentations of third parties")

Fields = dict[str, Any]
Run = Callable[..., list[Fields]]
GOLDEN = Path(__file__).parents[1] / "data" / "instrumentations.json"
CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
HOOK = {CAPTURE: "NO_CONTENT", "OTEL_INSTRUMENTATION_GENAI_COMPLETION_HOOK": "tracejudge"}
CASES: dict[str, tuple[str, dict[str, str]]] = {
    **{name: (name, {}) for name in ("official", "arize", "traceloop")},
    # As it comes: what is measured is there, and no text is made up.
    "official without content": ("official", {CAPTURE: "NO_CONTENT"}),
    "the completion hook": ("official", HOOK),
}


@pytest.fixture
def run_service(host: Host, endpoint: ChatEndpoint) -> Run:
    """Answer from documents and with a tool under an instrumentation, and read the traces it left, normalised."""
    endpoint.behaviour = a_tool_first

    def run(dialect: str, **variables: str) -> list[Fields]:
        host.prefix += "-next"
        file = Path(__file__).parent / "programs" / "service.py"
        variables = {CAPTURE: "SPAN_ONLY", "PYTHONWARNINGS": "ignore", **variables}
        host.end(host.begin(file, dialect, endpoint.base_url, **variables))
        return [normalised(trace, endpoint.port) for trace in host.left().traces]

    return run


def a_tool_first(call: Call) -> Behaviour:
    if "tools" not in call.body:
        return answers("It leaves on Monday.")
    is_told = call.body["messages"][-1]["role"] == "tool"
    return answers("It is in Bern.") if is_told else calls_tools(ToolCall("track", '{"n": 1}'))


def normalised(trace: Fields, port: int) -> Fields:
    """Put names for ids, and leave out times: spans are called by their names, numbered where several have one."""
    assert len(trace.pop("id")) == 16
    assert len(trace.pop("trace_id")) == 32
    names: dict[str, str] = {}
    for each in trace.get("spans", ()):
        same = sum(name.startswith(each["name"]) for name in names.values())
        names[each["span_id"]] = each["name"] + f" {same + 1}" * bool(same)
    for each in (trace, *trace.get("spans", ())):
        assert each.pop("started_at") <= each.pop("ended_at")
        each["span_id"] = names.get(each["span_id"], "span")
        if "parent_id" in each:
            each["parent_id"] = names[each["parent_id"]]
    result: Fields = json.loads(json.dumps(trace).replace(f": {port}", ': "port"').replace(str(port), "port"))
    return result


@pytest.mark.timeout(300)
def test_each_instrumentation_leaves_the_traces_of_its_file(run_service: Run) -> None:
    left = {name: run_service(dialect, **variables) for name, (dialect, variables) in CASES.items()}
    if os.environ.get("UPDATE_GOLDEN") == "1":
        GOLDEN.write_text(json.dumps(left, indent=1) + "\n")
    expected = json.loads(GOLDEN.read_text())
    assert {name: traces for name, traces in left.items() if traces != expected[name]} == {}
    plain_documents, plain = left["arize"]
    twice_documents, twice = run_service("arize", OPENINFERENCE_ENABLE_GENAI_SEMCONV="true")
    names = {"llm.model_name", "gen_ai.request.model"}
    assert any(names <= each.get("attributes", {}).keys() for each in twice["spans"]), (
        "each is written in both, and read once"
    )
    for trace, expected in ((twice, plain), (twice_documents, plain_documents)):
        spans = [[{**span, "attributes": {}} for span in each["spans"]] for each in (trace, expected)]
        assert spans[0] == spans[1]
        assert {**trace, "spans": []} == {**expected, "response_id": trace["response_id"], "spans": []}
    hidden, _ = run_service("arize", OPENINFERENCE_HIDE_INPUTS="true", OPENINFERENCE_HIDE_OUTPUTS="true")
    assert "REDACTED" not in str(hidden), "hidden texts are no texts"
    hides = {"input", "messages", "context", "response_id"}
    shown = {name: plain_documents[name] for name in plain_documents if name not in hides}
    assert {**hidden, "spans": []} == {**shown, "output": "", "spans": []}
