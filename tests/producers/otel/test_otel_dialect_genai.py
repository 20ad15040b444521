"""What is read from spans in the GenAI conventions of OpenTelemetry, of every generation."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from support.cases import each_case

from tracejudge import Document, Message, Usage
from tracejudge.dialects import RawEvent, RawSpan, Reading, Role, read
from tracejudge.dialects.names import Call, SpanInput, SpanOutput, ToolResult

Make = Callable[..., RawSpan]

CHAT = {"gen_ai.operation.name": "chat"}


def text(words: str) -> dict[str, str]:
    return {"type": "text", "content": words}


def message(role: str, *parts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"role": role, "parts": list(parts), **fields}


def call(**fields: Any) -> dict[str, Any]:
    return {"type": "tool_call", **fields}


SIMPLE_IN = [message("user", text("Is it open?"))]
SIMPLE_OUT = [message("assistant", text("Yes, until six."), finish_reason="stop")]
SIMPLE = Reading(role=Role.LLM, input=SpanInput(query="Is it open?"), output=SpanOutput("Yes, until six."))

TOLD = [
    message("user", text("How warm is it?")),
    message("assistant", call(id="c1", name="weather", arguments={"city": "Bern"})),
    message("tool", {"type": "tool_call_response", "id": "c1", "response": "20 degrees"}),
]
WEATHER = Call("weather", {"city": "Bern"}, "c1")


def case(name: str, attributes: dict[str, Any], expected: Reading) -> Any:
    return pytest.param(CHAT | attributes, expected, id=name)


CASES = [
    case(
        "messages_as_json_texts",
        {"gen_ai.input.messages": json.dumps(SIMPLE_IN), "gen_ai.output.messages": json.dumps(SIMPLE_OUT)},
        SIMPLE,
    ),
    case("structured_messages", {"gen_ai.input.messages": SIMPLE_IN, "gen_ai.output.messages": SIMPLE_OUT}, SIMPLE),
    case(
        "messages_shaped_as_openai_has_them",
        {
            "gen_ai.input.messages": json.dumps([{"role": "user", "content": "Is it open?"}]),
            "gen_ai.output.messages": json.dumps([{"role": "assistant", "content": "Yes, until six."}]),
        },
        SIMPLE,
    ),
    case(
        "instructions_and_history_stand_before_the_query",
        {
            "gen_ai.system_instructions": json.dumps([text("Be kind."), text("Be brief.")]),
            "gen_ai.input.messages": [message("user", text("Hi")), message("assistant", text("Hello")), *SIMPLE_IN],
        },
        Reading(
            role=Role.LLM,
            input=SpanInput(
                query="Is it open?",
                history=(
                    Message("system", "Be kind.\nBe brief."),
                    Message("user", "Hi"),
                    Message("assistant", "Hello"),
                ),
            ),
        ),
    ),
    case(
        "tools_called_since_the_query_are_no_history",
        {"gen_ai.input.messages": json.dumps(TOLD)},
        Reading(
            role=Role.LLM,
            input=SpanInput("How warm is it?", calls=(WEATHER,), results=(ToolResult("c1", "20 degrees"),)),
        ),
    ),
    case(
        "a_response_under_the_name_of_the_prose",
        {
            "gen_ai.input.messages": [
                *TOLD[:2],
                message("tool", {"type": "tool_call_response", "id": "c1", "result": {"degrees": 20}}),
            ]
        },
        Reading(
            role=Role.LLM,
            input=SpanInput("How warm is it?", calls=(WEATHER,), results=(ToolResult("c1", {"degrees": 20}),)),
        ),
    ),
    case(
        "an_answer_of_tools_in_a_message_of_the_user_is_no_query",
        {
            "gen_ai.input.messages": [
                *TOLD[:2],
                message("user", {"type": "tool_result", "tool_use_id": "c1", "content": [text("20 degrees")]}),
            ]
        },
        Reading(
            role=Role.LLM,
            input=SpanInput("How warm is it?", calls=(WEATHER,), results=(ToolResult("c1", "20 degrees"),)),
        ),
    ),
    case(
        "thoughts_images_and_unknown_parts_are_left_out",
        {
            "gen_ai.input.messages": [
                message("user", {"type": "blob", "content": "aGk="}, text("What is this?"), {"type": "uri", "uri": "u"})
            ],
            "gen_ai.output.messages": [
                message("assistant", {"type": "reasoning", "content": "Hm."}, {"type": "new"}, text("A cat."))
            ],
        },
        Reading(role=Role.LLM, input=SpanInput("What is this?"), output=SpanOutput("A cat.")),
    ),
    case(
        "a_query_without_text_is_not_replaced_by_an_earlier_one",
        {"gen_ai.input.messages": [*SIMPLE_IN, message("user", {"type": "blob", "content": "aGk="})]},
        Reading(role=Role.LLM, input=SpanInput(history=(Message("user", "Is it open?"),))),
    ),
    case(
        "a_refusal_is_an_answer",
        {"gen_ai.output.messages": [message("assistant", {"type": "refusal", "content": "I will not."})]},
        Reading(role=Role.LLM, output=SpanOutput("I will not.")),
    ),
    case(
        "the_first_of_several_choices",
        {"gen_ai.output.messages": [*SIMPLE_OUT, message("assistant", text("No."))]},
        Reading(role=Role.LLM, output=SpanOutput("Yes, until six.")),
    ),
    case(
        "a_malformed_message_costs_only_itself",
        {"gen_ai.input.messages": [7, {"parts": "?"}, None, *SIMPLE_IN], "gen_ai.output.messages": SIMPLE_OUT},
        SIMPLE,
    ),
    case(
        "json_that_was_cut_is_no_question_and_costs_nothing_else",
        {"gen_ai.input.messages": json.dumps(SIMPLE_IN)[:-4], "gen_ai.output.messages": SIMPLE_OUT},
        Reading(role=Role.LLM, input=SpanInput(raw=json.dumps(SIMPLE_IN)[:-4]), output=SpanOutput("Yes, until six.")),
    ),
    case(
        "arguments_of_a_workflow_under_the_key_of_messages",
        {"gen_ai.input.messages": json.dumps({"args": [], "kwargs": {"question": "Is it open?"}})},
        Reading(role=Role.LLM, input=SpanInput("Is it open?")),
    ),
    case(
        "content_that_stands_elsewhere",
        {"gen_ai.input.messages_ref": "s3://bucket/in", "gen_ai.output.messages_ref": "s3://bucket/out"},
        Reading(role=Role.LLM),
    ),
    case(
        "the_deprecated_single_attributes",
        {"gen_ai.prompt": "Is it open?", "gen_ai.completion": "Yes, until six."},
        SIMPLE,
    ),
    case(
        "the_newer_names_win",
        {
            "gen_ai.provider.name": "azure.ai.openai",
            "gen_ai.system": "openai",
            "gen_ai.request.model": "small",
            "gen_ai.response.model": "small-2026",
            "gen_ai.usage.input_tokens": 10,
            "gen_ai.usage.prompt_tokens": 99,
            "gen_ai.usage.output_tokens": 5,
            "gen_ai.usage.completion_tokens": 99,
            "gen_ai.response.id": "r1",
            "gen_ai.conversation.id": "talk",
            "session.id": "visit",
            "user.id": "u1",
        },
        Reading(
            role=Role.LLM,
            provider="azure.ai.openai",
            model="small-2026",
            usage=Usage(10, 5),
            response_id="r1",
            session_id="talk",
            user_id="u1",
        ),
    ),
    case(
        "the_older_names_serve",
        {
            "gen_ai.system": "xai",
            "gen_ai.request.model": "small",
            "gen_ai.usage.prompt_tokens": 10,
            "gen_ai.usage.completion_tokens": 5,
            "session.id": "visit",
            "enduser.id": "u1",
        },
        Reading(role=Role.LLM, provider="x_ai", model="small", usage=Usage(10, 5), session_id="visit", user_id="u1"),
    ),
]


@each_case(("attributes", "expected"), CASES)
def test_a_call_of_a_model(span: Make, attributes: dict[str, Any], expected: Reading) -> None:
    assert read(span(attributes)) == expected


MEDIA = {
    "[image]": [
        {"type": "blob", "modality": "image", "mime_type": "image/png", "content": "aGk="},
        {"type": "uri", "modality": "image", "uri": "http://example.org/a.png"},
        {"type": "uri", "modality": "image", "uri": f"https://example.org/{'a' * 2_000}"},
        {"type": "image_url", "image_url": {"url": "https://example.org/a]b.png"}},
        {"type": "file", "modality": "image", "file_id": "f1"},
        {"type": "input_image", "image_url": "data:image/png;base64,aGk="},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
        {"type": "binary", "media_type": "image/png"},
        {"type": "file", "mediaType": "image/png", "data": "aGk="},
        {"inline_data": {"mime_type": "image/png", "data": "aGk="}},
        {"fileData": {"mimeType": "image/png", "fileUri": "gs://a"}},
    ],
    "[image https://example.org/a.png]": [
        {"type": "uri", "modality": "image", "uri": "https://example.org/a.png"},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
        {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
        {"type": "image-url", "url": "https://example.org/a.png"},
        {"file_data": {"mime_type": "image/png", "file_uri": "https://example.org/a.png"}},
    ],
    "[audio]": [
        {"type": "blob", "modality": "audio", "mime_type": "audio/wav", "content": "aGk="},
        {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}},
        {"type": "audio", "source_type": "base64", "mime_type": "audio/wav", "data": "aGk="},
        {"type": "audio-url", "url": "https://example.org/a.wav"},
        {"type": "blob", "mime_type": "audio/wav", "content": "aGk="},
        {"inlineData": {"mimeType": "audio/wav", "data": "aGk="}},
    ],
    "[audio 50 kB]": [
        {"type": "input_audio", "input_audio": {"data": "aGk=" * 16_667, "format": "wav"}},
        {"type": "blob", "mime_type": "audio/wav", "content": "aGk=" * 16_667},
    ],
    "[image 3 kB]": [
        {"type": "input_image", "image_url": f"data:image/png;base64,{'aGk=' * 1_000}"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{'aGk=' * 1_000}"}},
    ],
    "[video]": [{"type": "video-url", "url": "https://example.org/a.mp4"}, {"type": "uri", "modality": "video"}],
    "[file]": [
        {"type": "file", "file": {"file_id": "f1"}},
        {"type": "input_file", "file_id": "f1"},
        {"type": "document", "source": {"type": "url", "url": "https://example.org/a.pdf"}},
        {"type": "document-url", "url": "https://example.org/a.pdf"},
        {"file_data": {"mime_type": "application/pdf", "file_uri": "gs://a"}},
    ],
}


def test_media_leave_marks_in_every_notation(span: Make) -> None:
    for mark, parts in MEDIA.items():
        for part in parts:
            for key in ("parts", "content"):
                text = {"type": "text", "text" if key == "content" else "content": "Look:"}
                messages = json.dumps([{"role": "user", key: [text, part]}])
                reading = read(span({"gen_ai.operation.name": "chat", "gen_ai.input.messages": messages}))
                assert reading.input == SpanInput(f"Look:\n{mark}"), (key, part)


def operation(name: str, attributes: dict[str, Any], expected: Reading) -> Any:
    return pytest.param({"gen_ai.operation.name": name} | attributes, expected, id=name)


@each_case(
    ("attributes", "expected"),
    [
        operation(
            "retrieval",
            {
                "gen_ai.retrieval.query.text": "opening hours",
                "gen_ai.retrieval.documents": json.dumps(
                    [{"id": "a", "score": 0.5, "content": "Open until six."}, {"id": "b", "score": 0.4}]
                ),
            },
            Reading(
                role=Role.RETRIEVER,
                input=SpanInput("opening hours"),
                documents=(Document("Open until six.", "a", 0.5),),
            ),
        ),
        operation(
            "execute_tool",
            {
                "gen_ai.tool.name": "weather",
                "gen_ai.tool.call.id": "c1",
                "gen_ai.tool.call.arguments": '{"city": "Bern"}',
                "gen_ai.tool.call.result": "20 degrees",
            },
            Reading(role=Role.TOOL, tool=Call("weather", {"city": "Bern"}, "c1", "20 degrees")),
        ),
        operation(
            "invoke_agent",
            {"gen_ai.input.messages": SIMPLE_IN, "gen_ai.output.messages": SIMPLE_OUT},
            Reading(role=Role.AGENT, input=SpanInput("Is it open?"), output=SpanOutput("Yes, until six.")),
        ),
        operation("invoke_workflow", {}, Reading(role=Role.CHAIN)),
        operation("embeddings", {}, Reading(role=Role.EMBEDDING)),
        operation("evaluation", {}, Reading(role=Role.JUDGE)),
        operation("create_agent", {}, Reading()),
        operation("something_new", {}, Reading()),
        operation(
            "answer_with_style",
            {"gen_ai.request.model": "small", "gen_ai.output.messages": SIMPLE_OUT},
            Reading(role=Role.LLM, output=SpanOutput("Yes, until six."), model="small"),
        ),
    ],
)
def test_other_operations(span: Make, attributes: dict[str, Any], expected: Reading) -> None:
    assert read(span(attributes)) == expected


def test_a_tool_that_searches_brings_documents(span: Make) -> None:
    result = read(
        span(
            {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": "search",
                "gen_ai.tool.type": "datastore",
                "gen_ai.tool.call.result": '{"results": [{"id": 4, "text": "Open until six.", "score": "0.5"}]}',
            }
        )
    )
    assert result.documents == (Document("Open until six.", "4", 0.5),)


@each_case(
    "events",
    [
        pytest.param(
            (
                RawEvent("gen_ai.user.message", {"content": "Is it open?"}),
                RawEvent(
                    "gen_ai.choice", {"index": 0, "message": '{"role": "assistant", "content": "Yes, until six."}'}
                ),
            ),
            id="a_message_each",
        ),
        pytest.param(
            (
                RawEvent("gen_ai.user.message", {"gen_ai.event.content": '{"content": "Is it open?"}'}),
                RawEvent("gen_ai.choice", {"gen_ai.event.content": '{"message": {"content": "Yes, until six."}}'}),
            ),
            id="bodies_as_json",
        ),
        pytest.param(
            (
                RawEvent("gen_ai.content.prompt", {"gen_ai.prompt": '[{"role": "user", "content": "Is it open?"}]'}),
                RawEvent(
                    "gen_ai.content.completion",
                    {"gen_ai.completion": '[{"role": "assistant", "content": "Yes, until six."}]'},
                ),
            ),
            id="prompt_and_completion",
        ),
        pytest.param(
            (
                RawEvent(
                    "gen_ai.client.inference.operation.details",
                    {"gen_ai.input.messages": SIMPLE_IN, "gen_ai.output.messages": SIMPLE_OUT},
                ),
            ),
            id="details_of_the_operation",
        ),
    ],
)
def test_content_in_the_events_of_the_span(span: Make, events: tuple[RawEvent, ...]) -> None:
    assert read(span(CHAT, events=events)) == SIMPLE


@each_case(
    ("fields", "expected"),
    [
        pytest.param({"attributes": {"error.type": "timeout"}}, "timeout", id="only_a_type"),
        pytest.param({"description": "too slow"}, "too slow", id="only_words"),
        pytest.param(
            {"attributes": {"error.type": "timeout"}, "description": "too slow"}, "timeout: too slow", id="both"
        ),
        pytest.param({"description": "ValueError: no"}, "ValueError: no", id="words_with_the_type"),
        pytest.param(
            {"events": (RawEvent("exception", {"exception.type": "ValueError", "exception.message": "no"}),)},
            "ValueError: no",
            id="an_exception",
        ),
        pytest.param({}, "error", id="nothing_said"),
    ],
)
def test_errors(span: Make, fields: dict[str, Any], expected: str) -> None:
    attributes = CHAT | fields.pop("attributes", {})
    assert read(span(attributes, status="error", **fields)).error == expected


def test_an_exception_that_was_handled_is_no_error(span: Make) -> None:
    handled = RawEvent("exception", {"exception.type": "ValueError"})
    assert read(span(CHAT, status="ok", events=(handled,))).error is None


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"attributes": CHAT | {"tracejudge.judge.name": "safety"}}, id="an_attribute"),
        pytest.param({"attributes": CHAT, "scope": "tracejudge"}, id="the_scope"),
    ],
)
def test_spans_of_our_own_worker_are_judges(fields: dict[str, Any], span: Make) -> None:
    assert read(span(**fields)) == Reading(role=Role.JUDGE)


def test_spellings_that_instrumentations_use(span: Make) -> None:
    asked, answered = (
        [{"role": "USER", "content": "Is it open?"}],
        [{"role": "Assistant", "content": "Yes, until six."}],
    )
    history = (Message("system", "Be kind."), Message("assistant", "Hello"))
    for attributes, expected in (
        ({"gen_ai.input.messages": asked, "gen_ai.output.messages": answered}, SIMPLE),
        ({"gen_ai.input.messages": json.dumps(json.dumps(SIMPLE_IN)), "gen_ai.completion": "Yes, until six."}, SIMPLE),
        (
            {
                "gen_ai.input.messages": [
                    {"role": "user", "content": json.dumps([{"type": "text", "text": "Is it open?"}])}
                ],
                "gen_ai.output.messages": SIMPLE_OUT,
            },
            SIMPLE,
        ),
        ({"gen_ai.content.prompt": json.dumps(asked), "gen_ai.content.completion": json.dumps(answered)}, SIMPLE),
        (
            {"gen_ai.input.messages": "[]", "gen_ai.prompt": "Is it open?", "gen_ai.completion": "Yes, until six."},
            SIMPLE,
        ),
        (
            {"gen_ai.input.messages": [{"role": "System", "content": "Be kind."}, {"role": "AI", "content": "Hello"}]},
            Reading(role=Role.LLM, input=SpanInput(history=history)),
        ),
        (
            {"gen_ai.usage.input_tokens": "7", "gen_ai.usage.output_tokens": 3.0},
            Reading(role=Role.LLM, usage=Usage(7, 3)),
        ),
        ({"gen_ai.usage.input_tokens": "many", "gen_ai.usage.output_tokens": 3.5}, Reading(role=Role.LLM)),
    ):
        assert read(span(CHAT | attributes)) == expected, attributes


def test_tools_in_the_events_of_strands(span: Make) -> None:
    asked = RawEvent("gen_ai.user.message", {"content": '[{"text": "How warm is it?"}]'})
    request = RawEvent(
        "gen_ai.assistant.message",
        {"content": '[{"toolUse": {"toolUseId": "c1", "name": "weather", "input": {"city": "Bern"}}}]'},
    )
    told = RawEvent(
        "gen_ai.tool.message", {"content": '[{"toolResult": {"toolUseId": "c1", "content": [{"text": "20 degrees"}]}}]'}
    )
    answer = RawEvent("gen_ai.choice", {"message": '[{"text": "20 degrees."}]', "finish_reason": "end_turn"})
    assert read(span(CHAT, events=(asked, request, told, answer))) == Reading(
        role=Role.LLM,
        input=SpanInput("How warm is it?", calls=(WEATHER,), results=(ToolResult("c1", "20 degrees"),)),
        output=SpanOutput("20 degrees."),
    )
    tool = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "weather", "gen_ai.tool.call.id": "c1"}
    events = (
        RawEvent("gen_ai.tool.message", {"role": "tool", "content": '{"city": "Bern"}', "id": "c1"}),
        RawEvent("gen_ai.choice", {"message": '[{"text": "20 degrees"}]', "id": "c1"}),
    )
    assert read(span(tool, events=events)).tool == Call("weather", {"city": "Bern"}, "c1", "20 degrees")
