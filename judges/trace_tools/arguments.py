"""Read what a model wrote as the arguments of a call: strictly, and with words that help it to mend them."""

import json
import re
from typing import Final, NamedTuple, TypeVar

import msgspec
from msgspec import Struct, UnsetType

from judges.trace_tools.errors import ToolError

__all__ = ["Position", "offset_of", "page_token", "position_of", "read", "search_token"]

_MAX_TOLD: Final = 200
_TOKEN: Final = re.compile(r"([0-9]{1,12})-([0-9]{1,12})")
_SEARCH_TOKEN: Final = re.compile(r"([0-9]{1,12})-([0-9]{1,12})-([0-9]{1,12})")
_Arguments = TypeVar("_Arguments", bound=Struct)


class Position(NamedTuple):
    """Where a search goes on: in which step, and at which offset of its content in bytes."""

    step: int
    offset: int


def read(arguments: str, form: type[_Arguments]) -> _Arguments:
    """Read arguments; nothing stands for an empty object, null for a value left out, "100" and 100.0 for 100.

    Raises:
        ToolError: They are no JSON object, or do not fit.
    """
    try:
        given = json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        raise ToolError(f"The arguments are no JSON. {_wanted(form)}") from None
    if not isinstance(given, dict):
        raise ToolError(f"The arguments are no JSON object. {_wanted(form)}")
    try:
        # Left as they are told: numbers in strings are read, an unknown key is not.
        return msgspec.convert({key: value for key, value in given.items() if value is not None}, form, strict=False)
    except (msgspec.ValidationError, UnicodeError) as error:
        raise ToolError(f"The arguments do not fit: {str(error)[:_MAX_TOLD]}. {_wanted(form)}") from None


def page_token(offset: int, size: int) -> str | None:
    """Name the place where a content of this size goes on; None at its end."""
    return f"{offset}-{size}" if offset < size else None


def offset_of(token: str | UnsetType, size: int) -> int:
    """Read where a content of this size goes on.

    Raises:
        ToolError: The token is none, or belongs to another content.
    """
    if isinstance(token, UnsetType) or not token:
        return 0
    found = _TOKEN.fullmatch(token)
    # A token of another span, or of the same one with other attributes, would show the wrong place without a word.
    if found is None or int(found[2]) != size or int(found[1]) >= size:
        raise ToolError(
            "The page_token does not belong to this content. Send the page_token of an earlier result unchanged, with "
            "the same span and the same attributes_to_fetch; or leave it out to begin at the start."
        )
    return int(found[1])


def search_token(position: Position, steps: int) -> str:
    """Name the place where a search through so many steps goes on."""
    return f"{position.step}-{position.offset}-{steps}"


def position_of(token: str | UnsetType, steps: int) -> Position:
    """Read where a search through so many steps goes on.

    Raises:
        ToolError: The token is none of a search.
    """
    if isinstance(token, UnsetType) or not token:
        return Position(0, 0)
    found = _SEARCH_TOKEN.fullmatch(token)
    if found is None or int(found[3]) != steps or int(found[1]) >= steps:
        raise ToolError(
            "The page_token is none of a search. Send the page_token that stands beside `matches` in the result of an "
            "earlier search unchanged; or leave it out to begin at the start."
        )
    return Position(int(found[1]), int(found[2]))


def _wanted(form: type[Struct]) -> str:
    fields = msgspec.structs.fields(form)
    if not fields:
        return "This tool takes no arguments: send {}."
    names = (f"{field.name}{' (required)' if field.required else ''}" for field in fields)
    return f"Send one JSON object with these keys: {', '.join(names)}."
