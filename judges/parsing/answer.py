"""Remove thoughts before a judge model's answer, and read its fields: no guess, no clamping, a reason for each failure.

Thoughts are written between marks, or in channels of harmony. ``judges.parsing.objects`` finds the answer in the rest.
A number off the scale is an ``OutOfRangeError`` and is not requested again: a second answer would be a second opinion.
"""

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from json import JSONDecoder
from typing import Final, TypeVar

import msgspec

from judges.core.prompt import MATERIAL_RULES
from judges.parsing.decoration import loose, number_of, truth_of

EntryT = TypeVar("EntryT")
MAX_ANSWER_CHARS: Final = 400_000  # No judge's answer is longer; parsing a longer text would only cost time.
_RULES_HEADING: Final = MATERIAL_RULES.partition("\n")[0]
_INVISIBLE: Final = "\ufeff\u200b\u2060\0"  # A byte order mark before the first line, or the like.
_MARK: Final = re.compile(rf"<<(?:end )?\w[\w .-]{{0,60}} [0-9a-f]{{12}}>>|{_RULES_HEADING}")
# What models that are too small write for reasons: what the form of a prompt shows in their place.
_PLACEHOLDER: Final = re.compile(
    r"\s*(?:let's think step by step\W{0,9})?(?:<(?:your )?(?:text|reasons|rationale)>|yes\|no|\.\.\.|\u2026)\.?\s*",
    re.IGNORECASE,
)
REASONS: Final = ("rationale", "justification", "reason", "reasoning", "explanation")
# Keys of an object in place of a value: of the value, and of fields beside it.
_VALUES: Final = frozenset({"", "value", "score", "rating", "grade", "result", "verdict", "answer", "label"})
_BESIDE: Final = frozenset({"confidence", "reasons", *REASONS})
_NAMES: Final = "(?:seed:)?think|thinking|thoughts?|reasoning"
# Marks of single families of models, each with its end.
_OPENING: Final = re.compile(
    rf"\s*(?:<\s*(?:{_NAMES})\s*>|\[THINK\]|\u25c1think\u25b7|<\|begin_of_thought\|>|<\|start_thinking\|>"
    r"|<\|channel>\s*thought|<unused94>(?:\s*thought\b)?)",
    re.IGNORECASE,
)
_CLOSING: Final = re.compile(
    rf"(?i)<\s*/\s*(?:{_NAMES})\s*>|\[/THINK\]|\u25c1/think\u25b7|<\|end_of_thought\|>|<\|end_thinking\|>"
    r"|<channel\|>|<unused95>"
)
_MAX_CHARS_BESIDE: Final = 100_000  # It is read in the event loop.
# The rest of thoughts that a server moved elsewhere: Gemma's name of their channel, or the opening mark alone.
_LEFT: Final = re.compile(rf"\s*thought[ \t]*(?:\n|\Z)|{_OPENING.pattern}\s*\Z", re.IGNORECASE)
_BRACKETED: Final = re.compile(r"\[/?THINK\]", re.IGNORECASE)
_OBJECT: Final = re.compile(r"\{(?=\s*[\"}])")
_DECODER: Final = JSONDecoder(strict=False)
_MAX_LOOKS: Final = 100  # Each look at a broken object counts the lines of the text up to it.
# A token of a chat template that a server left in the text.
_TEMPLATE_MARK: Final = (
    r"(?:<[|\uff5c](?!(?i:begin_of_thought|end_of_thought|start_thinking|end_thinking)\|)[^<>|\uff5c\n]{1,40}[|\uff5c]>"
    r"|<\|turn>(?:model\b)?|<turn\|>)"
)
_FIRST_MARKS: Final = re.compile(rf"\s*(?:{_TEMPLATE_MARK}\s*(?:assistant\s*(?=<))?)+")
_LAST_MARK: Final = re.compile(rf"{_TEMPLATE_MARK}\Z")
_HARMONY: Final = re.compile(r"\s*<\|(?:channel|start)\|>")
_CHANNEL: Final = "<|channel|>"
_MESSAGE: Final = re.compile(r"\s*(\w+)([^\n]{0,200}?)<\|message\|>")
_MESSAGE_END: Final = re.compile(r"<\|(?:end|return|call|start)\|>")
# The same channels if the server removed the marks and left their names.
_STRIPPED: Final = re.compile(r"\s*analysis(?:(?=[^\W\d_a-z]|[\"'{])|[ \t]+(?=[A-Z]))")
_STRIPPED_FINAL: Final = "assistantfinal"


