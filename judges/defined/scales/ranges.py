"""Scales between two numbers: whole ones, or any."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

import msgspec
from msgspec import Struct

from judges.answer import InvalidAnswerError, OutOfRangeError, rating
from judges.defined.errors import DefinitionError
from judges.defined.scales.scale import Rating, Value

__all__ = ["IntegerRange", "NumberRange", "Range", "ranged"]

Direction = Literal["higher", "lower", "none"]

_MAX_ENUM: Final = 101
"""Longer ranges are not listed in the schema; what comes is checked all the same."""
_MAX_BOUND: Final = 10**15
"""Below that a float holds every whole number."""
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,300}(?:\.[0-9]{1,300})?")
_DIGITS: Final = 6


class IntegerRange(Struct, frozen=True, forbid_unknown_fields=True):
    """A `result` of whole numbers.

    Attributes:
        integer: The lowest and the highest rating.
        pass_at: The worst rating that passes; without it nothing passes or fails.
        direction: Which end is good: `higher`, `lower`, or `none` where neither is.
    """

    integer: tuple[int, int]
    pass_at: int | None = None
    direction: Direction = "higher"


class NumberRange(Struct, frozen=True, forbid_unknown_fields=True):
    """A `result` of any numbers, with the fields of an ``IntegerRange``."""

    number: tuple[float, float]
    pass_at: float | None = None
    direction: Direction = "higher"


@dataclass(frozen=True)
class Range:
    """A range as it was declared."""

    lowest: float
    highest: float
    whole: bool
    pass_at: float | None
    direction: Direction

    @property
    def schema(self) -> Mapping[str, object]:
        """Whole numbers of a short range are listed: not every endpoint takes bounds in a strict schema."""
        if not self.whole:
            return {"type": "number"}
        if self.highest - self.lowest < _MAX_ENUM:
            return {"type": "integer", "enum": list(range(int(self.lowest), int(self.highest) + 1))}
        return {"type": "integer"}

    @property
    def placeholder(self) -> str:
        """Stand for a number."""
        return "<number>"

    @property
    def asked(self) -> str:
        """Ask for plain digits within the bounds."""
        kind = "one whole number" if self.whole else "one number, with a decimal point where it has a fraction,"
        bounds = f"from {_plain(self.lowest)} to {_plain(self.highest)}"
        return f"write {kind} {bounds} in plain digits, no quotation marks"

    @property
    def type_name(self) -> str:
        """Name the type."""
        return "integer" if self.whole else "number"

    @property
    def words(self) -> str:
        """Give the bounds."""
        return f"{_plain(self.lowest)}..{_plain(self.highest)}"

    @property
    def pass_rule(self) -> str | None:
        """Give the pass mark, and to which side of it a rating passes."""
        if self.pass_at is None:
            return None
        best, side = (self.lowest, "less") if self.direction == "lower" else (self.highest, "more")
        return _plain(self.pass_at) if self.pass_at == best else f"{_plain(self.pass_at)} or {side}"

    @property
    def pass_value(self) -> float | None:
        """Give what the pass mark is worth."""
        return None if self.pass_at is None else self._value(self.pass_at)

    @property
    def descriptive(self) -> bool:
        """Tell whether it has no good end."""
        return self.direction == "none"

    @cached_property
    def declared(self) -> object:
        """Write the declaration anew."""
        bounds = [self._number(self.lowest), self._number(self.highest)]
        mark = {} if self.pass_at is None else {"pass_at": self._number(self.pass_at)}
        return {self.type_name: bounds, **mark, "direction": self.direction}

    def read(self, answer: Mapping[str, object], key: str) -> Value:
        """Take a number within the bounds."""
        if self.whole:
            return rating(answer, key, int(self.lowest), int(self.highest))
        return _number(answer, key, self.lowest, self.highest)

    def rate(self, value: Value) -> Rating | None:
        """Give the share of the range, turned round where low is good."""
        raw = float(value)
        return Rating(self._value(raw), raw, None, self._passes(raw))

    def at(self, share: float) -> object:
        """Give the number at a share of the way to the good end."""
        way = 1 - share if self.direction == "lower" else share
        found = self.lowest + way * (self.highest - self.lowest)
        return self._number(min(max(round(found, 0 if self.whole else _DIGITS), self.lowest), self.highest))

    def _value(self, raw: float) -> float:
        above = (self.highest - raw) if self.direction == "lower" else (raw - self.lowest)
        return above / (self.highest - self.lowest)

    def _passes(self, raw: float) -> bool | None:
        if self.pass_at is None:
            return None
        return raw <= self.pass_at if self.direction == "lower" else raw >= self.pass_at

    def _number(self, number: float) -> float:
        return int(number) if self.whole else float(number)


def ranged(declared: IntegerRange | NumberRange) -> Range:
    """Check a declared range.

    Raises:
        DefinitionError: Its bounds are no range, or its pass mark is outside, fails nothing or has no side to pass on.
    """
    whole = isinstance(declared, IntegerRange)
    lowest, highest = declared.integer if isinstance(declared, IntegerRange) else declared.number
    key = "result.integer" if whole else "result.number"
    # `math.isfinite` would not take a whole number of more digits than a float holds; inf and nan fail here too.
    if not all(abs(bound) <= _MAX_BOUND for bound in (lowest, highest)):
        raise DefinitionError(key, "a bound must be a finite number of at most fifteen digits")
    if lowest >= highest:
        raise DefinitionError(key, "the first bound must be below the second, as [1, 5]")
    pass_at, direction = declared.pass_at, declared.direction
    if pass_at is not None and direction == "none":
        raise DefinitionError("result.pass_at", 'nothing passes or fails with direction = "none"; take out one of them')
    if pass_at is not None and not lowest <= pass_at <= highest:
        bounds = f"from {_plain(lowest)} to {_plain(highest)}"
        raise DefinitionError("result.pass_at", f"must be within the range, {bounds}")
    if pass_at is not None and pass_at == (highest if direction == "lower" else lowest):
        mend = "move the mark, or take it out"
        raise DefinitionError("result.pass_at", f"is the bad end of the range, so that nothing could fail; {mend}")
    return Range(lowest, highest, whole, pass_at, direction)


def _number(answer: Mapping[str, object], key: str, lowest: float, highest: float) -> float:
    """Take a number from an answer, also its digits in a string."""
    value = answer[key]
    if isinstance(value, str) and _NUMBER.fullmatch(digits := value.strip().removesuffix(".")):
        value = float(digits)
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise InvalidAnswerError(f"`{key}` is not a number")
    if not lowest <= value <= highest:
        raise OutOfRangeError(f"`{key}` is no number from {_plain(lowest)} to {_plain(highest)}")
    return float(value)


def _plain(number: float) -> str:
    """Write a number as JSON does, a whole one without a fraction."""
    return msgspec.json.encode(int(number) if number == int(number) else number).decode()
