"""Documents in every shape in which retrievers return them, read into one form.

Known are texts, pairs of text and score, records and objects with a text under one of the usual names, and the results
of LangChain, LlamaIndex, Chroma, Qdrant, Pinecone, Weaviate, Elasticsearch, Milvus, Haystack, Bedrock and OpenAI. What
has no text is left out, never replaced by a mark: a judge would take that for a document.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from msgspec.json import encode

from tracejudge.dialects.values import clean, decoded, is_list, mapping_of, number_of, plain, structure_of, text_of
from tracejudge.log import report_or_raise
from tracejudge.model import Document, snake_case_keys

TEXTS: Final = ("text", "page_content", "content", "document", "body", "chunk", "chunk_text", "passage", "snippet")
IDS: Final = ("id", "_id", "id_", "doc_id", "document_id", "node_id", "chunk_id", "file_id", "uuid")
SCORES: Final = (*("score", "_score", "relevance_score", "similarity", "similarity_score", "relevance", "certainty"),)
DISTANCES: Final = ("distance", "_distance")
"""A distance d becomes the score 1 - d: the nearest document has the highest score."""
SOURCES: Final = ("source", "url", "uri", "link", "file_path", "file_name", "filename", "path", "doc_uri")
LISTS: Final = (
    *("documents", "results", "matches", "source_nodes", "source_documents", "nodes", "hits", "points", "objects"),
    *("groups", "retrieval_results", "chunks", "passages", "result", "data"),
)
"""Names of the list in the result of a search."""
_HOLDERS: Final = (
    *("node", "document", "payload", "entity", "_source", "fields", "properties", "_additional", "metadata"),
    *("meta", "kwargs"),
)
_PAYLOADS: Final = ("payload", "properties", "fields", "_source", "entity")
"""Of the holders those with the columns of the service's own data."""
_FREE_OF_CONTENT: Final = frozenset(
    {
        *(*IDS, *SCORES, *DISTANCES, *SOURCES, *_HOLDERS, "vector", "values", "embedding"),
        *("trace_id", "span_id", "parent_id", "trace_state"),
    }
)
_MAX_DEPTH: Final = 4
_MAX_VIEWS: Final = 24
_PAIR: Final = 2
_MAX_ID_BITS: Final = 256
COUNT: Final = re.compile(
    r"(?:(?:\w+ ){0,2}\d+ (?:\w+ )?(?:documents?|docs?|results?|passages?|chunks?|hits?|matches|items?|nodes?)|\d+)\W*",
    re.IGNORECASE,
)
"""A span may record how many documents it retrieved, not which."""
_NO_TEXT: Final = re.compile(r"\s*([\[{]|null$|$)")  # JSON that was cut off, or none


