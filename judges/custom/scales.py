"""Scales: the values that a model may give, how they are requested and read, and the scores they become."""

import json
import math
import unicodedata
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Final, Literal, NamedTuple, Protocol

import msgspec
from msgspec import Struct, field

from judges.core.decision import Option
from judges.core.prompt import INVISIBLE
from judges.custom.definition import DefinitionError, listed, nearest, short
from judges.forms import yes_no
from judges.parsing.answer import OutOfRangeError, amount, choice, folded, rating, truth

_MAX_LABELS: Final = 50
_MAX_LABEL_CHARS: Final = 100
# Small letters of other alphabets that look like Latin ones, or whose capitals do.
_LATIN: Final = str.maketrans("авеікмнорстухјѕԁһӏαβεικνορτυχ", "abeikmhopctyxjsdhlabeikvoptux")
Value = float | str | list[str] | dict[str, object]  # One value of an answer.
_HALF: Final = 0.5


class Rating(NamedTuple):
    """The score of a value, with the fields of a ``Score``."""

    value: float
    raw: float | str
    label: str | None
    passed: bool | None


class Scale(Protocol):
    """One declared scale."""

    schema: Mapping[str, object]  # The JSON schema of a value.
    placeholder: str  # The value in the skeleton of an answer, such as a menu.
    instruction: str  # The values to write, as a remark behind the skeleton's line.
    type_name: str  # The JSON type of a value.
    words: str  # The scale for display, as `1..5`.
    pass_rule: str | None = None  # The passing values for display; None if nothing passes or fails.
    pass_value: float | None = None  # The least value, 0..1, that passes; None if only the rating decides.
    descriptive: bool = False  # Whether neither end is good.
    declaration: object  # The declaration with its defaults, for a judge's settings.

    @abstractmethod
    def read(self, answer: Mapping[str, object], key: str) -> Value:
        """Read the value under a key of an answer, or raise ``AnswerError``."""

    def rate(self, value: Value) -> Rating | None:  # noqa: ARG002 - of other scales
        """Score a value; None if the model cannot tell, or if such a result has no value."""
        return None

    @abstractmethod
    def choose(self, share: float) -> object:
        """Return the value at a share of the best, 0..1, as JSON writes it."""

    def options(self) -> Sequence[tuple[Value, Option]]:
        """Return the values that a decision model chooses from, the lowest first; empty if it cannot be asked."""
        return ()


class YesNo(Scale):
    """Yes or no; yes passes. A model that answers ``unknown``, which is not offered, abstains."""

    schema: Mapping[str, object] = yes_no.RESULT_SCHEMA
    placeholder = '"yes|no"'
    instruction = "write yes or no, nothing else"
    type_name = "string"
    words = "0 or 1"
    pass_rule: str | None = "yes"  # noqa: S105 - no password
    declaration: object = "yes/no"

    def read(self, answer: Mapping[str, object], key: str) -> Value:
        """Read yes, no or unknown."""
        return yes_no.result_of(answer, key)

    def rate(self, value: Value) -> Rating | None:
        """Score the value that passes as 1 and the other as 0."""
        if value == "unknown":
            return None
        passed = value == self.pass_rule
        return Rating(float(passed), float(passed), str(value), passed)

    def choose(self, share: float) -> object:
        """Return yes from a half on."""
        return "yes" if share >= _HALF else "no"

    def options(self) -> Sequence[tuple[Value, Option]]:
        """Return the value that passes: a decision model is asked whether it is the right one."""
        passing = str(self.pass_rule)
        return [(passing, Option(passing, ""))]


class Boolean(YesNo):
    """True or false; true passes."""

    schema: Mapping[str, object] = {"type": "boolean"}
    placeholder = "true|false"
    instruction = "write true or false, no quotation marks"
    type_name = "boolean"
    words = "true or false"
    pass_rule: str | None = "true"  # noqa: S105 - no password
    declaration: object = "boolean"

    def read(self, answer: Mapping[str, object], key: str) -> Value:
        """Read true or false."""
        return "true" if truth(answer, key) else "false"

    def choose(self, share: float) -> object:
        """Return true from a half on."""
        return share >= _HALF


Direction = Literal["higher", "lower", "none"]
_MAX_ENUM: Final = 101  # Longer ranges are not listed in the schema; values are checked all the same.
_MAX_LEVELS: Final = 26  # The fewest levels that an endpoint of decisions is known to take.
_MAX_BOUND: Final = 10**15  # Below that a float represents every whole number.


class IntegerRange(Struct, frozen=True, forbid_unknown_fields=True):
    """A `result` of whole numbers."""

    integer: tuple[int, int]  # The lowest and the highest rating.
    pass_at: int | None = None  # The worst rating that passes; without it nothing passes or fails.
    direction: Direction = "higher"  # Which end is good: `higher`, `lower`, or `none` if neither is.


