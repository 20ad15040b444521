"""Regular expressions that a model wrote, bounded in what they may cost to be made and in the memory they take.

The library bounds the time of a search, looked at now and then, but neither the memory nor the time of making a
pattern. Measured with regex 2026.11: `(?:a{1000}){1000}` takes 260 MB, twenty groups 500 times over take 2 s, a
recursive pattern 900 MB within its first second of search, and a hundred groups 10 kB for each character searched.
"""

import re
from math import prod
from typing import Final, NamedTuple

import regex

from judges.trace_tools.errors import ToolError

__all__ = ["Pattern", "Place"]

_MAX_CHARS: Final = 500
_MAX_TOLD: Final = 200
_MAX_GROUPS: Final = 20
_MAX_WEIGHT: Final = 5000

_COUNTED: Final = re.compile(r"(\))?\{([0-9]+)")
_RECURSIVE: Final = re.compile(r"\(\?(?:R|[0-9]|[+-][0-9]|&|P>)")
_REFUSED_FLAGS: Final = re.compile(r"\(\?[A-Za-z0-9]*[xr]")
"""With x white space would have no meaning, and the other two could be hidden behind it. With r the last match would
come first, and matches before a piece of the text be taken for searched."""


class Place(NamedTuple):
    """Where something stands in a text."""

    start: int
    end: int


class Pattern:
    """A regular expression that is safe to be made.

    Raises:
        ToolError: It is none, or asks for too much.
    """

    def __init__(self, pattern: str) -> None:
        _check(pattern)
        try:
            self._pattern = regex.compile(pattern, regex.IGNORECASE, cache_pattern=False)
        except (regex.error, ValueError, OverflowError, RecursionError) as error:
            raise ToolError(f"The pattern is no regular expression: {str(error)[:_MAX_TOLD]}. Mend it.") from None

    def places(self, text: str, within: Place, timeout_s: float) -> list[Place]:
        """Find where matches stand in a part of a short text, in order; empty ones are left out.

        Other threads run meanwhile, and the time that they compute counts: the library reads the CPU of the process.

        Args:
            text: What a match may look back on from where it begins.
            within: Where matches begin and end.
            timeout_s: CPU of the process.

        Raises:
            TimeoutError: The time is over.
            MemoryError: It took too much.
        """
        found = self._pattern.finditer(text, *within, concurrent=True, timeout=timeout_s)
        return [Place(*match.span()) for match in found if match.start() < match.end()]


def _check(pattern: str) -> None:
    if not pattern:
        raise ToolError("The pattern is empty. Send what to look for, as in error|timeout.")
    if len(pattern) > _MAX_CHARS:
        raise ToolError(f"The pattern is longer than {_MAX_CHARS} characters. Send a shorter one, or several searches.")
    if pattern.count("(") > _MAX_GROUPS:
        raise ToolError(f"The pattern has more than {_MAX_GROUPS} groups. Send a simpler one.")
    if _RECURSIVE.search(pattern) or _REFUSED_FLAGS.search(pattern):
        raise ToolError(
            "Recursive, verbose and reverse patterns, as (?R), (?1), (?x) and (?r), cannot be used. Send a simpler one."
        )
    if _weight(pattern) > _MAX_WEIGHT:
        raise ToolError("The counts of the pattern, as {1000}, are too large. Send smaller ones, or * or +.")


def _weight(pattern: str) -> int:
    """Reckon how large a pattern becomes: whatever is repeated a least number of times is written out so often.

    A count behind a group may repeat all others, so they are multiplied; one behind anything else adds up.
    """
    counts = [(bool(group), int(digits)) for group, digits in _COUNTED.findall(pattern)]
    alone = sum(least for is_group, least in counts if not is_group)
    return (len(pattern) + alone) * prod(max(1, least) for is_group, least in counts if is_group)
