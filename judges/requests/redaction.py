"""Redaction of personal data and secrets by `[redact]`.

Texts are redacted before they leave the worker: to a judge model, or with explanations on a span.

Services in other languages bypass the SDK, and its built-in set is optional; so the worker has the same set, over the
same fields of a trace. User patterns may be slow on hostile texts, and Python's `re` holds the interpreter while it
searches. So long texts are searched window by window: a quadratic search is quadratic in a window only, and other
threads run in between. Patterns that are slow even in a window are refused at the start.
"""

import re
import time
from collections.abc import Callable
from typing import Final, NamedTuple, Self

import msgspec
from msgspec import Struct

from tracejudge import Trace
from tracejudge.content.redact import redact_record, redact_secrets

MAX_MATCH_CHARS: Final = 1_024  # The longest match that is always found.
WINDOW_CHARS: Final = 2 * MAX_MATCH_CHARS
_MAX_PATTERN_CHARS: Final = 1_000
_MAX_SECONDS: Final = 0.5
# Growth of the next text, by the seconds of the last: where a time is exponential, no step may hang the start.
_GROWTH: Final = ((0.001, 1.5), (0.02, 1.25), (_MAX_SECONDS, 1.1))
_USUAL_UNITS: Final = ("a", "A", "0", " ", "-", ".", "@", "a0", "a ")
_END: Final = "\x00"


class Redact(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`[redact]`: what is redacted in texts before a judge model, or a span with explanations, gets them.

    Attributes:
        builtin: Redact keys and tokens of well-known providers, private keys, passwords in URLs, e-mail addresses,
            card numbers, IBANs.
        patterns: Python regular expressions; matches of up to 1,024 characters are replaced. A pattern that could run
            away on a hostile text is an error at the start.
        sign: The replacement of a match.
    """

    builtin: bool = False
    patterns: tuple[str, ...] = ()
    sign: str = "[redacted]"


class Redaction(NamedTuple):
    """The redacting functions of one configuration, in their order."""

    functions: tuple[Callable[[str], str], ...]

    @classmethod
    def from_settings(cls, settings: Redact) -> Self | None:
        """Build the redaction of the settings; None where they ask for none."""
        functions: list[Callable[[str], str]] = [redact_secrets] if settings.builtin else []
        functions += [_replacing(re.compile(pattern), settings.sign) for pattern in settings.patterns]
        return cls(tuple(functions)) if functions else None

    def trace(self, trace: Trace) -> Trace:
        """Redact every text of a trace that may be content, as the SDK does."""
        record = msgspec.to_builtins(trace)
        redact_record(record, self.functions)
        return msgspec.convert(record, Trace)

    def text(self, text: str) -> str:
        """Redact one text."""
        for function in self.functions:
            text = function(text)
        return text


def _replacing(pattern: re.Pattern[str], sign: str) -> Callable[[str], str]:
    def replace(text: str) -> str:
        parts: list[str] = []
        done = start = 0
        while start < len(text):
            end, middle = start + WINDOW_CHARS, start + MAX_MATCH_CHARS
            match = pattern.search(text, start, end)
            if match is None or (match.start() >= middle and end < len(text)):
                # A match in the first half was seen whole; a later one may continue behind the window.
                start = middle
                continue
            if match.end() > match.start():
                parts += (text[done : match.start()], sign)
                done = match.end()
            start = max(match.end(), match.start() + 1)
        return "".join((*parts, text[done:]))

    return replace


def pattern_fault(pattern: str, clock: Callable[[], float] = time.thread_time) -> str | None:
    """Describe what is wrong with a pattern, without quoting it; None if nothing. ``clock`` counts seconds of work."""
    if len(pattern) > _MAX_PATTERN_CHARS:
        return f"is longer than {_MAX_PATTERN_CHARS} characters; make several of it"
    try:
        compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        position = getattr(error, "pos", None)
        where = "" if position is None else f" at character {position + 1}"
        return f"is no regular expression: {getattr(error, 'msg', 'too large')}{where}; fix it there"
    if compiled.search("") is not None:
        return "matches an empty text; let it ask for at least one character"
    literals = list(dict.fromkeys(re.findall(r"(?<![\\(?A-Za-z0-9_:#@-])[A-Za-z0-9_:#@-]{1,40}", pattern)))
    # How a text begins, and what is repeated in it, so that a repeat of the pattern may run away.
    starts = ["", *sorted(literals, key=len, reverse=True)[:2]]
    own = [*dict.fromkeys(sign for sign in pattern if sign not in r"\\()[]{}*+?|^$"), *literals]
    units = dict.fromkeys((*_USUAL_UNITS, *own[:10]))
    if any(_is_slow(compiled, (start, unit), clock) for start in starts for unit in units):
        return "takes too long on some texts; take a repeat out of another, as (a+)+, or one of two side by side"
    return None


def _is_slow(pattern: re.Pattern[str], text: tuple[str, str], clock: Callable[[], float]) -> bool:
    start, unit = text
    size = 12
    while True:
        hostile = f"{start}{unit * (size // len(unit))}{_END}"
        begun_s = clock()
        pattern.search(hostile)
        seconds = clock() - begun_s
        if seconds > _MAX_SECONDS or size == WINDOW_CHARS:
            return seconds > _MAX_SECONDS
        factor = next(factor for below, factor in _GROWTH if seconds <= below)
        size = min(WINDOW_CHARS, max(size + 1, int(size * factor)))
