"""Reports of unusable parts of entries: one warning for each reason and field, and the totals.

A warning names the field, the type and where `publish` was called; never a text of a trace.
"""

import logging
import re
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from tracejudge.content.field_names import closest_field
from tracejudge.dialects.documents import TEXTS
from tracejudge.log import log_guarded

if TYPE_CHECKING:
    from tracejudge.content.convert import Note

MAX_WARNINGS: Final = 20
SUMMARY_INTERVAL_S: Final = 3600.0
_SITES: Final = 200
_MAX_PAIRS: Final = 1_000
_MAX_SUMMARY: Final = 50
_MAX_NAME_CHARS: Final = 64
# A name of another form may be a text, because a service may pass any dict.
_NAME: Final = re.compile(rf"argument \d+|[^\W\d][\w.$@-]{{0,{_MAX_NAME_CHARS}}}")
_PACKAGE: Final = __file__.rpartition("delivery")[0]
_FAULTS: Final = {
    "unreadable": "cannot be read from a value of type {kind} and is left out{expected}",
    "no_text": "has an item of type {kind} without a text, which is left out; a text is read from {texts}",
    "unknown_name": "is no field and is sent as a tag",
    "too_many": "has too many names; the last {times:,} are left out",
    "second_name": "is another name of {hint}, which was given too; it is sent as a tag",
    "too_long": "is too long and is cut, with a hash at its end",
    "missing": "is missing: pass the answer as output, or the failure of the call as error",
}
_TIME: Final = "a number of seconds, a datetime or a text in ISO 8601"
_EXPECTED: Final = {
    "started_at": _TIME,
    "ended_at": _TIME,
    "input_tokens": "a number, 0 or more",
    "output_tokens": "a number, 0 or more",
    "usage": "input_tokens and output_tokens, both numbers",
    "feedback": "a number from -1 to 1",
    "tool_calls": "a list of calls, each with a name",
    "tools": "a list of tools, each with a name",
    "expected_tools": "a list of calls, each with a name",
    "spans": "a list of spans, each with a name",
    "messages": "a list of messages, each with a role and a content",
    "tags": "a dict of texts",
    "trace_id": "a non-empty string",
}
"""What a field is read from, for the warning that it could not be read; of other fields a text."""
_FIXES: Final = {
    "feedback.score": "scale a rating, as (stars - 3) / 2 for 1 to 5, or pass True or False for a thumb",
    "feedback.trace_id": "pass what publish returned",
}
_OF_TEXT: Final = "a text, a dict, a list, a model, or an object with public attributes"


class Reports:
    """Counts the notes by reason and field, and logs the first of each. Used by the sender thread and at the end."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.sites_left = _SITES
        """Calls of `publish` whose place is still recorded; recording it for every call would cost too much."""
        self._clock = clock
        self._counts: dict[tuple[str, str], int] = {}
        self._with_site: set[tuple[str, str]] = set()
        self._warnings = 0
        self._changed = False
        self._summary_at_s = clock() + SUMMARY_INTERVAL_S

    def add(self, notes: "Iterable[Note]", trace_id: str, site: str | None) -> None:
        """Count notes on one entry; warn of each pair once, and once more with the first known place of a call."""
        for note in notes:
            pair = (note.reason, note.field if _NAME.fullmatch(note.field) else "(another)")
            if pair not in self._counts and len(self._counts) >= _MAX_PAIRS:
                pair = (note.reason, "others")
            is_new = pair not in self._counts
            self._counts[pair] = self._counts.get(pair, 0) + note.times
            self._changed = True
            if is_new or (site is not None and pair not in self._with_site):
                self._warn(pair, note, trace_id, site)
            if site is not None:
                self._with_site.add(pair)
            elif is_new:
                self.sites_left = _SITES  # the next call with the same fault tells where it is

    def summarize(self, *, at_end: bool = False) -> None:
        """Log the totals, once an hour and at the end, if there are new ones."""
        now_s = self._clock()
        if not self._changed or not (at_end or now_s >= self._summary_at_s):
            return
        self._changed = False
        self._summary_at_s = now_s + SUMMARY_INTERVAL_S
        most = sorted(self._counts.copy().items(), key=lambda item: -item[1])
        counts = ", ".join(f"{reason} {field} {count}" for (reason, field), count in most[:_MAX_SUMMARY])
        counts += f" and {len(most) - _MAX_SUMMARY} more" if len(most) > _MAX_SUMMARY else ""
        log_guarded(logging.WARNING, "Faults of published traces since the start, by reason and field: %s", counts)

    def _warn(self, pair: tuple[str, str], note: "Note", trace_id: str, site: str | None) -> None:
        self._warnings += 1
        if self._warnings > MAX_WARNINGS:
            return
        kind = _printable(note.kind)
        if note.reason in {"empty", "invalid", "too_large", "redaction"}:
            reason = "invalid" if note.reason == "empty" else note.reason
            message = f"{note.field.partition('.')[0].capitalize()} dropped: {reason} ({kind or 'it has no content'})"
            message += f"; {_FIXES[note.field]}" if note.field in _FIXES else ""
        else:
            expected = f"; it is read from {_EXPECTED.get(note.field.rpartition('.')[2], _OF_TEXT)}"
            values = {"kind": kind, "hint": note.hint, "expected": expected, "texts": ", ".join(TEXTS)}
            message = f"Field {pair[1]} {_FAULTS[note.reason].format(**values, times=note.times)}"
            if note.reason == "unknown_name" and (close := closest_field(note.field[:_MAX_NAME_CHARS])):
                message += f"; did you mean {close}?"
        message += f"; trace id {_printable(trace_id)}" if trace_id else ""
        message += f"; published at {site}" if site else ""
        message += "; further faults are only counted" if self._warnings == MAX_WARNINGS else ""
        log_guarded(logging.WARNING, "%s", message)


def call_site() -> str | None:
    """Return file and line of the innermost caller outside of this package; None in a thread of its own."""
    frame = sys._getframe(1)  # noqa: SLF001 - the documented way without the cost of `inspect`
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        if frame.f_globals.get("__name__", "").startswith("tracejudge.otel"):
            return None
        frame = frame.f_back  # type: ignore[assignment]
    return None if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _printable(text: str) -> str:
    shown = text if len(text) <= _MAX_NAME_CHARS else f"{text[:_MAX_NAME_CHARS]}..."
    return shown if shown.isprintable() else ascii(shown)[1:-1]
