"""Documents retrieved in a trace, in rank order: by its top-level retrieval spans, or by tools.

Spans come from any instrumentation and contain any JSON. A result that is no document keeps its rank and is skipped;
nothing here raises.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import structs

from judges.core.judge import has_text
from judges.parsing.answer import decode_json, encodable
from tracejudge import Document, Span, Trace
from tracejudge.dialects.documents import COUNT

_KIND_ATTRIBUTES: Final = ("openinference.span.kind", "mlflow.spanType", "gen_ai.operation.name")
_DOCUMENT_ATTRIBUTES: Final = ("gen_ai.retrieval.documents", "mlflow.spanOutputs", "output.value")
_TOOL_ATTRIBUTES: Final = ("gen_ai.tool.name", "tool.name")
_ITEM_KEYS: Final = ("document", "node")  # An item may contain its document beside a score.
_TEXT_KEYS: Final = ("page_content", "pageContent", "text", "content", "document.content")
_FLAT_KEY: Final = re.compile(r"retrieval\.documents\.([0-9]{1,9})\.document\.(content|id|score)")
# Depth of a JSON string with an object with a JSON string; no instrumentation nests documents deeper.
_MAX_WRAPPINGS: Final = 4
_MAX_ID_BITS: Final = 128


class Retrieved(NamedTuple):
    """One retrieved document with text; ``rank`` counts from 1 and includes documents without text."""

    rank: int
    text: str
    id: str | None = None


class Retrieval(NamedTuple):
    """The documents of one retrieval span."""

    span_id: str
    name: str
    documents: tuple[Retrieved, ...]


def of_context(context: Sequence[Document | str] | None) -> tuple[Retrieved, ...]:
    """Return the documents of a trace's context, without blank ones."""
    return _ranked(
        [
            Retrieved(0, document) if isinstance(document, str) else Retrieved(0, document.text, _id(document.id))
            for document in context or ()
        ]
    )


def of_spans(spans: Sequence[Span] | None) -> tuple[Retrieval, ...]:
    """Return the documents of each top-level retrieval span with any text, in the order of the spans."""
    # A span is top-level when none of its ancestors is a retrieval span: a retriever made of retrievers is one
    # retrieval. Of retrieval spans in a cycle none is top-level.
    retrievals = (
        Retrieval(encodable(span.span_id), encodable(span.name), _documents(span)) for span in _top_level(spans or ())
    )
    return tuple(retrieval for retrieval in retrievals if retrieval.documents)


def _top_level(spans: Sequence[Span]) -> Iterator[Span]:
    # Of spans with the same id, the first one counts as the parent.
    by_id = {span.span_id: span for span in reversed(spans)}
    nearest: dict[str, str | None] = {}

    def retrieval_from(span_id: str | None) -> str | None:
        """Return the id of the first retrieval span from this one upwards, including itself."""
        way: list[str] = []
        found: str | None = None
        while span_id is not None and span_id in by_id:
            if span_id in nearest:
                found = nearest[span_id]
                break
            # Recorded before the next step, so that a cycle of parents ends.
            nearest[span_id] = None
            way.append(span_id)
            if _is_retrieval(by_id[span_id]):
                found = span_id
                break
            span_id = by_id[span_id].parent_id
        nearest.update(dict.fromkeys(way, found))
        return found

    return (span for span in spans if _is_retrieval(span) and retrieval_from(span.parent_id) in {None, span.span_id})


def with_context(trace: Trace, tools: Collection[str] = ()) -> Trace:
    """Fill the context of a trace without one from its retrieval spans, or else from results of the named tools."""
    # The output of a retrieval span that is no list of documents is one document. A document that was retrieved several
    # times is listed once.
    if has_text(trace.context):
        return trace
    hits = [document for retrieval in of_spans(trace.spans) for document in retrieval.documents]
    if not hits:
        outputs = (_output(span, _DOCUMENT_ATTRIBUTES) for span in _top_level(trace.spans or ()))
        hits = [document for output in outputs for document in _of_tool(output) if not COUNT.fullmatch(document.text)]
    if not hits and tools:
        hits = [document for result in _results(trace, tools) for document in _of_tool(result)]
    documents = {document.text: Document(document.text, document.id) for document in reversed(hits)}
    return structs.replace(trace, context=list(reversed(documents.values()))) if documents else trace


