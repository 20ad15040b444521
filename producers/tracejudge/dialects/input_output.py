"""Inputs and outputs of functions, in every form in which instrumentations write them: texts, arguments, responses."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Final

from tracejudge.dialects.messages import (
    conversation,
    input_from_messages,
    output_from_last_message,
    output_from_messages,
)
from tracejudge.dialects.names import SpanInput, SpanOutput, by_name
from tracejudge.dialects.values import first_text, is_list, mapping_of, plain, structure_of, text_of
from tracejudge.model import JSONValue

_QUERY_KEYS: Final = ("query", "question", "input", "user_input", "user_query", "prompt", "message", "text", "task")
_ANSWER_KEYS: Final = ("output", "answer", "response", "result", "output_text", "completion", "text", "content")
# LangChain's inputs are first: what is beside them describes the run.
_INPUT_WRAPPINGS: Final = ("inputs", "kwargs", "args", "input", "data")
_OUTPUT_WRAPPINGS: Final = ("outputs", "output", "return_values", "result", "response")
_COMPANIONS: Final = frozenset(
    {
        *("input", "inputs", "query", "question", "context", "contexts", "documents", "source_documents"),
        *("source_nodes", "sources", "messages", "chat_history", "history", "intermediate_steps", "metadata"),
        *("usage", "usage_metadata", "response_metadata", "additional_kwargs", "llm_output", "kwargs", "args"),
        *("tags", "run", "callbacks"),
    }
)
"""What is returned beside an answer without being part of it; beside other values an answer is part of a record."""
_BOOKKEEPING: Final = frozenset(
    {
        *("name", "run_name", "run_type", "run_id", "parent_run_id", "id", "type", "role", "tag", "tags", "version"),
        *("thread_id", "session_id", "conversation_id", "user_id", "trace_id", "span_id", "model", "model_name"),
        *("path", "source", "status", "config", "langgraph_node", "checkpoint_ns"),
    }
)
"""Names of texts that describe a call: such a text is no query, even if it is the only one."""
_CREW_MARKS: Final = frozenset({"tasks_output", "agent_role", "expected_output"})
"""Keys of the outputs of CrewAI, whose messages end before the answer."""
_MAX_DEPTH: Final = 4
_DECODER: Final = json.JSONDecoder()
# A text that begins like a JSON object and is none was truncated by an instrumentation: neither query nor answer.
_TRUNCATED: Final = re.compile(r"\s*(\[\s*\{|\{\s*\")")

# An object that an instrumentation wrote by its representation: neither query nor answer.
_OBJECT: Final = re.compile(r"""(?:\{"\w+": ")?(?:<?[A-Z]\w*\(\w+=|<\w[\w.]* object)""")
_WRITTEN: Final = re.compile(r"[\[({<]|\w+ ?[=(]")
_ADDRESS: Final = re.compile(r"<\w[^<>]{0,200} at 0x[0-9a-fA-F]{4,}|^<\w[\w.]* object>?$")


def input_from_value(value: object) -> SpanInput:
    """Read an input: a text as it is, a conversation, or the query among arguments."""
    if value is None:
        return SpanInput()
    structure = structure_of(value)
    if isinstance(structure, str):
        return SpanInput(raw=structure) if _is_cut(structure) else SpanInput(query=text_of(structure))
    # A text beside messages is an argument of its own, as of a function given the question and the turns before it.
    texts = [item for item in structure if isinstance(item, str) and item[:1] != "{"] if is_list(structure) else []
    if not texts and (chats := conversation(structure)) is not None:
        return input_from_messages(chats)
    query = _find_query(structure)
    if isinstance(query, SpanInput):
        return query
    return SpanInput(query=query) if query is not None else SpanInput(raw=_raw(arguments_of(structure)))


def output_from_value(value: object, *, is_beside: bool = False) -> SpanOutput:
    """Read an output: a text as it is, the choice of a response, or the answer among returned values.

    What stands alone is an answer only beside what belongs to the call; else it is part of a typed result.
    """
    structure = structure_of(value)
    if isinstance(structure, str):
        return SpanOutput(raw=structure) if _is_cut(structure) else SpanOutput(text=text_of(structure))
    if is_list(structure) and all(map(is_object, structure)):
        return SpanOutput()
    mapping = mapping_of(structure) or {}
    wrapped = mapping.keys() - {"kwargs", "tags", "metadata"}
    if "kwargs" in mapping and wrapped in ({"outputs"}, {"output"}):  # written by OpenLLMetry for LangChain
        return output_from_value(mapping[wrapped.pop()], is_beside=True)
    # The typed result among the values that an agent of LangChain returns.
    typed = _raw(mapping.get("raw" if _CREW_MARKS & mapping.keys() else "structured_response"))
    if typed is not None:
        return SpanOutput(text=typed) if isinstance(typed, str) else SpanOutput(raw=typed)
    messages = _output_of_messages(structure, mapping)
    return _answer(structure, is_beside=is_beside) if messages is None else messages


def _output_of_messages(structure: object, mapping: Mapping[str, object]) -> SpanOutput | None:
    if (generation := _generation(mapping.get("generations"))) is not None:
        chats = conversation(generation.get("message"))
        return output_from_messages(chats) if chats else SpanOutput(text=first_text(generation, ("text",)))
    for key in ("choices", "messages", "output"):
        messages = mapping.get(key)
        if is_list(messages) and (chats := conversation(messages)):
            return output_from_messages(chats) if key == "choices" else output_from_last_message(chats)
    chats = conversation(structure)
    return output_from_last_message(chats) if chats else None


def _answer(structure: object, *, is_beside: bool) -> SpanOutput:
    text = _find_answer(structure)
    if text is not None and _is_wrapping(structure, is_beside=is_beside):
        return SpanOutput(text=text)
    return SpanOutput(raw=_raw(structure), field=text)


def arguments_of(structure: object) -> object:
    """Return what a function was given, without the record of the call around it."""
    mapping = mapping_of(structure) or {}
    if "inputs" in mapping and mapping.keys() <= {"inputs", "kwargs", "tags", "metadata", "input_str"}:
        return mapping["inputs"]
    return by_name(structure)


def has_object(value: object) -> bool:
    """Return whether an instrumentation may have written an object within a text, by its representation."""
    return isinstance(value, str) and (is_object(value) or _ADDRESS.search(value) is not None)


def is_object(value: object) -> bool:
    """Return whether a value is nothing but an object's representation."""
    is_begun = isinstance(value, str) and (_OBJECT.match(value) or _ADDRESS.match(value))
    return bool(is_begun) and str(value).rstrip().endswith((")", ">", '"}', "..."))  # which may be cut


def _is_cut(text: str) -> bool:
    if not _TRUNCATED.match(text):
        return False
    try:
        _DECODER.raw_decode(text.lstrip())  # words after a structure are a text
    except (ValueError, RecursionError):
        return True
    return False


def _generation(generations: object) -> Mapping[str, object] | None:
    """Return the first generation of LangChain's result, a list of lists."""
    while is_list(generations) and generations:
        generations = generations[0]
    return mapping_of(generations)


def _raw(structure: object) -> JSONValue:
    # Nothing instead of empty containers, as in the arguments of a function without parameters.
    raw = _without_objects(plain(structure))
    return None if _is_empty(raw) else raw


def _without_objects(value: JSONValue) -> JSONValue:
    if isinstance(value, dict):
        return {key: _without_objects(item) for key, item in value.items() if not _is_written(item)}
    return [_without_objects(item) for item in value if not _is_written(item)] if isinstance(value, list) else value


def _is_written(value: JSONValue) -> bool:
    return isinstance(value, str) and _WRITTEN.match(value) is not None and _ADDRESS.search(value) is not None


def _is_empty(value: JSONValue) -> bool:
    if isinstance(value, dict):
        return all(_is_empty(item) for item in value.values())
    if isinstance(value, list):
        return all(_is_empty(item) for item in value)
    return value in (None, "") or is_object(value)


def _only_text(value: object) -> str | None:
    items = value if is_list(value) else [value]
    texts = [item for item in items if isinstance(item, str) and text_of(item) and not is_object(item)]
    return texts[0] if len(texts) == 1 else None


def _find_query(value: object, depth: int = 0, *, is_option: bool = False) -> str | SpanInput | None:
    """Find the query among a call's arguments; a conversation among them is the input.

    What is an option beside positional arguments is no query because it is the only text.
    """
    mapping = mapping_of(value)
    if mapping is None or depth == _MAX_DEPTH:
        return _only_text(value) if mapping is None else None
    if chats := conversation(mapping.get("messages")):
        return input_from_messages(chats)
    if (text := first_text(mapping, _QUERY_KEYS)) is not None:
        return None if is_object(text) else text
    for key in _INPUT_WRAPPINGS:
        is_beside = key == "kwargs" and not _is_empty(plain(mapping.get("args")))
        inner = _find_query(mapping[key], depth + 1, is_option=is_beside) if key in mapping else None
        if inner is not None or (key == "inputs" and key in mapping):
            return inner
    is_query = len(mapping) == 1 and not is_option and _BOOKKEEPING.isdisjoint(mapping)
    alone = _only_text(next(iter(mapping.values()))) if is_query else None
    return _common_query(mapping.values()) if alone is None else alone


def _common_query(values: Iterable[object]) -> str | None:
    """Return the query that is the same for all parts of a pipeline that are given one, as in Haystack."""
    parts = [part for value in values if (part := mapping_of(value)) is not None]
    queries = {text for part in parts if (text := first_text(part, ("query", "question"))) is not None}
    return queries.pop() if len(queries) == 1 else None


def _find_answer(value: object, depth: int = 0) -> str | None:
    mapping = mapping_of(value)
    if depth == _MAX_DEPTH:
        return None
    if mapping is None:
        return _only_text(value)
    if (text := first_text(mapping, _ANSWER_KEYS)) is not None:
        return text
    for key in _OUTPUT_WRAPPINGS:
        if key in mapping and (inner := _find_answer(mapping[key], depth + 1)) is not None:
            return inner
    return _only_text(next(iter(mapping.values()))) if len(mapping) == 1 and _BOOKKEEPING.isdisjoint(mapping) else None


def _is_wrapping(value: object, depth: int = 0, *, is_beside: bool = False) -> bool:
    """Return whether a record holds an answer beside what belongs to the call, and nothing else."""
    mapping = mapping_of(value)
    if mapping is None or depth == _MAX_DEPTH:
        return is_beside and isinstance(value, str)
    keys = [key for key, item in mapping.items() if key not in _COMPANIONS and item not in (None, "", [], {})]
    is_beside = is_beside or not _COMPANIONS.isdisjoint(mapping)
    is_one = len(keys) == 1 and keys[0] in _WRAPPING_KEYS
    return is_one and _is_wrapping(mapping[keys[0]], depth + 1, is_beside=is_beside or keys[0] == "outputs")


_WRAPPING_KEYS: Final = frozenset({*_ANSWER_KEYS, *_OUTPUT_WRAPPINGS})
