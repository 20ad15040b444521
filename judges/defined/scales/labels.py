"""A scale of labels from a closed list, each worth a number, or passing by itself."""

import json
import math
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, count
from typing import Final

from msgspec import Struct, field

from judges.answer import choice, folded
from judges.defined.errors import DefinitionError, listed, nearest, short
from judges.defined.scales.scale import Rating, Value
from judges.prompt import INVISIBLE

__all__ = ["LabelList", "Labels", "Places", "labelled", "plain"]

_MAX_LABELS: Final = 50
_MAX_LABEL_CHARS: Final = 100
_LATIN: Final = str.maketrans("авеікмнорстухјѕԁһӏαβεικνορτυχ", "abeikmhopctyxjsdhlabeikvoptux")
"""Letters of other alphabets, small, that look as Latin ones do, or whose capitals do."""
_FORBIDDEN: Final = frozenset("[]\n\r")
_PLACEHOLDER: Final = "{{"
_BETWEEN: Final = "|"
_HALF: Final = 0.5


class LabelList(Struct, frozen=True, forbid_unknown_fields=True):
    """A `result` of labels.

    Attributes:
        labels: A number for each, or a bare list.
        passing: Those that pass, in the table `pass`; needed where labels have no numbers.
    """

    labels: dict[str, float] | tuple[str, ...]
    passing: tuple[str, ...] | None = field(name="pass", default=None)


@dataclass(frozen=True)
class Places:
    """The keys of the definition that speak of labels, for what is said about mistakes."""

    labels: str = "result.labels"
    numbers: str = "result.labels"
    passing: str = "result.pass"


@dataclass(frozen=True)
class Labels:
    """Labels as they were declared; ``numbers`` is empty where they have none, ``passing`` where nothing passes."""

    labels: tuple[str, ...]
    numbers: Mapping[str, float]
    passing: tuple[str, ...]

    @property
    def schema(self) -> Mapping[str, object]:
        """List the labels."""
        return {"type": "string", "enum": list(self.labels)}

    @property
    def placeholder(self) -> str:
        """Show the menu."""
        return json.dumps(self._between.join(self.labels), ensure_ascii=False)

    @property
    def asked(self) -> str:
        """Ask for one of the menu."""
        return "write one of these labels as it stands, nothing else"

    @property
    def type_name(self) -> str:
        """Name the type."""
        return "string"

    @property
    def words(self) -> str:
        """Show the menu with blanks."""
        return f" {self._between.strip()} ".join(self.labels)

    @property
    def pass_rule(self) -> str | None:
        """Name what passes."""
        return " or ".join(self.passing) or None

    @property
    def pass_value(self) -> float | None:
        """Only the label tells what passes."""
        return None

    @property
    def descriptive(self) -> bool:
        """Labels have a good end, or a set that passes."""
        return False

    @property
    def declared(self) -> object:
        """Write the declaration anew."""
        labels: object = dict(self.numbers) if self.numbers else list(self.labels)
        return {"labels": labels, **({"pass": list(self.passing)} if self.passing else {})}

    def read(self, answer: Mapping[str, object], key: str) -> Value:
        """Take a label, and give it back as it was declared."""
        return self._by_folded[choice(answer, key, tuple(self._by_folded), self._between)]

    def rate(self, value: Value) -> Rating | None:
        """Give the label's place between the lowest and the highest number; without numbers, 1 where it passes."""
        label = str(value)
        passed = label in self.passing if self.passing else None
        if not self.numbers:
            return Rating(float(bool(passed)), label, label, passed)
        lowest, highest = min(self.numbers.values()), max(self.numbers.values())
        raw = self.numbers[label]
        return Rating((raw - lowest) / (highest - lowest), raw, label, passed)

    def at(self, share: float) -> object:
        """Pick the label whose value is nearest, of several the first."""
        if self.numbers:
            return min(self.labels, key=lambda label: abs(self._value(label) - share))
        wanted = share >= _HALF
        return next(label for label in self.labels if (label in self.passing) == wanted)

    def _value(self, label: str) -> float:
        found = self.rate(label)
        return found.value if found else 0.0

    @cached_property
    def _by_folded(self) -> Mapping[str, str]:
        return {folded(label): label for label in self.labels}

    @cached_property
    def _between(self) -> str:
        """Choose what stands between labels in a menu: nothing that any of them holds."""
        longer = (f" {'/' * times} " for times in count(1))
        return next(sign for sign in chain((_BETWEEN,), longer) if not any(sign in label for label in self.labels))


