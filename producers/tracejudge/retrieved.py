"""The documents that retrievers within a trace returned: its context, when nobody set one."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tracejudge.model import Document

if TYPE_CHECKING:
    from tracejudge.recording import Step

_KINDS = frozenset({"retriever", "retrieval"})
_TEXT_KEYS = ("text", "page_content", "content")


def retrieved_documents(steps: list["Step"]) -> list[Document | str]:
    """Take the documents of all retrievers in the order they began; of nested retrievers, the outer one's."""
    return [document for step in steps if _is_outer_retriever(step) for document in _documents(step)]


def _is_outer_retriever(step: "Step") -> bool:
    if not _retrieves(step):
        return False
    above = step.parent
    while above is not None and above.parent is not None:  # the outermost step is the trace itself
        if _retrieves(above):
            return False
        above = above.parent
    return True


def _retrieves(step: "Step") -> bool:
    return step.kind is not None and step.kind.casefold() in _KINDS


def _documents(step: "Step") -> Iterator[Document | str]:
    """Read what was returned: texts, or records with a text in one of the usual fields."""
    found = step.fields.get("output")
    if isinstance(found, dict):
        found = found.get("documents")
    for item in found if isinstance(found, list) else ():
        document = _document(item) if isinstance(item, dict) else item
        if isinstance(document, Document | str):
            yield document


def _document(item: dict[str, Any]) -> Document | None:
    text = next((item[key] for key in _TEXT_KEYS if isinstance(item.get(key), str)), None)
    if text is None:
        return None
    given_id, score = item.get("id"), item.get("score")
    return Document(
        text,
        id=str(given_id) if isinstance(given_id, str | int) else None,
        score=float(score) if isinstance(score, int | float) else None,
    )
