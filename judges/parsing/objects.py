"""Read the one answer of a text: an object with the keys as they were asked for, or what ``AnswerReader`` finds."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Final

from judges.parsing.answer import REASONS, check_length, decode_json
from judges.parsing.layouts import fold_key, layout, spelled
from judges.parsing.object_reader import AnswerReader, ReadValue

# Names that models write in place of the key of the verdict, or of its reasons.
_SYNONYMS: Final = (("score", "rating", "grade"), ("result", "verdict", "judgement", "judgment"), REASONS)
_MAX_DEPTH: Final = 5
# Keys of wrappers that hold an answer as JSON in a string: keys of tool calls, and any single key.
_TEXT_WRAPPERS: Final = ("arguments", "parameters")


def read_object(
    text: str,
    keys: Sequence[str],
    *,
    deciding: Sequence[str] = (),
    optional: Sequence[str] = (),
    entry_keys: Sequence[str] = (),
    value: ReadValue | None = None,
) -> Mapping[str, object]:
    """Return the one answer in a model's text, of any length and content, under the keys as they were asked for.

    ``InvalidAnswerError`` if the text has no answer with the keys, or more than one interpretation.

    Args:
        text: A model's answer, without its thoughts.
        keys: Keys of the answer. Case, and snake, camel or spaced form, do not count.
        deciding: Keys whose values must be equal in all answers of the text; all keys if not given.
        optional: Keys that may be missing.
        entry_keys: Keys of the objects in the lists of the answer.
        value: Reads the value under the one deciding key; then the verdict may also be a separate line.
    """
    check_length(text)
    form = _form(tuple(keys), tuple(deciding) or tuple(keys), tuple(optional), tuple(entry_keys))
    whole = decode_json(text.strip())
    # The decoder takes the last of repeated keys, which need not be the right one.
    if isinstance(whole, dict) and form.is_exact(whole) and all(text.count(f'"{key}"') <= 1 for key in keys):
        return whole
    if isinstance(whole, str):
        # JSON in a string.
        text = whole
    return AnswerReader(form, value, text).answer()


class Form:
    """The keys of an answer, and the patterns that find them."""

    def __init__(
        self, keys: tuple[str, ...], deciding: tuple[str, ...], optional: tuple[str, ...], entry_keys: tuple[str, ...]
    ) -> None:
        self.keys = keys
        self.deciding = deciding
        self.needed = tuple(key for key in keys if key not in optional)
        self.layout = layout(keys, deciding)
        self._entries = layout(entry_keys, ()) if entry_keys else None
        self._exact = frozenset(keys)
        groups = [(key, group) for key in keys for group in _SYNONYMS if key in group and len(deciding) == 1]
        names = [(whose + name, key) for key, group in groups for name in group for whose in ("", "final", "overall")]
        self.synonyms = {name: key for name, key in names if name not in keys}
        self.other_layout = layout(tuple(self.synonyms), tuple(self.synonyms))
        self._folded = frozenset((*map(fold_key, keys), *self.synonyms))
        forms, flags = spelled(keys), re.IGNORECASE | re.MULTILINE
        self.opening = re.compile(rf"""\{{(?=\s*(?:["'\u201c\u201e}}]|//|/\*|(?:{forms})\s*:))""", flags)
        # The beginning of an object with content; nothing behind it is a separate line.
        self.begun = re.compile(rf"""\{{\s*(?:["'\u201c\u201e]|//|/\*|(?:{forms})\s*:)""", flags)
        self.written = re.compile(rf"""[`\\"'\u201c\u201e](?:{forms})[`\\"'\u201c\u201d]+\s*:""", flags)
        self.plain = re.compile(rf"^[^\w\n]{{0,8}}(?:{forms})[^\w\n]{{0,8}}:", flags)
        self.without_brace = re.compile(rf'\s*"(?:{forms})"\s*:', flags)

    def is_exact(self, answer: Mapping[str, object]) -> bool:
        """Return whether an object has the keys as they were asked for, and no other key that means one."""
        if not all(key in answer for key in self.needed):
            return False
        if any(fold_key(key) in self._folded for key in answer.keys() - self._exact):
            return False
        if self._entries is None:
            return True
        entries = (each for value in answer.values() if isinstance(value, list) for each in value)
        return all(self._entries.keys <= each.keys() for each in entries if isinstance(each, dict))

    def answers_in(self, value: object, depth: int = 0) -> Iterator[Mapping[str, object]]:
        """Yield the answers that a JSON value is, or wraps."""
        if depth > _MAX_DEPTH:
            return
        if isinstance(value, list):
            for item in value:
                yield from self.answers_in(item, depth + 1)
        if not isinstance(value, dict):
            return
        if (answer := self._renamed(value)) is not None:
            yield answer
            return
        asked = [key for key in value if self.layout.key_of(key) is not None]
        for key, item in value.items():
            if key in asked and (len(asked) < len(value) or isinstance(item, str)):
                # The value of an incomplete answer, in which another one is quoted.
                continue
            yield from self.answers_in(unwrapped(key, item, alone=len(value) == 1), depth + 1)

    def _renamed(self, fields: Mapping[str, object]) -> Mapping[str, object] | None:
        """Return an object with its keys as they were asked for; None if one is missing or repeated."""
        answer = rename(fields, self.layout.key_of)
        if answer is not None:
            answer = {**{self.synonyms.get(fold_key(name), name): value for name, value in answer.items()}, **answer}
        if answer is None or not all(key in answer for key in self.needed):
            return None
        if self._entries is None:
            return answer
        key_of = self._entries.key_of
        return {
            key: [(rename(each, key_of) if isinstance(each, dict) else None) or each for each in value]
            if isinstance(value, list)
            else value
            for key, value in answer.items()
        }


_form = cache(Form)


def unwrapped(key: str, value: object, *, alone: bool) -> object:
    """Return the JSON in a text if a wrapper may hold its answer so, and other values as they are."""
    is_wrapper = isinstance(value, str) and (alone or key.casefold() in _TEXT_WRAPPERS)
    return decode_json(str(value)) if is_wrapper else value


def rename(fields: Mapping[str, object], key_of: Callable[[str], str | None]) -> dict[str, object] | None:
    """Rename the keys of an object; None if two of them are the same key."""
    renamed = {key_of(key) or key: value for key, value in fields.items()}
    return renamed if len(renamed) == len(fields) else None
