"""A scale of labels from a closed list, with a number for each, or with a set that passes."""

import json
import math
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Final

from msgspec import Struct, field

from judges.core.decision import Option
from judges.core.prompt import INVISIBLE
from judges.custom.definition import DefinitionError, listed, nearest, short
from judges.custom.scales import Rating, Scale, Value
from judges.parsing.answer import choice, folded

_MAX_LABELS: Final = 50
_MAX_LABEL_CHARS: Final = 100
# Small letters of other alphabets that look like Latin ones, or whose capitals do.
_LATIN: Final = str.maketrans("авеікмнорстухјѕԁһӏαβεικνορτυχ", "abeikmhopctyxjsdhlabeikvoptux")
_HALF: Final = 0.5


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
