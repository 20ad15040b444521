"""Regular expressions written by a model, with bounds on their size, memory and time.

The library checks a time limit now and then during a search, but limits neither memory nor the time of compiling.
Measured with regex 2026.11: `(?:a{1000}){1000}` takes 260 MB, twenty groups 500 times over take 2 s, a recursive
pattern 900 MB within its first second of search, and a hundred groups 10 kB for each character searched.
"""

import re
import time
from collections.abc import Callable
from math import prod
from typing import Final, NamedTuple, Protocol

import regex

from judges.agent.arguments import ToolError

_MAX_CHARS: Final = 500
_MAX_TOLD: Final = 200
_MAX_GROUPS: Final = 20
_MAX_EXPANDED_CHARS: Final = 5000
_COUNTED: Final = re.compile(r"(\))?\{([0-9]+)")
_RECURSIVE: Final = re.compile(r"\(\?(?:R|[0-9]|[+-][0-9]|&|P>)")
# The flag x ignores white space, which could hide counts and recursion from these checks. With r the last match comes
# first, and text before it would count as searched.
_REFUSED_FLAGS: Final = re.compile(r"\(\?[A-Za-z0-9]*[xr]")


class Place(NamedTuple):
    """The range of a match in a text."""

    start: int
    end: int


class Pattern:
    """A regular expression that is safe to compile.

    Raises:
        ToolError: It is invalid or too large.
    """

    def __init__(self, pattern: str) -> None:
        _check(pattern)
        try:
            self._pattern = regex.compile(pattern, regex.IGNORECASE, cache_pattern=False)
        except (regex.error, ValueError, OverflowError, RecursionError) as error:
            raise ToolError(f"The pattern is no regular expression: {str(error)[:_MAX_TOLD]}. Mend it.") from None

    def places(self, text: str, within: Place, timeout_s: float) -> list[Place]:
        """Find the matches in a range of a short text, in order, without empty ones.

        Args:
            text: The whole text; a match may look back beyond the range.
            within: Where matches begin and end.
            timeout_s: CPU time of the process, that of threads running meanwhile included.

        Raises:
            TimeoutError: The time is over.
            MemoryError: The search needed too much memory.
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
    # The library writes out least numbers of repeats. A count after a group may repeat all others, so these are
    # multiplied; any other count adds up.
    counts = [(bool(group), int(digits)) for group, digits in _COUNTED.findall(pattern)]
    alone = sum(least for is_group, least in counts if not is_group)
    expanded_chars = (len(pattern) + alone) * prod(max(1, least) for is_group, least in counts if is_group)
    if expanded_chars > _MAX_EXPANDED_CHARS:
        raise ToolError("The counts of the pattern, as {1000}, are too large. Send smaller ones, or * or +.")


_MATCHING_S: Final = 0.5
# Encoding spans and decoding their escapes is done once, kept for later searches, and does not depend on the pattern.
_PREPARING_S: Final = 0.4
# On an idle machine the two above end a search within a second.
_WALL_S: Final = 2.0


class Clocks(NamedTuple):
    """Clocks in seconds: CPU time of this thread, and a monotonic clock."""

    cpu: Callable[[], float] = time.thread_time
    wall: Callable[[], float] = time.monotonic


CLOCKS: Final = Clocks()


class OutOfTimeError(Exception):
    """The time of the search is over; earlier matches are valid."""


class CpuTimer:
    """Measures the CPU time of one kind of work while entered, against a limit."""

    def __init__(self, limit_s: float, cpu: Callable[[], float]) -> None:
        self._limit_s = limit_s
        self._cpu = cpu
        self._began_at = 0.0
        self.spent_s = 0.0

    def __enter__(self) -> None:
        self._began_at = self._cpu()

    def __exit__(self, *_: object) -> None:
        self.spent_s += self._cpu() - self._began_at

    @property
    def is_over(self) -> bool:
        """Whether the limit is reached."""
        return self.spent_s >= self._limit_s


class SearchBudget:
    """The time of one search, which begins when the budget is made."""

    def __init__(self, clocks: Clocks = CLOCKS) -> None:
        self.matching: Final = CpuTimer(_MATCHING_S, clocks.cpu)
        self.preparing: Final = CpuTimer(_PREPARING_S, clocks.cpu)
        self._wall = clocks.wall
        self._ends_at = clocks.wall() + _WALL_S

    @property
    def left_on_the_wall_s(self) -> float:
        """Wall time until the search must end."""
        return self._ends_at - self._wall()

    def check(self) -> None:
        """Raise ``OutOfTimeError`` where a limit is reached."""
        if self.matching.is_over or self.preparing.is_over or self.left_on_the_wall_s <= 0:
            raise OutOfTimeError


_FIRST_TRY_S: Final = 0.1
_PART_CHARS: Final = 2_000
# How far a match may extend beyond the part in which it begins.
_REACH_CHARS: Final = 4_000
# CPU time of this thread for one part; plain words need a thousandth of it.
_SLOW_S: Final = 0.08


class Places(Protocol):
    """The search method of ``Pattern``, which tests replace."""

    def places(self, text: str, within: Place, timeout_s: float) -> list[Place]:
        """Find matches, or raise TimeoutError."""
        ...


class SlowPatternError(Exception):
    """The pattern is too slow even for a short text."""


class Matching:
    """Applies a pattern to whole texts, and part by part as soon as that took too long."""

    def __init__(self, pattern: Places, budget: SearchBudget) -> None:
        self._pattern = pattern
        self._budget = budget
        self._splits = False

    def places(self, text: str, start: int) -> list[Place]:
        """Find the matches after a place of a text, in order, or raise ``SlowPatternError`` or ``OutOfTimeError``."""
        if not self._splits:
            try:
                return self._found(text, Place(start, len(text)), _FIRST_TRY_S)
            except TimeoutError:
                self._splits = True
        found: list[Place] = []
        while start < len(text):
            behind = start + _PART_CHARS
            begun = [place for place in self._part(text, start, behind + _REACH_CHARS) if place.start < behind]
            found += begun
            start = max(behind, begun[-1].end) if begun else behind
        return found

    def _part(self, text: str, start: int, end: int) -> list[Place]:
        """Match one part, with a longer limit where other threads took the time: the library counts all threads."""
        timeout_s = _FIRST_TRY_S
        while True:
            self._budget.check()
            before_s = self._budget.matching.spent_s
            try:
                return self._found(text, Place(start, min(end, len(text))), timeout_s)
            except TimeoutError:
                if self._budget.matching.spent_s - before_s >= _SLOW_S:
                    raise SlowPatternError from None
            timeout_s *= 2

    def _found(self, text: str, within: Place, timeout_s: float) -> list[Place]:
        # At most the wall time that is left: a thread alone needs as much wall time as CPU time.
        most_s = max(0.0, min(timeout_s, self._budget.left_on_the_wall_s))
        try:
            with self._budget.matching:
                return self._pattern.places(text, within, most_s)
        except MemoryError:
            raise SlowPatternError from None
