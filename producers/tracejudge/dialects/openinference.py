"""OpenInference: a kind on every span, lists flattened over numbered keys, inputs and outputs as text or JSON."""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from tracejudge.dialects import names
from tracejudge.dialects.documents import documents_of
from tracejudge.dialects.messages import (
    conversation,
    input_from_messages,
    output_from_last_message,
    output_from_messages,
)
from tracejudge.dialects.reading import Call, RawSpan, Reading, Role, SpanInput, SpanOutput, executed_call, usage_of
from tracejudge.dialects.values import (
    decoded_or_same,
    first_text,
    is_list,
    mapping_of,
    plain,
    structure_of,
    text_of,
    unflattened,
)
from tracejudge.model import Document, JSONValue

_QUERY_KEYS: Final = ("query", "question", "input", "user_input", "user_query", "prompt", "message", "text")
_ANSWER_KEYS: Final = ("output", "answer", "response", "result", "output_text", "completion", "text", "content")
_INPUT_WRAPPINGS: Final = ("kwargs", "args", "inputs", "input", "data")
_CREW_MARKS: Final = frozenset({"tasks_output", "agent_role", "expected_output"})
"""Keys of the outputs of CrewAI, whose messages end before the answer."""
_MAX_DEPTH: Final = 4
# A text that begins like a JSON object and is none was truncated by an instrumentation: neither query nor answer.
_TRUNCATED: Final = re.compile(r"\s*(\[\s*\{|\{\s*\")")

# An object that an instrumentation wrote by its representation, perhaps among arguments: neither query nor answer.
_OBJECT: Final = re.compile(
    r'(?:\{"\w+": ")?(?:<?[A-Z]\w*\(\w+=|<\w[\w.]* object)|\{".*<\w[\w.]* object at 0x', re.DOTALL
)


def input_from_value(value: object) -> SpanInput:
    """Read an input: a text as it is, a conversation, or the query among arguments."""
    if value is None:
        return SpanInput()
    structure = structure_of(value)
    if isinstance(structure, str):
        return SpanInput(query=_readable(structure))
    # A text beside messages is an argument of its own, as of a function given the question and the turns before it.
    texts = [item for item in structure if isinstance(item, str) and item[:1] != "{"] if is_list(structure) else []
    if not texts and (chats := conversation(structure)) is not None:
        return input_from_messages(chats)
    query = _find_text(structure, _QUERY_KEYS, _INPUT_WRAPPINGS)
    if isinstance(query, SpanInput):
        return query
    return SpanInput(query=query) if query is not None else SpanInput(raw=_raw(structure))


def output_from_value(value: object) -> SpanOutput:
    """Read an output: a text as it is, the choice of a response, or the answer among returned values."""
    structure = structure_of(value)
    are_objects = is_list(structure) and all(isinstance(item, str) and _OBJECT.match(item) for item in structure)
    if value is None or are_objects:
        return SpanOutput()
    if isinstance(structure, str):
        return SpanOutput(text=_readable(structure))
    mapping = mapping_of(structure) or {}
    # The typed result among the values that an agent of LangChain returns.
    typed = _raw(mapping.get("raw" if _CREW_MARKS & mapping.keys() else "structured_response"))
    if typed is not None:
        return SpanOutput(text=typed) if isinstance(typed, str) else SpanOutput(raw=typed)
    for key in ("choices", "messages", "output", "generations"):
        messages = mapping.get(key)
        if is_list(messages) and (chats := conversation(messages)):
            return output_from_messages(chats) if key == "choices" else output_from_last_message(chats)
    if chats := conversation(structure):
        return output_from_last_message(chats)
    text = _find_text(structure, _ANSWER_KEYS, ("outputs", "output", "return_values", "result", "response"))
    return SpanOutput(text=text) if isinstance(text, str) else SpanOutput(raw=_raw(structure))


def _readable(text: str) -> str | None:
    return None if _TRUNCATED.match(text) or _OBJECT.match(text) else text_of(text)


def _raw(structure: object) -> JSONValue:
    # Nothing instead of empty containers, as in the arguments of a function without parameters, or of objects alone.
    raw = plain(structure)
    return None if _is_empty(raw) else raw


