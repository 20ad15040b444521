"""OpenTelemetry's GenAI conventions 1.41.1, with earlier and later spellings.

Messages are JSON texts or structures. Under semantic conventions 1.30 they were log events, which no span exporter
sees: such spans give a trace without content, and need the completion hook.
"""

from collections.abc import Mapping
from typing import Final

from tracejudge.dialects import names
from tracejudge.dialects.documents import documents_of
from tracejudge.dialects.messages import conversation, input_from_messages, output_from_messages
from tracejudge.dialects.openinference import input_from_value, output_from_value
from tracejudge.dialects.reading import RawEvent, RawSpan, Reading, Role, SpanInput, SpanOutput, executed_call, usage_of
from tracejudge.dialects.values import decoded, decoded_or_same, first_text, mapping_of, structure_of, text_of

_MESSAGES: Final = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
}
_HOLDERS: Final = frozenset({"role", "content", "parts", "tool_calls", "function_call"})


def with_events(span: RawSpan) -> Mapping[str, object]:
    """Return the attributes of a span, completed by the conversation in its events."""
    if not any(event.name.startswith("gen_ai.") for event in span.events):
        return span.attributes
    attributes = dict(span.attributes)
    inputs: list[object] = []
    outputs: list[object] = []
    for event in span.events:
        if event.name in {names.EVENT_DETAILS, names.EVENT_PROMPT, names.EVENT_COMPLETION}:
            attributes = {**event.attributes, **attributes}
        elif event.name in _MESSAGES:
            inputs.append({"role": _MESSAGES[event.name], **_body(event)})
        elif event.name == names.EVENT_CHOICE:
            body = _body(event)
            # Of a typed result the message is that result, not what holds it.
            message = mapping_of(body.get("message"))
            if message is not None and _HOLDERS.isdisjoint(message):
                choice: Mapping[str, object] = {"content": event.attributes.get("message")}
            else:
                choice = message or {**body, "content": body.get("content", body.get("message"))}
            outputs.append({"role": "assistant", **choice})
    if inputs:
        attributes.setdefault(names.INPUT_MESSAGES, inputs)
    if outputs:
        attributes.setdefault(names.OUTPUT_MESSAGES, outputs)
    return attributes


def _body(event: RawEvent) -> dict[str, object]:
    # The message is the event's attributes, or one JSON text that holds them; each may be JSON again.
    body = mapping_of(decoded(event.attributes.get(names.EVENT_CONTENT))) or event.attributes
    return {key: structure_of(value) for key, value in body.items()}


_ROLES: Final = {
    **dict.fromkeys(("chat", "text_completion", "generate_content", "fetch_response"), Role.LLM),
    "embeddings": Role.EMBEDDING,
    "retrieval": Role.RETRIEVER,
    "execute_tool": Role.TOOL,
    "invoke_agent": Role.AGENT,
    "invoke_workflow": Role.CHAIN,
    "evaluation": Role.JUDGE,
}
_PROVIDERS: Final = {
    "vertex_ai": "gcp.vertex_ai",
    "gemini": "gcp.gemini",
    "az.ai.openai": "azure.ai.openai",
    "az.ai.inference": "azure.ai.inference",
    "xai": "x_ai",
}


def read(span: RawSpan) -> Reading:
    """Read the parts of a span in these conventions; none if it does not use them."""
    attributes = with_events(span)
    operation = attributes.get(names.OPERATION)
    role = _ROLES.get(operation) if isinstance(operation, str) else None
    model = first_text(attributes, names.MODELS)
    if role is None and names.OUTPUT_MESSAGES in attributes and model is not None:
        role = Role.LLM  # operations may have any name; this one has an answer of a model
    # The result of a tool that searches a datastore is evidence.
    searches = attributes.get(names.TOOL_TYPE) == "datastore"
    provider = first_text(attributes, names.PROVIDERS)
    return Reading(
        role=role,
        input=_input(attributes),
        output=_output(attributes),
        documents=documents_of(
            attributes.get(names.DOCUMENTS) or (attributes.get(names.TOOL_RESULT) if searches else None)
        ),
        tool=executed_call(
            text_of(attributes.get(names.TOOL_NAME)),
            attributes.get(names.TOOL_ARGUMENTS),
            text_of(attributes.get(names.TOOL_CALL_ID)),
            _result(attributes.get(names.TOOL_RESULT)),
        )
        if role is Role.TOOL
        else None,
        model=model,
        provider=None if provider is None else _PROVIDERS.get(provider.lower(), provider.lower()),
        response_id=text_of(attributes.get(names.RESPONSE_ID)),
        session_id=text_of(attributes.get(names.CONVERSATION_ID)),
        usage=usage_of(attributes, names.INPUT_TOKENS, names.OUTPUT_TOKENS),
    )


def _result(value: object) -> object:
    # A result that is a text may be written as JSON, too.
    is_quoted = isinstance(value, str) and len(value) > 1 and value[0] == value[-1] == '"'
    return decoded_or_same(value) if is_quoted else structure_of(value)


def fallback_role(span: RawSpan) -> Role | None:
    """Return the role of a span whose role no dialect names: with messages of a model it is a call of one."""
    return None if names.OPERATION in span.attributes or _CONVERSATIONS.isdisjoint(span.attributes) else Role.LLM


_CONVERSATIONS: Final = frozenset({names.INPUT_MESSAGES, names.OUTPUT_MESSAGES, names.PROMPT, names.COMPLETION})


def _input(attributes: Mapping[str, object]) -> SpanInput:
    instructions = attributes.get(names.SYSTEM_INSTRUCTIONS)
    for key in (names.INPUT_MESSAGES, names.PROMPT, *names.PA_MESSAGES):
        value = attributes.get(key)
        chats = conversation(value)
        if chats is not None:
            return input_from_messages(chats, instructions)
        # The Collector's normaliser writes a workflow's arguments under the key of messages.
        if read := input_from_value(value):
            return read
    query = text_of(attributes.get(names.QUERY_TEXT))
    return input_from_messages([], instructions) if query is None else SpanInput(query=query)


def _output(attributes: Mapping[str, object]) -> SpanOutput:
    # The result of an agent, as text or as JSON: whole, whatever its fields are called.
    if (result := text_of(attributes.get(names.PA_RESULT))) is not None:
        return SpanOutput(text=result)
    for key in (names.OUTPUT_MESSAGES, names.COMPLETION):
        value = attributes.get(key)
        chats = conversation(value)
        if chats is not None:
            return output_from_messages(chats)
        if read := output_from_value(value):
            return read
    return SpanOutput()
