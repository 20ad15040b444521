"""Say what is wrong with a value of the configuration: where in it, and what belongs there, never the value itself."""

import difflib
import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec
from msgspec import inspect

__all__ = ["complaint", "nearest"]

_UNKNOWN: Final = re.compile(r"unknown field `([^`]*)`")
_MISSING: Final = re.compile(r"missing required field `([^`]*)`")
_PATH: Final = re.compile(r" - at `\$\.?([^`]*)`")
_STEP: Final = re.compile(r"\[\d+\]|[^.\[\]]+")


def complaint(place: str, kind: Any, error: msgspec.ValidationError) -> str:
    """Turn the error of a conversion into one of ours.

    Args:
        place: File or variable, and the key that was converted.
        kind: What it was converted to.
    """
    text = str(error)
    found = _PATH.search(text)
    path = found[1] if found else ""
    here = f"{place}{'' if not path or path.startswith('[') else '.'}{path}"
    wanted = _at(inspect.type_info(kind), path)
    if name := _UNKNOWN.search(text):
        return f"{here}.{name[1]}: unknown key{nearest(name[1], _fields(wanted))}"
    if name := _MISSING.search(text):
        return f"{here}.{name[1]}: is missing; it {expected(_fields(wanted)[name[1]])}"
    return f"{here}: {expected(wanted)}"


def nearest(name: str, known: Iterable[str]) -> str:
    """Suggest what was meant, or list what there is."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; known are {', '.join(names)}" if names else ""


def expected(wanted: inspect.Type) -> str:
    """Say in words what a type takes."""
    match wanted:
        case inspect.UnionType():
            words = " or ".join(expected(kind).removeprefix("must be ") for kind in wanted.types)
        case inspect.LiteralType():
            words = f"one of {', '.join(map(str, wanted.values))}"
        case inspect.BoolType():
            words = "true or false"
        case inspect.IntType():
            words = f"a whole number{_bounds(wanted)}"
        case inspect.FloatType():
            words = f"a number{_bounds(wanted)}"
        case inspect.StrType():
            words = _string(wanted)
        case inspect.VarTupleType():
            words = 'a list, as ["…"]'
        case inspect.StructType():
            words = f"a table with some of {', '.join(_fields(wanted))}"
        case _:
            words = "a string"
    return f"must be {words}"


def _string(wanted: inspect.StrType) -> str:
    if wanted.max_length is not None:
        return f"a string of at most {wanted.max_length} signs"
    if wanted.pattern == r"\S":
        return "a string that is not blank"
    return "a string" if wanted.pattern is None else "a string of letters, digits, '_', '-' and '.'"


def _bounds(wanted: inspect.IntType | inspect.FloatType) -> str:
    least = f"above {wanted.gt}" if wanted.gt is not None else f"{wanted.ge}" if wanted.ge is not None else ""
    if wanted.le is None:
        return f" of at least {least}" if wanted.ge is not None else ""
    return f" {least} and at most {wanted.le}" if wanted.gt is not None else f" from {least} to {wanted.le}"


def _fields(wanted: inspect.Type) -> dict[str, inspect.Type]:
    return {field.encode_name: field.type for field in wanted.fields} if isinstance(wanted, inspect.StructType) else {}


def _at(wanted: inspect.Type, path: str) -> inspect.Type:
    """Follow a path such as `where.has[0]` into a type; an optional type stands for what it may hold."""
    wanted = _held(wanted)
    for step in _STEP.findall(path):
        kinds = wanted.types if isinstance(wanted, inspect.UnionType) else (wanted,)
        if step.startswith("["):
            wanted = _held(next(kind.item_type for kind in kinds if isinstance(kind, inspect.VarTupleType)))
        else:
            wanted = _held(next(_fields(kind)[step] for kind in kinds if step in _fields(kind)))
    return wanted


def _held(wanted: inspect.Type) -> inspect.Type:
    """Take an optional type for what it holds."""
    if not isinstance(wanted, inspect.UnionType):
        return wanted
    kinds = tuple(kind for kind in wanted.types if not isinstance(kind, inspect.NoneType))
    return kinds[0] if len(kinds) == 1 else inspect.UnionType(kinds)