def _is_empty(value: JSONValue) -> bool:
    if isinstance(value, dict):
        return all(_is_empty(item) for item in value.values())
    if isinstance(value, list):
        return all(_is_empty(item) for item in value)
    return value in (None, "") or (isinstance(value, str) and _OBJECT.match(value) is not None)


def _find_text(value: object, keys: Iterable[str], wrappings: Iterable[str], depth: int = 0) -> str | SpanInput | None:
    """Find the one text among a call's arguments or return values; a conversation among arguments is the input."""
    mapping = mapping_of(value)
    if depth == _MAX_DEPTH:
        return None
    if mapping is None:
        texts = [item for item in value if isinstance(item, str)] if is_list(value) else [value]
        return text_of(texts[0]) if len(texts) == 1 else None
    if wrappings is _INPUT_WRAPPINGS and (chats := conversation(mapping.get("messages"))):
        return input_from_messages(chats)
    if (text := first_text(mapping, keys)) is not None:
        return text
    for key in wrappings:
        if key in mapping and (inner := _find_text(mapping[key], keys, wrappings, depth + 1)) is not None:
            return inner
    values = list(mapping.values())
    alone = text_of(values[0]) if len(values) == 1 else None
    return alone if alone is not None or wrappings is not _INPUT_WRAPPINGS else _common_query(values)


def _common_query(values: Iterable[object]) -> str | None:
    """Return the query that is the same for all parts of a pipeline that are given one, as in Haystack."""
    parts = [part for value in values if (part := mapping_of(value)) is not None]
    queries = {text for part in parts if (text := first_text(part, ("query", "question"))) is not None}
    return queries.pop() if len(queries) == 1 else None


_ROLES: Final = {
    **{name: Role[name] for name in ("LLM", "AGENT", "CHAIN", "RETRIEVER", "RERANKER", "TOOL", "EMBEDDING")},
    **dict.fromkeys(("GUARDRAIL", "EVALUATOR"), Role.JUDGE),
}


def read(span: RawSpan) -> Reading:
    """Read the parts of a span in OpenInference; none if it does not use it."""
    attributes = span.attributes
    kind = attributes.get(names.OI_KIND)
    role = _ROLES.get(kind.upper()) if isinstance(kind, str) else None
    if role is None:
        return Reading()
    # OpenInference keeps the whole response, with its id.
    response = _response(attributes.get(names.OI_OUTPUT)) if role is Role.LLM else {}
    return Reading(
        role=role,
        input=_input(attributes),
        output=_output(attributes),
        documents=_documents(attributes, role),
        reranked=_listed(attributes, names.OI_RERANKER_INPUT),
        tool=_tool(span) if role is Role.TOOL else None,
        model=text_of(response.get("model_name"))
        or first_text(attributes, names.OI_MODELS)
        or first_text(mapping_of(structure_of(attributes.get(names.OI_REQUEST))) or {}, ("model",)),
        provider=first_text(attributes, names.OI_PROVIDERS),
        response_id=text_of(response.get("id")),
        usage=usage_of(attributes, (names.OI_INPUT_TOKENS,), (names.OI_OUTPUT_TOKENS,)),
    )


def _response(value: object) -> Mapping[str, object]:
    """Return what a provider told about its response: the response itself, or LangChain's copy of it."""
    response: object = structure_of(value)
    fields = mapping_of(response) or {}
    if "generations" not in fields:
        return fields
    # Of a streamed call only the generation knows the model.
    for key in ("generations", 0, 0, "message", "kwargs", "response_metadata"):
        if isinstance(key, int):
            response = response[key] if is_list(response) and len(response) > key else None
        else:
            response = (mapping_of(response) or {}).get(key)
    return mapping_of(response) or {}


def _tool(span: RawSpan) -> Call | None:
    """Return the call that a tool's span executed."""
    attributes = span.attributes
    # The spans of DSPy's tools have no attribute for the name. `finish` is no tool: it ends its agent.
    function, _, method = span.name.rpartition(".")
    is_named = method in {"__call__", "acall"} and function != "finish"
    return executed_call(
        text_of(attributes.get(names.OI_TOOL_NAME)) or (function if is_named else None),
        first_text(attributes, (names.OI_INPUT, names.OI_TOOL_PARAMETERS)),
        first_text(attributes, names.OI_TOOL_IDS),
        tool_result(_value(attributes, names.OI_OUTPUT, names.OI_OUTPUT_MIME)),
    )


