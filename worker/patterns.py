"""Whether a pattern of the configuration can be used: that it compiles, finds something, and cannot run away.

A pattern with repeats inside repeats can take longer than the universe on a text of forty letters, and whoever
writes traces chooses the texts. No rule on the pattern's form tells the harmless from the deadly well, so each is
tried on texts that bring out the worst: its own signs, over and over, in growing numbers, with an end that does not
fit. The time counted is this thread's own, so that a busy machine refuses nothing; between what is usual and the
bound lie two orders of magnitude.
"""

import re
import time
from collections.abc import Callable, Iterator
from typing import Final

from worker.redaction import WINDOW_CHARS

__all__ = ["fault"]

_MAX_SECONDS: Final = 0.5
_FIRST_SIZE: Final = 12
_STEPS: Final = ((0.001, 1.5), (0.02, 1.25), (_MAX_SECONDS, 1.1))
"""Below how many seconds how far to go on: where a time is exponential, no step may hang the start."""
_USUAL_UNITS: Final = ("a", "A", "0", " ", "-", ".", "@", "a0", "a ")
_MAX_OWN_UNITS: Final = 10
_MAX_STARTS: Final = 2
_MAX_CHARS: Final = 1_000
_END: Final = "\x00"


def fault(pattern: str, clock: Callable[[], float] = time.thread_time) -> str | None:
    """Say what is wrong with a pattern and how to mend it, without quoting it; None where nothing is.

    Args:
        clock: Seconds of work, not of waiting.
    """
    if len(pattern) > _MAX_CHARS:
        return f"is longer than {_MAX_CHARS} signs; make several of it"
    try:
        compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        position = getattr(error, "pos", None)
        where = "" if position is None else f" at sign {position + 1}"
        return f"is no regular expression: {getattr(error, 'msg', 'too large')}{where}; mend it there"
    if compiled.search("") is not None:
        return "fits an empty text; let it ask for at least one sign"
    if any(_is_slow(compiled, start, unit, clock) for start in _starts(pattern) for unit in _units(pattern)):
        return "takes too long on some texts; take a repeat out of another, as (a+)+, or one of two side by side"
    return None


def _is_slow(pattern: re.Pattern[str], start: str, unit: str, clock: Callable[[], float]) -> bool:
    size = _FIRST_SIZE
    while True:
        text = f"{start}{unit * (size // len(unit))}{_END}"
        begun_s = clock()
        pattern.search(text)
        seconds = clock() - begun_s
        if seconds > _MAX_SECONDS or size == WINDOW_CHARS:
            return seconds > _MAX_SECONDS
        factor = next(factor for below, factor in _STEPS if seconds <= below)
        size = min(WINDOW_CHARS, max(size + 1, int(size * factor)))


def _starts(pattern: str) -> Iterator[str]:
    """Give what a text may have to begin with before a repeat is reached."""
    yield ""
    yield from sorted(_literals(pattern), key=len, reverse=True)[:_MAX_STARTS]


def _units(pattern: str) -> list[str]:
    """Give what to repeat: usual signs, and those of the pattern itself."""
    own = [*dict.fromkeys(sign for sign in pattern if sign not in r"\\()[]{}*+?|^$"), *_literals(pattern)]
    return list(dict.fromkeys((*_USUAL_UNITS, *own[:_MAX_OWN_UNITS])))


def _literals(pattern: str) -> list[str]:
    return list(dict.fromkeys(re.findall(r"(?<![\\(?A-Za-z0-9_:#@-])[A-Za-z0-9_:#@-]{1,40}", pattern)))
