"""OpenLLMetry in both generations.

The older one flattens messages over `gen_ai.prompt.N.*` and `gen_ai.completion.N.*`; the newer one writes the
messages of the GenAI conventions, which `genai` reads. Both wrap functions in workflow, task, agent and tool spans and
write the results of vector stores as span events.
"""

from collections.abc import Mapping
from typing import Final

from tracejudge.dialects import names
from tracejudge.dialects.documents import documents_of
from tracejudge.dialects.messages import conversation, input_from_messages, output_from_messages
from tracejudge.dialects.openinference import input_from_value, output_from_value
from tracejudge.dialects.reading import Call, RawSpan, Reading, Role, SpanInput, SpanOutput, by_name
from tracejudge.dialects.values import (
    decoded_or_same,
    first_text,
    is_list,
    mapping_of,
    number_of,
    plain,
    structure_of,
    text_of,
    unflattened,
)
from tracejudge.model import Document

_KINDS: Final = {"workflow": Role.CHAIN, "task": Role.CHAIN, "agent": Role.AGENT, "tool": Role.TOOL}
_REQUESTS: Final = {"chat": Role.LLM, "completion": Role.LLM, "embedding": Role.EMBEDDING, "rerank": Role.RERANKER}


def read(span: RawSpan) -> Reading:
    """Read the parts of a span in OpenLLMetry; none if it does not use it."""
    attributes = span.attributes
    role = _role(span)
    return Reading(
        role=role,
        input=_input(attributes) if role is not Role.RERANKER else SpanInput(),
        output=_output(attributes) if role is not Role.RERANKER else SpanOutput(),
        documents=_documents(span, role),
        tool=_tool(attributes) if role is Role.TOOL else None,
        session_id=text_of(attributes.get(names.TL_SESSION_ID)),
        user_id=first_text(attributes, names.TL_USER_IDS),
    )


def _role(span: RawSpan) -> Role | None:
    attributes = span.attributes
    request, kind = attributes.get(names.TL_REQUEST_TYPE), attributes.get(names.TL_KIND)
    if isinstance(request, str) and request in _REQUESTS:
        return _REQUESTS[request]
    if attributes.get(names.OPERATION) == "vector_db_retrieve" or any(span.events_named(names.TL_EVENT_RESULT)):
        return Role.RETRIEVER
    if isinstance(kind, str) and kind in _KINDS:
        return _KINDS[kind]
    flattened = (f"{names.PROMPT}.", f"{names.COMPLETION}.")
    ends = (".role", ".content")
    return Role.LLM if any(key.startswith(flattened) and key.endswith(ends) for key in attributes) else None


def _input(attributes: Mapping[str, object]) -> SpanInput:
    prompts = unflattened(attributes, names.PROMPT)
    if prompts is not None:
        return input_from_messages(conversation([_message(item, "user") for item in prompts]) or [])
    return input_from_value(decoded_or_same(attributes.get(names.TL_ENTITY_INPUT)))


def _output(attributes: Mapping[str, object]) -> SpanOutput:
    completions = unflattened(attributes, names.COMPLETION)
    if completions is not None:
        return output_from_messages(conversation([_message(item, "assistant") for item in completions]) or [])
    return output_from_value(decoded_or_same(attributes.get(names.TL_ENTITY_OUTPUT)))


def _message(item: object, role: str) -> object:
    message = mapping_of(item)
    if message is None:
        return item
    if not message.get("role"):  # some wrappers write none
        message = {**message, "role": role}
    content = message.get("content")
    if content == names.TL_FILTERED:  # a word in place of the content
        return {**message, "content": None}
    # Parts are written as JSON.
    parts = structure_of(content)
    is_parts = is_list(parts) and all(isinstance(part, Mapping) and "type" in part for part in parts)
    return {**message, "content": parts} if is_parts else message


def _documents(span: RawSpan, role: Role | None) -> tuple[Document, ...]:
    documents: list[Document] = []
    for event in span.events_named(names.TL_EVENT_RESULT):
        if (text := text_of(event.get(names.TL_RESULT_DOCUMENT))) is not None:
            value = event.get(names.TL_RESULT_ID)
            own_id = str(value) if isinstance(value, int) and not isinstance(value, bool) else text_of(value)
            documents.append(Document(text, own_id, number_of(event.get(names.TL_RESULT_SCORE))))
    if documents or role is not Role.RETRIEVER:
        return tuple(documents)
    return documents_of(span.attributes.get(names.TL_ENTITY_OUTPUT))


def _tool(attributes: Mapping[str, object]) -> Call | None:
    name = first_text(attributes, (names.TOOL_NAME, names.TL_ENTITY_NAME))
    if name is None:
        return None
    arguments = by_name(decoded_or_same(attributes.get(names.TL_ENTITY_INPUT)))
    result = structure_of(decoded_or_same(attributes.get(names.TL_ENTITY_OUTPUT)))
    return Call(name, plain(arguments), result=plain(result))
