"""Read an answer of many objects: one a line, one array, or one object that holds them in a list.

All objects of a text are one answer, whatever stands around them. None may be lost on the way: a line that cannot be
read might be the one that matters. So an object that cannot be read or repaired, one that lacks a key, and a key
that stands outside of every object each make the whole answer invalid.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Final, NamedTuple

import msgspec

from judges.answer import DECODER, MAX_ANSWER_CHARS, InvalidAnswerError, refuse_echo
from judges.mending import UnmendableError, mend

__all__ = ["read_objects"]

_LINES: Final = msgspec.json.Decoder()
_MAX_MENDED_CHARS: Final = 64_000
_MAX_MENDED_OPENINGS: Final = 300
"""Of all lines of an answer that need a repair: its time grows with the square of what is opened."""
_OPENING: Final = re.compile(
    r"""\{(?=\s*(?:["'\u201c\u201e}]|//|/\*))|^[ \t]*+(?:(?:[-*,]|\d+\.)[ \t]*+)?\{""", re.MULTILINE
)
_FLAGS: Final = re.IGNORECASE | re.MULTILINE
_NEXT_LINE: Final = re.compile(r"\n[ \t]*+(?:[\[,]\s*+)?\{")


class _Found(NamedTuple):
    """A JSON value, where it stands in the text, and whether it is read as it stands there."""

    value: object
    start: int
    end: int
    is_whole: bool = True


def read_objects(
    text: str, keys: Sequence[str], list_key: str, *, last_key: str | None = None, labels: Sequence[str] = ()
) -> tuple[Mapping[str, object], ...]:
    """Find all objects of an answer, in order.

    Args:
        text: What the model answered, of any length and content.
        keys: The keys every object must have; the first of them tells objects from other text.
        list_key: The key of the list that holds the objects where the answer is one object.
        labels: Words by which a line that is no object is told from prose: what holds one is a lost line.
        last_key: A key that may be left out, but not of an object that needs a repair: it may have broken off there.

    Raises:
        InvalidAnswerError: There is no object, or not every one can be read and has all the keys.
    """
    if len(text) > MAX_ANSWER_CHARS:
        raise InvalidAnswerError(f"the answer is longer than {MAX_ANSWER_CHARS} characters")
    outside_keys = (*keys, list_key, *((last_key,) if last_key else ()))
    objects: list[Mapping[str, object]] = []
    lost_line = _lost_line(tuple(labels))
    position = 0
    for found in _whole(text) or _values_within(text):
        _refuse_part(text[position : found.start], outside_keys, lost_line if objects else None)
        within = _objects_of(found.value, list_key)
        if not found.is_whole and last_key is not None and not all(last_key in each for each in within):
            raise InvalidAnswerError(f"an object that is no JSON has no `{last_key}`")
        for key in outside_keys:
            _refuse_lost(text, found, len(within), key)
        objects += within
        position = found.end
    _refuse_part(text[position:], outside_keys, lost_line if objects else None)
    if not objects:
        raise InvalidAnswerError(f"no JSON object with the keys {', '.join(keys)}")
    for number, each in enumerate(objects, 1):
        for key in keys:
            if key not in each:
                raise InvalidAnswerError(f"object {number} has no `{key}`")
    return tuple(objects)


@cache
def _lost_line(labels: tuple[str, ...]) -> re.Pattern[str]:
    """Tell lines that were to be an answer from prose: an array or the rest of an object, or one with a label."""
    words = (rf"\b{re.escape(label)}\b" for label in labels)
    return re.compile("|".join((r"^[ \t]*(?:\[(?!\s*(?:\]|\Z))|\{)", *words)), _FLAGS)


def _whole(text: str) -> list[_Found]:
    """Read a text that is JSON, or JSON lines, from its first character to its last."""
    try:
        values = _LINES.decode_lines(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return []
    value = values[0] if len(values) == 1 else values
    # Several values that are not all objects: there is something between them that happens to be JSON.
    is_answer = isinstance(value, dict | list) and (len(values) == 1 or all(isinstance(each, dict) for each in values))
    return [_Found(value, 0, len(text))] if is_answer else []


def _values_within(text: str) -> Iterator[_Found]:
    """Yield the objects of a text that has something around or between them, outermost ones only."""
    position, chars, openings = 0, 0, 0
    while (opening := _OPENING.search(text, position)) is not None:
        start = opening.end() - 1
        is_whole = True
        try:
            value, position = DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            value, position = _mended(text, start)
            is_whole = False
            chars += position - start
            openings += sum(text.count(sign, start, position) for sign in "{[(")
        if chars > _MAX_MENDED_CHARS or openings > _MAX_MENDED_OPENINGS:
            raise InvalidAnswerError("too much of the answer is no JSON")
        yield _Found(value, start, position, is_whole)


def _mended(text: str, start: int) -> tuple[object, int]:
    """Repair an object that ends with its line, else one that runs over several lines."""
    following = _NEXT_LINE.search(text, start)
    if following is not None:
        try:
            value, length = mend(text[start : following.start()], 0)
        except UnmendableError:
            pass
        else:
            return value, start + length
    try:
        return mend(text, start)
    except UnmendableError as error:
        raise InvalidAnswerError("an object of the answer cannot be read") from error


def _objects_of(value: object, list_key: str) -> Sequence[Mapping[str, object]]:
    """Take the objects out of an array, or out of the list in which one object holds them."""
    if isinstance(value, dict):
        if list_key not in value:
            return (value,)
        value = value[list_key]
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise InvalidAnswerError("the answer holds something else than a list of objects")
    items = [item for item in value if list_key in item]
    if items and len(items) == len(value):
        return [each for item in items for each in _objects_of(item, list_key)]
    return value


def _refuse_lost(text: str, found: _Found, count: int, key: str) -> None:
    """Refuse a value in which the key stands more often than it has objects: one object has swallowed another."""
    name = f'"{key}"'
    # Counting is cheap, and right but for the rare text that quotes the key.
    if text.count(name, found.start, found.end) <= count:
        return
    written = re.compile(rf"{re.escape(name)}\s*:").findall(text, found.start, found.end)
    if len(written) > count:
        raise InvalidAnswerError(f"an object of the answer has several `{key}`")


def _refuse_part(outside: str, keys: Sequence[str], lost_line: re.Pattern[str] | None) -> None:
    """Refuse text around the objects that holds a part of one, or repeats the material."""
    if lost_line is not None and lost_line.search(outside) is not None:
        raise InvalidAnswerError("a line of the answer is no object")
    names = "|".join(map(re.escape, keys))
    if re.search(rf"""["'\u201c\u201e](?:{names})["'\u201c\u201d]\s*:""", outside):
        raise InvalidAnswerError("a part of the answer stands outside of every object")
    refuse_echo(outside)
