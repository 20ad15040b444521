"""Find text in the steps of a trace, and show it with what stands around it."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple

from judges.prompt import neutralise
from judges.trace_tools.arguments import page_token
from judges.trace_tools.content import Contents
from judges.trace_tools.escapes import View, views
from judges.trace_tools.patterns import Place, Search
from judges.trace_tools.spans import Step

__all__ = ["search"]

_PIECE_CHARS: Final = 18_000
_AHEAD_CHARS: Final = 2_000
_BEHIND_CHARS: Final = 200
"""Texts are searched piece by piece: the memory of a search grows with what it searches, and so does the time between
the library's looks at the clock. A match begins in its piece, and may see and reach so far beyond it. Where a piece is
cut within an escape, what is misread is behind the margin, or seen again in the next piece."""
_MAX_MATCH_BYTES: Final = 1000


class _Hit(NamedTuple):
    """A match in one view of a piece, and its place in the whole text."""

    place: Place
    view: View
    in_view: Place


def search(
    steps: Iterable[Step], contents: Contents, pattern: str, max_matches: int, surrounding_bytes: int
) -> dict[str, object]:
    """Look for a pattern in steps, in their order.

    Raises:
        ToolError: The pattern is none, asks for too much, or takes too long.
    """
    # Written before the search begins: the time that this takes, once, is not the pattern's fault.
    written = [(step, contents.whole(step)) for step in steps]
    looking, most = Search(pattern), max_matches + 1
    shown = (match for step, content in written for match in _matches(step, content, looking, most, surrounding_bytes))
    matches = list(islice(shown, most))
    return {"matches": matches[:max_matches], "there_are_more": len(matches) > max_matches}


def _matches(
    step: Step, content: bytes, looking: Search, most: int, surrounding_bytes: int
) -> Iterator[dict[str, object]]:
    text = content.decode()
    for hit in _hits(text, looking, most):
        token = page_token(len(text[: hit.place.start].encode()), len(content))
        yield _shown(step, hit, surrounding_bytes) | {"page_token": token}


def _shown(step: Step, hit: _Hit, surrounding_bytes: int) -> dict[str, object]:
    start, end = hit.in_view
    match = neutralise(hit.view.text[start:end])
    return {
        "span_id": step.id,
        "span_name": step.name,
        "before": _last(hit.view.text[max(0, start - surrounding_bytes) : start], surrounding_bytes),
        "match": _first(match, _MAX_MATCH_BYTES),
        "match_size_bytes": len(match.encode()),
        "after": _first(hit.view.text[end : end + surrounding_bytes], surrounding_bytes),
    }


def _hits(text: str, looking: Search, most: int) -> Iterator[_Hit]:
    """Yield the matches in a text, in order and apart from each other."""
    reached = 0
    for start in range(0, len(text), _PIECE_CHARS):
        for hit in _hits_in(text, range(max(start, reached), start + _PIECE_CHARS), looking, most):
            reached = hit.place.end
            yield hit


def _hits_in(text: str, beginning: range, looking: Search, most: int) -> list[_Hit]:
    """Find the matches that begin in one piece: those of its first view, and those of further ones at other places."""
    first = max(0, beginning.start - _BEHIND_CHARS)
    hits: list[_Hit] = []
    for view in views(text[first : beginning.stop + _AHEAD_CHARS]):
        found = (_hit(view, first, place) for place in looking.places(view.text))
        earlier = tuple(hits)
        new = (hit for hit in found if hit.place.start in beginning and not _overlaps(hit, earlier))
        hits += islice(new, most)
    return sorted(hits, key=lambda hit: hit.place)


def _hit(view: View, first: int, in_view: Place) -> _Hit:
    place = Place(first + view.place(in_view.start), first + view.place(in_view.end - 1) + 1)
    return _Hit(place, view, in_view)


def _overlaps(hit: _Hit, others: Iterable[_Hit]) -> bool:
    return any(hit.place.start < other.place.end and other.place.start < hit.place.end for other in others)


def _first(text: str, max_bytes: int) -> str:
    return neutralise(text).encode()[:max_bytes].decode(errors="ignore")


def _last(text: str, max_bytes: int) -> str:
    encoded = neutralise(text).encode()
    return encoded[max(0, len(encoded) - max_bytes) :].decode(errors="ignore")
