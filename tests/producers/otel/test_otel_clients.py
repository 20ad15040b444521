"""The traces of real clients: those of `tests/clients`, recorded, and OpenAI's under three instrumentations.

`official` is OpenTelemetry's, `arize` OpenInference's, `traceloop` OpenLLMetry's; see programs/. Their expected traces
are in `data/instrumentations.json`, which UPDATE_GOLDEN=1 writes anew, for review.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from clients.recording import RECORDED, REQUIREMENTS, run_client
from clients.replay import arrived, groups, recorded, table
from lookalikes import table as case_table
from sdk_rig import Host
from support.cases import each_case
from support.endpoint import ChatEndpoint
from support.model_server import ModelServer
from support.replies import Behaviour, Call, ToolCall, answers, calls_tools

from judges.parsing.retrievals import with_context
from tracejudge import Trace
from tracejudge.delivery.encoding import tool_context
from tracejudge.otel.joining import join

Fields = dict[str, Any]
CLIENTS = sorted(REQUIREMENTS)


@each_case("name", CLIENTS)
def test_the_recorded_traces_arrive(name: str) -> None:
    assert {scenario: arrived(*bodies) for scenario, bodies in recorded(name).items()} == table(name)["arrived"]


@each_case("name", CLIENTS)
def test_what_was_sent_has_arrived(name: str) -> None:
    """Every field of a scenario is in its traces, but for those of `not_sent`; no trace is lost or invented."""
    result, sent = table(name), case_table("sent_to_clients")
    assert set(result["arrived"]) >= {"single", "stream", "two_turns", "tool", "typed", "error"}
    assert {"retrieval", "search", "stuffed"} & set(result["arrived"])
    missing = {scenario: _missing(traces, sent[scenario]) for scenario, traces in result["arrived"].items()}
    fields = {key: sorted({field for each in values for field in each}) for key, values in missing.items()}
    assert {key: values for key, values in fields.items() if values} == {
        key: sorted(values) for key, values in result["not_sent"].items()
    }, missing


def _missing(traces: list[Fields], sent: list[Fields]) -> list[Fields]:
    """Return the fields of each trace that are not as sent, with what arrived."""
    if len(traces) != len(sent):
        return [{"traces": len(traces)}]
    # What was not sent must not be there either.
    absent = dict.fromkeys(("context", "tool_calls", "error"))
    return [
        {key: trace.get(key) for key, value in {**absent, **expected}.items() if not _is_same(key, trace, value)}
        for trace, expected in zip(traces, sent, strict=True)
    ]


def _is_same(key: str, trace: Fields, sent: Any) -> bool:
    result = trace.get(key)
    if key == "error" and sent is not None:
        return isinstance(result, str) and sent in result
    if key == "usage" and result == {"input_tokens": 200, "output_tokens": 40}:
        return True  # of both calls of an agent
    if key == "input" and str(result).endswith("\n[image]"):  # Google's clients are given the bytes.
        sent = sent.replace(" https://shop.example/parcel.png", "")
    if key == "output" and isinstance(result, str):
        is_typed = isinstance(sent, dict) and result.startswith("{")
        return bool((json.loads(result) if is_typed else result.removesuffix("\n")) == sent)  # Strands ends with a line
    if key == "context" and isinstance(result, list) and sent and "source" in sent[0]:
        # The documents of Haystack and of ColBERT have no source.
        return [{**each, "source": each.get("source", "faq.md")} for each in result] == sent
    if key == "messages" and isinstance(result, list) and isinstance(sent, list):
        # CrewAI and DSPy write the instructions into prompts of their own; Semantic Kernel names who speaks.
        result = [{"role": each["role"], "content": each["content"]} for each in result]
        return len(result) == len(sent) and all(
            each == other or (each["role"] == other["role"] == "system" and other["content"] in each["content"])
            for each, other in zip(result, sent, strict=True)
        )
    return bool(result == sent)


@each_case("name", CLIENTS)
def test_results_of_named_tools_are_context_by_init_and_by_the_rule(name: str) -> None:
    values: list[str] = []
    for fields in filter(None, map(join, groups(*recorded(name)["tool"]))):
        texts = [document.text for document in tool_context(fields, ("track",))]
        trace = with_context(Trace(service="shop", **fields), ("track",))
        assert [document.text for document in trace.context or ()] == texts
        assert with_context(Trace(service="shop", **fields), ("mail",)).context is None
        values += texts
    has_result = "tool_calls" not in table(name)["not_sent"].get("tool", {})
    assert (values == ["Parcel 7 is in Bern."]) == has_result, values


@pytest.mark.endurance("installs every client in an environment of its own")
@pytest.mark.timeout(3600)
@each_case("name", CLIENTS)
def test_a_client_still_sends_what_was_recorded(name: str) -> None:
    with ModelServer() as server:
        run_client(name, server)
        by_scenario = {scenario: arrived(body, server.logs[scenario]) for scenario, body in server.traces.items()}
    assert by_scenario == table(name)["arrived"]


def test_recordings_are_small() -> None:
    assert sum(file.stat().st_size for file in RECORDED.rglob("*.gz")) < 2_000_000


# --- programs that run under an instrumentation ---
GOLDEN = Path(__file__).parents[1] / "data" / "instrumentations.json"
CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
HOOK = {CAPTURE: "NO_CONTENT", "OTEL_INSTRUMENTATION_GENAI_COMPLETION_HOOK": "tracejudge"}
CASES: dict[str, tuple[str, dict[str, str]]] = {
    **{name: (name, {}) for name in ("official", "arize", "traceloop")},
    # As it comes: what is measured is there, and no text is made up.
    "official without content": ("official", {CAPTURE: "NO_CONTENT"}),
    "the completion hook": ("official", HOOK),
    "twice": ("arize", {"OPENINFERENCE_ENABLE_GENAI_SEMCONV": "true"}),
    "hidden": ("arize", {"OPENINFERENCE_HIDE_INPUTS": "true", "OPENINFERENCE_HIDE_OUTPUTS": "true"}),
}


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


@pytest.mark.slow("programs with instrumentations of third parties")
@pytest.mark.timeout(300)
def test_each_instrumentation_leaves_the_traces_of_its_file(host: Host, endpoint: ChatEndpoint) -> None:
    endpoint.behaviour = a_tool_first
    base = {CAPTURE: "SPAN_ONLY"}
    runs = [
        (dialect, {**base, **variables, "TRACEJUDGE_PREFIX": f"{host.prefix}-{place}"})
        for place, (dialect, variables) in enumerate(CASES.values())
    ]
    file = Path(__file__).parent / "programs" / "service.py"
    host.end(host.begin(file, endpoint.base_url, json.dumps(runs), PYTHONWARNINGS="ignore"))
    stored = {name: Host(host.folder, host.url, f"{host.prefix}-{place}").left() for place, name in enumerate(CASES)}
    left = {name: [normalised(trace, endpoint.port) for trace in each.traces] for name, each in stored.items()}
    twice_documents, twice = left.pop("twice")
    hidden, _ = left.pop("hidden")
    if os.environ.get("UPDATE_GOLDEN") == "1":
        GOLDEN.write_text(json.dumps(left, indent=1) + "\n")
    expected = json.loads(GOLDEN.read_text())
    assert {name: traces for name, traces in left.items() if traces != expected[name]} == {}
    plain_documents, plain = left["arize"]
    names = {"llm.model_name", "gen_ai.request.model"}
    assert any(names <= each.get("attributes", {}).keys() for each in twice["spans"]), (
        "each is written in both, and read once"
    )
    for trace, expected in ((twice, plain), (twice_documents, plain_documents)):
        spans = [[{**span, "attributes": {}} for span in each["spans"]] for each in (trace, expected)]
        assert spans[0] == spans[1]
        assert {**trace, "spans": []} == {**expected, "response_id": trace["response_id"], "spans": []}
    assert "REDACTED" not in str(hidden), "hidden texts are no texts"
    hides = {"input", "messages", "context", "response_id"}
    shown = {name: plain_documents[name] for name in plain_documents if name not in hides}
    assert {**hidden, "spans": []} == {**shown, "output": "", "spans": []}
