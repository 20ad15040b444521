"""Read what a judge model answered, strictly: no guess, no clamp, and a clear reason when it cannot be read.

The way of a text: as JSON; without the fences and prose around it; repaired by json-repair, where that loses and
invents nothing (``judges.mending``). Where several whole answers stand in it, the last one counts. What is readable
but off the scale is ``OutOfRangeError``, and is not asked again: a second asking would be a second opinion.
"""

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from judges.mending import UnmendableError, mend
from judges.prompt import MATERIAL_RULES

__all__ = [
    "DECODER",
    "MAX_ANSWER_CHARS",
    "AnswerError",
    "InvalidAnswerError",
    "OutOfRangeError",
    "choice",
    "encodable",
    "folded",
    "rating",
    "read_object",
    "refuse_echo",
    "text_field",
    "text_list",
    "truth",
    "without_thinking",
]

MAX_ANSWER_CHARS: Final = 400_000
"""Longer texts are no answer to any of our judges; reading them would only cost time."""
_MAX_BROKEN: Final = 100
"""No model drafts more answers than that; repairing thousands would hold up every other evaluation."""
_CLOSED: Final = re.compile(r"\}[ \t]*(?=\n)")
_RULES_HEADING: Final = MATERIAL_RULES.partition("\n")[0]
_MARK: Final = re.compile(rf"<<(?:end )?\w[\w ]{{0,60}} [0-9a-f]{{12}}>>|{_RULES_HEADING}")
_THINKING: Final = re.compile(r"\s*<(think|thinking)>")
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,300}(?:\.[0-9]{1,300})?")


class AnswerError(ValueError):
    """The judge model's answer gives no score. The message names keys and forms, never texts of the trace.

    AnswerError
    ├── InvalidAnswerError   unreadable, a key missing, a wrong type: one repair request may follow
    └── OutOfRangeError      readable, but off the menu or off the scale: final
    """


class InvalidAnswerError(AnswerError):
    """The answer cannot be read in the form that was asked."""


class OutOfRangeError(AnswerError):
    """The answer can be read, and stands outside what was offered."""


def read_object(text: str, keys: Sequence[str]) -> Mapping[str, object]:
    """Find the one answer object in a model's text.

    Args:
        text: What the model answered, of any length and content.
        keys: The keys an answer must have; further keys are ignored by the readers.

    Raises:
        InvalidAnswerError: No object with all of ``keys`` can be read from the text, or more than one reading is
            possible: the last object breaks off or lacks a key, or an answer goes on outside of it.
    """
    if len(text) > MAX_ANSWER_CHARS:
        raise InvalidAnswerError(f"the answer is longer than {MAX_ANSWER_CHARS} characters")
    whole = _as_json(text.strip())
    if isinstance(whole, dict) and _has(whole, keys) and not _may_repeat(text, keys):
        return whole
    answer = _last_answer(text, keys)
    if answer is None:
        raise InvalidAnswerError(f"no JSON object with the keys {', '.join(keys)}")
    return answer


def refuse_echo(text: str) -> None:
    """Refuse a text that repeats its request: verdicts in it are those of the material, or of our examples.

    Raises:
        InvalidAnswerError: The text holds a mark of the material, with whatever key, or the heading of our rules on it.
    """
    if ("<<" in text or _RULES_HEADING in text) and _MARK.search(text) is not None:
        raise InvalidAnswerError("the answer repeats the request")


def without_thinking(text: str) -> str:
    """Leave out what a model that reasons aloud writes before its answer, between `<think>` and `</think>`.

    Raises:
        InvalidAnswerError: The thinking never ends: what follows is no answer yet.
    """
    opening = _THINKING.match(text)
    if opening is None:
        return text
    _, closing, answer = text.partition(f"</{opening[1]}>")
    if not closing:
        raise InvalidAnswerError("the answer never ends its thinking")
    return answer


def text_field(answer: Mapping[str, object], key: str) -> str:
    """Take a text from an answer.

    Raises:
        InvalidAnswerError: The value is no string.
    """
    value = answer[key]
    if not isinstance(value, str):
        raise InvalidAnswerError(f"`{key}` is not a text")
    return encodable(value)


