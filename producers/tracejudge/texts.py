"""Where the texts of a record are: one walk over its JSON for what withholds, redacts and cuts them.

A record is walked as it travels: as the dict, lists and strings its JSON holds. So a host's own types, objects
given as dicts and fields nobody knows are all met in one form, and what is not named here as metadata is content.
"""

from collections.abc import Callable
from typing import Any, Final

TextChange = Callable[[str], str]
PairChange = Callable[[str, str], str]

CONTENT_FIELDS: Final = (
    "input",
    "output",
    "messages",
    "context",
    "expected_response",
    "expected_facts",
    "guidelines",
    "tool_calls",
    "spans",
    "error",
    "feedback",
    "tags",
    "comment",
)
"""The fields of a trace, and of late feedback, that may hold content; all others are metadata."""

METADATA: Final = {
    "messages": frozenset({"role"}),
    "context": frozenset({"id", "score"}),
    "tool_calls": frozenset({"name"}),
    "spans": frozenset({"span_id", "parent_id", "name", "kind", "started_at", "ended_at"}),
    "feedback": frozenset({"score"}),
}
"""Keys within a field's objects that are metadata; every other key of theirs is content."""

_MAX_DEPTH: Final = 64
_TOO_DEEP: Final = "[... nested too deep, cut]"


def change_texts(record: dict[str, Any], change: TextChange, change_pair: PairChange | None = None) -> None:
    """Put every text that may be content through a function, in place.

    Keys of free JSON (arguments, results, inputs, outputs, attributes) are texts as well. What is nested deeper
    than 64 levels is replaced by a mark: it must not pass unseen.

    Args:
        change: Takes a text and gives what stands in its place.
        change_pair: Takes a key and its text, where the key may say what the text is; else `change` does.
    """
    walk = _Walk(change, change_pair or (lambda _, text: change(text)))
    for field in CONTENT_FIELDS:
        if field in record:
            record[field] = walk.field(field, record[field])


class _Walk:
    """One walk with one pair of functions."""

    def __init__(self, change: TextChange, change_pair: PairChange) -> None:
        self._change = change
        self._change_pair = change_pair

    def field(self, name: str, value: Any) -> Any:
        """Change a field of a record: its objects key by key, for theirs are names and not texts."""
        kept = METADATA.get(name)
        if name == "tags" and isinstance(value, dict):
            return self._object(value, frozenset())
        if kept is None:
            return self.json(value, 0)
        if isinstance(value, list):
            return [self._object(item, kept) if isinstance(item, dict) else self.json(item, 0) for item in value]
        return self._object(value, kept) if isinstance(value, dict) else self.json(value, 0)

    def json(self, value: Any, depth: int) -> Any:
        """Change any JSON: strings, and the keys of its dicts."""
        if isinstance(value, str):
            return self._change(value)
        if not isinstance(value, list | dict):
            return value
        if depth == _MAX_DEPTH:
            return _TOO_DEEP
        if isinstance(value, list):
            return [self.json(item, depth + 1) for item in value]
        return self._free_object(value, depth)

    def _object(self, fields: dict[str, Any], kept: frozenset[str]) -> dict[str, Any]:
        # A kept key that holds no plain value is not the metadata it seems.
        return {
            key: value if key in kept and not isinstance(value, list | dict) else self._entry(key, value, 0)
            for key, value in fields.items()
        }

    def _free_object(self, fields: dict[str, Any], depth: int) -> dict[str, Any]:
        changed: dict[str, Any] = {}
        for key, value in fields.items():
            name = self._change(key)
            if name in changed:  # two keys became one sign: neither value may be lost
                name = f"{name} {len(changed) + 1}"
            changed[name] = self._entry(key, value, depth + 1)
        return changed

    def _entry(self, key: str, value: Any, depth: int) -> Any:
        return self._change_pair(key, value) if isinstance(value, str) else self.json(value, depth)
