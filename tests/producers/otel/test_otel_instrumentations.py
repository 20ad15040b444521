"""Real instrumentations around the real client of OpenAI: the trace they leave in Redis, field by field.

`official` is OpenTelemetry's, `arize` OpenInference's, `traceloop` OpenLLMetry's; see programs/.
"""

from collections.abc import Callable
from typing import Any

import pytest
from support.endpoint import ChatEndpoint
from support.replies import Behaviour, Call, ToolCall, answers, calls_tools

pytestmark = pytest.mark.slow("programs with instrumentations of third parties")

Run = Callable[[str, str], list[dict[str, Any]]]
Fields = dict[str, Any]

QUESTION = "Where is my parcel?"
DOCUMENTS = [
    {"text": "Parcels leave on Mondays.", "id": "faq-1", "score": 0.9},
    {"text": "A parcel takes two days.", "id": "faq-2", "score": 0.5},
]
HISTORY = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello."},
    {"role": "assistant", "content": "How can I help?"},
]
TIMES = {"started_at": "time", "ended_at": "time"}
COMMON = {
    "trace_id": "trace",
    "service": "shop",
    "provider": "openai",
    "model": "small",
    "usage": {"input_tokens": 100, "output_tokens": 20},
    **TIMES,
}
CALLED = {"name": "track", "arguments": {"n": 1}}

CALL_SPANS = {"official": "chat small", "arize": "ChatCompletion", "traceloop": "openai.chat"}
SEARCH_SPANS: dict[str, Fields] = {
    "official": {
        "name": "retrieval faq",
        "inputs": QUESTION,
        "attributes": {"gen_ai.operation.name": "retrieval", "gen_ai.data_source.id": "faq"},
    },
    "arize": {
        "name": "search",
        "inputs": QUESTION,
        "attributes": {"input.mime_type": "text/plain", "openinference.span.kind": "RETRIEVER"},
    },
    "traceloop": {"name": "chroma.query", "attributes": {"db.system": "chroma"}},
}
TOOL_SPANS: dict[str, Fields] = {
    "official": {
        "name": "execute_tool track",
        "attributes": {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "track",
            "gen_ai.tool.call.id": "call_0_0",
        },
    },
    "arize": {
        "name": "track",
        "attributes": {
            "tool.name": "track",
            "tool.description": "",
            "tool.id": "call_0_0",
            "input.mime_type": "application/json",
            "output.mime_type": "application/json",
            "openinference.span.kind": "TOOL",
        },
    },
    "traceloop": {
        "name": "track.tool",
        "attributes": {"traceloop.span.kind": "tool", "traceloop.entity.name": "track"},
    },
}
DIALECTS = pytest.mark.parametrize("dialect", ["official", "arize", "traceloop"])


def official_attributes(number: int, finish: str) -> Fields:
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "small",
        "gen_ai.response.model": "small",
        "gen_ai.response.id": f"chatcmpl-{number}",
        "gen_ai.response.finish_reasons": [finish],
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 20,
        "server.address": "127.0.0.1",
        "server.port": "port",
    }


def traceloop_attributes(number: int, finish: str) -> Fields:
    official = official_attributes(number, finish.removesuffix("s"))
    own = {
        "gen_ai.is_streaming": False,
        "gen_ai.openai.api_base": "http://127.0.0.1:port/v1/",
        "gen_ai.usage.total_tokens": 120,
    }
    return {key: value for key, value in official.items() if not key.startswith("server.")} | own


def arize_attributes(_number: int, finish: str) -> Fields:
    return {
        "openinference.span.kind": "LLM",
        "input.mime_type": "application/json",
        "output.mime_type": "application/json",
        "llm.system": "openai",
        "llm.invocation_parameters": '{"model": "small"}',
        "llm.model_name": "small",
        "llm.token_count.prompt": 100,
        "llm.token_count.completion": 20,
        "llm.token_count.total": 120,
        "llm.finish_reason": finish,
    }


ATTRIBUTES = {"official": official_attributes, "arize": arize_attributes, "traceloop": traceloop_attributes}


def span(name: str, kind: str, **fields: Any) -> Fields:
    return {"span_id": name, "name": name, "parent_id": "POST /ask", "kind": kind, **TIMES, **fields}


def root_span() -> Fields:
    return {"span_id": "POST /ask", "name": "POST /ask", "kind": "internal", **TIMES, "attributes": {}}


def call_span(dialect: str, number: int, outputs: object, finish: str = "stop") -> Fields:
    name = CALL_SPANS[dialect]
    status = {"status": "ok"} if dialect == "arize" else {}
    content = {"inputs": QUESTION, "outputs": outputs}
    made = span(name, "llm", attributes=ATTRIBUTES[dialect](number, finish), **status, **content)
    return made | {"span_id": f"{name} 2" if number else name}