def has_context(trace: Trace, tools: Collection[str] = ()) -> bool:
    """Return whether a trace has a context, or ``with_context`` finds one."""
    if has_text(trace.context):
        return True
    return bool(trace.spans or (tools and trace.tool_calls)) and has_text(with_context(trace, tools).context)


def _results(trace: Trace, tools: Collection[str]) -> list[object]:
    """List the results of tools, from tool calls or else from spans: both may record the same call."""
    results = [call.result for call in trace.tool_calls or () if call.name in tools and call.result is not None]
    if results:
        return results
    for span in trace.spans or ():
        attributes = span.attributes or {}
        # The GenAI conventions write the operation before the name: `execute_tool search`.
        names = (span.name, span.name.removeprefix("execute_tool "), *map(attributes.get, _TOOL_ATTRIBUTES))
        if any(isinstance(name, str) and name in tools for name in names):
            results.append(_output(span, ("gen_ai.tool.call.result", "mlflow.spanOutputs", "output.value")))
    return results


def _output(span: Span, attributes: Sequence[str]) -> object:
    """Return the output of a span, or else the first of these attributes that it has."""
    candidates = (span.outputs, *map((span.attributes or {}).get, attributes))
    return next((output for output in candidates if output is not None), None)


def _of_tool(result: object) -> Sequence[Retrieved]:
    """Return the documents of a tool result; a result that is no list of documents is one document."""
    if documents := _from_outputs(result):
        return documents
    try:
        text = encodable(result if isinstance(result, str) else json.dumps(result, ensure_ascii=False))
    except RecursionError:
        return ()
    return (Retrieved(1, text),) if text.strip() not in {"", "null", '""', "[]", "{}"} else ()


def _is_retrieval(span: Span) -> bool:
    attributes = span.attributes or {}
    kinds = (span.kind, *(attributes.get(key) for key in _KIND_ATTRIBUTES))
    # MLflow's exporter encodes attributes as JSON, so that the kind is in quotation marks.
    return any(isinstance(kind, str) and kind.strip(' "').casefold() in {"retriever", "retrieval"} for kind in kinds)


def _documents(span: Span) -> tuple[Retrieved, ...]:
    attributes = span.attributes or {}
    # The flattened form of OpenInference; any of its keys makes a number a document.
    parts: dict[int, dict[str, object]] = {}
    for key, value in attributes.items():
        if (match := _FLAT_KEY.fullmatch(key)) is not None:
            parts.setdefault(int(match[1]), {})[match[2]] = value
    flattened = _ranked([_from_item(parts[number]) for number in sorted(parts)])
    for candidate in (span.outputs, *(attributes.get(name) for name in _DOCUMENT_ATTRIBUTES)):
        if documents := _from_outputs(candidate):
            return documents if candidate is span.outputs or not flattened else flattened
    return flattened


def _ranked(hits: Sequence[Retrieved | None]) -> tuple[Retrieved, ...]:
    return tuple(
        document._replace(rank=rank) for rank, document in enumerate(hits, 1) if document and document.text.strip()
    )


def _from_outputs(outputs: object) -> tuple[Retrieved, ...]:
    for _ in range(_MAX_WRAPPINGS):
        if isinstance(outputs, str):
            outputs = decode_json(outputs)
        elif isinstance(outputs, Mapping):
            mapping = outputs
            outputs = next((mapping[key] for key in ("documents", "results") if mapping.get(key) is not None), None)
    return _ranked([_from_item(item) for item in outputs]) if isinstance(outputs, list | tuple) else ()


def _from_item(item: object) -> Retrieved | None:
    if isinstance(item, str):
        return Retrieved(0, item)
    if not isinstance(item, Mapping):
        return None
    item = next((item[key] for key in _ITEM_KEYS if isinstance(item.get(key), Mapping)), item)
    text = next((item[key] for key in _TEXT_KEYS if isinstance(item.get(key), str) and item[key].strip()), None)
    return Retrieved(0, text, _id(item.get("id"))) if text is not None else None


def _id(value: object) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool):
        # Python refuses to format integers of thousands of digits, which JSON may contain.
        return str(value) if value.bit_length() <= _MAX_ID_BITS else None
    return encodable(value) if isinstance(value, str) and value else None
