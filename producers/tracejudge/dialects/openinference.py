"""OpenInference: a kind on every span, lists spread over flattened keys, inputs and outputs as text or JSON."""

from collections.abc import Mapping
from typing import Final

from tracejudge.dialects import names
from tracejudge.dialects.common import usage_of
from tracejudge.dialects.documents import documents_of
from tracejudge.dialects.flattened import unflattened
from tracejudge.dialects.messages import asked, conversation, said
from tracejudge.dialects.reading import Asked, Call, Reading, Role, Said
from tracejudge.dialects.spans import RawSpan
from tracejudge.dialects.values import decoded, first_text, mapping_of, plain, structure_of, text_of
from tracejudge.dialects.wrappings import asked_in, said_in
from tracejudge.model import Document

_ROLES: Final = {
    "LLM": Role.LLM,
    "AGENT": Role.AGENT,
    "CHAIN": Role.CHAIN,
    "RETRIEVER": Role.RETRIEVER,
    "RERANKER": Role.RERANKER,
    "TOOL": Role.TOOL,
    "EMBEDDING": Role.EMBEDDING,
    "GUARDRAIL": Role.JUDGE,
    "EVALUATOR": Role.JUDGE,
}
_JSON: Final = "application/json"


def read(span: RawSpan) -> Reading:
    """Read what a span says in OpenInference; nothing when it does not speak it."""
    attributes = span.attributes
    role = _role(attributes)
    if role is None:
        return Reading()
    return Reading(
        role=role,
        asked=_asked(attributes),
        said=_said(attributes),
        documents=_documents(attributes, role),
        reranked=_listed(attributes, names.OI_RERANKER_INPUT),
        tool=_tool(attributes) if role is Role.TOOL else None,
        model=first_text(attributes, names.OI_MODELS),
        provider=first_text(attributes, names.OI_PROVIDERS),
        response_id=_response_id(attributes) if role is Role.LLM else None,
        usage=usage_of(attributes, (names.OI_INPUT_TOKENS,), (names.OI_OUTPUT_TOKENS,)),
    )


def _role(attributes: Mapping[str, object]) -> Role | None:
    kind = attributes.get(names.OI_KIND)
    return _ROLES.get(kind.upper()) if isinstance(kind, str) else None


def _asked(attributes: Mapping[str, object]) -> Asked:
    messages = unflattened(attributes, names.OI_INPUT_MESSAGES)
    if messages is not None:
        # Its own messages, even when they were taken out: the request beside them says no more.
        return asked(conversation(messages) or [])
    prompt = _completions(attributes, names.OI_PROMPTS, "prompt")
    if prompt is not None:
        return Asked(query=prompt)
    query = text_of(attributes.get(names.OI_RERANKER_QUERY))
    if query is not None:
        return Asked(query=query)
    value = _value(attributes, names.OI_INPUT, names.OI_INPUT_MIME)
    return Asked(query=text_of(value)) if isinstance(value, str) else asked_in(value)


def _said(attributes: Mapping[str, object]) -> Said:
    messages = unflattened(attributes, names.OI_OUTPUT_MESSAGES)
    if messages is not None:
        return said(conversation(messages) or [])
    text = _completions(attributes, names.OI_CHOICES, "completion")
    if text is not None:
        return Said(text=text)
    value = _value(attributes, names.OI_OUTPUT, names.OI_OUTPUT_MIME)
    return Said(text=text_of(value)) if isinstance(value, str) else said_in(value)


def _value(attributes: Mapping[str, object], key: str, mime_key: str) -> object:
    """Take a value, decoded only where it is said to be JSON: a user's text may look like it."""
    value = attributes.get(key)
    if attributes.get(mime_key) != _JSON:
        return value
    found = decoded(value)
    return value if found is None else found


def _completions(attributes: Mapping[str, object], prefix: str, wrapping: str) -> str | None:
    """Take the first text of the older completions interface."""
    for item in unflattened(attributes, prefix) or ():
        holder = mapping_of(item)
        inner = None if holder is None else mapping_of(holder.get(wrapping))
        return None if inner is None else text_of(inner.get("text"))
    return None


def _documents(attributes: Mapping[str, object], role: Role) -> tuple[Document, ...]:
    if role is Role.RERANKER:
        return _listed(attributes, names.OI_RERANKER_OUTPUT)
    found = _listed(attributes, names.OI_DOCUMENTS)
    if not found and role is Role.RETRIEVER:
        return documents_of(_value(attributes, names.OI_OUTPUT, names.OI_OUTPUT_MIME))
    return found


def _listed(attributes: Mapping[str, object], prefix: str) -> tuple[Document, ...]:
    return documents_of(unflattened(attributes, prefix) or attributes.get(prefix))


def _tool(attributes: Mapping[str, object]) -> Call | None:
    name = text_of(attributes.get(names.OI_TOOL_NAME))
    if name is None:
        return None
    arguments = first_text(attributes, (names.OI_INPUT, names.OI_TOOL_PARAMETERS))
    return Call(
        name,
        plain(structure_of(arguments)),
        first_text(attributes, names.OI_TOOL_IDS),
        plain(_value(attributes, names.OI_OUTPUT, names.OI_OUTPUT_MIME)),
    )


def _response_id(attributes: Mapping[str, object]) -> str | None:
    """Find the id in the response, which OpenInference keeps whole."""
    found = mapping_of(structure_of(attributes.get(names.OI_OUTPUT)))
    return None if found is None else text_of(found.get("id"))