OFFERED = {"tools": [{"name": "track", "parameters": {"type": "object", "properties": {}}}]}


def a_tool_first(call: Call) -> Behaviour:
    return calls_tools(ToolCall("track", '{"n": 1}')) if call.index % 2 == 0 else answers("It is in Bern.")


@DIALECTS
def test_an_answer_from_documents(run_service: Run, endpoint: ChatEndpoint, dialect: str) -> None:
    endpoint.behaviour = answers("It leaves on Monday.")
    search = SEARCH_SPANS[dialect]
    assert run_service(dialect, "rag") == [
        {
            **COMMON,
            "name": "POST /ask",
            "span_id": CALL_SPANS[dialect],
            "response_id": "chatcmpl-0",
            "input": QUESTION,
            "output": "It leaves on Monday.",
            "messages": HISTORY,
            "context": DOCUMENTS,
            "spans": [
                root_span(),
                span(kind="retriever", outputs=DOCUMENTS, **search),
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
            "span_id": f"{CALL_SPANS[dialect]} 2",
            "response_id": "chatcmpl-1",
            "input": QUESTION,
            "output": "It is in Bern.",
            "tool_calls": [{**CALLED, "result": {"place": "Bern"}}],
            **OFFERED,
            "spans": [
                root_span(),
                call_span(dialect, 0, [CALLED], "tool_calls"),
                span(kind="tool", inputs={"n": 1}, outputs={"place": "Bern"}, **TOOL_SPANS[dialect]),
                call_span(dialect, 1, "It is in Bern."),
            ],
        }
    ]


def test_without_content_the_trace_has_none(run_service: Run, endpoint: ChatEndpoint) -> None:
    """The official instrumentation as it comes: what is measured is there, no text is made up."""
    endpoint.behaviour = answers("It leaves on Monday.")
    search = {name: value for name, value in SEARCH_SPANS["official"].items() if name != "inputs"}
    call = call_span("official", 0, None)
    assert run_service("official_silent", "rag") == [
        {
            **COMMON,
            "name": "POST /ask",
            "span_id": "chat small",
            "response_id": "chatcmpl-0",
            "output": "",
            "spans": [
                root_span(),
                span(kind="retriever", **search),
                {name: value for name, value in call.items() if name not in {"inputs", "outputs"}},
            ],
        }
    ]


def test_the_completion_hook_publishes_content_that_spans_do_not_hold(run_service: Run, endpoint: ChatEndpoint) -> None:
    endpoint.behaviour = answers("It leaves on Monday.")
    assert run_service("official_hook", "rag") == [
        {
            **COMMON,
            "name": "chat small",
            "span_id": "span",
            "response_id": "chatcmpl-0",
            "input": QUESTION,
            "output": "It leaves on Monday.",
            "messages": HISTORY,
        }
    ]


def test_the_completion_hook_publishes_each_completion(run_service: Run, endpoint: ChatEndpoint) -> None:
    endpoint.behaviour = a_tool_first
    published = {**COMMON, **OFFERED, "name": "chat small", "span_id": "span", "input": QUESTION}
    told = {**CALLED, "result": '{"place": "Bern"}'}
    assert run_service("official_hook", "tools") == [
        {**published, "response_id": "chatcmpl-0", "output": "", "tool_calls": [CALLED]},
        {**published, "response_id": "chatcmpl-1", "output": "It is in Bern.", "tool_calls": [told]},
    ]


def test_what_is_written_in_two_dialects_counts_once(run_service: Run, endpoint: ChatEndpoint) -> None:
    endpoint.behaviour = a_tool_first
    (trace,) = run_service("arize_both", "tools")
    (plain,) = run_service("arize", "tools")
    written_twice = [span["attributes"].keys() & {"llm.model_name", "gen_ai.request.model"} for span in trace["spans"]]
    assert max(len(keys) for keys in written_twice) == 2
    assert _but_for_attributes(trace) == _but_for_attributes(plain) | {"response_id": trace["response_id"]}


def test_hidden_texts_are_no_texts(run_service: Run, endpoint: ChatEndpoint) -> None:
    endpoint.behaviour = answers("It leaves on Monday.")
    (trace,) = run_service("arize_hidden", "rag")
    texts = {"input", "messages", "context", "response_id"}
    (plain,) = run_service("arize", "rag")
    hidden = {name: value for name, value in plain.items() if name not in texts} | {"output": ""}
    assert "REDACTED" not in str(trace)
    assert {**trace, "spans": []} == {**hidden, "spans": []}


def _but_for_attributes(trace: Fields) -> Fields:
    return trace | {"spans": [{**span, "attributes": {}} for span in trace["spans"]]}
