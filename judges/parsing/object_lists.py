"""Read an answer of several objects: JSON lines, an array, or an object with the list."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Final

import msgspec

from judges.parsing.answer import (
    InvalidAnswerError,
    check_length,
    decode_json,
    json_text,
    refuse_echo,
)
from judges.parsing.decoration import loose
from judges.parsing.layouts import grouped, layout, spelled
from judges.parsing.object_reader import JsonValue, object_at
from judges.parsing.objects import rename, unwrapped
from judges.parsing.withdrawal import is_withdrawn

_LINES: Final = msgspec.json.Decoder()
_BEGUN: Final = re.compile(r"""\{\s*["'\u201c\u201e]""")
# A closing sentence, which may name labels; a lost line about a sentence would quote it or list it.
_SENTENCE: Final = re.compile(r"""^[^\W\d_][^\n"\u201c:|\[\](){}]*\.[ \t]*$""", re.MULTILINE)
_SUMMARY: Final = re.compile(
    r"(?:in )?(?:summar|overall|total|final|conclusion|verdict|tally|count|zusammenfassung|insgesamt|gesamt|fazit"
    r"|r\u00e9sum\u00e9|bilan|resum|total|conclusi|conclus\u00e3o|итог|вывод|总|结论|まとめ|総合|सारांश|निष्कर्ष|الخلاصة|ملخص)",
    re.IGNORECASE,
)
_SUMMARY_LINE: Final = re.compile(rf"^[ \t*_#>-]*{_SUMMARY.pattern}[^\n{{}}]*\s*\Z", re.IGNORECASE | re.MULTILINE)
_MAX_DEPTH: Final = 5
_OPENING: Final = re.compile(
    r"""\{(?=\s*(?:["'\u201c\u201e}]|//|/\*))|^[ \t]*+(?:(?:[-*,]|\d+\.)[ \t]*+)?\{""", re.MULTILINE
)


def read_objects(
    text: str, keys: Sequence[str], list_key: str, *, last_key: str | None = None, labels: Sequence[str] = ()
) -> tuple[Mapping[str, object], ...]:
    """Return all objects of an answer, in order, or raise ``InvalidAnswerError``.

    Args:
        text: A model's answer, of any length and content.
        keys: Keys that every object must have, the last but one with a label; their form does not count.
        list_key: Key of the list of objects, for an answer that is one object.
        labels: Words that tell a line of the answer from prose: a line with one that is no object is an error.
        last_key: An optional key, but required of a repaired object, which may have broken off before it.
    """
    check_length(text)
    whole = decode_json(text.strip()) if text.lstrip().startswith('"') else None
    if isinstance(whole, str):
        # JSON in a string.
        text = whole
    form = _form(tuple(keys), list_key, last_key, tuple(labels))
    objects, summary = _objects(text, form)
    form.refuse_other_labels(summary, objects)
    if not objects:
        raise InvalidAnswerError(f"no JSON object with the keys {', '.join(keys)}")
    last = objects[-1]
    is_other = last and not any(key in last for key in form.keys)
    if len(objects) > 1 and (is_other or (keys[0] not in last and _is_summary(last))):
        # A summary at the end, such as the number of lines.
        del objects[-1]
        form.refuse_other_labels(json_text(last), objects)
    for number, each in enumerate(objects, 1):
        for key in keys:
            if key not in each:
                raise InvalidAnswerError(f"object {number} has no `{key}`")
    return tuple(objects)


def _objects(text: str, form: "_Form") -> tuple[list[Mapping[str, object]], str]:
    """Return the objects in JSON, or those in another layout if there are none, and a summary behind them."""
    objects: list[Mapping[str, object]] = []
    position, summary = 0, ""
    for value in _whole(text) or _values_within(text):
        form.refuse_part(text[position : value.start], has_lost_lines=bool(objects))
        within = form.objects_of(value.value)
        if not value.is_whole and form.last_key is not None and not all(form.last_key in each for each in within):
            raise InvalidAnswerError(f"an object that is no JSON has no `{form.last_key}`")
        if not within:
            raise InvalidAnswerError(f"`{form.list_key}` of the answer has no sentence")
        for key in form.keys:
            _refuse_repeated(text, value, len(within), key)
        objects += within
        position = value.end
    if objects:
        behind = text[position:]
        if last := _SUMMARY_LINE.search(behind):
            behind, summary = behind[: last.start()], last[0]
        form.refuse_part(_SENTENCE.sub("", behind))
        if is_withdrawn(behind):
            raise InvalidAnswerError("the answer is withdrawn behind its end")
    elif _BEGUN.search(text) is None:
        refuse_echo(text)
        objects = [{key: field.value for key, field in group.items()} for group in grouped(form.layout.fields(text))]
    return objects, summary


def _is_summary(fields: Mapping[str, object]) -> bool:
    return any(_SUMMARY.match(key) for key in fields)


class _Form:
    def __init__(self, keys: tuple[str, ...], list_key: str, last_key: str | None, labels: tuple[str, ...]) -> None:
        self.keys = (*keys, list_key, *((last_key,) if last_key else ()))
        self._exact = frozenset(self.keys)
        self.list_key = list_key
        self.last_key = last_key
        self.layout = layout(self.keys, keys[1:2])
        names = spelled(self.keys)
        self._written = re.compile(rf"""["'\u201c\u201e](?:{names})["'\u201c\u201d]\s*:""", re.IGNORECASE)
        self._label_key = keys[1]
        # Lines that were meant as answers: an array, the rest of an object, or a line with a label.
        words = (rf"\b{re.escape(label)}\b" for label in labels)
        self._lost_line = re.compile(
            "|".join((r"^[ \t]*(?:\[(?!\s*(?:\]|\Z))|\{)", *words)), re.IGNORECASE | re.MULTILINE
        )
        # A label with its number, before or behind it, unless the label is denied.
        menu = "|".join(re.escape(label).replace("_", "[ _-]") for label in sorted(labels, key=len, reverse=True))
        number = "([0-9]{1,6})"
        before = rf"(?:(?<!of ){number}\s+)?(?<!not )(?<!no )(?<!none )"
        mentioned = rf"""{before}\b({menu})\b(?:["*_`]{{0,3}}\s?[:=(]\s?{number})?"""
        self._mentioned = re.compile(mentioned if labels else "(?!)", re.IGNORECASE)

    def refuse_other_labels(self, summary: str, objects: Sequence[Mapping[str, object]]) -> None:
        """Refuse a summary with a label that no object has, or more often than objects have it."""
        counts = Counter(loose(str(each.get(self._label_key))) for each in objects) if summary else Counter[str]()
        for mention in self._mentioned.finditer(summary):
            number = mention[1] or mention[3]
            if (1 if number is None else int(number)) > counts[loose(mention[2])]:
                raise InvalidAnswerError("the summary of the answer has other labels than its objects")

    def refuse_part(self, outside: str, *, has_lost_lines: bool = True) -> None:
        """Refuse text around the objects that contains a part of one, or repeats the material."""
        if has_lost_lines and self._lost_line.search(outside) is not None:
            raise InvalidAnswerError("a line of the answer is no object")
        if self._written.search(outside):
            raise InvalidAnswerError("a part of the answer stands outside of every object")
        refuse_echo(outside)

    def objects_of(self, value: object, depth: int = 0) -> list[Mapping[str, object]]:
        """Return the objects of an array, of the list in which one object holds them, or of a wrapper of either."""
        if isinstance(value, dict):
            renamed = value if value.keys() <= self._exact else rename(value, self.layout.key_of)
            if renamed is None:
                raise InvalidAnswerError("an object of the answer has a key twice")
            if self.list_key in renamed:
                return self._items(renamed[self.list_key], depth)
            if depth < _MAX_DEPTH and not any(key in renamed for key in self.keys):
                within = self._wrapped(value, depth)
                is_whole = not _is_summary(value) or any(self.keys[0] in each for each in within)
                return within if within and is_whole else [value]
            return [renamed]
        return self._items(value, depth)

    def _items(self, value: object, depth: int) -> list[Mapping[str, object]]:
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise InvalidAnswerError("the answer holds something else than a list of objects")
        if depth >= _MAX_DEPTH:
            return value
        return [each for item in value for each in self.objects_of(item, depth + 1)]

    def _wrapped(self, value: Mapping[str, object], depth: int) -> list[Mapping[str, object]]:
        objects: list[Mapping[str, object]] = []
        for key, item in value.items():
            inner = unwrapped(key, item, alone=len(value) == 1)
            if isinstance(item, str) and inner is None:
                # JSON lines in a string.
                inner = [each.value for each in _whole(item)] or None
                inner = inner[0] if inner is not None and len(inner) == 1 else None
            if isinstance(inner, dict) or (isinstance(inner, list) and all(isinstance(each, dict) for each in inner)):
                objects += self.objects_of(inner, depth + 1)
        return objects if all(any(key in each for key in self.keys) for each in objects) else []


_form = cache(_Form)


def _whole(text: str) -> list[JsonValue]:
    """Read a text that is entirely JSON or JSON lines."""
    try:
        values = _LINES.decode_lines(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return []
    value = values[0] if len(values) == 1 else values
    # Several values that are not all objects: some text between them happens to be JSON.
    is_answer = isinstance(value, dict | list) and (len(values) == 1 or all(isinstance(each, dict) for each in values))
    return [JsonValue(value, 0, len(text))] if is_answer else []


def _values_within(text: str) -> Iterator[JsonValue]:
    """Yield the outermost objects of a text that has other text around or between them."""
    position = 0
    while (opening := _OPENING.search(text, position)) is not None:
        value = object_at(text, opening.end() - 1, is_line=True)
        if value.value is None:
            raise InvalidAnswerError("an object of the answer cannot be read")
        yield value
        position = value.end


def _refuse_repeated(text: str, place: JsonValue, count: int, key: str) -> None:
    """Refuse a value that contains a key more often than objects: one object has swallowed another."""
    name = f'"{key}"'
    # Counting is cheap, and exact unless a text quotes the key.
    if text.count(name, place.start, place.end) <= count:
        return
    written = re.compile(rf"{re.escape(name)}\s*:").findall(text, place.start, place.end)
    if len(written) > count:
        raise InvalidAnswerError(f"an object of the answer has several `{key}`")
