"""Tables of dialects in `dialects.d`, the folder beside the configuration: loading, checking, and their other form."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from judges.core.faults import Fault, SettingsError
from judges.custom.definition import read_text, read_toml
from tracejudge.dialects import Dialects, builtin
from tracejudge.dialects.own_tables import TableError, table_of, to_toml, with_tables

_FOLDER: Final = "dialects.d"


def table_files(config: str | None, pattern: str = "*.toml") -> list[Path]:
    """Return the tables beside a configuration, or in the current folder without one."""
    return sorted((Path(config).parent if config else Path()).joinpath(_FOLDER).glob(pattern))


def load_dialects(config: str | None) -> Dialects:
    """Return the dialects with the tables beside a configuration, or raise ``SettingsError``."""
    try:
        return with_tables([table_of(read_fields(path)) for path in table_files(config)])
    except TableError:
        raise SettingsError(next(table_faults(table_files(config)))) from None


def table_faults(paths: list[Path]) -> Iterator[Fault]:
    """Find what is wrong with tables, of each the first mistake."""
    owners = dict.fromkeys((table.name for table in builtin().tables), "a built-in table")
    for path in paths:
        try:
            name = table_of(read_fields(path)).name
            if (owner := owners.setdefault(name, str(path))) != str(path):
                yield Fault("name", f"{owner} has the name {name!r} too", "give this one another", place=str(path))
        except SettingsError as error:
            yield error.fault
        except TableError as error:
            key, _, text = str(error).partition(": ")
            what, _, fix = text.partition("; ")
            yield Fault(key, what, fix or "see `A dialect of your own` in docs/opentelemetry.md", place=str(path))


def is_table(path: Path) -> bool:
    """Return whether a file is the table of a dialect and no configuration, by its name or its keys."""
    with suppress(SettingsError):
        is_named = path.suffix == ".json" or path.parent.name == _FOLDER
        return is_named or not {"prefixes", "kinds", "calls"}.isdisjoint(read_fields(path))
    return False


def read_fields(path: Path) -> Any:
    """Read the fields of a table in TOML or JSON, or raise ``SettingsError``."""
    advice = "correct the path"
    if path.suffix != ".json":
        return read_toml(path, advice)
    text = read_text(path, advice)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        why = error if isinstance(error, ValueError) else "it is nested too deep"
        raise SettingsError(Fault("", f"is not JSON: {why}", "fix it there", "unreadable-file", str(path))) from error


def write_table(path: Path, fields: dict[str, Any]) -> None:
    """Write a table as TOML, or as JSON if the file is named so."""
    text = json.dumps(fields, indent=2, ensure_ascii=False) + "\n" if path.suffix == ".json" else to_toml(fields)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
