"""Regular expressions written by a model: RE2 matches them in linear time, and a search ends after a second."""

import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import re2

from judges.agent.arguments import ToolError

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
