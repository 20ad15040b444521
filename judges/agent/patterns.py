"""Searches by regular expressions of a model: RE2 matches them in linear time, and a search ends after a second."""

import re
import sys
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, islice
from typing import Annotated, Final, NamedTuple

import re2
from msgspec import UNSET, Meta, Struct

from judges.agent.arguments import PageToken, Position, ToolError, page_token, position_of, search_token
from judges.agent.spans import Step, boundary
from judges.core.prompt import neutralise

_ESCAPE: Final = re.compile(
    r'\\(?:u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|(["\\/bfnrt]))'
)
_MEANT: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_SINGLE: Final = {"\\" + sign: _MEANT.get(sign, sign) for sign in '"/bfnrt'}
# Replaces an escaped backslash while other escapes are decoded, if the text does not contain it.
_BACKSLASH: Final = "\0"
_MAX_CHARS: Final = 500
# Bounds the compiled program to about 10,000 instructions. The worst pattern of that size needs a second of CPU time
# for a piece of a content, and RE2 cannot be stopped within it.
_MAX_MEMORY_BYTES: Final = 256 * 1024
# CPU time for one text of at most a piece; plain words need a hundredth of it. Many matches may each look through the
# rest of the text, so that all of them together take quadratic time.
_SLOW_S: Final = 0.4
# CPU time and wall time of one search, checked between pieces. On an idle machine both end it within a second.
_CPU_S: Final = 0.9
_WALL_S: Final = 2.0


class Place(NamedTuple):
    """The range of a match in a text."""

    start: int
    end: int


class Clocks(NamedTuple):
    """Clocks in seconds: CPU time of this thread, and a monotonic clock."""

    cpu: Callable[[], float] = time.thread_time
    wall: Callable[[], float] = time.monotonic


CLOCKS: Final = Clocks()


class SearchBudget:
    """The time of one search, which begins when the budget is made."""

    def __init__(self, clocks: Clocks = CLOCKS) -> None:
        self.cpu: Final = clocks.cpu
        self._wall = clocks.wall
        self._cpu_end = clocks.cpu() + _CPU_S
        self._wall_end = clocks.wall() + _WALL_S

    @property
    def is_spent(self) -> bool:
        """Whether a limit is reached."""
        return self.cpu() >= self._cpu_end or self._wall() >= self._wall_end


class SlowPatternError(Exception):
    """The pattern is too slow even for a short text."""


class Pattern:
    """A compiled regular expression; upper and lower case are alike. ``ToolError`` if RE2 cannot compile it."""

    def __init__(self, pattern: str, cpu: Callable[[], float] = CLOCKS.cpu) -> None:
        if not pattern:
            raise ToolError("The pattern is empty. Send what to look for, as in error|timeout.")
        if len(pattern) > _MAX_CHARS:
            raise ToolError(
                f"The pattern is longer than {_MAX_CHARS} characters. Send a shorter one, or several searches."
            )
        options = re2.Options()
        options.case_sensitive = False
        options.never_capture = True
        options.log_errors = False  # the pattern may quote the trace
        options.max_mem = _MAX_MEMORY_BYTES
        try:
            self._pattern = re2.compile(pattern, options)
        except (re2.error, UnicodeEncodeError) as error:
            message = error.args[0].decode(errors="replace") if isinstance(error, re2.error) else "a lone surrogate"
            raise ToolError(
                f"The pattern cannot be used: {message[:200]}. Send another one in the syntax of RE2. It "
                "has no look-around, back-references or possessive repeats, its counts multiply to at most 1000, and "
                r"\z stands for \Z."
            ) from None
        finally:
            re2.purge()  # the library would keep the last 128 patterns
        self._cpu = cpu

    def places(self, text: str, start: int) -> Iterator[Place]:
        """Yield the matches after a place of a short text, without empty ones, or raise ``SlowPatternError``."""
        end_s = self._cpu() + _SLOW_S
        for match in self._pattern.finditer(text, start):
            if match.start() < match.end():
                yield Place(*match.span())
            if self._cpu() >= end_s:
                raise SlowPatternError
        if self._cpu() >= end_s:
            raise SlowPatternError


class View:
    """A text with its escapes decoded, and the place of each of its characters in the original text."""

    def __init__(self, text: str, escaped: str, outer: "View | None" = None) -> None:
        self.text = text
        self._escaped = escaped
        self._outer = outer
        self._gains: tuple[list[int], list[int]] | None = None

    def place(self, position: int) -> int:
        """Return where a character of the view is in the outermost text."""
        if self._gains is None:
            # For each escape the place after it in the view, and how many characters longer the text is up to there.
            escapes = [match.span() for match in _ESCAPE.finditer(self._escaped)]
            gained = list(accumulate(end - start - 1 for start, end in escapes))
            self._gains = [end - gain for (_, end), gain in zip(escapes, gained, strict=True)], gained
        behind, gained = self._gains
        index = bisect_right(behind, position)
        place = position + (gained[index - 1] if index else 0)
        return place if self._outer is None else self._outer.place(place)

    def first_at(self, place: int) -> int:
        """Return the first character of the view at or after a place of the outermost text."""
        return bisect_left(range(len(self.text)), place, key=self.place)


