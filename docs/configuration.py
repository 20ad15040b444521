"""The reference page of the configuration: a section for each table, of the core and of features."""

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, get_args, get_origin

import msgspec
from msgspec import Struct

from judges.core.model import ModelSettings
from judges.models.registry import PROVIDERS
from judges.requests.redaction import Redact
from worker.core.config.settings import ExtensibleTable, JudgeCalibration, Rule, Settings, Where
from worker.core.features import Table, installed_tables

__all__ = ["page", "rows"]

_HEAD: Final = """\
`tracejudge.toml` in the working folder (or `--config`, or `TRACEJUDGE_CONFIG`), then `TRACEJUDGE_*` variables, then
arguments; the later wins. Each key of the first table has a variable: `redis_url` is `TRACEJUDGE_REDIS_URL`; tables are
written as JSON there, lists with commas. Durations may be written as `"90s"`, `"15m"`, `"24h"`, sizes as `"64MiB"`,
`"1GiB"`.
"""
_CORE: Final[Mapping[str, type[Struct]]] = {
    "Top level": Settings,
    "`[models.NAME]`": ModelSettings,
    "`[[calibrations]]`": JudgeCalibration,
    "`[[rules]]`": Rule,
    "`where` of a rule": Where,
    "`[redact]`": Redact,
}
_ATTRIBUTE: Final = re.compile(r"^ {4}(\w+): (.+?)(?=^ {4}\w+: |\Z)", re.MULTILINE | re.DOTALL)


def page() -> str:
    """Write the page."""
    of_features = (section for table in installed_tables().values() for section in _sections(table))
    parts = ["# Configuration\n", _HEAD]
    for title, struct in {**_CORE, **dict(of_features)}.items():
        parts.append(f"## {title}\n")
        parts += ["| key | default | what |", "| --- | --- | --- |"]
        parts += [f"| `{name}` | {default} | {text} |" for name, default, text in _keys(struct)]
        parts.append("")
    return "\n".join(parts)


def _sections(table: Table[Any]) -> Iterator[tuple[str, type[Struct]]]:
    """Yield the tables that a feature reads below one key, each with its title."""
    name = f"{table.key}.NAME" if table.is_named else table.key
    if table.kinds:
        yield from ((f'`[{name}]` with `kind = "{kind}"`', struct) for kind, struct in table.kinds.items())
    elif _is_struct(table.type):
        yield f"`[{name}]`", table.type
        for field in msgspec.structs.fields(table.type):
            if get_origin(field.type) is Mapping and _is_struct(item := get_args(field.type)[1]):
                yield f"`[{name}.{field.encode_name}.NAME]`", item


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


def _keys(struct: type[Struct]) -> Iterator[tuple[str, str, str]]:
    """Yield the keys of a table: those of the core, then those of features."""
    yield from (row for row in rows(struct) if row[0] != "tables" or not issubclass(struct, ExtensibleTable))
    if issubclass(struct, ExtensibleTable):
        for key, table in installed_tables(struct.extension).items():
            yield key, "-" if table.is_named else _as_json(table.default), " ".join(table.text.split())


def rows(struct: type[Struct]) -> Iterator[tuple[str, str, str]]:
    """Yield the name, the default and the description of each field of a class."""
    described = {
        name: text for each in reversed(struct.__mro__) for name, text in _ATTRIBUTE.findall(inspect.getdoc(each) or "")
    }
    for field in msgspec.structs.fields(struct):
        text = " ".join(described.get(field.name, "").split())
        owners = [f"`{name}`" for name, provider in PROVIDERS.items() if field.name in provider.own_settings]
        if struct is ModelSettings and owners:
            text = f"{text} Only with {' and '.join(owners)}."
        yield field.encode_name, "required" if field.required else _as_json(field.default), text


def _as_json(default: object) -> str:
    """Return a default as JSON; `-` if the description says what holds without the key."""
    is_described = default in (msgspec.UNSET, msgspec.NODEFAULT)
    is_table = any(isinstance(each, Struct) for each in (default if isinstance(default, tuple) else (default,)))
    return "-" if is_described or is_table else f"`{msgspec.json.encode(default).decode()}`"
