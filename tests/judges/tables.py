"""The tables of the judges' tests, which are JSON files in ``data``."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from support.tables import read_table

from judges.parsing.answer import AnswerError


def table(name: str) -> Any:
    return read_table(__file__, name)


def outcome(read: Callable[[str], object], text: str) -> object:
    """Return what was read, or the name of the error."""
    try:
        return read(text)
    except AnswerError as error:
        return type(error).__name__


def misread(read: Callable[[str], object], cases: Mapping[str, Sequence[Any]]) -> dict[str, object]:
    """Return by name what was found where it is not what a case expects: an answer, or the name of an error."""
    found = {name: outcome(read, text) for name, (text, _) in cases.items()}
    return {name: each for name, each in found.items() if each != cases[name][1]}