class NumberRange(Struct, frozen=True, forbid_unknown_fields=True):
    """A `result` of any numbers, with the fields of an ``IntegerRange``."""

    number: tuple[float, float]
    pass_at: float | None = None
    direction: Direction = "higher"


class Range(Scale):
    """A range of whole or any numbers."""

    def __init__(self, declared: IntegerRange | NumberRange) -> None:
        whole = isinstance(declared, IntegerRange)
        lowest, highest = declared.integer if isinstance(declared, IntegerRange) else declared.number
        pass_at, direction = declared.pass_at, declared.direction
        self._lowest = lowest
        self._highest = highest
        self._whole = whole
        self._pass_at = pass_at
        self._lower_is_better = direction == "lower"
        first, last = _plain(lowest), _plain(highest)
        kind = "one whole number" if whole else "one number, with a decimal point where it has a fraction,"
        self.schema: Mapping[str, object] = {"type": "integer" if whole else "number"}
        if whole and highest - lowest < _MAX_ENUM:
            # Listed, because not every endpoint accepts bounds in a strict schema.
            self.schema = {"type": "integer", "enum": list(range(int(lowest), int(highest) + 1))}
        self.placeholder = "<number>"
        self.instruction = f"write {kind} from {first} to {last} in plain digits, no quotation marks"
        self.type_name = "integer" if whole else "number"
        self.words = f"{first}..{last}"
        self.descriptive = direction == "none"
        mark = {}
        if pass_at is not None:
            best, side = (lowest, "less") if self._lower_is_better else (highest, "more")
            self.pass_rule = _plain(pass_at) if pass_at == best else f"{_plain(pass_at)} or {side}"
            self.pass_value = self._value(pass_at)
            mark = {"pass_at": self._number(pass_at)}
        bounds = [self._number(lowest), self._number(highest)]
        self.declaration: object = {self.type_name: bounds, **mark, "direction": direction}

    def read(self, answer: Mapping[str, object], key: str) -> Value:
        """Read a number within the bounds, also from a string of its digits."""
        if self._whole:
            return rating(answer, key, int(self._lowest), int(self._highest))
        value = amount(answer, key, self._highest)
        if not self._lowest <= value <= self._highest:
            raise OutOfRangeError(f"`{key}` is no number from {_plain(self._lowest)} to {_plain(self._highest)}")
        return float(value)

    def rate(self, value: Value) -> Rating | None:
        """Score a number by its share of the way to the good end."""
        assert isinstance(value, int | float)  # noqa: S101 - as read
        raw = float(value)
        passed = None
        if self._pass_at is not None:
            passed = raw <= self._pass_at if self._lower_is_better else raw >= self._pass_at
        return Rating(self._value(raw), raw, None, passed)

    def choose(self, share: float) -> object:
        """Return the number at a share of the way to the good end."""
        way = 1 - share if self._lower_is_better else share
        rating = self._lowest + way * (self._highest - self._lowest)
        return self._number(min(max(round(rating, 0 if self._whole else 6), self._lowest), self._highest))

    def options(self) -> Sequence[tuple[Value, Option]]:
        """Return the whole numbers of a short range, which are levels."""
        if not self._whole or self._highest - self._lowest >= _MAX_LEVELS:
            return []
        numbers = range(int(self._lowest), int(self._highest) + 1)
        ends = {self._lowest: "the lowest of the scale", self._highest: "the highest of the scale"}
        return [(number, Option(str(number), ends.get(number, f"{number} on the scale"))) for number in numbers]

    def _value(self, raw: float) -> float:
        above = (self._highest - raw) if self._lower_is_better else (raw - self._lowest)
        return above / (self._highest - self._lowest)

    def _number(self, number: float) -> float:
        return int(number) if self._whole else float(number)


def checked_range(declared: IntegerRange | NumberRange) -> Range:
    """Check the bounds and the pass mark of a declared range, or raise ``DefinitionError``."""
    lowest, highest = declared.integer if isinstance(declared, IntegerRange) else declared.number
    key = "result.integer" if isinstance(declared, IntegerRange) else "result.number"
    # Not `math.isfinite`, which fails for a whole number of more digits than a float holds; inf and nan fail here too.
    if not all(abs(bound) <= _MAX_BOUND for bound in (lowest, highest)):
        raise DefinitionError(key, "a bound must be a finite number of at most fifteen digits")
    if lowest >= highest:
        raise DefinitionError(key, "the first bound must be below the second, as [1, 5]")
    pass_at, direction = declared.pass_at, declared.direction
    if pass_at is not None and direction == "none":
        fix = 'nothing passes or fails with direction = "none"; take out one of them'
        raise DefinitionError("result.pass_at", fix, "conflict")
    if pass_at is not None and not lowest <= pass_at <= highest:
        bounds = f"from {_plain(lowest)} to {_plain(highest)}"
        raise DefinitionError("result.pass_at", f"must be within the range, {bounds}")
    if pass_at is not None and pass_at == (highest if direction == "lower" else lowest):
        fix = "move the mark, or take it out"
        raise DefinitionError("result.pass_at", f"is the bad end of the range, so that nothing could fail; {fix}")
    return Range(declared)


