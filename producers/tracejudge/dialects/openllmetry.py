"""OpenLLMetry in both generations.

The older one spreads messages over `gen_ai.prompt.N.*` and `gen_ai.completion.N.*`; the newer one writes the
messages of the GenAI conventions, which `otel` reads. Both wrap functions in workflow, task, agent and tool spans
and put what vector stores found into span events.
"""

from collections.abc import Mapping
from typing import Final

from tracejudge.dialects import names
from tracejudge.dialects.documents import documents_of
from tracejudge.dialects.flattened import unflattened
from tracejudge.dialects.messages import asked, conversation, said
from tracejudge.dialects.reading import Asked, Call, Reading, Role, Said
from tracejudge.dialects.spans import RawSpan
from tracejudge.dialects.values import decoded, first_text, is_list, mapping_of, number_of, plain, structure_of, text_of
from tracejudge.dialects.wrappings import asked_in, said_in
from tracejudge.model import Document

_KINDS: Final = {"workflow": Role.CHAIN, "task": Role.CHAIN, "agent": Role.AGENT, "tool": Role.TOOL}
_REQUESTS: Final = {
    "chat": Role.LLM,
    "completion": Role.LLM,
    "embedding": Role.EMBEDDING,
    "rerank": Role.RERANKER,
}
_RETRIEVAL: Final = "vector_db_retrieve"


def read(span: RawSpan) -> Reading:
    """Read what a span says in OpenLLMetry; nothing when it does not speak it."""
    attributes = span.attributes
    role = _role(span)
    return Reading(
        role=role,
        asked=_asked(attributes) if role is not Role.RERANKER else Asked(),
        said=_said(attributes) if role is not Role.RERANKER else Said(),
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
    if attributes.get(names.OPERATION) == _RETRIEVAL or any(span.events_named(names.TL_EVENT_RESULT)):
        return Role.RETRIEVER
    if isinstance(kind, str) and kind in _KINDS:
        return _KINDS[kind]
    spread = (f"{names.PROMPT}.", f"{names.COMPLETION}.")
    ends = (".role", ".content")
    return Role.LLM if any(key.startswith(spread) and key.endswith(ends) for key in attributes) else None


def _asked(attributes: Mapping[str, object]) -> Asked:
    prompts = unflattened(attributes, names.PROMPT)
    if prompts is not None:
        return asked(conversation([_message(item, "user") for item in prompts]) or [])
    return asked_in(_entity(attributes, names.TL_ENTITY_INPUT))


def _said(attributes: Mapping[str, object]) -> Said:
    completions = unflattened(attributes, names.COMPLETION)
    if completions is not None:
        return said(conversation([_message(item, "assistant") for item in completions]) or [])
    return said_in(_entity(attributes, names.TL_ENTITY_OUTPUT))


def _message(item: object, role: str) -> object:
    """Make a message of a spread-out one: parts stand there as JSON, filtered content as a word in its place.

    Some wrappers write no role, which is then the usual one of a prompt or a completion.
    """
    found = mapping_of(item)
    if found is None:
        return item
    if not found.get("role"):
        found = {**found, "role": role}
    content = found.get("content")
    if content == names.TL_FILTERED:
        return {**found, "content": None}
    parts = structure_of(content)
    is_parts = is_list(parts) and all(isinstance(part, Mapping) and "type" in part for part in parts)
    return {**found, "content": parts} if is_parts else found


def _entity(attributes: Mapping[str, object], key: str) -> object:
    """Take what a wrapped function was given or gave back; the wrapper writes all of it as JSON."""
    value = attributes.get(key)
    found = decoded(value)
    return value if found is None else found


def _documents(span: RawSpan, role: Role | None) -> tuple[Document, ...]:
    events = [
        Document(text, _id(found.get(names.TL_RESULT_ID)), number_of(found.get(names.TL_RESULT_SCORE)))
        for found in span.events_named(names.TL_EVENT_RESULT)
        if (text := text_of(found.get(names.TL_RESULT_DOCUMENT))) is not None
    ]
    if events or role is not Role.RETRIEVER:
        return tuple(events)
    return documents_of(span.attributes.get(names.TL_ENTITY_OUTPUT))


def _id(value: object) -> str | None:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else text_of(value)


def _tool(attributes: Mapping[str, object]) -> Call | None:
    name = first_text(attributes, (names.TOOL_NAME, names.TL_ENTITY_NAME))
    if name is None:
        return None
    result = structure_of(_entity(attributes, names.TL_ENTITY_OUTPUT))
    return Call(name, plain(_arguments(attributes)), None, plain(result))


def _arguments(attributes: Mapping[str, object]) -> object:
    """Take what a tool was called with: by name, as models do, unless a program called it by position."""
    given = _entity(attributes, names.TL_ENTITY_INPUT)
    found = mapping_of(given)
    return found["kwargs"] if found is not None and "kwargs" in found and not found.get("args") else given