class AnswerError(ValueError):
    """The answer of the judge model gives no score. The message names keys and forms, never texts of the trace.

    AnswerError
    ├── InvalidAnswerError   unreadable, a missing key, a wrong type: one repair request may follow
    │   ├── CopiedAnswerError       it repeats the material or the request; the repair asks for an own assessment
    │   ├── IncompleteAnswerError   readable, but it leaves out a part of what was to be judged
    │   └── DoubtfulAnswerError     readable, but its parts disagree: if they still do, its `answer` counts
    └── OutOfRangeError      readable, but not one of the values offered: final
        └── OffMenuError     a word that is not on the menu: one repair request may follow
    """


class InvalidAnswerError(AnswerError):
    """The answer cannot be read in the requested form."""


class CopiedAnswerError(InvalidAnswerError):
    """The answer repeats the material or the request, and holds no assessment of the model's own."""


class IncompleteAnswerError(InvalidAnswerError):
    """The answer can be read, but leaves out a part of what was to be judged."""


class DoubtfulAnswerError(InvalidAnswerError):
    """The parts of the answer disagree; ``answer`` is what it counts as if the second one is no better."""

    def __init__(self, message: str, answer: object) -> None:
        super().__init__(message)
        self.answer = answer


class OutOfRangeError(AnswerError):
    """The answer can be read, but its value was not offered."""


class OffMenuError(OutOfRangeError):
    """The answer is a word that is not on the menu, such as a synonym."""


def object_schema(properties: Mapping[str, object]) -> Mapping[str, object]:
    """Build the JSON schema of an object with exactly these properties."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def decode_json(text: str) -> object:
    """Decode a JSON text; None if it is invalid."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None


def json_text(value: object) -> str:
    """Return a value of an answer as JSON writes it."""
    return msgspec.json.encode(value).decode()


def check_length(text: str) -> None:
    """Raise ``InvalidAnswerError`` for a text that is longer than the answer of any judge."""
    if len(text) > MAX_ANSWER_CHARS:
        raise InvalidAnswerError(f"the answer is longer than {MAX_ANSWER_CHARS} characters")


def refuse_echo(text: str) -> None:
    """Raise ``CopiedAnswerError`` for a text with marks, keys or rules of its request: its verdict is copied."""
    if ("<<" in text or _RULES_HEADING in text) and _MARK.search(text) is not None:
        raise CopiedAnswerError("the answer repeats the request")


def without_thinking(text: str) -> str:
    """Return the answer without the thoughts before it; raises ``InvalidAnswerError`` if it holds nothing else."""
    answer = answer_of(text.lstrip(_INVISIBLE))
    if answer is None:
        raise InvalidAnswerError("the answer never ends its thinking")
    return answer.lstrip(_INVISIBLE)


def text_field(answer: Mapping[str, object], key: str) -> str:
    """Return a text of an answer; raises ``InvalidAnswerError`` for another type."""
    value = answer[key]
    if not isinstance(value, str):
        raise InvalidAnswerError(f"`{key}` is not a text")
    return encodable(value)


def reasons_field(answer: Mapping[str, object], key: str) -> str:
    """Return the reasons of an answer, or raise ``InvalidAnswerError``; null says as little as an empty text."""
    reasons = "" if answer[key] is None else text_field(answer, key)
    if _PLACEHOLDER.fullmatch(reasons):
        raise InvalidAnswerError(f"`{key}` is copied from the form")
    return reasons


