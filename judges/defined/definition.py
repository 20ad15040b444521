"""The table that defines a judge: which kind it is of, whether its name will do, and what its keys hold."""

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec import Struct, inspect

from judges.defined import misplaced
from judges.defined.errors import DefinitionError, close, nearest, short
from judges.judge import has_text
from judges.names import RULE, is_name
from judges.prompt import INVISIBLE, neutralise

__all__ = ["KINDS", "Nearly", "asked", "check_name", "convert", "is_definition", "kind_of", "nearly_kind", "text_of"]

KINDS: Final = ("instructions", "custom_prompt", "template", "code")
"""The keys of which a definition holds exactly one."""

S = TypeVar("S", bound=Struct)

_MAX_TEXT_CHARS: Final = 100_000
_MAX_ASKS_CHARS: Final = 300
_MAX_SHOWN_CHARS: Final = 100
_MEANT_AS_KIND: Final = 0.75
"""How like a kind a key must be, since any key may stand there: `model` is no `code`."""
_UNKNOWN: Final = re.compile(r"unknown field `([^`]*)`")
_MISSING: Final = re.compile(r"missing required field `([^`]*)`")
_PATH: Final = re.compile(r" - at `\$\.?([^`]*)`")
_STEP: Final = re.compile(r"\[[^\]]*\]|[^.\[\]]+")


def is_definition(table: Mapping[str, object]) -> bool:
    """Tell whether a table of `[judges]` defines a judge, or only configures one."""
    return any(kind in table for kind in KINDS)


def kind_of(table: Mapping[str, object]) -> str:
    """Say by which key a table defines its judge.

    Raises:
        DefinitionError: There is none, or more than one.
    """
    found = [kind for kind in KINDS if kind in table]
    if not found:
        if meant := nearly_kind(table):
            raise DefinitionError(short(meant.key), f"unknown key; did you mean {meant.kind}?")
        raise DefinitionError(KINDS[0], f"is missing; a judge is defined by one of {', '.join(KINDS)}")
    if len(found) > 1:
        raise DefinitionError(found[1], f"stands beside {found[0]}; a judge is defined by one of them, take one out")
    return found[0]


class Nearly(NamedTuple):
    """A key of a table, and the kind it may have been meant to be."""

    key: str
    kind: str


def nearly_kind(table: Mapping[str, object]) -> Nearly | None:
    """Find a key that was perhaps meant to define a judge; nothing where there is none."""
    meant = ((key, close(key, KINDS, _MEANT_AS_KIND)) for key in table)
    return next((Nearly(key, kind) for key, kind in meant if kind is not None), None)


def check_name(name: str, key: str) -> None:
    """Check the name of a judge.

    Raises:
        DefinitionError: It would not do as the name of a metric or a series; it is told under ``key``.
    """
    if not is_name(name):
        raise DefinitionError(key, f"a judge cannot be called {short(name)}; rename it: {RULE}")


def text_of(text: str, key: str) -> str:
    """Take a text for a prompt: without blanks around it, with signs for characters that cannot be seen.

    Raises:
        DefinitionError: It says nothing, or is longer than any prompt should be.
    """
    if not has_text(text):
        raise DefinitionError(key, "is empty; say what the model is to judge")
    if len(text) > _MAX_TEXT_CHARS:
        raise DefinitionError(key, f"must have at most {_MAX_TEXT_CHARS} signs")
    return neutralise(text).strip()


def asked(asks: str | None, text: str) -> str:
    """Give the sentence for lists: the one that was given, or else the first line of a text.

    Raises:
        DefinitionError: What was given is no short line.
    """
    if asks is None:
        line = " ".join(text.splitlines()[0].split())
        return line if len(line) <= _MAX_SHOWN_CHARS else f"{line[: _MAX_SHOWN_CHARS - 1]}…"
    if not has_text(asks) or len(asks) > _MAX_ASKS_CHARS or "\n" in asks or INVISIBLE.search(asks):
        mend = f"must be one line of at most {_MAX_ASKS_CHARS} signs, none of them invisible"
        raise DefinitionError("asks", mend)
    return asks.strip()


def convert(table: Mapping[str, object], kind: type[S], path: str = "") -> S:
    """Read a table into a struct.

    Args:
        path: Where the table stands in the definition.

    Raises:
        DefinitionError: An unknown key, one that is missing, or a value of a wrong type.
    """
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        raise _complaint(str(error), kind, path) from error


def _complaint(text: str, kind: type[Struct], path: str) -> DefinitionError:
    found = _PATH.search(text)
    steps = [step for step in _STEP.findall(found[1] if found else "") if not step.startswith("[")]
    here = ".".join(filter(None, (path, *steps)))
    wanted = _at(inspect.type_info(kind), steps)
    if name := _UNKNOWN.search(text):
        return DefinitionError(_below(here, short(name[1])), _unknown(here, name[1], _fields(wanted)))
    if name := _MISSING.search(text):
        return DefinitionError(_below(here, name[1]), f"is missing; it must be {_expected(_fields(wanted)[name[1]])}")
    return DefinitionError(here or "the table", f"must be {_expected(wanted)}")


def _unknown(here: str, name: str, fields: Mapping[str, object]) -> str:
    """Say where a key belongs, or what it may have been meant to be."""
    place = here or next((kind for kind in KINDS if kind in fields), "")
    return misplaced.mend(place, name) or f"unknown key{nearest(name, fields)}"


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _at(wanted: inspect.Type, steps: list[str]) -> inspect.Type:
    """Follow the names of a path; places in lists and tables keep to the type of the whole."""
    for step in steps:
        fields = _fields(wanted)
        if step not in fields:
            return wanted
        wanted = fields[step]
    return wanted


def _fields(wanted: inspect.Type) -> dict[str, inspect.Type]:
    kinds = wanted.types if isinstance(wanted, inspect.UnionType) else (wanted,)
    structs = [kind for kind in kinds if isinstance(kind, inspect.StructType)]
    return {field.encode_name: field.type for struct in structs for field in struct.fields}


def _expected(wanted: inspect.Type) -> str:
    """Say in words what a type takes."""
    words = "a string"
    match wanted:
        case inspect.UnionType():
            kinds = [kind for kind in wanted.types if not isinstance(kind, inspect.NoneType)]
            said = [*map(_expected, kinds)]
            words = (", or " if any("," in one for one in said) else " or ").join(said)
        case inspect.StrType(min_length=int(least), max_length=int(most)):
            words = f"a string of {least} to {most} signs"
        case inspect.LiteralType():
            words = f"one of {', '.join(map(str, wanted.values))}"
        case inspect.BoolType():
            words = "true or false"
        case inspect.IntType() | inspect.FloatType():
            words = _number(wanted)
        case inspect.TupleType():
            words = f"a list of {len(wanted.item_types)}, each {_expected(wanted.item_types[0])}"
        case inspect.VarTupleType() | inspect.ListType():
            words = f"a list, each {_expected(wanted.item_type)}"
        case inspect.DictType():
            words = f"a table, each value {_expected(wanted.value_type)}"
        case inspect.StructType():
            words = f"a table with some of {', '.join(_fields(wanted))}"
    return words


def _number(wanted: inspect.IntType | inspect.FloatType) -> str:
    words = "a whole number" if isinstance(wanted, inspect.IntType) else "a number"
    bounds: list[tuple[str, Any]] = [("of at least", wanted.ge), ("above", wanted.gt), ("of at most", wanted.le)]
    said = " and ".join(f"{word} {bound}" for word, bound in bounds if bound is not None)
    return f"{words} {said}".strip()
