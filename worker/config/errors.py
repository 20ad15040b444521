"""Error texts of the configuration, and its files: where a value is wrong and what belongs there, never the value."""

import difflib
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import inspect

from worker.config.settings import SettingsError

_UNKNOWN: Final = re.compile(r"unknown field `([^`]*)`")
_MISSING: Final = re.compile(r"missing required field `([^`]*)`")
_PATH: Final = re.compile(r" - at `\$\.?([^`]*)`")
_STEP: Final = re.compile(r"\[\d+\]|[^.\[\]]+")


def describe_error(place: str, kind: Any, error: msgspec.ValidationError) -> str:
    """Describe the error of a conversion to ``kind``; ``place`` is the file or variable and the converted key."""
    text = str(error)
    found = _PATH.search(text)
    path = found[1] if found else ""
    here = f"{place}{'' if not path or path.startswith('[') else '.'}{path}"
    wanted = _at(inspect.type_info(kind), path)
    example = ", as { input = 0.10, output = 0.50 }" if path.split(".")[0] == "price" else ""
    if name := _UNKNOWN.search(text):
        return f"{here}.{name[1]}: unknown key{nearest(name[1], _fields(wanted))}"
    if name := _MISSING.search(text):
        return f"{here}.{name[1]}: is missing; it {expected(_fields(wanted)[name[1]])}{example}"
    return f"{here}: {expected(wanted)}{example}"


def with_rule_name(error: SettingsError, name: object, count: int) -> SettingsError:
    """Add the name of a rule to an error that has its index; a rule that is the only one needs none."""
    return SettingsError(f"{error} (rule {name!r})") if count > 1 else error


def nearest(name: str, known: Iterable[str]) -> str:
    """Suggest the known name that is closest, or list all."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; known are {', '.join(names)}" if names else ""


def expected(wanted: inspect.Type) -> str:
    """Describe the values of a type."""
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
            words += "; write 5 % as 0.05" if 0 in {wanted.ge, wanted.gt} and wanted.le == 1 else ""
        case inspect.StrType():
            words = _string(wanted)
        case inspect.TupleType():
            words = f"a list of {len(wanted.item_types)} numbers, as [1.5, -0.2]"
        case inspect.VarTupleType():
            is_of_pairs = isinstance(wanted.item_type, inspect.TupleType)
            words = "a list of pairs of numbers, as [[0.2, 0.1], [0.8, 0.9]]" if is_of_pairs else 'a list, as ["…"]'
        case inspect.StructType():
            words = f"a table with some of {', '.join(_fields(wanted))}"
        case _:
            words = "a string"
    return f"must be {words}"


def _string(wanted: inspect.StrType) -> str:
    if wanted.max_length is not None:
        least = f"{wanted.min_length} to" if wanted.min_length else "at most"
        return f"a string of {least} {wanted.max_length} characters"
    if wanted.pattern == r"\S":
        return "a string that is not blank"
    if wanted.pattern is not None and "prompt_version" in wanted.pattern:
        return "one of name, model, release, prompt_version, or tags.NAME"
    if wanted.pattern is not None and "tags" in wanted.pattern:
        return "the name of a field of a trace, or tags.NAME"
    return "a string" if wanted.pattern is None else "a string of letters, digits, '_', '-' and '.'"


def _bounds(wanted: inspect.IntType | inspect.FloatType) -> str:
    least = f"above {wanted.gt}" if wanted.gt is not None else f"{wanted.ge}" if wanted.ge is not None else ""
    if wanted.lt is not None:
        return f" {least} and below {wanted.lt}"
    if wanted.le is None:
        return f" of at least {least}" if wanted.ge is not None else f" {least}".rstrip()
    return f" {least} and at most {wanted.le}" if wanted.gt is not None else f" from {least} to {wanted.le}"


def _fields(wanted: inspect.Type) -> dict[str, inspect.Type]:
    return {field.encode_name: field.type for field in wanted.fields} if isinstance(wanted, inspect.StructType) else {}


def _at(wanted: inspect.Type, path: str) -> inspect.Type:
    """Return the type at a path such as `where.has[0]`."""
    wanted = _held(wanted)
    for step in _STEP.findall(path):
        kinds = wanted.types if isinstance(wanted, inspect.UnionType) else (wanted,)
        if step.startswith("["):
            lists = [kind for kind in kinds if isinstance(kind, inspect.VarTupleType | inspect.TupleType)]
            item = lists[0].item_type if isinstance(lists[0], inspect.VarTupleType) else lists[0].item_types[0]
            wanted = _held(item)
        else:
            wanted = _held(next(_fields(kind)[step] for kind in kinds if step in _fields(kind)))
    # The path hides the keys of mappings.
    return _held(wanted.value_type) if path.endswith("[...]") and isinstance(wanted, inspect.DictType) else wanted


def _held(wanted: inspect.Type) -> inspect.Type:
    """Return the type inside an optional type."""
    if not isinstance(wanted, inspect.UnionType):
        return wanted
    kinds = tuple(kind for kind in wanted.types if not isinstance(kind, inspect.NoneType))
    return kinds[0] if len(kinds) == 1 else inspect.UnionType(kinds)


# No file of a configuration is longer; another one was named by mistake.
MAX_BYTES: Final = 1 << 20


def read_text(path: Path, place: str, advice: str) -> str:
    """Read at most a mebibyte of UTF-8; a ``SettingsError`` begins with ``place`` and ends with ``advice``."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise SettingsError(f"{place}: {unread(error, advice)}") from error
    except ValueError as error:
        raise SettingsError(f"{place}: is not a file name; {advice}") from error  # a zero byte
    if len(data) > MAX_BYTES:
        raise SettingsError(f"{place}: is longer than 1 MiB; {advice}")
    try:
        return data.decode("utf-8-sig")  # some editors write a byte order mark
    except UnicodeDecodeError as error:
        raise SettingsError(f"{place}: is not UTF-8; save it as UTF-8") from error


def unread(error: OSError, advice: str) -> str:
    """Describe why a file cannot be read and how to fix it: ``advice``, or the permission."""
    fix = "let the user that runs this read it" if isinstance(error, PermissionError) else advice
    return f"cannot be read ({error.strerror}); {fix}"


def read_toml(path: Path, advice: str) -> dict[str, Any]:
    """Read a TOML file; a ``SettingsError`` names it and, if it cannot be read, ends with ``advice``."""
    text = read_text(path, f"{path}", advice)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: is not TOML: {error}; fix it there") from error
    except ValueError as error:
        # Python refuses numbers of more than 4,300 digits, and tomllib does not translate that error.
        raise SettingsError(f"{path}: is not TOML: a number has too many digits; fix it there") from error
    except RecursionError as error:
        raise SettingsError(f"{path}: is not TOML: it is nested too deep; fix it there") from error