def value_field(answer: Mapping[str, object], key: str) -> object:
    """Return a value of an answer, also out of an object that holds nothing else but reasons."""
    value = answer[key]
    if isinstance(value, dict):
        within = {name.casefold().removeprefix(key.casefold()): item for name, item in value.items()}
        named = within.keys() & _VALUES
        if len(named) == 1 and len(within) == len(value) and _BESIDE.issuperset(within.keys() - named):
            return within[named.pop()]
    return value


def choice(
    answer: Mapping[str, object], key: str, menu: Sequence[str], separator: str = "|", *, besides: Sequence[str] = ()
) -> str:
    """Return a label of an answer, folded. The labels of the menu are folded, joined by ``separator``.

    Decoration around the label does not count, nor does `_` or `-` for a blank, unless two labels differ by it. If
    yes and no are offered, true and false mean the same. Labels in ``besides`` are accepted and never offered.
    ``InvalidAnswerError`` if it is no string, empty, or the menu itself; ``OffMenuError`` if it is another label.
    """
    value, labels = answer[key], (*menu, *besides)
    if isinstance(value, str) and value in labels:
        return value
    value = value_field(answer, key)
    is_yes_no = "yes" in menu and "no" in menu
    if isinstance(value, bool) and is_yes_no:
        return "yes" if value else "no"
    if isinstance(value, int) and (name := json_text(value)) in labels:
        # A label such as `3` or `true`, without its quotation marks.
        return name
    text = text_field({key: value}, key)
    if (label := folded(text)) in labels:
        return label
    label = loose(text)
    if not label:
        # A repaired answer that broke off, not a choice of the model.
        raise InvalidAnswerError(f"`{key}` is empty")
    truth = truth_of(text) if is_yes_no else None
    # A letter may mean another label as well.
    if truth is not None and (len(label) > 1 or [each[:1] for each in labels].count(label) == 1):
        return "yes" if truth else "no"
    alike = [each for each in labels if loose(each) == label]
    if len(alike) == 1:
        return alike[0]
    if separator in text:
        raise InvalidAnswerError(f"`{key}` is the menu, not a choice")
    raise OffMenuError(f"`{key}` is none of {', '.join(menu)}")


def folded(label: str) -> str:
    """Normalise a label: case, surrounding blanks and a final full stop do not count."""
    return unicodedata.normalize("NFC", label).strip().removesuffix(".").rstrip().casefold()


def rating(answer: Mapping[str, object], key: str, lowest: int, highest: int) -> int:
    """Return a whole number as ``amount`` reads it; ``InvalidAnswerError`` if it is none, else ``OutOfRangeError``."""
    value = amount(answer, key, highest)
    if not lowest <= value <= highest or value != int(value):
        raise OutOfRangeError(f"`{key}` is no whole number from {lowest} to {highest}")
    return int(value)


def amount(answer: Mapping[str, object], key: str, highest: float) -> float:
    """Return a number, also from `four`, `4 (Good)`, or `4/5` if 5 is the highest, or raise ``InvalidAnswerError``."""
    value = value_field(answer, key)
    if isinstance(value, str):
        value = number_of(value, highest)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:  # noqa: PLR0124 - NaN
        raise InvalidAnswerError(f"`{key}` is not a number")
    return value


def truth(answer: Mapping[str, object], key: str) -> bool:
    """Return a boolean of an answer, also from a string in any case; raises ``InvalidAnswerError``."""
    value = value_field(answer, key)
    if isinstance(value, str):
        value = truth_of(value)
    if not isinstance(value, bool):
        raise InvalidAnswerError(f"`{key}` is neither true nor false")
    return value


def text_list(answer: Mapping[str, object], key: str) -> tuple[str, ...]:
    """Return a list of texts of an answer; raises ``InvalidAnswerError`` for another type."""
    value = answer[key]
    if not isinstance(value, list) or {*map(type, value)} - {str}:
        raise InvalidAnswerError(f"`{key}` is not a list of texts")
    return tuple(map(encodable, value))


