"""Redaction before anything leaves the worker, as `[redact]` says: to a judge model, or with explanations on a span.

Services in other languages bypass the SDK, and its built-in set is on by choice; so the worker has the same set, over
the same fields of a trace. Patterns of one's own may be slow on texts somebody made for that, and Python's `re`
holds the interpreter while it searches. So long texts are searched window by window: a search that is quadratic in
its text stays quadratic in a window only, and other threads have their turn in between. What even a window
cannot bound, the configuration's check refuses.
"""

import re
from collections.abc import Callable, Sequence
from typing import Final, Self

import msgspec

from tracejudge import Trace
from tracejudge.redaction import redact_record, redact_secrets
from worker.settings import Redact

__all__ = ["MAX_MATCH_CHARS", "WINDOW_CHARS", "Redaction"]

MAX_MATCH_CHARS: Final = 1_024
"""The longest match that is surely found."""
WINDOW_CHARS: Final = 2 * MAX_MATCH_CHARS


class Redaction:
    """The functions of one configuration, applied to traces and texts."""

    def __init__(self, functions: Sequence[Callable[[str], str]]) -> None:
        """Take the functions, in their order."""
        self._functions = tuple(functions)

    @classmethod
    def of(cls, settings: Redact) -> Self | None:
        """Make what the settings ask for; None where they ask for nothing."""
        functions: list[Callable[[str], str]] = [redact_secrets] if settings.builtin else []
        functions += [_replacing(re.compile(pattern), settings.sign) for pattern in settings.patterns]
        return cls(functions) if functions else None

    def trace(self, trace: Trace) -> Trace:
        """Redact every text of a trace that may be content, as the SDK does."""
        record = msgspec.to_builtins(trace)
        redact_record(record, self._functions)
        return msgspec.convert(record, Trace)

    def text(self, text: str) -> str:
        """Redact one text."""
        for function in self._functions:
            text = function(text)
        return text


def _replacing(pattern: re.Pattern[str], sign: str) -> Callable[[str], str]:
    def replace(text: str) -> str:
        parts: list[str] = []
        done = start = 0
        while start < len(text):
            end, middle = start + WINDOW_CHARS, start + MAX_MATCH_CHARS
            found = pattern.search(text, start, end)
            if found is None or (found.start() >= middle and end < len(text)):
                # What begins in the first half was seen whole; what begins later may go on behind the window.
                start = middle
                continue
            if found.end() > found.start():
                parts += (text[done : found.start()], sign)
                done = found.end()
            start = max(found.end(), found.start() + 1)
        return "".join((*parts, text[done:]))

    return replace
