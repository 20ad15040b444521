"""Regular expressions that a model wrote, bounded in what they may cost.

The time of a search is bounded by the library, looked at now and then; the memory and the time of making a pattern
are not. Measured with regex 2026.11: `(?:a{1000}){1000}` takes 260 MB, twenty groups 500 times over take 2 s, a
recursive pattern 900 MB within its first second of search, and a hundred groups 10 kB for each character searched.
"""

import re
import time
from collections.abc import Iterator
from math import prod
from typing import Final, NamedTuple

import regex

from judges.trace_tools.errors import ToolError

__all__ = ["Place", "Search"]

_MAX_CHARS: Final = 500
_MAX_TOLD: Final = 200
_MAX_GROUPS: Final = 20
_MAX_WEIGHT: Final = 5000
_SEARCH_S: Final = 0.6
"""For all texts of one search; making the pattern and giving the matches come on top."""
_TEXT_S: Final = 0.2
"""For one short text. The library counts CPU time of the process: where that is scarce, a longer one would take us far
beyond the bound of the search."""

_COUNTED: Final = re.compile(r"(\))?\{([0-9]+)")
_RECURSIVE: Final = re.compile(r"\(\?(?:R|[0-9]|[+-][0-9]|&|P>)")
_VERBOSE: Final = re.compile(r"\(\?[A-Za-z0-9]*x")
"""White space would have no meaning; then the other two could be hidden behind it."""


class Place(NamedTuple):
    """Where something stands in a text."""

    start: int
    end: int


class Search:
    """One search through many texts, within one bound of time.

    Raises:
        ToolError: The pattern is none, or asks for too much.
    """

    def __init__(self, pattern: str) -> None:
        _check(pattern)
        try:
            self._pattern = regex.compile(pattern, regex.IGNORECASE, cache_pattern=False)
        except (regex.error, ValueError, OverflowError, RecursionError) as error:
            raise ToolError(f"The pattern is no regular expression: {str(error)[:_MAX_TOLD]}. Mend it.") from None
        self._ends_at = time.monotonic() + _SEARCH_S

    def places(self, text: str) -> Iterator[Place]:
        """Yield where matches stand in a short text, in order; empty ones are left out.

        Raises:
            ToolError: The time is over.
        """
        try:
            for match in self._pattern.finditer(text, concurrent=True, timeout=min(_TEXT_S, self._left_s())):
                self._left_s()
                if match.start() < match.end():
                    yield Place(*match.span())
        except (TimeoutError, MemoryError):
            raise _too_slow() from None

    def _left_s(self) -> float:
        left = self._ends_at - time.monotonic()
        if left <= 0:
            raise _too_slow()
        return left


def _check(pattern: str) -> None:
    if not pattern:
        raise ToolError("The pattern is empty. Send what to look for, as in error|timeout.")
    if len(pattern) > _MAX_CHARS:
        raise ToolError(f"The pattern is longer than {_MAX_CHARS} characters. Send a shorter one, or several searches.")
    if pattern.count("(") > _MAX_GROUPS:
        raise ToolError(f"The pattern has more than {_MAX_GROUPS} groups. Send a simpler one.")
    if _RECURSIVE.search(pattern) or _VERBOSE.search(pattern):
        raise ToolError("Recursive and verbose patterns, as (?R), (?1) and (?x), cannot be used. Send a simpler one.")
    if _weight(pattern) > _MAX_WEIGHT:
        raise ToolError("The counts of the pattern, as {1000}, are too large. Send smaller ones, or * or +.")


def _weight(pattern: str) -> int:
    """Reckon how large a pattern becomes: whatever is repeated a least number of times is written out so often.

    A count behind a group may repeat all others, so they are multiplied; one behind anything else adds up.
    """
    counts = [(bool(group), int(digits)) for group, digits in _COUNTED.findall(pattern)]
    alone = sum(least for is_group, least in counts if not is_group)
    return (len(pattern) + alone) * prod(max(1, least) for is_group, least in counts if is_group)


def _too_slow() -> ToolError:
    return ToolError(
        "The search took too long and was stopped. Send a simpler pattern: plain words, no repeats inside of repeats, "
        "nothing that matches an empty text."
    )