def views(text: str) -> Iterator[View]:
    """Yield a text with its escapes decoded, then with those inside of its strings decoded too, and so on."""
    view = View(_unescaped(text), text)
    yield view
    for _ in range(2):  # Results of tools may be JSON in a string of JSON in a string, and no deeper in practice.
        if _ESCAPE.search(view.text) is None:
            return
        view = View(_unescaped(view.text), view.text, view)
        yield view


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    if _BACKSLASH in text:
        return _ESCAPE.sub(_meant, text)
    # A few replacements need a twentieth of the time of a call per escape. Pairs first, then the rest is single.
    single = text.replace("\\\\", _BACKSLASH)
    if "\\u" in single:
        return _ESCAPE.sub(_meant, text)
    for escape, meant in _SINGLE.items():
        single = single.replace(escape, meant)
    return single.replace(_BACKSLASH, "\\")


def _meant(escape: re.Match[str]) -> str:
    high, low, single, sign = escape.groups()
    if sign is not None:
        return _MEANT.get(sign, sign)
    if single is not None:
        # RE2 reads UTF-8, which cannot hold a lone surrogate.
        return chr(int(single, 16)).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return chr(0x10000 + ((int(high, 16) - 0xD800) << 10) + int(low, 16) - 0xDC00)


_PIECE_BYTES: Final = 20_000
_AHEAD_BYTES: Final = 4_000  # Length by which a match may see, and extend, beyond the piece in which it begins.
_BEHIND_BYTES: Final = 1_000  # As much text as is shown before a match.
_CUT_ESCAPE_CHARS: Final = 64
_MAX_KEPT_BYTES: Final = 8 * 1024 * 1024


class Piece(NamedTuple):
    """A piece of a content with its surroundings. Places count its characters, offsets bytes of the content."""

    text: str  # The piece, with what a match may see before and after it.
    first_offset: int  # The offset of the text.
    begin: int  # Where the first match may begin; the last one begins before ``stop``.
    stop: int
    views: Sequence[View]  # The text in its decodings.
    starts: Sequence[int]  # The place of ``begin`` in each view.
    stop_offset: int  # Where the next piece begins.
    size: int  # The size of the whole content.

    def offset(self, place: int) -> int:
        """Return the offset of a character in the content."""
        return self.first_offset + len(self.text[:place].encode())


class Pieces:
    """Cuts contents into pieces. Decoded escapes are kept up to 8 MiB, twice the largest trace."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, int], list[str]] = {}
        self._kept_bytes = 0

    def read(self, step: Step, offset: int) -> Piece:
        """Return the piece of a step's content from an offset on; its end is the same in every search."""
        content = step.content
        size = len(content)
        if offset == 0 and size <= _PIECE_BYTES:
            # The short way, because a trace may have very many short contents.
            text = content.decode()
            readings = self._views(text, (step.id, 0))
            return Piece(text, 0, 0, len(text), readings, (0,) * len(readings), size, size)
        number = offset // _PIECE_BYTES
        begin = boundary(content, offset)
        first = boundary(content, max(0, number * _PIECE_BYTES - _BEHIND_BYTES))
        stop = boundary(content, min(size, (number + 1) * _PIECE_BYTES))
        text = content[first : boundary(content, min(size, stop + _AHEAD_BYTES))].decode()
        before = len(content[first:begin].decode())
        readings = self._views(text, (step.id, number))
        # Views that differ only after the beginning share the last place.
        begun = [view.first_at(before) for view in views(text[: before + _CUT_ESCAPE_CHARS])] if before else [0]
        starts = [*begun, *[begun[-1]] * len(readings)][: len(readings)]
        return Piece(text, first, before, before + len(content[begin:stop].decode()), readings, starts, stop, size)

    def _views(self, text: str, key: tuple[str, int]) -> Sequence[View]:
        if key in self._kept:
            readings: list[View] = []
            for read in self._kept[key]:
                outer = readings[-1] if readings else None
                readings.append(View(read, text if outer is None else outer.text, outer))
            return readings
        readings = list(views(text))
        if "\\" in text:
            texts = [view.text for view in readings]
            size = sum(map(sys.getsizeof, (key, key[0], texts, *texts)))
            if self._kept_bytes + size <= _MAX_KEPT_BYTES:
                self._kept[key] = texts
                self._kept_bytes += size
        return readings


class Hit(NamedTuple):
    """A match in one view of a piece, and its place in the text of the piece."""

    place: Place
    view: View
    in_view: Place


