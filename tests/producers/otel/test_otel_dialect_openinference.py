"""What is read from spans of OpenInference."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from support.cases import each_case

from tracejudge import Document, Message, Usage
from tracejudge.dialects import RawSpan, Reading, Role, read
from tracejudge.dialects.documents import DocumentReader
from tracejudge.dialects.names import Call, SpanInput, SpanOutput, ToolResult

Make = Callable[..., RawSpan]

REQUEST = {"messages": [{"role": "user", "content": "Is it open?"}], "model": "small"}
RESPONSE = {"id": "r1", "choices": [{"message": {"role": "assistant", "content": "Yes, until six."}}]}
IN, OUT = "llm.input_messages", "llm.output_messages"
QUERY = {f"{IN}.0.message.role": "user", f"{IN}.0.message.content": "Is it open?"}
ANSWER = {f"{OUT}.0.message.role": "assistant", f"{OUT}.0.message.content": "Yes, until six."}
SIMPLE = Reading(role=Role.LLM, input=SpanInput("Is it open?"), output=SpanOutput("Yes, until six."))


def case(name: str, kind: str, attributes: dict[str, Any], expected: Reading) -> Any:
    return pytest.param({"openinference.span.kind": kind} | attributes, expected, id=name)


def called(prefix: str, **fields: str) -> dict[str, str]:
    return {f"{prefix}.tool_call.{name.replace('__', '.')}": value for name, value in fields.items()}


CALLS = [
    case("flattened_messages", "LLM", {**QUERY, **ANSWER}, SIMPLE),
    case("the_kind_in_small_letters", "llm", {**QUERY, **ANSWER}, SIMPLE),
    case(
        "the_order_is_that_of_the_numbers",
        "LLM",
        {
            f"{IN}.10.message.role": "user",
            f"{IN}.10.message.content": "Is it open?",
            f"{IN}.2.message.role": "system",
            f"{IN}.2.message.content": "Be kind.",
            f"{IN}.9.message.role": "assistant",
            f"{IN}.9.message.content": "Hello",
        },
        Reading(
            role=Role.LLM,
            input=SpanInput("Is it open?", history=(Message("system", "Be kind."), Message("assistant", "Hello"))),
        ),
    ),
    case(
        "contents_of_several_parts",
        "LLM",
        {
            f"{IN}.0.message.role": "user",
            f"{IN}.0.message.contents.0.message_content.type": "text",
            f"{IN}.0.message.contents.0.message_content.text": "Look at this:",
            f"{IN}.0.message.contents.1.message_content.type": "image",
            f"{IN}.0.message.contents.1.message_content.image.image.url": "https://example.org/a.png",
            f"{IN}.0.message.contents.2.message_content.type": "text",
            f"{IN}.0.message.contents.2.message_content.text": "what is it?",
        },
        Reading(role=Role.LLM, input=SpanInput("Look at this:\n[image https://example.org/a.png]\nwhat is it?")),
    ),
    case(
        "calls_of_tools_and_what_they_answered",
        "LLM",
        {
            **QUERY,
            f"{IN}.1.message.role": "assistant",
            **called(f"{IN}.1.message.tool_calls.0", id="c1", function__name="hours", function__arguments='{"day": 1}'),
            f"{IN}.2.message.role": "tool",
            f"{IN}.2.message.tool_call_id": "c1",
            f"{IN}.2.message.content": "9 to 18",
            f"{OUT}.0.message.role": "assistant",
            **called(f"{OUT}.0.message.tool_calls.0", id="c2", function__name="holidays"),
        },
        Reading(
            role=Role.LLM,
            input=SpanInput(
                "Is it open?", calls=(Call("hours", {"day": 1}, "c1"),), results=(ToolResult("c1", "9 to 18"),)
            ),
            output=SpanOutput(calls=(Call("holidays", None, "c2"),)),
        ),
    ),
    case(
        "calls_among_the_contents",
        "LLM",
        {
            f"{OUT}.0.message.role": "assistant",
            f"{OUT}.0.message.contents.0.message_content.type": "text",
            f"{OUT}.0.message.contents.0.message_content.text": "Let me see.",
            f"{OUT}.0.message.contents.1.message_content.type": "tool_use",
            **called(f"{OUT}.0.message.contents.1", id="c1", function__name="hours", function__arguments="{}"),
        },
        Reading(role=Role.LLM, output=SpanOutput("Let me see.", calls=(Call("hours", {}, "c1"),))),
    ),
    case(
        "messages_beside_the_whole_request",
        "LLM",
        {
            **QUERY,
            **ANSWER,
            "input.value": json.dumps(REQUEST),
            "input.mime_type": "application/json",
            "output.value": json.dumps(RESPONSE),
            "output.mime_type": "application/json",
        },
        Reading(role=Role.LLM, input=SIMPLE.input, output=SIMPLE.output, response_id="r1"),
    ),
    case(
        "only_the_whole_request",
        "LLM",
        {
            "input.value": json.dumps(REQUEST),
            "input.mime_type": "application/json",
            "output.value": json.dumps(RESPONSE),
            "output.mime_type": "application/json",
        },
        Reading(role=Role.LLM, input=SIMPLE.input, output=SIMPLE.output, response_id="r1"),
    ),
    case(
        "the_older_completions",
        "LLM",
        {"llm.prompts.0.prompt.text": "Is it open?", "llm.choices.0.completion.text": "Yes, until six."},
        SIMPLE,
    ),
    case(
        "hidden_messages",
        "LLM",
        {
            f"{IN}.0.message.role": "user",
            f"{IN}.0.message.content": "__REDACTED__",
            "input.value": "__REDACTED__",
            "output.value": "__REDACTED__",
            "llm.model_name": "small",
        },
        Reading(role=Role.LLM, model="small"),
    ),
    case(
        "models_providers_and_tokens",
        "LLM",
        {
            "llm.model_name": "small",
            "llm.provider": "azure",
            "llm.system": "openai",
            "llm.token_count.prompt": 7,
            "llm.token_count.completion": 3,
            "session.id": "visit",
            "user.id": "u1",
        },
        Reading(role=Role.LLM, model="small", provider="azure", usage=Usage(7, 3), session_id="visit", user_id="u1"),
    ),
    case(
        "the_same_written_in_two_dialects_counts_once",
        "LLM",
        {
            **QUERY,
            **ANSWER,
            "gen_ai.operation.name": "chat",
            "gen_ai.input.messages": json.dumps(
                [{"role": "user", "parts": [{"type": "text", "content": "Is it open?"}]}]
            ),
            "gen_ai.output.messages": json.dumps(
                [{"role": "assistant", "parts": [{"type": "text", "content": "Yes, until six."}]}]
            ),
        },
        SIMPLE,
    ),
]


@each_case(("attributes", "expected"), CALLS)
def test_a_call_of_a_model(span: Make, attributes: dict[str, Any], expected: Reading) -> None:
    assert read(span(attributes)) == expected


JSON = {"input.mime_type": "application/json", "output.mime_type": "application/json"}

STEPS = [
    case(
        "a_chain_in_plain_text",
        "CHAIN",
        {"input.value": "Is it open?", "output.value": '{"not": "json by its type"}'},
        Reading(role=Role.CHAIN, input=SpanInput("Is it open?"), output=SpanOutput('{"not": "json by its type"}')),
    ),
    case(
        "a_chain_in_json",
        "CHAIN",
        {"input.value": '{"question": "Is it open?", "k": 4}', "output.value": '{"answer": "Yes."}', **JSON},
        Reading(
            role=Role.CHAIN,
            input=SpanInput("Is it open?"),
            output=SpanOutput(raw={"answer": "Yes."}, field="Yes."),
        ),
    ),
    case(
        "a_graph_of_messages",
        "CHAIN",
        {
            "input.value": json.dumps({"messages": [{"type": "human", "content": "Is it open?"}]}),
            "output.value": json.dumps(
                {"messages": [{"type": "human", "content": "Is it open?"}, {"type": "ai", "content": "Yes."}]}
            ),
            **JSON,
        },
        Reading(role=Role.CHAIN, input=SpanInput("Is it open?"), output=SpanOutput("Yes.")),
    ),
    case(
        "messages_as_langchain_serialises_them",
        "CHAIN",
        {
            "input.value": json.dumps(
                {"messages": [[{"lc": 1, "id": ["langchain", "HumanMessage"], "kwargs": {"content": "Is it open?"}}]]}
            ),
            **JSON,
        },
        Reading(role=Role.CHAIN, input=SpanInput("Is it open?")),
    ),
    case(
        "a_question_beside_the_turns_before",
        "CHAIN",
        {"input.value": json.dumps(["Is it open?", {"role": "user", "content": "Where is it?"}]), **JSON},
        Reading(role=Role.CHAIN, input=SpanInput("Is it open?")),
    ),
    case(
        "an_object_as_the_only_argument",
        "CHAIN",
        {"input.value": '{"step": "Step(number=1)"}'},
        Reading(role=Role.CHAIN),
    ),
    case(
        "what_cannot_be_told_stays_raw",
        "CHAIN",
        {"input.value": '{"a": "x", "b": "y"}', "output.value": '{"a": [1, 2]}', **JSON},
        Reading(role=Role.CHAIN, input=SpanInput(raw={"a": "x", "b": "y"}), output=SpanOutput(raw={"a": [1, 2]})),
    ),
    case("a_hidden_chain", "CHAIN", {"input.value": "__REDACTED__"}, Reading(role=Role.CHAIN)),
    case(
        "retrieved_documents",
        "RETRIEVER",
        {
            "input.value": "opening hours",
            "retrieval.documents.0.document.id": "a",
            "retrieval.documents.0.document.content": "Open until six.",
            "retrieval.documents.0.document.score": 0.5,
            "retrieval.documents.1.document.content": "__REDACTED__",
            "retrieval.documents.2.document.content": "Closed on Sundays.",
        },
        Reading(
            role=Role.RETRIEVER,
            input=SpanInput("opening hours"),
            documents=(Document("Open until six.", "a", 0.5), Document("Closed on Sundays.")),
        ),
    ),
    case(
        "reranked_documents",
        "RERANKER",
        {
            "reranker.query": "opening hours",
            "reranker.input_documents.0.document.content": "Closed on Sundays.",
            "reranker.input_documents.1.document.content": "Open until six.",
            "reranker.output_documents.0.document.content": "Open until six.",
            "reranker.output_documents.0.document.score": 0.9,
        },
        Reading(
            role=Role.RERANKER,
            input=SpanInput("opening hours"),
            documents=(Document("Open until six.", None, 0.9),),
            reranked=(Document("Closed on Sundays."), Document("Open until six.")),
        ),
    ),
    case(
        "a_tool",
        "TOOL",
        {
            "tool.name": "hours",
            "tool.id": "c1",
            "tool.parameters": '{"type": "object"}',
            "input.value": '{"day": 1}',
            "output.value": "9 to 18",
        },
        Reading(
            role=Role.TOOL,
            input=SpanInput(query='{"day": 1}'),
            output=SpanOutput("9 to 18"),
            tool=Call("hours", {"day": 1}, "c1", "9 to 18"),
        ),
    ),
    case("an_agent", "AGENT", {}, Reading(role=Role.AGENT)),
    case("an_embedding", "EMBEDDING", {"embedding.model_name": "e"}, Reading(role=Role.EMBEDDING, model="e")),
    case("an_evaluator", "EVALUATOR", {}, Reading(role=Role.JUDGE)),
    case("a_guardrail", "GUARDRAIL", {}, Reading(role=Role.JUDGE)),
    case("an_unknown_kind", "POEM", {"input.value": "x"}, Reading(input=SpanInput("x"))),
    case(
        "a_kind_that_others_convert_more_coarsely",
        "RERANKER",
        {"gen_ai.operation.name": "retrieval"},
        Reading(role=Role.RERANKER),
    ),
    case("a_judge_in_any_dialect", "LLM", {"gen_ai.operation.name": "evaluation"}, Reading(role=Role.JUDGE)),
]


@each_case(("attributes", "expected"), STEPS)
def test_another_step(span: Make, attributes: dict[str, Any], expected: Reading) -> None:
    assert read(span(attributes)) == expected


def test_the_ids_of_a_span_are_no_document() -> None:
    """Spans of Phoenix in JSON have them under `context`."""
    reader = DocumentReader(reads_rows=True)
    reader.read({"trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "span_id": "00f067aa0ba902b7", "trace_state": "[]"})
    assert reader.documents == []


def test_a_question_beside_the_turns_before_is_the_question(span: Make) -> None:
    value = ["Is it open?", {"role": "user", "content": "Where is it?"}]
    kind = {"openinference.span.kind": "CHAIN"}
    for given in (value, {"args": value, "kwargs": {}}):
        assert read(span({**kind, "input.value": json.dumps(given), **JSON})).input.query == "Is it open?", given
    assert read(span({**kind, "input.value": '{"step": "Step(number=1)"}'})).input.query is None


def test_messages_may_be_pairs_of_role_and_text(span: Make) -> None:
    for messages in ([["human", "Is it open?"]], [["System", "Be kind."], ["human", "Is it open?"]]):
        attributes = {"input.value": json.dumps({"messages": messages}), **JSON}
        assert read(span({"openinference.span.kind": "CHAIN", **attributes})).input.query == "Is it open?", messages