def _plain(number: float) -> str:
    """Write a number as JSON does, a whole one without a fraction."""
    return msgspec.json.encode(int(number) if number == int(number) else number).decode()


class LabelList(Struct, frozen=True, forbid_unknown_fields=True):
    """A `result` of labels."""

    labels: dict[str, float] | tuple[str, ...]  # A number for each, or a bare list.
    passing: tuple[str, ...] | None = field(name="pass", default=None)  # Needed if labels have no numbers.
    rated: bool = True  # Whether a label is worth something; otherwise it is stored as it is.


@dataclass(frozen=True)
class LabelKeys:
    """The keys of a definition that declare labels, as errors name them."""

    labels: str = "result.labels"
    numbers: str = "result.labels"
    passing: str = "result.pass"


class Labels(Scale):
    """A scale of labels, with ``numbers``, with a set that is ``passing``, or without a value."""

    instruction = "write one of these labels as it stands, nothing else"
    type_name = "string"

    def __init__(self, labels: tuple[str, ...], numbers: Mapping[str, float], passing: tuple[str, ...]) -> None:
        self._labels = labels
        self.descriptive = not numbers and not passing
        self._numbers = numbers
        self._passing = passing
        self._by_folded = {folded(label): label for label in labels}
        # A separator of the menu that no label contains.
        longer = (f" {'/' * times} " for times in count(1))
        self._separator = next(sign for sign in chain(("|",), longer) if not any(sign in label for label in labels))
        self.schema: Mapping[str, object] = {"type": "string", "enum": list(labels)}
        self.placeholder = json.dumps(self._separator.join(labels), ensure_ascii=False)
        self.words = "label" if self.descriptive else f" {self._separator.strip()} ".join(labels)
        self.pass_rule = " or ".join(passing) or None
        listing: object = dict(numbers) if numbers else list(labels)
        self.declaration: object = {"labels": listing, **({"pass": list(passing)} if passing else {})}

    def read(self, answer: Mapping[str, object], key: str) -> Value:
        """Read a label, and return it as it was declared."""
        return self._by_folded[choice(answer, key, tuple(self._by_folded), self._separator)]

    def rate(self, value: Value) -> Rating | None:
        """Score a label by its number between the lowest and the highest; without numbers, 1 if it passes."""
        if self.descriptive:
            return None
        label = str(value)
        passed = label in self._passing if self._passing else None
        if not self._numbers:
            return Rating(float(bool(passed)), label, label, passed)
        return Rating(self._value(label), self._numbers[label], label, passed)

    def choose(self, share: float) -> object:
        """Return the label whose value is nearest, the first of several."""
        if self._numbers:
            return min(self._labels, key=lambda label: abs(self._value(label) - share))
        passes = share >= _HALF
        return next((label for label in self._labels if (label in self._passing) == passes), self._labels[0])

    def options(self) -> Sequence[tuple[Value, Option]]:
        """Return the labels; none without a value, because a decision would be scored."""
        labels = () if self.descriptive else self._labels
        return [(label, Option(label, f"The right label is {label}.")) for label in labels]

    def _value(self, label: str) -> float:
        lowest, highest = min(self._numbers.values()), max(self._numbers.values())
        return (self._numbers[label] - lowest) / (highest - lowest)


# Pairs of labels of which the first one passes unless the definition says otherwise.
_PAIRS: Final = ({"yes": True, "no": False}, {"true": True, "false": False}, {"pass": True, "fail": False})


def passing_of(labels: Sequence[str]) -> str | None:
    """Return the label that passes of yes and no, true and false, or pass and fail; None for other labels."""
    for pair in _PAIRS:
        if sorted(map(folded, labels)) == sorted(pair):
            return next(label for label in labels if pair[folded(label)])
    return None