def hits(piece: Piece, pattern: Pattern, most: int) -> Sequence[Hit]:
    """Find the first matches that begin in a piece, in order, in all its views without overlaps."""
    earliest: list[Hit] = []
    for view, start in zip(piece.views, piece.starts, strict=True):
        places = pattern.places(view.text, start)
        # With enough matches, only text before the last one matters for further views.
        stop = piece.stop if len(earliest) < most else earliest[-1].place.start
        new = list(islice(_new_hits(view, places, range(piece.begin, stop), earliest), most))
        earliest = sorted(earliest + new, key=lambda hit: hit.place)[:most] if new else earliest
    return earliest


def render_hit(step: Step, piece: Piece, hit: Hit, surrounding_bytes: int) -> dict[str, object]:
    """Describe a match to the model."""
    start, end = hit.in_view
    match = neutralise(hit.view.text[start:end])
    before = neutralise(hit.view.text[max(0, start - surrounding_bytes) : start]).encode()
    return {
        "span_id": step.id,
        "span_name": step.name,
        "before": before[max(0, len(before) - surrounding_bytes) :].decode(errors="ignore"),
        "match": _first(match, 1000),
        "match_size_bytes": len(match.encode()),
        "after": _first(hit.view.text[end : end + surrounding_bytes], surrounding_bytes),
        "page_token": page_token(piece.offset(hit.place.start), piece.size),
    }


def _new_hits(view: View, places: Iterable[Place], beginning: range, earlier: Sequence[Hit]) -> Iterator[Hit]:
    """Yield the matches that begin in a range and overlap none of the others, which are sorted without overlaps."""
    ends = [hit.place.end for hit in earlier]
    for in_view in places:
        place = Place(view.place(in_view.start), view.place(in_view.end - 1) + 1)
        if place.start >= beginning.stop:
            return
        next_one = bisect_right(ends, place.start)
        if place.start in beginning and (next_one == len(earlier) or earlier[next_one].place.start >= place.end):
            yield Hit(place, view, in_view)


def _first(text: str, max_bytes: int) -> str:
    return neutralise(text).encode()[:max_bytes].decode(errors="ignore")


_OUT_OF_TIME: Final = (
    "Time ran out in span `{span_id}`. All before it is searched. To search the rest, call again with the same "
    "pattern and this page_token."
)
_TOO_SLOW: Final = (
    "The search took too long and was stopped. Send a simpler pattern: plain words, no repeats inside of repeats, "
    "nothing that matches an empty text."
)


class SearchTrace(Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of ``search_trace_regex``."""

    pattern: Annotated[
        str, Meta(description="A regular expression as in Python; upper and lower case are alike. Keep it simple.")
    ]
    max_matches: Annotated[int, Meta(ge=1, le=200, description="How many matches to give at most.")] = 50
    surrounding_content_length: Annotated[
        int, Meta(ge=0, le=1000, description="How many bytes of text to give before and behind each match.")
    ] = 100
    page_token: PageToken = UNSET


def search(steps: Sequence[Step], pieces: Pieces, request: SearchTrace, budget: SearchBudget) -> dict[str, object]:
    """Search the steps in their order, piece by piece. A search that is stopped returns the matches before.

    ``ToolError``: The pattern is invalid or too large, or too slow before anything is found.
    """
    pattern, position = Pattern(request.pattern, budget.cpu), position_of(request.page_token, len(steps))
    matches, note, there_are_more = list[dict[str, object]](), "", False
    while position.step < len(steps) and not (there_are_more or note):
        step = steps[position.step]
        piece = pieces.read(step, position.offset)
        room = request.max_matches - len(matches)
        try:
            new = hits(piece, pattern, room + 1)
        except SlowPatternError:
            if not matches:
                raise ToolError(_TOO_SLOW) from None
            note = _TOO_SLOW
            continue
        there_are_more = len(new) > room
        matches += [render_hit(step, piece, hit, request.surrounding_content_length) for hit in new[:room]]
        # Go on behind the matches that are shown, and behind a piece that is searched.
        ends = [piece.offset(hit.place.end) for hit in new[:room][-1:]]
        offset = max(ends if there_are_more else (*ends, piece.stop_offset), default=position.offset)
        is_within = offset < piece.size
        position = Position(position.step, offset) if is_within else Position(position.step + 1, 0)
        # Not before the first piece: each call gets further, also on a machine that is suspended.
        if position.step < len(steps) and not there_are_more and budget.is_spent:
            note = _OUT_OF_TIME.format(span_id=steps[position.step].id)
    token = search_token(position, len(steps)) if position.step < len(steps) else None
    result: dict[str, object] = {
        "matches": matches,
        "there_are_more": None if note else there_are_more,
        "page_token": token,
    }
    return result | ({"stopped": True, "note": note} if note else {})
