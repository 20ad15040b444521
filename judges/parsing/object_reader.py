"""Read the answer in a text that is not simply the asked object.

Candidates are collected by a few readers: objects in JSON, in fences, prose or wrappers, some of them repaired; then
the layouts of ``judges.parsing.layouts``; last a verdict on a separate line. All candidates must agree: two results
that differ are no answer, nor is one that the text behind it withdraws.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from judges.parsing.answer import AnswerError, InvalidAnswerError, refuse_echo
from judges.parsing.decoration import loose
from judges.parsing.json_repair import UnrepairableError, repair_json
from judges.parsing.layouts import MAX_CHARS, Field, fold_key, grouped
from judges.parsing.withdrawal import Place, is_withdrawn, stated, stated_of

if TYPE_CHECKING:
    from judges.parsing.objects import Form

# Maximum number of objects to repair in one answer: thousands would block every other evaluation.
_MAX_BROKEN: Final = 100
_MAX_DIGITS: Final = 300
_NEXT_LINE: Final = re.compile(r"\n[ \t]*+(?:[\[,]\s*+)?\{")
_CLOSED: Final = re.compile(r"\}[ \t]*(?=\n)")
_PLACEHOLDER: Final = re.compile(r"<[\w ]+>|[^|]+\|[^|]+(?:\|[^|]+)*")
_EXPLICIT: Final = re.compile(r"\[\[.*\]\]|\$*\\boxed\{.*\}\$*")  # A verdict on any line.
_DECORATED: Final = re.compile(r"\*\*.*\*\*\.?|`.*`\.?")  # A verdict as the first or last line.
_PLACE: Final = "{}"  # Replaces an object, so that a word beside it is no separate line.
_NO_VALUE: Final = "\0"  # A value only if any text is one.
_LIST_SIGN: Final = re.compile(r"\d+[.)]")
_FENCE_LINE: Final = re.compile(r"^[ \t]*```.*$", re.MULTILINE)
_MAX_VERDICT_CHARS: Final = 120
_MAX_LABEL_START: Final = 12  # Signs of a list or heading before the label of a line.
DISAGREEMENT: Final = "the answer holds two different results"
ReadValue = Callable[[Mapping[str, object], str], object]  # Reads the value under a key, or raises `AnswerError`.


class JsonValue(NamedTuple):
    """A JSON value in a text, None if it cannot be read; not whole if it was repaired and may have broken off."""

    value: Any
    start: int
    end: int
    is_whole: bool = True


class AnswerReader:
    """Reads one text that is not simply the object."""

    def __init__(self, form: "Form", value: ReadValue | None, text: str) -> None:
        self._form = form
        self._value = value
        if form.without_brace.match(text) and text.rstrip().endswith("}"):
            # The caller wrote the first brace.
            text = f"{{{text}"
        self._text = text
        fields = form.layout.fields(text)
        if form.synonyms and not any(field.key in form.deciding for field in fields):
            other_fields = (field._replace(key=form.synonyms[field.key]) for field in form.other_layout.fields(text))
            fields = sorted((*fields, *other_fields), key=lambda field: field.start)
        begun = form.begun.search(text)
        # Lines within an object are parts of a value, often quoted from the material.
        is_within = begun is not None and bool(fields) and begun.start() < fields[0].start
        self._fields = fields
        self._line_starts = {field.start for field in fields}
        self._decided = [field for field in fields if field.key in form.deciding]
        self._is_lines = bool(self._decided) and not is_within

    def answer(self) -> Mapping[str, object]:
        """Return the one answer, or raise ``InvalidAnswerError``."""
        outside = self._without_quoted_objects() if self._is_lines else self._text
        placed = self._objects(outside)
        if placed:
            return self._object(placed)
        if placed is not None and self._form.begun.search(outside) is None:
            refuse_echo(outside)
            answer = self._lines() if self._is_lines else self._bare()
            if answer is not None:
                return answer
        raise InvalidAnswerError(f"no JSON object with the keys {', '.join(self._form.keys)}")

    def _without_quoted_objects(self) -> str:
        """Blank the lines of a rationale that hold an object: it is quoted, since the verdict has its own line."""
        text = self._text
        for field in self._fields:
            end = text.find("\n", field.start)
            end = len(text) if end < 0 else end
            if field.key not in self._form.deciding and "{" in text[field.start : end]:
                text = text[: field.start] + " " * (end - field.start) + text[end:]
        return text

    def _objects(self, text: str) -> list[JsonValue] | None:
        """Return the answers in the objects of a text; None if the last one is broken, or goes on outside of it."""
        form = self._form
        objects: list[JsonValue] = []
        is_lost, position, broken = False, 0, 0
        while (opening := form.opening.search(text, position)) is not None:
            outside = text[position : opening.start()]
            refuse_echo(outside)
            value, start, position, is_whole = object_at(text, opening.start())
            broken += not is_whole
            if broken > _MAX_BROKEN:
                return None
            answers = [] if value is None else list(form.answers_in(value))
            if answers and not self._is_part(text, start - len(outside), form.written, start):
                objects += (JsonValue(answer, start, position) for answer in answers)
                is_lost = False
            elif value is None or form.written.search(text, start, position) is not None:
                # A part of an answer, or an unreadable one: the answer before it may have been a draft.
                is_lost = True
        refuse_echo(text[position:])
        # An answer that continues after the object makes it a draft, or a quotation inside a broken answer.
        for pattern in (form.written, form.plain):
            is_lost = is_lost or (bool(objects) and self._is_part(text, position, pattern))
        return None if is_lost else objects

    def _is_part(self, text: str, start: int, pattern: re.Pattern[str], end: int | None = None) -> bool:
        """Return whether a text outside of all objects has a key that is not the label of a line."""
        for mark in pattern.finditer(text, start, len(text) if end is None else end):
            line = text.rfind("\n", 0, mark.start()) + 1
            if line not in self._line_starts or mark.start() - line > _MAX_LABEL_START:
                return True
        return False

    def _object(self, placed: Sequence[JsonValue]) -> Mapping[str, object]:
        """Return the answer of objects and of the lines beside them, which must agree."""
        filled = [each for each in placed if not self._is_placeholder(each.value)]
        *earlier, last = filled or placed
        answer: Mapping[str, object] = last.value
        same = self._comparable(answer)
        if any(self._comparable(object_.value) != same for object_ in earlier):
            raise InvalidAnswerError(DISAGREEMENT)
        named = [(self._form.synonyms.get(fold_key(name), ""), value) for name, value in answer.items()]
        beside = [Field(key, value, last.end - 1, last.end) for key, value in named if key in same and self._has_menu]
        for field in (*self._decided, *beside):
            answered = self._compared(field.key, field.value)
            # Within an object, a line that cannot be read is a part of a text or of the object itself.
            is_part = isinstance(answered, _Unread) and any(each.start < field.start < each.end for each in placed)
            if answered != same[field.key] and not is_part:
                raise InvalidAnswerError(DISAGREEMENT)
        spans = [(each.start, each.end) for each in placed]
        self._refuse_other_verdicts(spans, tuple(same.values()))
        before, behind = _around(self._text, spans)
        self._refuse_stated(before, same, "before")
        self._refuse_stated(behind, same, "behind")
        self._refuse_withdrawn(max([last.end, *(field.end for field in self._decided)]))
        return answer

    def _refuse_other_verdicts(self, spans: Sequence[tuple[int, int]], same: Sequence[object]) -> None:
        """Raise ``InvalidAnswerError`` for a line outside of some places that is another verdict."""
        lines = _PLACE.join(_around(self._text, spans)).split("\n")
        if self._has_menu and any(value != same[0] for _, value in self._verdict_lines(lines)):
            raise InvalidAnswerError(DISAGREEMENT)

    def _refuse_stated(self, text: str, same: Mapping[str, object], place: Place) -> None:
        """Raise ``InvalidAnswerError`` for a text around the answer that states another verdict."""
        keys = self._form.deciding
        if self._value is None:
            statements = [(key, value) for key in keys for value in stated_of(key, text, _number_or_truth)]
        elif self._has_menu:
            statements = [(keys[0], value) for value in stated(text, self._offered, place=place, keys=keys)]
        else:
            return
        if any(value != same[key] for key, value in statements):
            raise InvalidAnswerError(DISAGREEMENT)

    @cached_property
    def _has_menu(self) -> bool:
        """Whether the verdict is one of some values; otherwise any text is one, also the prose around the answer."""
        return self._value is None or isinstance(self._compared(self._form.deciding[0], _NO_VALUE), _Unread)

    def _offered(self, text: str) -> object | None:
        value = self._compared(self._form.deciding[0], text)
        return None if isinstance(value, _Unread) else value

    def _lines(self) -> Mapping[str, object] | None:
        """Return the answer of fields in another layout; without reasons among them, the text before is the reason."""
        form = self._form
        groups = grouped(self._fields)
        decided = self._decided
        if self._value is None:
            answers = [{key: field.value for key, field in group.items()} for group in groups]
            if not all(key in answer for answer in answers for key in form.needed):
                return None
            if any(self._comparable(answer) != self._comparable(answers[-1]) for answer in answers):
                raise InvalidAnswerError(DISAGREEMENT)
            self._refuse_withdrawn(decided[-1].end, is_reason=True)
            return answers[-1]
        last = decided[-1]
        same = self._compared(last.key, last.value)
        if any(self._compared(field.key, field.value) != same for field in decided):
            raise InvalidAnswerError(DISAGREEMENT)
        self._refuse_other_verdicts([(field.start, field.end) for field in decided], (same,))
        reasons = next((key for key in form.keys if key != last.key), None)
        reason_fields = [field for field in self._fields if field.key == reasons]
        if any(not field.value for field in reason_fields):
            # The answer breaks off behind the key.
            return None
        is_reason = bool(reason_fields) and reason_fields[-1].start > last.start
        self._refuse_stated(self._text[: last.start], {last.key: same}, "reasons")
        self._refuse_stated(self._text[last.end :], {last.key: same}, "reasons" if is_reason else "behind")
        self._refuse_withdrawn(last.end, is_reason=is_reason)
        answer: dict[str, object] = {} if reasons is None else {reasons: self._prose(reason_fields, decided)}
        return {**answer, last.key: last.value}

    def _prose(self, reason_fields: Sequence[Field], decided: Sequence[Field]) -> object:
        """Return the reasons: the last field for them, or the text before or behind the verdict."""
        if reason_fields:
            return reason_fields[-1].value
        before, behind = self._text[: decided[0].start], self._text[decided[-1].end :]
        return _FENCE_LINE.sub("", before).strip() or _FENCE_LINE.sub("", behind).strip()

    def _bare(self) -> Mapping[str, object] | None:
        """Return a verdict that is the whole text, or a separate line before or behind the reasons."""
        if self._form.written.search(self._text) is not None:
            return None
        lines = _FENCE_LINE.sub("", self._text).strip().split("\n")
        verdicts = list(self._verdict_lines(lines))
        if not verdicts or any(value != verdicts[0][1] for _, value in verdicts):
            return None
        place = verdicts[-1][0]
        before, behind = "\n".join(lines[:place]).strip(), "\n".join(lines[place + 1 :])
        (key,) = self._form.deciding
        self._refuse_stated(before, {key: verdicts[0][1]}, "reasons")
        self._refuse_stated(behind, {key: verdicts[0][1]}, "behind" if before else "reasons")
        self._refuse_withdrawn(len(self._text) - len(behind), is_reason=not before)
        reasons = {each: before or behind.strip() for each in self._form.keys if each != key}
        return {**reasons, key: lines[place]}

    def _verdict_lines(self, lines: Sequence[str]) -> Iterator[tuple[int, object]]:
        """Yield the lines that are a value, with the value: explicit, decorated, or with a blank line beside them."""
        if self._value is None or len(self._text) > MAX_CHARS:
            return
        last = len(lines) - 1
        for place, line in enumerate(map(str.strip, lines)):
            if not line or len(line) > _MAX_VERDICT_CHARS or (last and _LIST_SIGN.fullmatch(line)):
                continue
            is_first = place == 0 and (not lines[1 % len(lines)].strip() or not last or _DECORATED.fullmatch(line))
            is_last = place == last and (not lines[last - 1].strip() or _DECORATED.fullmatch(line))
            if is_first or is_last or _EXPLICIT.fullmatch(line):
                value = self._compared(self._form.deciding[0], line)
                if not isinstance(value, _Unread):
                    yield place, value

    def _is_placeholder(self, answer: Mapping[str, object]) -> bool:
        """Return whether an answer is the form, not filled in."""
        values = [(answer.get(key), self._compared(key, answer.get(key))) for key in self._form.deciding]
        return any(
            isinstance(value, str)
            and _PLACEHOLDER.fullmatch(value)
            and (self._value is None or isinstance(answer_value, _Unread))
            for value, answer_value in values
        )

    def _comparable(self, answer: Mapping[str, object]) -> Mapping[str, object]:
        return {key: self._compared(key, answer.get(key)) for key in self._form.deciding}

    def _compared(self, key: str, value: object) -> object:
        """Return the form in which a value is compared."""
        if self._value is not None:
            try:
                return self._value({key: value}, key)
            except AnswerError:
                return _Unread(str(value))
        return _simplified(value)

    def _refuse_withdrawn(self, position: int, *, is_reason: bool = False) -> None:
        if is_withdrawn(self._text[position:], is_reason=is_reason):
            raise InvalidAnswerError("the answer is withdrawn behind its end")


class _Unread(str):
    """A value that is none of those offered."""

    __slots__ = ()


def _around(text: str, spans: Sequence[tuple[int, int]]) -> tuple[str, str]:
    """Return the text before some places, in order, and the text behind the first of them, outside of all."""
    behind, position = list[str](), spans[0][1]
    for start, end in spans[1:]:
        behind.append(text[position:start])
        position = max(position, end)
    return text[: spans[0][0]], _PLACE.join((*behind, text[position:]))


def _number_or_truth(text: str) -> object | None:
    """Read a value that a sentence may state for one key of several."""
    value = _simplified(text)
    return value if isinstance(value, float) or value in {"true", "false"} else None


def _simplified(value: object) -> object:
    """Return a value in one form of several: numbers and truth values may be texts."""
    if isinstance(value, list):
        return tuple(map(_simplified, value))
    if isinstance(value, dict):
        return tuple(sorted((key, _simplified(item)) for key, item in value.items()))
    text = loose(str(value))
    try:
        return float(text)
    except ValueError:
        return text


def object_at(text: str, start: int, *, is_line: bool = False) -> JsonValue:
    """Read the object that starts at a position, as JSON or repaired; ``is_line``: it probably ends with its line."""
    try:
        value, end = _DECODER.raw_decode(text, start)
        return JsonValue(value, start, end)
    except (ValueError, RecursionError):
        pass
    try:
        # Of doubled braces the second one was found. They are closed by two, so the object has not broken off.
        start -= text.startswith("{{", start - 1)
        is_whole = text.startswith("{{", start)
        following = _NEXT_LINE.search(text, start) if is_line else None
        with suppress(UnrepairableError):
            if following is not None:
                value, length = repair_json(text[start : following.start()], 0)
                return JsonValue(value, start, start + length, is_whole)
        repaired = repair_json(text, start)
        return JsonValue(repaired.value, start, repaired.end, is_whole)
    except UnrepairableError as error:
        # A line that ends with a closing brace ends a draft; otherwise all that follows may belong to it.
        closed = None if error.position is None else _CLOSED.search(text, error.position)
        return JsonValue(None, start, closed.end() if closed else len(text), is_whole=False)


def _each_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        fields |= {key: math.nan for key, count in counts.items() if count > 1}
    return fields


# NaN replaces a value that is none, as Infinity or the values of a repeated key: all readers refuse it, and
# under a key that is not read it does not matter. Python refuses integers of more than 4,300 digits.
_DECODER: Final = json.JSONDecoder(
    strict=False,
    parse_constant=lambda _: math.nan,
    parse_int=lambda digits: (float if len(digits) > _MAX_DIGITS else int)(digits),
    object_pairs_hook=_each_once,
)