def checked_labels(
    labels: Sequence[str],
    numbers: Mapping[str, float] | None,
    passing: Sequence[str] | None,
    keys: LabelKeys = LabelKeys(),
    *,
    rated: bool = True,
) -> Labels:
    """Check declared labels, with a number for each or a set that passes, or raise ``DefinitionError`` for ``keys``."""
    stripped = tuple(map(normalise, labels))
    worth = {normalise(label): number for label, number in (numbers or {}).items()}
    if len(worth) < len(numbers or {}):
        raise DefinitionError(keys.numbers, "two labels differ in blanks only, or look the same; rename one")
    _check_menu(stripped, keys.labels)
    if numbers is not None:
        _check_numbers(stripped, worth, keys.numbers)
    if not rated:
        return Labels(stripped, {}, ())
    if passing is None and numbers is None and (good := passing_of(stripped)) is not None:
        passing = (good,)
    names = tuple(dict.fromkeys(map(normalise, passing or ())))
    if passing is None and numbers is None:
        fix = f'name the labels that pass, as ["{short(stripped[0])}"]'
        raise DefinitionError(keys.passing, f"is missing; {fix}", "missing-key")
    if passing is not None:
        _check_passing(names, stripped, worth, keys.passing)
    # In the order of the labels: another order of the passing ones must not change the judge's version.
    passes = tuple(label for label in stripped if label in names)
    return Labels(stripped, {label: worth[label] for label in stripped if worth}, passes)


def _check_menu(labels: Sequence[str], key: str) -> None:
    for label in labels:
        if not folded(label):
            raise DefinitionError(key, "a label is empty; give it a name or take it out")
        if len(label) > _MAX_LABEL_CHARS:
            raise DefinitionError(key, f"a label must have at most {_MAX_LABEL_CHARS} characters: {short(label)}")
        if "{{" in label:
            raise DefinitionError(key, f"a label is never filled from a trace; write it out instead of {short(label)}")
        if set("[]\n\r") & set(label) or INVISIBLE.search(label):
            what = "may hold no bracket, no line break and no sign that cannot be seen"
            raise DefinitionError(key, f"a label {what}: {short(label)}")
        if labels.count(label) > 1:
            raise DefinitionError(key, f"the label {short(label)} is there twice; write each once")
    if not 1 < len(labels) <= _MAX_LABELS:
        raise DefinitionError(key, f"must be from 2 to {_MAX_LABELS} different labels")
    if pair := _first_alike(labels, folded):
        fault = f"the labels {short(pair[0])} and {short(pair[1])} overlap"
        raise DefinitionError(key, f"{fault}: an answer in another case or with a full stop fits both; rename one")
    # Compatibility forms and letters of other scripts look the same to a reader.
    if pair := _first_alike(
        labels,
        lambda label: " ".join(unicodedata.normalize("NFKC", folded(label)).casefold().translate(_LATIN).split()),
    ):
        raise DefinitionError(key, f"the labels {short(pair[0])} and {short(pair[1])} look alike; rename one")


def _first_alike(labels: Sequence[str], fold: Callable[[str], str]) -> tuple[str, str] | None:
    seen: dict[str, str] = {}
    for label in labels:
        first = seen.setdefault(fold(label), label)
        if first != label:
            return first, label
    return None


def _check_numbers(labels: Sequence[str], numbers: Mapping[str, float], key: str) -> None:
    for label in numbers:
        if label not in labels:
            raise DefinitionError(key, f"there is no label {short(label)}{nearest(label, labels)}", "unknown-name")
    without = [label for label in labels if label not in numbers]
    if without:
        raise DefinitionError(key, f"give numbers to all labels or to none; none has {listed(without)}")
    if not all(map(math.isfinite, numbers.values())):
        raise DefinitionError(key, "a label's number must be finite")
    if len(set(numbers.values())) == 1:
        raise DefinitionError(key, "all labels have the same number; give the better ones a higher one")
    if not math.isfinite(max(numbers.values()) - min(numbers.values())):
        raise DefinitionError(key, "the labels' numbers are too far apart")


def _check_passing(passing: Sequence[str], labels: Sequence[str], numbers: Mapping[str, float], key: str) -> None:
    for label in passing:
        if label not in labels:
            raise DefinitionError(key, f"there is no label {short(label)}{nearest(label, labels)}", "unknown-name")
    if not passing:
        fix = "name at least one label, or take it out where labels have numbers"
        raise DefinitionError(key, f"is empty; {fix}", "missing-key")
    if len(passing) == len(labels):
        raise DefinitionError(key, "names all labels, so that nothing could fail; leave one out")
    if not numbers:
        return
    failing = [label for label in numbers if label not in passing]
    worst, best = min(passing, key=numbers.__getitem__), max(failing, key=numbers.__getitem__)
    if numbers[worst] < numbers[best]:
        fix = "give the better labels the higher numbers"
        raise DefinitionError(key, f"{short(worst)} passes and is worth less than {short(best)}, which fails; {fix}")


def normalise(label: str) -> str:
    """Strip a label, and compose its accented letters, so that it has one spelling."""
    return unicodedata.normalize("NFC", label).strip()
