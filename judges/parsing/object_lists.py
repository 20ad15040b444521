"""Read an answer of several objects: JSON lines, an array, or an object with the list."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Final

import msgspec

from judges.parsing.answer import InvalidAnswerError, check_length, refuse_echo
from judges.parsing.json_repair import UnrepairableError, repair_json
from judges.parsing.objects import DECODER, _Found

_LINES: Final = msgspec.json.Decoder()
_MAX_REPAIRED_CHARS: Final = 64_000
# For all repaired lines of an answer: the time of a repair is quadratic in the number of opening brackets.
_MAX_REPAIRED_OPENINGS: Final = 300
_OPENING: Final = re.compile(
    r"""\{(?=\s*(?:["'\u201c\u201e}]|//|/\*))|^[ \t]*+(?:(?:[-*,]|\d+\.)[ \t]*+)?\{""", re.MULTILINE
)
_NEXT_LINE: Final = re.compile(r"\n[ \t]*+(?:[\[,]\s*+)?\{")


def read_objects(
    text: str, keys: Sequence[str], list_key: str, *, last_key: str | None = None, labels: Sequence[str] = ()
) -> tuple[Mapping[str, object], ...]:
    """Return all objects of an answer, in order.

    Args:
        text: A model's answer, of any length and content.
        keys: Keys that every object must have.
        list_key: Key of the list of objects, for an answer that is one object.
        labels: Words that tell a line of the answer from prose: a line with one that is no object is an error.
        last_key: An optional key, but required of a repaired object, which may have broken off before it.

    Raises:
        InvalidAnswerError: There is no object, or one of them cannot be read or lacks a key.
    """
    check_length(text)
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
            _refuse_repeated(text, found, len(within), key)
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
    """Match lines that were meant as answers: an array, the rest of an object, or a line with a label."""
    words = (rf"\b{re.escape(label)}\b" for label in labels)
    return re.compile("|".join((r"^[ \t]*(?:\[(?!\s*(?:\]|\Z))|\{)", *words)), re.IGNORECASE | re.MULTILINE)


def _whole(text: str) -> list[_Found]:
    """Read a text that is entirely JSON or JSON lines."""
    try:
        values = _LINES.decode_lines(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return []
    value = values[0] if len(values) == 1 else values
    # Several values that are not all objects: some text between them happens to be JSON.
    is_answer = isinstance(value, dict | list) and (len(values) == 1 or all(isinstance(each, dict) for each in values))
    return [_Found(value, 0, len(text))] if is_answer else []


def _values_within(text: str) -> Iterator[_Found]:
    """Yield the outermost objects of a text that has other text around or between them."""
    position, chars, openings = 0, 0, 0
    while (opening := _OPENING.search(text, position)) is not None:
        start = opening.end() - 1
        is_whole = True
        try:
            value, position = DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            value, position = _repaired_at(text, start)
            is_whole = False
            chars += position - start
            openings += sum(text.count(sign, start, position) for sign in "{[(")
        if chars > _MAX_REPAIRED_CHARS or openings > _MAX_REPAIRED_OPENINGS:
            raise InvalidAnswerError("too much of the answer is no JSON")
        yield _Found(value, start, position, is_whole)


def _repaired_at(text: str, start: int) -> tuple[object, int]:
    """Repair an object that ends with its line, or else one that spans several lines."""
    following = _NEXT_LINE.search(text, start)
    if following is not None:
        try:
            value, length = repair_json(text[start : following.start()], 0)
        except UnrepairableError:
            pass
        else:
            return value, start + length
    try:
        return repair_json(text, start)
    except UnrepairableError as error:
        raise InvalidAnswerError("an object of the answer cannot be read") from error


def _objects_of(value: object, list_key: str) -> Sequence[Mapping[str, object]]:
    """Return the objects of an array, or of the list in which one object holds them."""
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


def _refuse_repeated(text: str, found: _Found, count: int, key: str) -> None:
    """Refuse a value that contains a key more often than objects: one object has swallowed another."""
    name = f'"{key}"'
    # Counting is cheap, and exact unless a text quotes the key.
    if text.count(name, found.start, found.end) <= count:
        return
    written = re.compile(rf"{re.escape(name)}\s*:").findall(text, found.start, found.end)
    if len(written) > count:
        raise InvalidAnswerError(f"an object of the answer has several `{key}`")


def _refuse_part(outside: str, keys: Sequence[str], lost_line: re.Pattern[str] | None) -> None:
    """Refuse text around the objects that contains a part of one, or repeats the material."""
    if lost_line is not None and lost_line.search(outside) is not None:
        raise InvalidAnswerError("a line of the answer is no object")
    names = "|".join(map(re.escape, keys))
    if re.search(rf"""["'\u201c\u201e](?:{names})["'\u201c\u201d]\s*:""", outside):
        raise InvalidAnswerError("a part of the answer stands outside of every object")
    refuse_echo(outside)
