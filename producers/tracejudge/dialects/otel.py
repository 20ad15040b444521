"""The GenAI conventions of OpenTelemetry, frozen at 1.41.1, with the spellings before and after it.

Messages are JSON texts or structures. Under semantic conventions 1.30 they travelled as log events, which no
span exporter sees: such spans give a trace without content, and the completion hook is the way.
"""

from collections.abc import Mapping
from typing import Final

from tracejudge.dialects import names
from tracejudge.dialects.common import usage_of
from tracejudge.dialects.documents import documents_of
from tracejudge.dialects.messages import asked, conversation, said
from tracejudge.dialects.otel_events import with_events
from tracejudge.dialects.reading import Asked, Call, Reading, Role, Said
from tracejudge.dialects.spans import RawSpan
from tracejudge.dialects.values import first_text, plain, structure_of, text_of
from tracejudge.dialects.wrappings import asked_in, said_in

_ROLES: Final = {
    "chat": Role.LLM,
    "text_completion": Role.LLM,
    "generate_content": Role.LLM,
    "fetch_response": Role.LLM,
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
_DATASTORE: Final = "datastore"


def read(span: RawSpan) -> Reading:
    """Read what a span says in these conventions; nothing when it does not speak them."""
    attributes = with_events(span)
    role = _role(attributes)
    tool = _tool(attributes) if role is Role.TOOL else None
    return Reading(
        role=role,
        asked=_asked(attributes),
        said=_said(attributes),
        documents=documents_of(attributes.get(names.DOCUMENTS) or _datastore(attributes)),
        tool=tool,
        model=first_text(attributes, names.MODELS),
        provider=_provider(attributes),
        response_id=text_of(attributes.get(names.RESPONSE_ID)),
        session_id=text_of(attributes.get(names.CONVERSATION_ID)),
        usage=usage_of(attributes, names.INPUT_TOKENS, names.OUTPUT_TOKENS),
    )


def _role(attributes: Mapping[str, object]) -> Role | None:
    operation = attributes.get(names.OPERATION)
    if isinstance(operation, str) and operation in _ROLES:
        return _ROLES[operation]
    # Other operations may be named as one likes; who answers with messages of a model is one.
    if names.OUTPUT_MESSAGES in attributes and first_text(attributes, names.MODELS) is not None:
        return Role.LLM
    return None


def _asked(attributes: Mapping[str, object]) -> Asked:
    instructions = attributes.get(names.SYSTEM_INSTRUCTIONS)
    for key in (names.INPUT_MESSAGES, names.PROMPT):
        given = attributes.get(key)
        chats = conversation(given)
        if chats is not None:
            return asked(chats, instructions)
        # The normaliser of the Collector puts a workflow's arguments under the key of messages.
        if found := asked_in(given):
            return found
    query = text_of(attributes.get(names.QUERY_TEXT))
    return asked([], instructions) if query is None else Asked(query=query)


def _said(attributes: Mapping[str, object]) -> Said:
    for key in (names.OUTPUT_MESSAGES, names.COMPLETION):
        given = attributes.get(key)
        chats = conversation(given)
        if chats is not None:
            return said(chats)
        if found := said_in(given):
            return found
    return Said()


def _tool(attributes: Mapping[str, object]) -> Call | None:
    name = text_of(attributes.get(names.TOOL_NAME))
    if name is None:
        return None
    return Call(
        name,
        plain(structure_of(attributes.get(names.TOOL_ARGUMENTS))),
        text_of(attributes.get(names.TOOL_CALL_ID)),
        plain(structure_of(attributes.get(names.TOOL_RESULT))),
    )


def _datastore(attributes: Mapping[str, object]) -> object:
    """Take what a tool found, when the tool is a search: its answer is evidence."""
    return attributes.get(names.TOOL_RESULT) if attributes.get(names.TOOL_TYPE) == _DATASTORE else None


def _provider(attributes: Mapping[str, object]) -> str | None:
    provider = first_text(attributes, names.PROVIDERS)
    return None if provider is None else _PROVIDERS.get(provider.lower(), provider.lower())
