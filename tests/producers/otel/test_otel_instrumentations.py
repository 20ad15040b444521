"""Real instrumentations around the real client of OpenAI: the trace they leave in Redis, field by field.

`official` is OpenTelemetry's, `arize` OpenInference's, `traceloop` OpenLLMetry's; see programs/.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lookalikes import table
from sdk_rig import Host
from support.endpoint import ChatEndpoint
from support.replies import Behaviour, Call, ToolCall, answers, calls_tools

pytestmark = pytest.mark.slow("programs with instrumentations of third parties")

Fields = dict[str, Any]
Run = Callable[..., list[Fields]]
CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
HOOK = {CAPTURE: "NO_CONTENT", "OTEL_INSTRUMENTATION_GENAI_COMPLETION_HOOK": "tracejudge"}
EXPECTED = table("instrumentations")
QUESTION, OFFERED = EXPECTED["question"], EXPECTED["offered"]
CALLED = {"name": "track", "arguments": {"n": 1}}
TIMES = {"started_at": "time", "ended_at": "time"}
COMMON = {
    "trace_id": "trace",
    "service": "host",
    "provider": "openai",
    "model": "small",
    "usage": {"input_tokens": 100, "output_tokens": 20},
    **TIMES,
}
DIALECTS = pytest.mark.parametrize("dialect", ["official", "arize", "traceloop"])


@pytest.fixture
def run_service(host: Host, endpoint: ChatEndpoint) -> Run:
    """Run a scenario under an instrumentation, and read the traces it left, normalised."""

    def run(dialect: str, scenario: str, **variables: str) -> list[Fields]:
        host.prefix += "-next"
        file = Path(__file__).parent / "programs" / "service.py"
        variables = {CAPTURE: "SPAN_ONLY", "PYTHONWARNINGS": "ignore", **variables}
        host.end(host.begin(file, dialect, scenario, endpoint.base_url, **variables))
        return [normalised(trace, endpoint.port) for trace in host.left().traces]

    return run


def normalised(trace: Fields, port: int) -> Fields:
    """Put names for ids: spans are called by their names, numbered where several have one."""
    assert len(trace.pop("id")) == 16
    assert len(trace["trace_id"]) == 32
    names: dict[str, str] = {}
    for each in trace.get("spans", ()):
        same = sum(name.startswith(each["name"]) for name in names.values())
        names[each["span_id"]] = each["name"] + f" {same + 1}" * bool(same)
    for each in (trace, *trace.get("spans", ())):
        assert each["started_at"] <= each["ended_at"]
        each.update(TIMES, span_id=names.get(each["span_id"], "span"))
        if "parent_id" in each:
            each["parent_id"] = names[each["parent_id"]]
    for each in trace.get("spans", ()):
        attributes = each.get("attributes", {})
        each["attributes"] = {key: without_port(value, port) for key, value in attributes.items()}
    return trace | {"trace_id": "trace"}


def without_port(value: Any, port: int) -> Any:
    return "port" if value == port else value.replace(str(port), "port") if isinstance(value, str) else value


def span(name: str, kind: str, **fields: Any) -> Fields:
    return {"span_id": name, "name": name, "parent_id": "POST /ask", "kind": kind, **TIMES, **fields}


def root_span() -> Fields:
    return {"span_id": "POST /ask", "name": "POST /ask", "kind": "internal", **TIMES, "attributes": {}}


def call_span(dialect: str, number: int, outputs: object, finish: str = "stop") -> Fields:
    name = EXPECTED["call"][dialect]["name"]
    attributes = dict(EXPECTED["call"][dialect]["attributes"])
    if dialect == "arize":
        attributes["llm.finish_reason"] = finish
    else:
        reason = finish.removesuffix("s") if dialect == "traceloop" else finish
        attributes |= {"gen_ai.response.id": f"chatcmpl-{number}", "gen_ai.response.finish_reasons": [reason]}
    status = {"status": "ok"} if dialect == "arize" else {}
    made = span(name, "llm", attributes=attributes, inputs=QUESTION, outputs=outputs, **status)
    return made | {"span_id": f"{name} 2" if number else name}


def a_tool_first(call: Call) -> Behaviour:
    return calls_tools(ToolCall("track", '{"n": 1}')) if call.index % 2 == 0 else answers("It is in Bern.")


@DIALECTS
def test_an_answer_from_documents(run_service: Run, endpoint: ChatEndpoint, dialect: str) -> None:
    endpoint.behaviour = answers("It leaves on Monday.")
    documents = EXPECTED["documents"]
    assert run_service(dialect, "rag") == [
        {
            **COMMON,
            "name": "POST /ask",
            "span_id": EXPECTED["call"][dialect]["name"],
            "response_id": "chatcmpl-0",
            "input": QUESTION,
            "output": "It leaves on Monday.",
            "messages": EXPECTED["history"],
            "context": documents,
            "spans": [
                root_span(),
                span(kind="retriever", outputs=documents, **EXPECTED["search"][dialect]),
                call_span(dialect, 0, "It leaves on Monday."),
            ],
        }
    ]


@DIALECTS
def test_an_answer_with_a_tool(run_service: Run, endpoint: ChatEndpoint, dialect: str) -> None:
    endpoint.behaviour = a_tool_first
    assert run_service(dialect, "tools") == [
        {
            **COMMON,
            "name": "POST /ask",
            "span_id": f"{EXPECTED['call'][dialect]['name']} 2",
            "response_id": "chatcmpl-1",
            "input": QUESTION,
            "output": "It is in Bern.",
            "tool_calls": [{**CALLED, "result": {"place": "Bern"}}],
            **OFFERED,
            "spans": [
                root_span(),
                call_span(dialect, 0, [CALLED], "tool_calls"),
                span(kind="tool", inputs={"n": 1}, outputs={"place": "Bern"}, **EXPECTED["tool"][dialect]),
                call_span(dialect, 1, "It is in Bern."),
            ],
        }
    ]


def test_without_content_the_trace_has_none(run_service: Run, endpoint: ChatEndpoint) -> None:
    """The official instrumentation as it comes: what is measured is there, no text is made up."""
    endpoint.behaviour = answers("It leaves on Monday.")
    spans = [root_span(), span(kind="retriever", **EXPECTED["search"]["official"]), call_span("official", 0, None)]
    assert run_service("official", "rag", **{CAPTURE: "NO_CONTENT"}) == [
        {
            **COMMON,
            "name": "POST /ask",
            "span_id": "chat small",
            "response_id": "chatcmpl-0",
            "output": "",
            "spans": [{name: each[name] for name in each if name not in {"inputs", "outputs"}} for each in spans],
        }
    ]


def test_the_completion_hook_publishes_content_that_spans_do_not_hold(run_service: Run, endpoint: ChatEndpoint) -> None:
    endpoint.behaviour = a_tool_first
    published = {**COMMON, "name": "chat small", "span_id": "span", "input": QUESTION}
    told = {**CALLED, "result": '{"place": "Bern"}'}
    assert run_service("official", "tools", **HOOK) == [
        {**published, **OFFERED, "response_id": "chatcmpl-0", "output": "", "tool_calls": [CALLED]},
        {**published, **OFFERED, "response_id": "chatcmpl-1", "output": "It is in Bern.", "tool_calls": [told]},
    ]
    endpoint.behaviour = answers("It leaves on Monday.")
    answered = {"response_id": "chatcmpl-2", "output": "It leaves on Monday.", "messages": EXPECTED["history"]}
    assert run_service("official", "rag", **HOOK) == [{**published, **answered}]


def test_what_is_written_in_two_dialects_counts_once(run_service: Run, endpoint: ChatEndpoint) -> None:
    endpoint.behaviour = a_tool_first
    (trace,) = run_service("arize", "tools", OPENINFERENCE_ENABLE_GENAI_SEMCONV="true")
    (plain,) = run_service("arize", "tools")
    written_twice = [span["attributes"].keys() & {"llm.model_name", "gen_ai.request.model"} for span in trace["spans"]]
    assert max(len(keys) for keys in written_twice) == 2
    trace, plain = (each | {"spans": [{**one, "attributes": {}} for one in each["spans"]]} for each in (trace, plain))
    assert trace == plain | {"response_id": trace["response_id"]}


def test_hidden_texts_are_no_texts(run_service: Run, endpoint: ChatEndpoint) -> None:
    endpoint.behaviour = answers("It leaves on Monday.")
    (trace,) = run_service("arize", "rag", OPENINFERENCE_HIDE_INPUTS="true", OPENINFERENCE_HIDE_OUTPUTS="true")
    (plain,) = run_service("arize", "rag")
    hidden = {name: plain[name] for name in plain if name not in {"input", "messages", "context", "response_id"}}
    assert "REDACTED" not in str(trace)
    assert {**trace, "spans": []} == {**hidden, "output": "", "spans": []}
