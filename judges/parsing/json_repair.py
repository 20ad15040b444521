"""Repair a broken JSON object if nothing is lost or invented.

Libraries for this always return something: they close what breaks off, take the first of several values and drop what
they cannot place. This reader forgives what loses nothing (other quotation marks, quotation marks inside a text, a
comma too many or too few, comments, bare words, doubled braces, a missing last brace) and fails if anything could be
lost or added.
"""

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

_MAX_DEPTH: Final = 20
_CLOSERS: Final[Mapping[str, str]] = {'"': '"', "'": "'", "\u201c": "\u201d\u201c", "\u201e": "\u201c\u201d"}
_GAP: Final = re.compile(r"(?:\s+|//[^\n]*|#[^\n]*|/\*.*?\*/)*", re.DOTALL)
_END: Final = re.compile(r"\s*(?:```\s*)?\Z")
_AFTER_KEY: Final = re.compile(r"\s*:")
_CLOSING: Final = r"[}\]]|//|#|/\*|(?:```\s*)?\Z"
_NEXT_KEY: Final = r"[ \t]*\n\s*[\"'\u201c]\w+[\"'\u201d]\s*:"
_AFTER_TEXT: Final = re.compile(rf"\s*(?:,|{_CLOSING})|{_NEXT_KEY}")
# A list has no keys by which the loss of an item would show, so a text in it holds no quotation marks.
_AFTER_ITEM: Final = re.compile(r"\s*(?:[,\]]|//|#|/\*)")
# A comma ends a text only before a key: `called "Meteor", so` goes on.
_BEFORE_KEY: Final = re.compile(rf"\s*(?:,\s*(?:[\"'\u201c\u201e]|\w+\s*:|{_CLOSING})|{_CLOSING})|{_NEXT_KEY}")
_BARE_KEY: Final = re.compile(r"(\w+)\s*:")
_BARE_VALUE: Final = re.compile(r"(?!(?i:nan|infinity)\b)[^,{}\[\]\"\n/#]+(?=[,}\]\n/#])")
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]{1,18})?(?:\.[0-9]{1,18})?(?<=\d)")
_ESCAPE: Final = re.compile(r"""\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|\\'|[\\"]""")
# What JSON has for signs within a text that are no escape of it, such as a backslash of LaTeX.
_QUOTED: Final[Mapping[str, str]] = {"\\'": "'", "\\": "\\\\", '"': '\\"'}
_LITERALS: Final[Mapping[str, object]] = {"true": True, "false": False, "null": None, "none": None}


class Repaired(NamedTuple):
    """A repaired object and the position of its end."""

    value: dict[str, object]
    end: int


class UnrepairableError(ValueError):
    """The object cannot be read without a guess."""

    def __init__(self, position: int | None) -> None:
        super().__init__("an object that cannot be read without a guess")
        # The end of the part with a clear structure; None if a text broke, to which what follows may belong.
        self.position = position


def repair_json(text: str, start: int) -> Repaired:
    """Repair the broken object that starts at a position; raises ``UnrepairableError``."""
    try:
        return Repaired(*_Reader(text, _AFTER_TEXT).mapping(start, 1))
    except UnrepairableError as error:
        with suppress(UnrepairableError):
            return Repaired(*_Reader(text, _BEFORE_KEY).mapping(start, 1))
        raise error from None


class _Reader:
    """Parser of JSON with small errors; every method returns a value and the position after it."""

    def __init__(self, text: str, after_value: re.Pattern[str]) -> None:
        self.text = text
        self._after_value = after_value

    def mapping(self, start: int, depth: int) -> tuple[dict[str, object], int]:
        fields: dict[str, object] = {}
        is_doubled = self._at(start + 1, "{")  # Models copy doubled braces from templates.
        position = self._gap(start + 1 + is_doubled)
        while not self._at(position, "}"):
            if depth == 1 and fields and not is_doubled and _END.match(self.text, position):
                return fields, position
            if self._at(position, *_CLOSERS):
                key, end = self._text(position, _AFTER_KEY)
            elif bare := _BARE_KEY.match(self.text, position):
                key, end = bare[1], bare.end(1)
            else:
                raise UnrepairableError(position)
            position = self._gap(end) + 1
            if key in fields:
                raise UnrepairableError(position)
            fields[key], position = self._value(self._gap(position), depth, self._after_value)
            position = self._separator(position)
        if is_doubled and not self._at(position + 1, "}"):
            raise UnrepairableError(position)
        return fields, position + 1 + is_doubled

    def _list(self, start: int, depth: int) -> tuple[list[object], int]:
        items: list[object] = []
        position = self._gap(start + 1)
        while not self._at(position, "]"):
            value, position = self._value(position, depth, _AFTER_ITEM)
            items.append(value)
            position = self._separator(position)
        return items, position + 1

    def _value(self, position: int, depth: int, after: re.Pattern[str]) -> tuple[object, int]:
        sign = self.text[position : position + 1]
        read: Callable[[int, int], tuple[object, int]] | None = {"{": self.mapping, "[": self._list}.get(sign)
        if read is not None:
            if depth >= _MAX_DEPTH:
                raise UnrepairableError(None)
            return read(position, depth + 1)
        if sign in _CLOSERS:
            return self._text(position, after)
        match = _BARE_VALUE.match(self.text, position)
        if match is None:
            raise UnrepairableError(None)
        word = match[0].strip()
        if word.casefold() in _LITERALS:
            return _LITERALS[word.casefold()], match.end()
        if word[:1].isalpha():
            return word, match.end()
        if _NUMBER.fullmatch(word) is None:
            raise UnrepairableError(match.end())
        return (float(word) if "." in word else int(word)), match.end()

    def _text(self, start: int, after: re.Pattern[str]) -> tuple[str, int]:
        """Read a text up to the first quotation mark that is followed by a part of the structure."""
        closers = _CLOSERS[self.text[start]]
        for mark in re.compile(rf"\\.|[{closers}]", re.DOTALL).finditer(self.text, start + 1):
            if mark[0][0] == "\\":
                continue
            if after.match(self.text, mark.end()):
                raw = self.text[start + 1 : mark.start()]
                if re.search(rf"(?<!\\)[{closers}][\s,]*[{closers}]", raw):
                    # Perhaps the end of one text and the beginning of the next.
                    break
                if "\\" in raw:
                    quoted = _ESCAPE.sub(lambda sign: _QUOTED.get(sign[0], sign[0]), raw)
                    raw = str(json.loads(f'"{quoted}"', strict=False))
                return raw, mark.end()
            if after in {_AFTER_KEY, _AFTER_ITEM} or _AFTER_KEY.match(self.text, mark.end()):
                # A key inside a text: it may be quoted by the text, or continue the answer.
                raise UnrepairableError(None)
        raise UnrepairableError(None)

    def _separator(self, position: int) -> int:
        """Skip one comma, which may be missing: the next key is unmistakable."""
        position = self._gap(position)
        return self._gap(position + 1) if self._at(position, ",") else position

    def _gap(self, position: int) -> int:
        gap = _GAP.match(self.text, position)
        return gap.end() if gap else position

    def _at(self, position: int, *signs: str) -> bool:
        return self.text[position : position + 1] in signs
