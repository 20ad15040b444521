"""Parse the answers of judge models strictly: no guess, no clamping, and a clear reason for each failure.

An answer is read as JSON, then without the fences and prose around it, then repaired by ``judges.parsing.json_repair``,
which neither loses nor invents anything. Of several complete answers the last one counts. An answer that can be read
but is off the scale is an ``OutOfRangeError`` and is not requested again: a second answer would be a second opinion.
"""

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import msgspec

from judges.core.prompt import MATERIAL_RULES
from judges.parsing.json_repair import UnrepairableError, repair_json

MAX_ANSWER_CHARS: Final = 400_000  # No judge's answer is longer; parsing a longer text would only cost time.
# Maximum number of objects to repair in one answer: thousands would block every other evaluation.
_MAX_BROKEN: Final = 100
_CLOSED: Final = re.compile(r"\}[ \t]*(?=\n)")
_RULES_HEADING: Final = MATERIAL_RULES.partition("\n")[0]
_MARK: Final = re.compile(rf"<<(?:end )?\w[\w ]{{0,60}} [0-9a-f]{{12}}>>|{_RULES_HEADING}")
_THINKING: Final = re.compile(r"\s*<(think|thinking)>")
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,300}(?:\.[0-9]{1,300})?")
_LINES: Final = msgspec.json.Decoder()
_MAX_REPAIRED_CHARS: Final = 64_000
# For all repaired lines of an answer: the time of a repair is quadratic in the number of opening brackets.
_MAX_REPAIRED_OPENINGS: Final = 300
_OPENING: Final = re.compile(
    r"""\{(?=\s*(?:["'\u201c\u201e}]|//|/\*))|^[ \t]*+(?:(?:[-*,]|\d+\.)[ \t]*+)?\{""", re.MULTILINE
)
_NEXT_LINE: Final = re.compile(r"\n[ \t]*+(?:[\[,]\s*+)?\{")


class AnswerError(ValueError):
    """The answer of the judge model gives no score. The message names keys and forms, never texts of the trace.

    AnswerError
    ├── InvalidAnswerError   unreadable, a missing key, a wrong type: one repair request may follow
    └── OutOfRangeError      readable, but not one of the values offered: final
    """


class InvalidAnswerError(AnswerError):
    """The answer cannot be read in the requested form."""


class OutOfRangeError(AnswerError):
    """The answer can be read, but its value was not offered."""


def object_schema(properties: Mapping[str, object]) -> Mapping[str, object]:
    """Build the JSON schema of an object with exactly these properties."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def decode_json(text: str) -> object:
    """Decode a JSON text; None if it is invalid."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None


def read_object(text: str, keys: Sequence[str]) -> Mapping[str, object]:
    """Return the one answer object in a model's text, of any length and content.

    Raises:
        InvalidAnswerError: The text has no object with all of ``keys``, or more than one interpretation: the last
            object breaks off or lacks a key, or an answer continues outside of it.
    """
    if len(text) > MAX_ANSWER_CHARS:
        raise InvalidAnswerError(f"the answer is longer than {MAX_ANSWER_CHARS} characters")
    whole = decode_json(text.strip())
    # The decoder takes the last of repeated keys, which need not be the right one.
    if isinstance(whole, dict) and _has(whole, keys) and all(text.count(f'"{key}"') <= 1 for key in keys):
        return whole
    answer = _last_answer(text, keys)
    if answer is None:
        raise InvalidAnswerError(f"no JSON object with the keys {', '.join(keys)}")
    return answer


def refuse_echo(text: str) -> None:
    """Raise ``InvalidAnswerError`` for a text with a mark of the material, with any key, or the heading of its rules.

    Verdicts in a text that repeats its request come from the material or from the examples.
    """
    if ("<<" in text or _RULES_HEADING in text) and _MARK.search(text) is not None:
        raise InvalidAnswerError("the answer repeats the request")


def without_thinking(text: str) -> str:
    """Remove the reasoning that some models write between `<think>` and `</think>` before their answer.

    Raises ``InvalidAnswerError`` if it is not closed, so that there is no answer yet.
    """
    opening = _THINKING.match(text)
    if opening is None:
        return text
    _, closing, answer = text.partition(f"</{opening[1]}>")
    if not closing:
        raise InvalidAnswerError("the answer never ends its thinking")
    return answer


def text_field(answer: Mapping[str, object], key: str) -> str:
    """Return a text of an answer; raises ``InvalidAnswerError`` for another type."""
    value = answer[key]
    if not isinstance(value, str):
        raise InvalidAnswerError(f"`{key}` is not a text")
    return encodable(value)


