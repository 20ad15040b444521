"""What a trace's spans retrieved: documents in rank order, by the top-level spans that fetched them.

Spans come from any instrumentation and hold any JSON. What cannot be read as a document keeps its rank and is
left out; nothing here raises.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from judges.answer import encodable
from tracejudge import Document, Span

__all__ = ["Retrieval", "Retrieved", "of_context", "of_spans"]

_KINDS: Final = frozenset({"retriever", "retrieval"})
_KIND_ATTRIBUTES: Final = ("openinference.span.kind", "mlflow.spanType", "gen_ai.operation.name")
_DOCUMENT_ATTRIBUTES: Final = ("gen_ai.retrieval.documents", "mlflow.spanOutputs", "output.value")
_TEXT_KEYS: Final = ("page_content", "text", "content")
_FLAT_KEY: Final = re.compile(r"retrieval\.documents\.([0-9]{1,9})\.document\.(content|id|score)")
_MAX_WRAPPINGS: Final = 4
"""A JSON string that holds an object that holds a JSON string: nobody wraps a list of documents deeper."""
_MAX_ID_BITS: Final = 128


class Retrieved(NamedTuple):
    """One retrieved document that has text; ``rank`` counts from 1 and skips nothing that was retrieved."""

    rank: int
    text: str
    id: str | None = None


class Retrieval(NamedTuple):
    """What one retrieval span fetched."""

    span_id: str
    name: str
    documents: tuple[Retrieved, ...]


def of_context(context: Sequence[Document | str] | None) -> tuple[Retrieved, ...]:
    """Take the documents of a trace's context; blank ones are left out."""
    return _ranked(
        [
            Retrieved(0, given) if isinstance(given, str) else Retrieved(0, given.text, _id(given.id))
            for given in context or ()
        ]
    )


def of_spans(spans: Sequence[Span] | None) -> tuple[Retrieval, ...]:
    """Take what each top-level retrieval span fetched, in the order of the spans; those without any text are left out.

    A span is top-level when no other retrieval span stands above it: a retriever made of retrievers is one retrieval.
    Of retrieval spans that stand in a circle none is top-level.
    """
    found = (
        Retrieval(encodable(span.span_id), encodable(span.name), _documents(span)) for span in _top_level(spans or ())
    )
    return tuple(retrieval for retrieval in found if retrieval.documents)


def _top_level(spans: Sequence[Span]) -> Iterator[Span]:
    tree = _Tree(spans)
    for span in spans:
        if _is_retrieval(span) and tree.retrieval_from(span.parent_id) in {None, span.span_id}:
            yield span


class _Tree:
    """Spans by id, and which retrieval is the nearest one on the way up; each span is passed once."""

    def __init__(self, spans: Sequence[Span]) -> None:
        # Of spans that share an id, the first one is meant by whoever names it as a parent.
        self._spans = {span.span_id: span for span in reversed(spans)}
        self._nearest: dict[str, str | None] = {}

    def retrieval_from(self, span_id: str | None) -> str | None:
        """Return the id of the first retrieval span from this one upwards, itself included."""
        way: list[str] = []
        nearest: str | None = None
        while span_id is not None and span_id in self._spans:
            if span_id in self._nearest:
                nearest = self._nearest[span_id]
                break
            # Noted before the next step: a circle of parents ends where it began.
            self._nearest[span_id] = None
            way.append(span_id)
            if _is_retrieval(self._spans[span_id]):
                nearest = span_id
                break
            span_id = self._spans[span_id].parent_id
        self._nearest.update(dict.fromkeys(way, nearest))
        return nearest


def _is_retrieval(span: Span) -> bool:
    attributes = span.attributes or {}
    return any(_says_retrieval(kind) for kind in (span.kind, *(attributes.get(key) for key in _KIND_ATTRIBUTES)))


def _says_retrieval(kind: object) -> bool:
    # MLflow's exporter writes attributes as JSON, so that the kind comes in quotation marks.
    return isinstance(kind, str) and kind.strip(' "').casefold() in _KINDS


def _documents(span: Span) -> tuple[Retrieved, ...]:
    attributes = span.attributes or {}
    flattened = _ranked(_from_attributes(attributes))
    for found in (span.outputs, *(attributes.get(name) for name in _DOCUMENT_ATTRIBUTES)):
        if documents := _ranked(_from_outputs(found)):
            return documents if found is span.outputs or not flattened else flattened
    return flattened


def _ranked(found: Sequence[Retrieved | None]) -> tuple[Retrieved, ...]:
    """Number all places from 1, and keep those with text."""
    return tuple(
        document._replace(rank=rank) for rank, document in enumerate(found, 1) if document and document.text.strip()
    )


def _from_outputs(outputs: object) -> list[Retrieved | None]:
    for _ in range(_MAX_WRAPPINGS):
        if isinstance(outputs, str):
            outputs = _decoded(outputs)
        elif isinstance(outputs, Mapping):
            outputs = outputs.get("documents")
    return [_from_item(item) for item in outputs] if isinstance(outputs, list | tuple) else []


def _from_item(item: object) -> Retrieved | None:
    if isinstance(item, str):
        return Retrieved(0, item)
    if not isinstance(item, Mapping):
        return None
    text = next((item[key] for key in _TEXT_KEYS if isinstance(item.get(key), str) and item[key].strip()), None)
    return Retrieved(0, text, _id(item.get("id"))) if text is not None else None


def _from_attributes(attributes: Mapping[str, object]) -> list[Retrieved | None]:
    """Read the flattened form of OpenInference; a document is a number that has any of its keys."""
    parts: dict[int, dict[str, object]] = {}
    for key, value in attributes.items():
        if (match := _FLAT_KEY.fullmatch(key)) is not None:
            parts.setdefault(int(match[1]), {})[match[2]] = value
    return [_from_item(parts[number]) for number in sorted(parts)]


def _id(value: object) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool):
        # Python refuses to write out an integer of thousands of digits, which JSON may hold.
        return str(value) if value.bit_length() <= _MAX_ID_BITS else None
    return encodable(value) if isinstance(value, str) and value else None


def _decoded(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