class DocumentReader:
    """Reads documents in their order; `without_text` has the types of the items that yield no text."""

    def __init__(self, *, reads_rows: bool) -> None:
        self.documents: list[Document | str] = []
        self.without_text: list[type] = []
        self._reads_rows = reads_rows  # whether a record with texts under any name is a document

    def read(self, value: Any, depth: int = 0) -> None:
        """Read a document, a list of documents, or the result of a search. Never raises."""
        try:
            if value is not None or depth > 0:
                self._read(value, depth)
        except BaseException as error:  # noqa: BLE001 - one document of the host must not cost the others
            report_or_raise(error)
            self.without_text.append(type(value))

    def _read(self, value: Any, depth: int) -> None:
        if depth < _MAX_DEPTH:
            value = _without_array(value)
            if isinstance(value, dict) and self._read_columns(value):
                return
            # A named tuple, or a tuple with columns of different types, is a row of a table.
            columns = value if depth > 0 and isinstance(value, tuple) and len(value) > _PAIR else ()
            is_row = hasattr(type(value), "_fields") or any(
                not isinstance(column, str) and number_of(column) is not None for column in columns
            )
            items = None if is_row or _is_pair(value, strict=depth == 0) else listed(value)
            if items is not None:
                for item in items:
                    self.read(item, depth + 1)
                return
        document = document_of(value)
        if document is None and depth < _MAX_DEPTH and (inner := _results_in(value)) is not None:
            self.read(inner, depth)
        elif document is not None:
            self.documents.append(document)
        elif self._reads_rows and (row := _row(value)) is not None:
            self.documents.append(row)
        else:
            self.without_text.append(type(value))

    def _read_columns(self, value: dict[str, Any]) -> bool:
        """Read the columns of Chroma: lists of texts, ids, metadata and distances, one list a query or flat."""
        texts = value.get("documents")
        if not is_list(texts) or not is_list(value.get("ids")):
            return False
        columns = [texts, *(value.get(name) or [] for name in ("ids", "metadatas", "distances"))]
        if any(is_list(text) for text in texts):
            columns = [[item for cell in column for item in (cell if is_list(cell) else [cell])] for column in columns]
        for place in range(len(columns[0])):
            text, column_id, metadata, distance = (column[place] if place < len(column) else None for column in columns)
            record = {"text": text, "id": column_id, "metadata": metadata, "distance": distance}
            document = document_of(record)
            if document is None:
                self.without_text.append(type(text))
            else:
                self.documents.append(document)
        return True


def documents_of(value: object, *, reads_text: bool = False) -> tuple[Document, ...]:
    """Read a list of documents or the result of a search, given as a structure or as JSON, or one text; else none."""
    structure = decoded(value)
    if (
        structure is None
        and reads_text
        and (text := text_of(value))
        and not (_NO_TEXT.match(text) or COUNT.fullmatch(text))
    ):
        return (Document(text),)
    mapping = mapping_of(structure)
    if mapping is not None:
        structure = None if _results_in(mapping) is None else mapping
    if not (is_list(structure) or structure is mapping) or structure is None:
        return ()
    reader = DocumentReader(reads_rows=False)
    reader.read(structure)
    return tuple(Document(document) if isinstance(document, str) else document for document in reader.documents)


def document_of(value: Any) -> Document | str | None:
    """Read one document; None without a text."""
    if (text := _scalar_text(value)) is not None:
        return text
    if _is_pair(value):
        inner, score = value if number_of(value[0]) is None or isinstance(value[0], str) else reversed(value)
        document = document_of(inner)
        return document and Document(
            *((document, None) if isinstance(document, str) else (document.text, document.id)),
            score=number_of(score),
            source=None if isinstance(document, str) else document.source,
        )
    if isinstance(value, type) or callable(value):
        return None
    views = _views(value)
    text = next((text for view in views if (text := _text_in(view)) is not None), None)
    if text is None:
        dump = None if isinstance(value, Mapping) else getattr(type(value), "model_dump", None)
        return document_of(dump(value)) if callable(dump) else None
    score = next((number for view in views for key in SCORES if (number := _number(view, key)) is not None), None)
    if score is None:
        distances = (number for view in views for key in DISTANCES if (number := _number(view, key)) is not None)
        score = next((1 - number for number in distances), None)
    return Document(
        text,
        id=next((own_id for view in views for key in IDS if (own_id := _id(_get(view, key))) is not None), None),
        score=score,
        source=next((source for view in views for key in SOURCES if (source := text_of(_get(view, key)))), None),
    )


def listed(value: Any) -> Iterable[Any] | None:
    """Return the items of a list, set, queue, array or view; None for anything else."""
    if isinstance(value, str | bytes | bytearray | Mapping):
        return None
    kinds = (list, tuple, set, frozenset, Sequence)
    return value if isinstance(value, kinds) or type(value).__name__ in {"deque", "dict_values", "dict_keys"} else None


def _get(view: Any, key: str) -> Any:
    if isinstance(view, Mapping):
        return view.get(key)
    try:
        part = getattr(view, key, None)
    except Exception:  # noqa: BLE001 - a property of the host may fail; then it has no such part
        return None
    return None if callable(part) else part