def choice(answer: Mapping[str, object], key: str, menu: Sequence[str], separator: str = "|") -> str:
    """Return a label of an answer, folded. The labels of the menu are folded, and ``separator`` stands between them.

    Raises:
        InvalidAnswerError: The value is no string, empty, or the menu itself.
        OutOfRangeError: The label is not on the menu.
    """
    label = folded(text_field(answer, key))
    if not label:
        # A repaired answer that broke off, not a choice of the model.
        raise InvalidAnswerError(f"`{key}` is empty")
    if label in menu:
        return label
    if separator in label:
        raise InvalidAnswerError(f"`{key}` is the menu, not a choice")
    raise OutOfRangeError(f"`{key}` is none of {', '.join(menu)}")


def folded(label: str) -> str:
    """Normalise a label: case, surrounding blanks and a final full stop do not count."""
    return unicodedata.normalize("NFC", label).strip().removesuffix(".").rstrip().casefold()


def rating(answer: Mapping[str, object], key: str, lowest: int, highest: int) -> int:
    """Return a whole number of an answer: 4, 4.0, or its digits in a string.

    Raises:
        InvalidAnswerError: The value is no number.
        OutOfRangeError: It is a fraction, or off the scale.
    """
    value = answer[key]
    if isinstance(value, str):
        digits = value.strip().removesuffix(".")
        if _NUMBER.fullmatch(digits) is None:
            raise InvalidAnswerError(f"`{key}` is not a number")
        value = float(digits)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidAnswerError(f"`{key}` is not a number")
    if not lowest <= value <= highest or value != int(value):
        raise OutOfRangeError(f"`{key}` is no whole number from {lowest} to {highest}")
    return int(value)


def truth(answer: Mapping[str, object], key: str) -> bool:
    """Return a boolean of an answer, also from a string in any case; raises ``InvalidAnswerError``."""
    value = answer[key]
    if isinstance(value, str):
        value = {"true": True, "false": False}.get(value.strip().removesuffix(".").rstrip().casefold())
    if not isinstance(value, bool):
        raise InvalidAnswerError(f"`{key}` is neither true nor false")
    return value


def text_list(answer: Mapping[str, object], key: str) -> tuple[str, ...]:
    """Return a list of texts of an answer; raises ``InvalidAnswerError`` for another type."""
    value = answer[key]
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise InvalidAnswerError(f"`{key}` is not a list of texts")
    return tuple(encodable(item) for item in value)


def encodable(text: str) -> str:
    """Replace lone surrogates, which JSON escapes may contain: a verdict with one could not be encoded."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _has(value: Mapping[str, object], keys: Sequence[str]) -> bool:
    return all(key in value for key in keys)


def _last_answer(text: str, keys: Sequence[str]) -> Mapping[str, object] | None:
    """Return the last answer of a text that has other text around it; None if that answer cannot be read."""
    names = "|".join(map(re.escape, keys))
    opening = re.compile(rf"""\{{(?=\s*(?:["'\u201c\u201e}}]|//|/\*|(?:{names})\s*:))""")
    written = re.compile(rf"""[`\\"'\u201c\u201e](?:{names})[`\\"'\u201c\u201d]+\s*:""", re.IGNORECASE)
    plain = re.compile(rf"^[^\w\n]{{0,8}}(?:{names})[^\w\n]{{0,8}}:", re.IGNORECASE | re.MULTILINE)
    last, position, broken = None, 0, 0
    while (found := opening.search(text, position)) is not None:
        outside = text[position : found.start()]
        refuse_echo(outside)
        value, _, position, is_whole = _object_at(text, found.start())
        broken += not is_whole
        if broken > _MAX_BROKEN:
            return None
        if value is not None and _has(value, keys) and written.search(outside) is None:
            last = value
        elif value is None or written.search(text, found.start(), position) is not None:
            # A part of an answer, or an unreadable one: the answer before it may have been a draft.
            last = None
    refuse_echo(text[position:])
    # An answer that continues after the object makes it a draft, or a quotation inside a broken answer.
    continues = written.search(text, position) is not None or plain.search(text, position) is not None
    return None if continues else last


class _Found(NamedTuple):
    """A JSON value in a text, None if it cannot be read, and whether it was valid JSON without a repair."""

    value: Any
    start: int
    end: int
    is_whole: bool = True


def _object_at(text: str, start: int) -> _Found:
    """Read the object that starts at a position, as JSON or repaired."""
    try:
        value, end = _DECODER.raw_decode(text, start)
        return _Found(value, start, end)
    except (ValueError, RecursionError):
        pass
    try:
        repaired = repair_json(text, start)
        return _Found(repaired.value, start, repaired.end, is_whole=False)
    except UnrepairableError as error:
        # A line that ends with a closing brace ends a draft; otherwise all that follows may belong to it.
        closed = None if error.position is None else _CLOSED.search(text, error.position)
        return _Found(None, start, closed.end() if closed else len(text), is_whole=False)


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


def _each_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands twice")
    return found


_DECODER: Final = json.JSONDecoder(strict=False, parse_constant=_no_constant, object_pairs_hook=_each_once)


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
            value, position = _DECODER.raw_decode(text, start)
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
