"""The matches in one piece of a content: found in all views of it, and shown with what stands around them."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from judges.prompt import neutralise
from judges.trace_tools.arguments import page_token
from judges.trace_tools.escapes import View
from judges.trace_tools.matching import Matching
from judges.trace_tools.patterns import Place
from judges.trace_tools.pieces import Piece
from judges.trace_tools.spans import Step

__all__ = ["Hit", "hits", "shown"]

_MAX_MATCH_BYTES: Final = 1000


class Hit(NamedTuple):
    """A match in one view of a piece, and its place in the whole of it."""

    place: Place
    view: View
    in_view: Place


def hits(piece: Piece, looking: Matching, most: int) -> Sequence[Hit]:
    """Find the first matches that begin in a piece, in order: those of its first view, and of further ones elsewhere.

    Raises:
        OutOfTimeError: The budget is spent.
        SlowPatternError: The pattern takes too long.
    """
    found: list[Hit] = []
    for view, start in zip(piece.views, piece.starts, strict=True):
        places = looking.places(view.text, start)
        # Behind the last of enough matches nothing is looked for any more.
        stop = piece.stop if len(found) < most else found[-1].place.start
        new = list(islice(_apart(_begun(view, places, range(piece.begin, stop)), found), most))
        found = sorted(found + new, key=lambda hit: hit.place)[:most] if new else found
    return found


def shown(step: Step, piece: Piece, hit: Hit, surrounding_bytes: int) -> dict[str, object]:
    """Tell a model of a match."""
    start, end = hit.in_view
    match = neutralise(hit.view.text[start:end])
    return {
        "span_id": step.id,
        "span_name": step.name,
        "before": _last(hit.view.text[max(0, start - surrounding_bytes) : start], surrounding_bytes),
        "match": _first(match, _MAX_MATCH_BYTES),
        "match_size_bytes": len(match.encode()),
        "after": _first(hit.view.text[end : end + surrounding_bytes], surrounding_bytes),
        "page_token": page_token(piece.offset(hit.place.start), piece.size),
    }


def _begun(view: View, places: Sequence[Place], beginning: range) -> Iterator[Hit]:
    for in_view in places:
        place = Place(view.place(in_view.start), view.place(in_view.end - 1) + 1)
        if place.start >= beginning.stop:
            return
        if place.start in beginning:
            yield Hit(place, view, in_view)


def _apart(new: Iterator[Hit], others: Sequence[Hit]) -> Iterator[Hit]:
    """Leave out what overlaps others, which stand in order and apart from each other."""
    ends = [other.place.end for other in others]
    for hit in new:
        next_one = bisect_right(ends, hit.place.start)
        if next_one == len(others) or others[next_one].place.start >= hit.place.end:
            yield hit


def _first(text: str, max_bytes: int) -> str:
    return neutralise(text).encode()[:max_bytes].decode(errors="ignore")


def _last(text: str, max_bytes: int) -> str:
    encoded = neutralise(text).encode()
    return encoded[max(0, len(encoded) - max_bytes) :].decode(errors="ignore")