def choice(answer: Mapping[str, object], key: str, menu: Sequence[str], separator: str = "|") -> str:
    """Take a label from an answer: in any case, with blanks around it or a final full stop.

    Args:
        menu: What is offered, each ``folded``.
        separator: What stands between labels where the menu is shown.

    Raises:
        InvalidAnswerError: The value is no string, empty, or the menu itself.
        OutOfRangeError: The label is not on the menu.
    """
    label = folded(text_field(answer, key))
    if not label:
        # What a repair makes of an answer that breaks off; no choice of the model.
        raise InvalidAnswerError(f"`{key}` is empty")
    if label in menu:
        return label
    if separator in label:
        raise InvalidAnswerError(f"`{key}` is the menu, not a choice")
    raise OutOfRangeError(f"`{key}` is none of {', '.join(menu)}")


def folded(label: str) -> str:
    """Fold a label so that two ways to write it compare as equal."""
    return unicodedata.normalize("NFC", label).strip().removesuffix(".").rstrip().casefold()


def rating(answer: Mapping[str, object], key: str, lowest: int, highest: int) -> int:
    """Take a whole number from an answer: 4, 4.0, or its digits in a string.

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
    """Take true or false from an answer, also as a string in any case.

    Raises:
        InvalidAnswerError: The value is neither.
    """
    value = answer[key]
    if isinstance(value, str):
        value = {"true": True, "false": False}.get(value.strip().removesuffix(".").rstrip().casefold())
    if not isinstance(value, bool):
        raise InvalidAnswerError(f"`{key}` is neither true nor false")
    return value


def text_list(answer: Mapping[str, object], key: str) -> tuple[str, ...]:
    """Take a list of texts from an answer.

    Raises:
        InvalidAnswerError: The value is no list, or an item is no string.
    """
    value = answer[key]
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise InvalidAnswerError(f"`{key}` is not a list of texts")
    return tuple(encodable(item) for item in value)


def encodable(text: str) -> str:
    """Replace half a surrogate pair, as a JSON escape can bring it: it would make a verdict that nobody can encode."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _has(value: Mapping[str, object], keys: Sequence[str]) -> bool:
    return all(key in value for key in keys)


def _may_repeat(text: str, keys: Sequence[str]) -> bool:
    """Tell whether a key may stand twice: the decoder would take the last, and nobody says that it is the right one."""
    return any(text.count(f'"{key}"') > 1 for key in keys)


def _as_json(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None


def _last_answer(text: str, keys: Sequence[str]) -> Mapping[str, object] | None:
    """Take the last answer of a text that has something around it, or nothing where that one cannot be read."""
    names = "|".join(map(re.escape, keys))
    opening = re.compile(rf"""\{{(?=\s*(?:["'\u201c\u201e}}]|//|/\*|(?:{names})\s*:))""")
    written = re.compile(rf"""[`\\"'\u201c\u201e](?:{names})[`\\"'\u201c\u201d]+\s*:""", re.IGNORECASE)
    plain = re.compile(rf"^[^\w\n]{{0,8}}(?:{names})[^\w\n]{{0,8}}:", re.IGNORECASE | re.MULTILINE)
    last, position, broken = None, 0, 0
    while (found := opening.search(text, position)) is not None:
        outside = text[position : found.start()]
        refuse_echo(outside)
        value, position, is_whole = _object_at(text, found.start())
        broken += not is_whole
        if broken > _MAX_BROKEN:
            return None
        if value is not None and _has(value, keys) and written.search(outside) is None:
            last = value
        elif value is None or written.search(text, found.start(), position) is not None:
            # A part of an answer, or one that cannot be read: what stood before it may have been a draft.
            last = None
    refuse_echo(text[position:])
    # Where an answer goes on behind the object, this was a draft, or a quotation inside a broken answer.
    goes_on = written.search(text, position) is not None or plain.search(text, position) is not None
    return None if goes_on else last


class _Object(NamedTuple):
    """What stands at a place of a text, nothing where it cannot be read, and the place to go on from."""

    value: dict[str, object] | None
    end: int
    is_whole: bool


def _object_at(text: str, start: int) -> _Object:
    """Read the object that opens at a place, as JSON or repaired."""
    try:
        return _Object(*DECODER.raw_decode(text, start), is_whole=True)
    except (ValueError, RecursionError):
        pass
    try:
        return _Object(*mend(text, start), is_whole=False)
    except UnmendableError as error:
        # A line that ends with its brace closes a draft; short of that all that follows may be part of it.
        closed = None if error.position is None else _CLOSED.search(text, error.position)
        return _Object(None, closed.end() if closed else len(text), is_whole=False)


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


def _each_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands twice")
    return found


DECODER: Final = json.JSONDecoder(strict=False, parse_constant=_no_constant, object_pairs_hook=_each_once)