def tool_result(value: object) -> object:
    """Return what a tool returned, of the record or message in which some libraries keep it."""
    # LlamaIndex keeps what the function returned beside what the model is told.
    record = mapping_of(value)
    if record is not None and "tool_name" in record and "raw_output" in record:
        return record["raw_output"]
    # Google's ADK puts what is no object into one.
    if record is not None and record.keys() == {"result"}:
        return record["result"]
    # LangChain writes the message to the model, with the result as its content.
    chats = (conversation(value) if record is not None else None) or []
    return chats[0].results[0].result if len(chats) == 1 and chats[0].role == "tool" else value


def _input(attributes: Mapping[str, object]) -> SpanInput:
    messages = unflattened(attributes, names.OI_INPUT_MESSAGES)
    if messages is not None:
        # Even if they were redacted: the request beside them holds no more.
        return input_from_messages(conversation(messages) or [])
    prompt = _first_completion(attributes, names.OI_PROMPTS, "prompt")
    query = text_of(attributes.get(names.OI_RERANKER_QUERY)) if prompt is None else prompt
    if query is not None:
        return SpanInput(query=query)
    value = _value(attributes, names.OI_INPUT, names.OI_INPUT_MIME)
    return SpanInput(query=_without_objects(value)) if isinstance(value, str) else input_from_value(value)


def _output(attributes: Mapping[str, object]) -> SpanOutput:
    messages = unflattened(attributes, names.OI_OUTPUT_MESSAGES)
    if messages is not None:
        output = output_from_messages(conversation(messages) or [])
        # Google's client calls tools itself; such calls are beside the answer that followed.
        own = conversation([{"role": "assistant", "tool_calls": unflattened(attributes, names.OI_OWN_CALLS)}]) or []
        return SpanOutput(output.text, output.raw, (*output.calls, *(call for chat in own for call in chat.calls)))
    text = _first_completion(attributes, names.OI_CHOICES, "completion")
    if text is not None:
        return SpanOutput(text=text)
    value = _value(attributes, names.OI_OUTPUT, names.OI_OUTPUT_MIME)
    return SpanOutput(text=_without_objects(value)) if isinstance(value, str) else output_from_value(value)


def _without_objects(text: str) -> str | None:
    return None if _OBJECT.match(text) else text_of(text)


def _value(attributes: Mapping[str, object], key: str, mime_key: str) -> object:
    # Decoded only if declared as JSON: a user's text may look like it.
    value = attributes.get(key)
    return decoded_or_same(value) if attributes.get(mime_key) == "application/json" else value


def _first_completion(attributes: Mapping[str, object], prefix: str, wrapping: str) -> str | None:
    """Return the first text of the older completions interface."""
    for item in unflattened(attributes, prefix) or ():
        inner = mapping_of((mapping_of(item) or {}).get(wrapping))
        return None if inner is None else text_of(inner.get("text"))
    return None


def _documents(attributes: Mapping[str, object], role: Role) -> tuple[Document, ...]:
    if role is Role.RERANKER:
        return _listed(attributes, names.OI_RERANKER_OUTPUT)
    documents = _listed(attributes, names.OI_DOCUMENTS)
    if role is Role.RETRIEVER and not any(document.id for document in documents):
        # LangChain's documents have their ids in the output alone.
        whole = documents_of(_with_metadata(_value(attributes, names.OI_OUTPUT, names.OI_OUTPUT_MIME)))
        if not documents or [document.text for document in whole] == [document.text for document in documents]:
            return whole
    return documents


def _listed(attributes: Mapping[str, object], prefix: str) -> tuple[Document, ...]:
    return documents_of(_with_metadata(unflattened(attributes, prefix) or attributes.get(prefix)))


def _with_metadata(value: object) -> object:
    """Put the metadata of documents, in which LangChain has their score and source, beside their texts."""
    listed = mapping_of(value)
    items = value if listed is None else listed.get("documents")
    if not is_list(items):
        return value
    documents: list[object] = []
    for item in items:
        holder = mapping_of(item)
        inner = holder if holder is None else mapping_of(holder.get("document")) or holder
        metadata = mapping_of(structure_of((inner or {}).get("metadata")))
        documents.append(item if inner is None or metadata is None else {**metadata, **inner})
    return documents
