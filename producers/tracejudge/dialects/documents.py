"""Retrieved documents, in whatever shape they are written."""

from collections.abc import Iterator, Mapping
from typing import Final

from tracejudge.dialects.values import clean, decoded, first_text, is_list, mapping_of, number_of, text_of
from tracejudge.model import Document

_LISTS: Final = ("documents", "results", "matches", "source_nodes", "nodes", "hits")
_TEXTS: Final = ("content", "page_content", "text", "document")
_SCORES: Final = ("score", "relevance_score", "similarity")
_MAX_WRAPPINGS: Final = 3
_MAX_ID: Final = 256


def documents_of(value: object) -> tuple[Document, ...]:
    """Read a list of documents; those without a text are left out, and the order stays."""
    found = decoded(value)
    if found is None:
        return ()
    for _ in range(_MAX_WRAPPINGS):
        mapping = mapping_of(found)
        if mapping is not None:
            found = decoded(next((mapping[key] for key in _LISTS if mapping.get(key)), None))
    return tuple(_documents(found))


def _documents(found: object) -> Iterator[Document]:
    for item in found if is_list(found) else ():
        if (text := text_of(item)) is not None:
            yield Document(text)
        elif (mapping := mapping_of(item)) is not None and (document := document_of(mapping)) is not None:
            yield document


def document_of(mapping: Mapping[str, object]) -> Document | None:
    """Read one document; None without a text."""
    inner = next((inner for key in ("document", "node") if (inner := mapping_of(mapping.get(key)))), mapping)
    text = first_text(inner, _TEXTS)
    if text is None:
        return None
    scores = (number_of(holder.get(key)) for holder in (inner, mapping) for key in _SCORES)
    score = next((score for score in scores if score is not None), None)
    return Document(text, _id(inner) or _id(mapping), score)


def _id(mapping: Mapping[str, object]) -> str | None:
    given = mapping.get("id")
    if isinstance(given, int) and not isinstance(given, bool) and given.bit_length() <= _MAX_ID:
        return str(given)
    return clean(given) if isinstance(given, str) and given else None
