"""Which instrumentations send spans that no dialect reads, so that their requests are answered with a message."""

import time
from collections.abc import Callable, Iterable
from typing import Final

from tracejudge.dialects import Dialects
from tracejudge.dialects.unread import ADVICE, Unread, shown_scope, unread_names

_MOST: Final = 1_000
_EXAMINED: Final = 200  # Spans of an instrumentation without any name like those of a model's call.


class Instrumentations:
    """The instrumentations of one process. Safe to share between threads."""

    def __init__(self, dialects: Dialects, clock: Callable[[], float] = time.monotonic) -> None:
        self.dialects = dialects
        self._clock = clock
        self._examined: dict[str, int] = {}  # How many spans to examine yet; none of one that a dialect reads.
        self._next_s: dict[str, float] = {}

    def is_open(self, scope: str) -> bool:
        """Return whether the spans of an instrumentation are to be examined."""
        return self._examined.get(scope, 1) > 0

    def examine(self, scope: str, keys: Iterable[str]) -> Unread | None:
        """Describe a span that no dialect reads, if its attributes are like those of a model's call."""
        left = self._examined.get(scope, _EXAMINED)
        names = tuple(keys)
        if any(map(self.dialects.is_read, names)):
            left = 0
        kind = None if left == 0 else Unread(scope, unread_names(names, self.dialects), 1)
        is_like_call = kind is not None and kind.is_like_call
        if len(self._examined) < _MOST or scope in self._examined:
            self._examined[scope] = left if is_like_call else left - 1 if left else 0
        return kind if is_like_call else None

    def message(self, kinds: Iterable[Unread]) -> str:
        """Return the message about these spans, for each instrumentation at most once a minute."""
        now = self._clock()
        parts = []
        for kind in kinds:
            if self.is_open(kind.scope) and now >= self._next_s.get(kind.scope, now):
                if len(self._next_s) < _MOST:
                    self._next_s[kind.scope] = now + 60.0
                parts.append(f"no dialect reads the spans of {shown_scope(kind.scope)!r} with {', '.join(kind.names)}")
        return f"{'; '.join(parts)}; {ADVICE}" if parts else ""
