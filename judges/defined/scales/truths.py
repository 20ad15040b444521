"""The two scales of two values: ``yes/no`` and ``boolean``."""

from collections.abc import Mapping
from typing import Final

from judges.answer import choice, truth
from judges.defined.scales.scale import Rating, Value
from judges.forms import yes_no

__all__ = ["Boolean", "YesNo"]

_HALF: Final = 0.5


class YesNo:
    """Yes or no; yes passes. A model that sends ``unknown``, which nobody offers, abstains."""

    schema: Mapping[str, object] = yes_no.RESULT_SCHEMA
    placeholder = '"yes|no"'
    asked = "write yes or no, nothing else"
    type_name = "string"
    words = "0 or 1"
    pass_rule: str | None = "yes"  # noqa: S105 - no password
    pass_value: float | None = None
    descriptive = False
    declared: object = "yes/no"

    def read(self, answer: Mapping[str, object], key: str) -> Value:
        """Take yes, no or unknown."""
        return choice(answer, key, yes_no.MENU)

    def rate(self, value: Value) -> Rating | None:
        """Give 1 for yes."""
        if value == "unknown":
            return None
        passed = value == "yes"
        return Rating(float(passed), float(passed), str(value), passed)

    def at(self, share: float) -> object:
        """Say yes from a half on."""
        return "yes" if share >= _HALF else "no"


class Boolean:
    """True or false; true passes."""

    schema: Mapping[str, object] = {"type": "boolean"}
    placeholder = "true|false"
    asked = "write true or false, no quotation marks"
    type_name = "boolean"
    words = "true or false"
    pass_rule: str | None = "true"  # noqa: S105 - no password
    pass_value: float | None = None
    descriptive = False
    declared: object = "boolean"

    def read(self, answer: Mapping[str, object], key: str) -> Value:
        """Take true or false."""
        return truth(answer, key)

    def rate(self, value: Value) -> Rating | None:
        """Give 1 for true."""
        passed = value is True
        return Rating(float(passed), float(passed), "true" if passed else "false", passed)

    def at(self, share: float) -> object:
        """Say true from a half on."""
        return share >= _HALF