def labelled(
    labels: Sequence[str],
    numbers: Mapping[str, float] | None,
    passing: Sequence[str] | None,
    places: Places = Places(),
) -> Labels:
    """Check declared labels.

    Args:
        labels: In the order they are shown.
        numbers: What each is worth; for all of them or not given.
        passing: Those that pass.
        places: What the keys of the definition are called.

    Raises:
        DefinitionError: There are too few or too many, one is there twice, cannot be told from another or shown in a
            menu, numbers are missing, make no range or are no numbers, or what passes is not declared, not needed, or
            worth less than what fails.
    """
    stripped = tuple(map(plain, labels))
    worth = {plain(label): number for label, number in (numbers or {}).items()}
    if len(worth) < len(numbers or {}):
        raise DefinitionError(places.numbers, "two labels differ in blanks only, or look the same; rename one")
    _check_menu(stripped, places.labels)
    if numbers is not None:
        _check_numbers(stripped, worth, places)
    names = tuple(dict.fromkeys(map(plain, passing or ())))
    if passing is None and numbers is None:
        raise DefinitionError(places.passing, f'is missing; name the labels that pass, as ["{short(stripped[0])}"]')
    if passing is not None:
        _check_passing(names, stripped, places.passing)
        _check_worth(names, worth, places.passing)
    # In the order of the labels: another order of what passes is no other judge.
    passes = tuple(label for label in stripped if label in names)
    return Labels(stripped, {label: worth[label] for label in stripped if worth}, passes)


def _check_menu(labels: Sequence[str], key: str) -> None:
    for label in labels:
        _check_label(label, key)
        if labels.count(label) > 1:
            raise DefinitionError(key, f"the label {short(label)} is there twice; write each once")
    if not 1 < len(labels) <= _MAX_LABELS:
        raise DefinitionError(key, f"must be from 2 to {_MAX_LABELS} different labels")
    seen: dict[str, str] = {}
    for label in labels:
        first = seen.setdefault(folded(label), label)
        if first != label:
            said = f"the labels {short(first)} and {short(label)} overlap"
            raise DefinitionError(key, f"{said}: an answer in another case or with a full stop fits both; rename one")
    _check_looks(labels, key)


def _check_looks(labels: Sequence[str], key: str) -> None:
    seen: dict[str, str] = {}
    for label in labels:
        first = seen.setdefault(_look(label), label)
        if first != label:
            raise DefinitionError(key, f"the labels {short(first)} and {short(label)} look alike; rename one")


def _check_label(label: str, key: str) -> None:
    if not folded(label):
        raise DefinitionError(key, "a label is empty; give it a name or take it out")
    if len(label) > _MAX_LABEL_CHARS:
        raise DefinitionError(key, f"a label must have at most {_MAX_LABEL_CHARS} signs: {short(label)}")
    if _PLACEHOLDER in label:
        raise DefinitionError(key, f"a label is never filled from a trace; write it out instead of {short(label)}")
    if _FORBIDDEN & set(label) or INVISIBLE.search(label):
        what = "may hold no bracket, no line break and no sign that cannot be seen"
        raise DefinitionError(key, f"a label {what}: {short(label)}")


def _check_numbers(labels: Sequence[str], numbers: Mapping[str, float], places: Places) -> None:
    for label in numbers:
        if label not in labels:
            raise DefinitionError(places.numbers, f"there is no label {short(label)}{nearest(label, labels)}")
    without = [label for label in labels if label not in numbers]
    if without:
        mend = f"give numbers to all labels or to none; none has {listed(without)}"
        raise DefinitionError(places.numbers, mend)
    if not all(map(math.isfinite, numbers.values())):
        raise DefinitionError(places.numbers, "a label's number must be finite")
    if len(set(numbers.values())) == 1:
        raise DefinitionError(places.numbers, "all labels have the same number; give the better ones a higher one")
    if not math.isfinite(max(numbers.values()) - min(numbers.values())):
        raise DefinitionError(places.numbers, "the labels' numbers are too far apart")


def _check_passing(passing: Sequence[str], labels: Sequence[str], key: str) -> None:
    for label in passing:
        if label not in labels:
            raise DefinitionError(key, f"there is no label {short(label)}{nearest(label, labels)}")
    if not passing:
        raise DefinitionError(key, "is empty; name at least one label, or take it out where labels have numbers")
    if len(passing) == len(labels):
        raise DefinitionError(key, "names all labels, so that nothing could fail; leave one out")


def _check_worth(passing: Sequence[str], numbers: Mapping[str, float], key: str) -> None:
    failing = [label for label in numbers if label not in passing]
    if not numbers or not failing:
        return
    worst, best = min(passing, key=numbers.__getitem__), max(failing, key=numbers.__getitem__)
    if numbers[worst] < numbers[best]:
        mend = "give the better labels the higher numbers"
        raise DefinitionError(key, f"{short(worst)} passes and is worth less than {short(best)}, which fails; {mend}")


def plain(label: str) -> str:
    """Take the blanks off; one way to write a letter with an accent is enough."""
    return unicodedata.normalize("NFC", label).strip()


def _look(label: str) -> str:
    """Fold whatever a reader would not tell apart."""
    return " ".join(unicodedata.normalize("NFKC", folded(label)).casefold().translate(_LATIN).split())