def entry_list(
    answer: Mapping[str, object], key: str, keys: Sequence[str], read: Callable[[Mapping[str, object]], EntryT]
) -> tuple[EntryT, ...]:
    """Return the objects in a list, each with these keys and read by ``read``, or raise ``InvalidAnswerError``."""
    rows = answer[key]
    if not isinstance(rows, list):
        raise InvalidAnswerError(f"`{key}` is not a list")
    entries = []
    for number, entry in enumerate(rows, 1):
        if not isinstance(entry, dict) or not entry.keys() >= set(keys):
            raise InvalidAnswerError(f"entry {number} of `{key}` is no object with the keys {', '.join(keys)}")
        try:
            entries.append(read(entry))
        except InvalidAnswerError as error:
            raise InvalidAnswerError(f"entry {number} of `{key}`: {error}") from error
    return tuple(entries)


def encodable(text: str) -> str:
    """Replace lone surrogates, which JSON escapes may contain: a verdict with one could not be encoded."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def answer_of(text: str) -> str | None:
    """Return the text behind the last closing mark of a thought, or in the final channels."""
    # A closing mark within an object of the answer is quoted. The opening mark may be missing, since some templates
    # write it into the request. Returns None if the thoughts do not end, so that there is no answer yet.
    if _HARMONY.match(text) is not None and _CHANNEL in text:
        # Join the messages of the final channel; without one, the calls of functions, which are in the commentary.
        finals, calls = list[str](), list[str]()
        for part in text.split(_CHANNEL)[1:]:
            head = _MESSAGE.match(part)
            if head is None:
                continue
            content = _MESSAGE_END.split(part[head.end() :], maxsplit=1)[0]
            if head[1] == "final":
                finals.append(content)
            elif head[1] == "commentary" and "to=" in head[2]:
                calls.append(content)
        # Several of them may disagree, which only the reader of the answer can tell.
        return "\n".join(finals or calls) if finals or calls else None
    if _STRIPPED.match(text) is not None:
        # Behind a later occurrence, a text that the answer quotes would be taken for the answer.
        _, final, text = text.partition(_STRIPPED_FINAL)
        return text if final else None
    if "<" not in text and "\u25c1" not in text and ("[" not in text or _BRACKETED.search(text) is None):
        return text
    text = _without_marks(text)
    text = text[_end_of_thoughts(text) :]
    return None if _OPENING.match(text) is not None else text


def beside_thoughts(text: str) -> str:
    """Return the answer after thoughts that the server moved elsewhere; a text of endless thoughts stays as it is."""
    if len(text) > _MAX_CHARS_BESIDE:
        return text
    left = _LEFT.match(text)
    answer = answer_of(text[left.end() :] if left is not None else text)
    return text if answer is None else answer


def _without_marks(text: str) -> str:
    if first := _FIRST_MARKS.match(text):
        text = text[first.end() :]
    while (shorter := text.rstrip()).endswith(("|>", "\uff5c>")):
        last = _LAST_MARK.search(shorter, max(0, len(shorter) - 60))
        if last is None:
            break
        text = shorter[: last.start()]
    return text


def _end_of_thoughts(text: str) -> int:
    """Return the end of the last closing mark outside of the objects of the answer."""
    end = objects_end = looks = 0
    for mark in _CLOSING.finditer(text):
        # At the beginning, or behind an earlier mark, whole objects may hold this mark as a quotation.
        while (
            objects_end < mark.start()
            and looks < _MAX_LOOKS
            and not _OPENING.match(text, end)
            and (opening := _OBJECT.search(text, objects_end, mark.start()))
        ):
            try:
                objects_end = _DECODER.raw_decode(text, opening.start())[1]
            except (ValueError, RecursionError):
                looks += 1
                break
        if objects_end <= mark.start():
            end = objects_end = mark.end()
    return end