def _named(value: Any) -> Any:
    return snake_case_keys(value) if isinstance(value, Mapping) else value


def _views(value: Any) -> list[Any]:
    """Return a record and the records within it that hold its text or what describes it, the outer ones first."""
    views = [_named(value)]
    for view in views:
        for key in _HOLDERS:
            # OpenInference writes metadata as JSON.
            inner = structure_of(_get(view, key)) if key == "metadata" else _get(view, key)
            if inner is not None and not isinstance(inner, str | bytes | int | float) and not is_list(inner):
                views.append(_named(inner))
        if len(views) >= _MAX_VIEWS:  # objects may lead to themselves
            break
    return views


def _text_in(view: Any) -> str | None:
    for key in TEXTS:
        if (text := _text(_get(view, key))) is not None:
            return text
    get_content = None if isinstance(view, Mapping) else getattr(type(view), "get_content", None)
    return text_of(view.get_content()) if callable(get_content) else None


def _text(value: Any) -> str | None:
    """Return a text, or the texts of a list of parts."""
    if is_list(value):
        texts = [text for item in value if (text := _text(item)) is not None]
        return "\n".join(texts) or None
    text = _scalar_text(value)
    return text_of(_get(value, "text")) if text is None and value is not None else text


def _scalar_text(value: Any) -> str | None:
    if isinstance(value, bytes | bytearray):
        value = value.decode("utf-8", "replace")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    return text_of(value) if isinstance(value, str) else None


def _number(view: Any, key: str) -> float | None:
    value = _get(view, key)
    return None if value is None else number_of(value)


def _id(value: Any) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() <= _MAX_ID_BITS:
        return str(value)
    return str(value) if isinstance(value, UUID) else clean(value) if isinstance(value, str) and value else None


def _is_pair(value: Any, *, strict: bool = False) -> bool:
    """Return whether a value is a document with its score; at the top, where lists are lists, only a tuple is one."""
    if not isinstance(value, tuple if strict else tuple | list) or len(value) != _PAIR:
        return False
    scores = [not isinstance(item, str) and number_of(item) is not None for item in value]
    return scores == [False, True] if hasattr(value, "_fields") else scores.count(True) == 1


def _results_in(value: Any) -> Any:
    value = _named(value)
    for key in LISTS:
        inner = _without_array(_get(value, key))
        if inner is not None and (listed(inner) is not None or isinstance(inner, Mapping)):
            return inner
    return None


def _row(value: Any) -> Document | None:
    """Make a document of a record with texts under other names, such as a row of a table or the payload of a hit."""
    if isinstance(value, tuple):
        return Document(encode(plain(value)).decode()) if any(isinstance(item, str) for item in value) else None
    payload = next((inner for key in _PAYLOADS if isinstance(inner := _get(value, key), Mapping)), None)
    record = value if payload is None else {**{key: _get(value, key) for key in (*IDS, *SCORES)}, **payload}
    if not isinstance(record, Mapping):
        return None
    kept = {str(key): item for key, item in record.items() if str(key) not in _FREE_OF_CONTENT and item is not None}
    if not any(isinstance(item, str) and item for item in kept.values()):
        return None
    ids = (own_id for key in IDS if (own_id := _id(record.get(key))) is not None)
    scores = (number for key in SCORES if (number := _number(record, key)) is not None)
    sources = (source for key in SOURCES if (source := text_of(record.get(key))) is not None)
    text = encode(plain(kept)).decode()
    return Document(text, id=next(ids, None), score=next(scores, None), source=next(sources, None))


def _without_array(value: Any) -> Any:
    """Return an array, series or data frame as a list."""
    kind = type(value)
    if kind.__name__ == "DataFrame" and callable(getattr(kind, "to_dict", None)):
        return value.to_dict("records")
    return value.tolist() if callable(getattr(kind, "tolist", None)) else value
