"""What is read from spans of OpenLLMetry, of both generations."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from support.cases import each_case

from tracejudge import Document, Message, Usage
from tracejudge.dialects import RawEvent, RawSpan, Reading, Role, read
from tracejudge.dialects.names import Call, SpanInput, SpanOutput, ToolResult, by_name

Make = Callable[..., RawSpan]

QUERY = {"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": "Is it open?"}
ANSWER = {"gen_ai.completion.0.role": "assistant", "gen_ai.completion.0.content": "Yes, until six."}
CHAT = {"llm.request.type": "chat"}


def case(name: str, attributes: dict[str, Any], expected: Reading) -> Any:
    return pytest.param(attributes, expected, id=name)


CASES = [
    case(
        "spread_out_messages",
        {
            **CHAT,
            **QUERY,
            **ANSWER,
            "gen_ai.system": "OpenAI",
            "gen_ai.request.model": "small",
            "gen_ai.usage.prompt_tokens": 7,
            "gen_ai.usage.completion_tokens": 3,
            "llm.usage.total_tokens": 10,
        },
        Reading(
            role=Role.LLM,
            input=SpanInput("Is it open?"),
            output=SpanOutput("Yes, until six."),
            provider="openai",
            model="small",
            usage=Usage(7, 3),
        ),
    ),
    case(
        "no_type_of_request_but_messages",
        {**QUERY, **ANSWER},
        Reading(role=Role.LLM, input=SpanInput("Is it open?"), output=SpanOutput("Yes, until six.")),
    ),
    case(
        "history_tools_and_their_answers",
        {
            **CHAT,
            "gen_ai.prompt.0.role": "system",
            "gen_ai.prompt.0.content": "Be kind.",
            "gen_ai.prompt.1.role": "user",
            "gen_ai.prompt.1.content": "Is it open?",
            "gen_ai.prompt.2.role": "assistant",
            "gen_ai.prompt.2.tool_calls.0.id": "c1",
            "gen_ai.prompt.2.tool_calls.0.name": "hours",
            "gen_ai.prompt.2.tool_calls.0.arguments": '{"day": 1}',
            "gen_ai.prompt.3.role": "tool",
            "gen_ai.prompt.3.tool_call_id": "c1",
            "gen_ai.prompt.3.content": "9 to 18",
            "gen_ai.completion.0.role": "assistant",
            "gen_ai.completion.0.tool_calls.0.id": "c2",
            "gen_ai.completion.0.tool_calls.0.name": "holidays",
            "gen_ai.completion.0.tool_calls.0.arguments": "not json",
        },
        Reading(
            role=Role.LLM,
            input=SpanInput(
                "Is it open?",
                history=(Message("system", "Be kind."),),
                calls=(Call("hours", {"day": 1}, "c1"),),
                results=(ToolResult("c1", "9 to 18"),),
            ),
            output=SpanOutput(calls=(Call("holidays", "not json", "c2"),)),
        ),
    ),
    case(
        "parts_as_a_json_text",
        {
            **CHAT,
            "gen_ai.prompt.0.role": "user",
            "gen_ai.prompt.0.content": json.dumps(
                [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": "u"}}]
            ),
        },
        Reading(role=Role.LLM, input=SpanInput("What is this?\n[image]")),
    ),
    case(
        "a_list_that_a_user_wrote",
        {**CHAT, "gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": "[1, 2, 3]"},
        Reading(role=Role.LLM, input=SpanInput("[1, 2, 3]")),
    ),
    case(
        "filtered_content_is_no_answer",
        {
            **CHAT,
            **QUERY,
            "gen_ai.completion.0.role": "assistant",
            "gen_ai.completion.0.content": "FILTERED",
            "gen_ai.completion.0.finish_reason": "content_filter",
        },
        Reading(role=Role.LLM, input=SpanInput("Is it open?")),
    ),
    case(
        "a_refusal",
        {**CHAT, "gen_ai.completion.0.role": "assistant", "gen_ai.completion.0.refusal": "I will not."},
        Reading(role=Role.LLM, output=SpanOutput("I will not.")),
    ),
    case("content_turned_off", CHAT, Reading(role=Role.LLM)),
    case("names_of_prompts_are_no_messages", {**CHAT, "gen_ai.prompt.name": "greeting"}, Reading(role=Role.LLM)),
    case(
        "the_newer_messages",
        {
            "gen_ai.operation.name": "chat",
            "gen_ai.input.messages": '[{"role": "user", "parts": [{"type": "text", "content": "Is it open?"}]}]',
            "gen_ai.output.messages": '[{"role": "assistant", "parts": [{"type": "refusal", "content": "No."}]}]',
        },
        Reading(role=Role.LLM, input=SpanInput("Is it open?"), output=SpanOutput("No.")),
    ),
    case(
        "both_generations_on_one_span_count_once",
        {
            **CHAT,
            **QUERY,
            **ANSWER,
            "gen_ai.input.messages": '[{"role": "user", "parts": [{"type": "text", "content": "Is it open?"}]}]',
        },
        Reading(role=Role.LLM, input=SpanInput("Is it open?"), output=SpanOutput("Yes, until six.")),
    ),
    case("reranking_is_no_conversation", {"llm.request.type": "rerank", **QUERY}, Reading(role=Role.RERANKER)),
    case(
        "a_decorated_workflow",
        {
            "traceloop.span.kind": "workflow",
            "traceloop.entity.input": '{"args": ["Is it open?"], "kwargs": {}}',
            "traceloop.entity.output": '"Yes, until six."',
        },
        Reading(role=Role.CHAIN, input=SpanInput("Is it open?"), output=SpanOutput("Yes, until six.")),
    ),
    case(
        "a_workflow_with_named_arguments",
        {
            "traceloop.span.kind": "workflow",
            "traceloop.entity.input": '{"args": [], "kwargs": {"question": "Is it open?", "user": "u1"}}',
            "traceloop.entity.output": '{"answer": "Yes.", "sources": []}',
        },
        Reading(role=Role.CHAIN, input=SpanInput("Is it open?"), output=SpanOutput("Yes.")),
    ),
    case(
        "a_workflow_that_takes_nothing",
        {"traceloop.span.kind": "workflow", "traceloop.entity.input": '{"args": [], "kwargs": {}}'},
        Reading(role=Role.CHAIN),
    ),
    case(
        "a_chain_of_langchain",
        {
            "traceloop.span.kind": "task",
            "traceloop.entity.input": '{"inputs": {"input": "Is it open?"}, "tags": [], "metadata": {}, "kwargs": {}}',
            "traceloop.entity.output": '{"outputs": {"output": "Yes."}, "kwargs": {}}',
        },
        Reading(role=Role.CHAIN, input=SpanInput("Is it open?"), output=SpanOutput("Yes.")),
    ),
    case(
        "a_retriever_of_langchain",
        {
            "gen_ai.operation.name": "vector_db_retrieve",
            "traceloop.entity.input": '{"query": "opening hours"}',
            "traceloop.entity.output": json.dumps(
                {"documents": [{"page_content": "Open until six.", "metadata": {}}], "count": 1}
            ),
        },
        Reading(
            role=Role.RETRIEVER,
            input=SpanInput("opening hours"),
            output=SpanOutput(raw={"documents": [{"page_content": "Open until six.", "metadata": {}}], "count": 1}),
            documents=(Document("Open until six."),),
        ),
    ),
    case(
        "a_decorated_tool",
        {
            "traceloop.span.kind": "tool",
            "traceloop.entity.name": "hours",
            "traceloop.entity.input": '{"args": [1], "kwargs": {}}',
            "traceloop.entity.output": '{"from": 9}',
        },
        Reading(
            role=Role.TOOL,
            input=SpanInput(raw={"args": [1], "kwargs": {}}),
            output=SpanOutput(raw={"from": 9}),
            tool=Call("hours", {"args": [1], "kwargs": {}}, None, {"from": 9}),
        ),
    ),
    case(
        "whose_it_was",
        {
            **CHAT,
            "traceloop.association.properties.session_id": "visit",
            "traceloop.association.properties.user_id": "u1",
        },
        Reading(role=Role.LLM, session_id="visit", user_id="u1"),
    ),
]


@each_case(("attributes", "expected"), CASES)
def test_a_span(span: Make, attributes: dict[str, Any], expected: Reading) -> None:
    assert read(span(attributes)) == expected


def _serialised(kind: str, **fields: Any) -> dict[str, Any]:
    return {"lc": 1, "type": "constructor", "id": ["langchain", "schema", kind], "kwargs": fields}


def test_names_of_the_bookkeeping_are_no_content(span: Make) -> None:
    """Of LangChain and LangGraph the input of the function is beside the name of the step."""
    beside = {"tags": ["prod"], "metadata": {"thread_id": "t1"}, "kwargs": {"name": "LangGraph", "run_type": "chain"}}
    message = _serialised("HumanMessage", content="Is it open?", type="human")
    query = SpanInput("Is it open?")
    for inputs, expected in (
        ({"messages": [message]}, query),
        ({"messages": [[message]]}, query),
        ({"question": "Is it open?"}, query),
        ({"topic": "Is it open?"}, query),
        ("Is it open?", query),
        ({"k": 4}, SpanInput(raw={"k": 4})),
        ({"name": "RunnableSequence"}, SpanInput(raw={"name": "RunnableSequence"})),
        ({}, SpanInput()),
        ("", SpanInput()),
    ):
        given = json.dumps({"inputs": inputs, **beside})
        answer = _serialised("AIMessage", content="Yes.", type="ai")
        for output in (
            {"outputs": {"messages": [message, answer]}},
            {"outputs": "Yes."},
            {"outputs": {"output": "Yes."}},
        ):
            returned = json.dumps({**output, "kwargs": {"name": "LangGraph", "tags": ["seq:step:1"]}})
            attributes = {
                "traceloop.span.kind": "task",
                "traceloop.entity.input": given,
                "traceloop.entity.output": returned,
            }
            reading = read(span(attributes))
            assert (reading.input, reading.output) == (expected, SpanOutput("Yes.")), (inputs, output)
    given = {"input_str": "{'day': 1}", "inputs": {"day": 1}, **beside}
    returned = {"output": _serialised("ToolMessage", content="9 to 18", type="tool", tool_call_id="c1"), "kwargs": {}}
    attributes = {"traceloop.entity.input": json.dumps(given), "traceloop.entity.output": json.dumps(returned)}
    tool = read(span({"traceloop.span.kind": "tool", "traceloop.entity.name": "hours", **attributes})).tool
    assert tool == Call("hours", {"day": 1}, None, "9 to 18")


def test_what_langchain_serialises_is_read_of_whoever_carries_it(span: Make) -> None:
    call = {"name": "hours", "args": {"day": 1}, "id": "c1", "type": "tool_call"}
    answer = _serialised("AIMessage", content="Yes.", tool_calls=[call])
    generations = {"generations": [[{"text": "Yes.", "message": answer}]], "llm_output": {"model": "small"}}
    for kind in (
        {"gen_ai.operation.name": "chat"},
        {"openinference.span.kind": "LLM", "output.mime_type": "application/json"},
    ):
        key = "gen_ai.completion" if "gen_ai.operation.name" in kind else "output.value"
        reading = read(span({**kind, key: json.dumps(generations)}))
        assert reading.output == SpanOutput("Yes.", calls=(Call("hours", {"day": 1}, "c1"),)), key
    document = _serialised("Document", page_content="Open until six.", metadata={"source": "faq.md"})
    found = json.dumps({"documents": [document]})
    reading = read(span({"gen_ai.operation.name": "vector_db_retrieve", "traceloop.entity.output": found}))
    assert reading.documents == (Document("Open until six.", source="faq.md"),)


def test_what_a_vector_store_found(span: Make) -> None:
    """Without the text that content capture would add, a result is no document."""
    name = "db.query.result"
    result = (
        RawEvent(name, {f"{name}.id": "a", f"{name}.score": 0.5, f"{name}.document": "Open until six."}),
        RawEvent(name, {f"{name}.id": "b", f"{name}.distance": 0.6}),
        RawEvent("db.query.embeddings", {"db.query.embeddings.vector": (0.1,)}),
        RawEvent(name, {f"{name}.id": 7, f"{name}.score": "none", f"{name}.document": "Closed on Sundays."}),
    )
    assert read(span({"db.system": "chroma"}, events=result)) == Reading(
        role=Role.RETRIEVER, documents=(Document("Open until six.", "a", 0.5), Document("Closed on Sundays.", "7"))
    )


def test_only_the_arguments_of_a_wrapper_are_unwrapped() -> None:
    for arguments, expected in (
        ({"args": [], "kwargs": {"number": 7}}, {"number": 7}),
        ({"kwargs": {"number": 7}}, {"number": 7}),
        ({"args": [7], "kwargs": {}}, {"args": [7], "kwargs": {}}),
        ({"query": "parcel", "kwargs": {"number": 7}}, {"query": "parcel", "kwargs": {"number": 7}}),
        ({"args": [], "kwargs": {"number": 7}, "timeout": 3}, {"number": 7}),
        ({"args": [{"number": 7}], "kwargs": {}}, {"number": 7}),
        ([7], [7]),
    ):
        assert by_name(arguments) == expected, arguments
