"""Read the arguments that a model wrote for a call, strictly, with errors that tell the model how to fix them."""

import json
import re
from typing import Annotated, Final, NamedTuple, TypeVar

import msgspec
from msgspec import Meta, Struct, UnsetType


class ToolError(ValueError):
    """A call that cannot be answered; the message tells the model what to send instead."""


_TOKEN: Final = re.compile(r"[0-9]{1,12}(?:-[0-9]{1,12}){1,2}")
PageToken = Annotated[
    str | UnsetType,
    Meta(description="Where to go on: the page_token of an earlier result, unchanged. Leave it out to begin."),
]
_Arguments = TypeVar("_Arguments", bound=Struct)


class Position(NamedTuple):
    """The place at which a search continues: the number of a step, and the offset in its content in bytes."""

    step: int
    offset: int


def read(arguments: str, form: type[_Arguments]) -> _Arguments:
    """Read arguments, or raise ``ToolError``. No text is an empty object, null is absent, "100" or 100.0 is 100."""
    try:
        fields = json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        raise ToolError(f"The arguments are no JSON. {_wanted(form)}") from None
    if not isinstance(fields, dict):
        raise ToolError(f"The arguments are no JSON object. {_wanted(form)}")
    try:
        # Not strict: models write numbers as strings. Unknown keys are still errors.
        return msgspec.convert({key: value for key, value in fields.items() if value is not None}, form, strict=False)
    except (msgspec.ValidationError, UnicodeError) as error:
        raise ToolError(f"The arguments do not fit: {str(error)[:200]}. {_wanted(form)}") from None


def page_token(offset: int, size: int) -> str | None:
    """Encode where a content of this size continues; None at its end."""
    return f"{offset}-{size}" if offset < size else None


def offset_of(token: str | UnsetType, size: int) -> int:
    """Decode where a content of this size continues, or raise ``ToolError`` for a token of another content."""
    if isinstance(token, UnsetType) or not token:
        return 0
    match _numbers(token):
        # A token of another span, or of the same one with other attributes, would silently show the wrong place.
        case [offset, of_size] if offset < size == of_size:
            return offset
    raise ToolError(
        "The page_token does not belong to this content. Send the page_token of an earlier result unchanged, with the "
        "same span and the same attributes_to_fetch; or leave it out to begin at the start."
    )


def _numbers(token: str) -> list[int]:
    return list(map(int, token.split("-"))) if _TOKEN.fullmatch(token) else []


def search_token(position: Position, steps: int) -> str:
    """Encode where a search through so many steps continues."""
    return f"{position.step}-{position.offset}-{steps}"


def position_of(token: str | UnsetType, steps: int) -> Position:
    """Decode where a search through so many steps continues, or raise ``ToolError``."""
    if isinstance(token, UnsetType) or not token:
        return Position(0, 0)
    match _numbers(token):
        case [step, offset, of_steps] if step < steps == of_steps:
            return Position(step, offset)
    raise ToolError(
        "The page_token is none of a search. Send the page_token that stands beside `matches` in the result of an "
        "earlier search unchanged; or leave it out to begin at the start."
    )


def _wanted(form: type[Struct]) -> str:
    fields = msgspec.structs.fields(form)
    if not fields:
        return "This tool takes no arguments: send {}."
    names = (f"{field.name}{' (required)' if field.required else ''}" for field in fields)
    return f"Send one JSON object with these keys: {', '.join(names)}."
