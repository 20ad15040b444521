"""Results of tools as retrieved context: for agents whose documents come from a tool such as a search."""

from collections.abc import Collection, Mapping
from typing import Any

from tracejudge.content.encode import text_of
from tracejudge.dialects.documents import documents_of
from tracejudge.model import Document, Span, ToolCall


def tool_context(fields: Mapping[str, Any], tools: Collection[str]) -> list[Document]:
    """Return the documents that the named tools returned, from the tool calls of a trace or else from its spans."""
    calls = _results(fields.get("tool_calls"), ToolCall, "result", tools)
    results = calls or _results(fields.get("spans"), Span, "outputs", tools)
    context: list[Document] = []
    for result in results:
        text = text_of(result)
        # A result that is no list of documents is one document.
        context += documents_of(result) or ([] if text.strip() in {"", "null", '""', "[]", "{}"} else [Document(text)])
    return context


def _results(items: Any, kind: type[ToolCall] | type[Span], key: str, tools: Collection[str]) -> list[object]:
    results: list[object] = []
    name: object
    for item in items or ():
        if isinstance(item, kind):
            name, result = item.name, getattr(item, key)
        elif isinstance(item, dict):
            name, result = item.get("name"), item.get(key)
        else:
            continue
        # The GenAI conventions write the operation before the name: `execute_tool search`.
        if isinstance(name, str) and name.removeprefix("execute_tool ") in tools and result is not None:
            results.append(result)
    return results
