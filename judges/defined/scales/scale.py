"""What a scale is: the values a model may give, how they are asked for and read, and what they are worth."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

__all__ = ["Rating", "Scale", "Value"]

Value = bool | float | str
"""One value as a model gives it, read."""


class Rating(NamedTuple):
    """What a value is worth; the fields are those of a ``Score``."""

    value: float
    raw: float | str
    label: str | None
    passed: bool | None


class Scale(Protocol):
    """One declared scale. ``key`` below is the key of the answer that holds the value."""

    @property
    def schema(self) -> Mapping[str, object]:
        """The JSON schema of a value."""
        ...

    @property
    def placeholder(self) -> str:
        """A value as the skeleton of an answer shows it, a menu for instance."""
        ...

    @property
    def asked(self) -> str:
        """What to write, for a remark behind the skeleton's line."""
        ...

    @property
    def type_name(self) -> str:
        """The type of a value in JSON, in a word or two."""
        ...

    @property
    def words(self) -> str:
        """The scale for display, as `1..5`."""
        ...

    @property
    def pass_rule(self) -> str | None:
        """What passes, for display; nothing where nothing passes or fails."""
        ...

    @property
    def pass_value(self) -> float | None:
        """The value, 0..1, from which a rating passes; nothing where only the rating itself tells."""
        ...

    @property
    def descriptive(self) -> bool:
        """Whether neither end of it is good."""
        ...

    @property
    def declared(self) -> object:
        """The declaration with its defaults, as it stands in a judge's settings."""
        ...

    def read(self, answer: Mapping[str, object], key: str) -> Value:
        """Take the value out of an answer.

        Raises:
            AnswerError: It has a wrong type, or is off the scale.
        """
        ...

    def rate(self, value: Value) -> Rating | None:
        """Say what a value is worth; nothing where the model cannot tell."""
        ...

    def at(self, share: float) -> object:
        """Pick the value that stands for a share of the best, 0..1, as JSON writes it."""
        ...
