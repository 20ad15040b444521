"""Read what a judge model answered, strictly: no guess, no clamp, and a clear reason when it cannot be read.

The way of a text: as JSON; without the fences and prose around it; repaired by json-repair. Where several
whole answers stand in it, the last one counts. What is readable but off the scale is ``OutOfRangeError``, and
is not asked again: a second asking would be a second opinion.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import json_repair
import msgspec

__all__ = [
    "AnswerError",
    "InvalidAnswerError",
    "OutOfRangeError",
    "choice",
    "rating",
    "read_object",
    "text_field",
    "text_list",
    "truth",
]

_MAX_ANSWER_CHARS: Final = 400_000
"""Longer texts are no answer to any of our judges; reading them would only cost time."""
_MAX_REPAIRED_CHARS: Final = 64_000
_MAX_REPAIRED_OPENINGS: Final = 300
"""json-repair takes time that grows with the square of what is opened: 8 kB of `{"{"` hold it for 2.5 s."""
_OPENING: Final = re.compile(r'\{(?=\s*["}])')
"""Where a JSON object can begin; the decoder's failure at any other brace costs a look at the whole text."""
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,18}(?:\.[0-9]{1,18})?")


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
        InvalidAnswerError: No object with all of ``keys`` can be read from the text.
    """
    if len(text) > _MAX_ANSWER_CHARS:
        raise InvalidAnswerError(f"the answer is longer than {_MAX_ANSWER_CHARS} characters")
    whole = _as_json(text.strip())
    if isinstance(whole, dict) and _has(whole, keys):
        return whole
    last, rest = None, text
    for value, end in _objects_within(text):
        if _has(value, keys):
            last, rest = value, text[end:]
    # Where an answer goes on behind it, the object was a draft, or stood as a quotation inside a broken answer.
    if last is not None and not _answers_on(rest, keys):
        return last
    repaired = [value for value in _repaired(rest) if _has(value, keys)]
    if repaired:
        return repaired[-1]
    raise InvalidAnswerError(f"no JSON object with the keys {', '.join(keys)}")


def text_field(answer: Mapping[str, object], key: str) -> str:
    """Take a text from an answer.

    Raises:
        InvalidAnswerError: The value is no string.
    """
    value = answer[key]
    if not isinstance(value, str):
        raise InvalidAnswerError(f"`{key}` is not a text")
    return _encodable(value)


def choice(answer: Mapping[str, object], key: str, menu: Sequence[str]) -> str:
    """Take a label from an answer: in any case, with blanks around it or a final full stop.

    Raises:
        InvalidAnswerError: The value is no string, or empty.
        OutOfRangeError: The label is not on the menu.
    """
    label = text_field(answer, key).strip().removesuffix(".").rstrip().casefold()
    if not label:
        # What a repair makes of an answer that breaks off; no choice of the model.
        raise InvalidAnswerError(f"`{key}` is empty")
    if label not in menu:
        raise OutOfRangeError(f"`{key}` is none of {', '.join(menu)}")
    return label


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
    return tuple(_encodable(item) for item in value)


def _encodable(text: str) -> str:
    # Half a surrogate pair, as a JSON escape can bring it, would make a verdict that nobody can encode.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _has(value: Mapping[str, object], keys: Sequence[str]) -> bool:
    return all(key in value for key in keys)


def _answers_on(rest: str, keys: Sequence[str]) -> bool:
    return any(re.search(rf"[\"']{re.escape(key)}[\"']\s*:", rest) for key in keys)


def _as_json(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None


def _objects_within(text: str) -> Iterator[tuple[dict[str, object], int]]:
    """Yield every whole JSON object that stands in the text, outermost ones only, in order, each with its end."""
    decoder = json.JSONDecoder(strict=False)
    position = 0
    while (opening := _OPENING.search(text, position)) is not None:
        try:
            value, position = decoder.raw_decode(text, opening.start())
        except (ValueError, RecursionError):
            position = opening.end()
            continue
        yield value, position


def _repaired(text: str) -> Iterator[dict[str, object]]:
    """Yield what json-repair makes of the text from its first brace on."""
    start = text.find("{")
    if start < 0 or not _is_repairable(text):
        return
    try:
        value = json_repair.loads(text[start:])
    except (ValueError, RecursionError):
        return
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, dict):
            yield item


def _is_repairable(text: str) -> bool:
    """Keep texts from the repair that would hold up every other evaluation of the process."""
    return len(text) <= _MAX_REPAIRED_CHARS and sum(map(text.count, "{[(")) <= _MAX_REPAIRED_OPENINGS
