"""Reads the tables that define judges: those of the configuration, and one file each in a folder.

They are read once at the start, with the templates they name: no file is read again while workers judge. Every mistake
raises ``SettingsError``.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from judges.core.judge import Judge
from judges.custom import is_definition, nearly_kind
from judges.custom.definition import nearest, unread
from judges.custom.installed import installed
from judges.registry import JudgeTable, Place, catalogue, complete, is_toml, make_defined, read_judge, shown
from worker.config.checks import clashes
from worker.config.errors import describe_error
from worker.config.settings import SettingsError

log = logging.getLogger("tracejudge.config")


def of_tables(tables: Mapping[str, Mapping[str, object]], origin: str, base: Path) -> Iterator[JudgeTable]:
    """Read the tables `[judges.*]` of a file or variable; names of files in them are relative to ``base``."""
    for name, values in tables.items():
        yield complete(JudgeTable(name, Place(origin, f"judges.{name}"), values), base)


def of_folder(folder: Path, place: str) -> Iterator[JudgeTable]:
    """Read each `NAME.toml` of a folder, which is named at ``place``; other files are ignored."""
    try:
        found = sorted(path for path in folder.iterdir() if is_toml(path) and not path.is_dir())
    except OSError as error:
        fix = "make that folder, or take the key out"
        raise SettingsError(f"{place}: {shown(folder)} {unread(error, fix)}") from error
    for path in found:
        if not path.name.startswith("."):
            yield read_judge(path)


def file_of(folder: Path, name: str) -> Path | None:
    """Return the file of a judge in a folder."""
    return next((path for path in folder.glob(f"{name}.*") if is_toml(path) and path.stem == name), None)


def checked(tables: Iterable[JudgeTable]) -> Mapping[str, Mapping[str, object]]:
    """Check every table; return their values by the name of the judge."""
    found: dict[str, JudgeTable] = {}
    for table in tables:
        if (first := found.get(table.name)) is not None:
            here, there = table.place.at(), first.place.at()
            if not is_definition(first.values) and is_definition(table.values):
                fix = "write what is to be changed there, and take this table out"
                raise SettingsError(f"{there}: the judge {table.name} is defined in {here}; {fix}")
            fix = f"{there} has that name too; rename one of them, or take it out"
            raise SettingsError(f"{here}: the judge {table.name} is there twice: {fix}")
        found[table.name] = table
    for clash in clashes({name: check(table) for name, table in found.items()}):
        if clash.judge in found:
            what = f"a metric of {clash.judge} is exported as {clash.name}, and so is one of {clash.other}"
            raise SettingsError(f"{found[clash.judge].place.at()}: {what}; rename this judge")
    return {name: table.values for name, table in found.items()}


def check(table: JudgeTable) -> Judge:
    """Check one table by making its judge, which is returned."""
    name, place, values = table
    if place.table and not is_definition(values) and name not in installed(frozenset(catalogue())):
        if name in catalogue():
            return _with_settings(place, catalogue()[name], values)
        close = nearest(name, catalogue())
        if "did you mean" in close and nearly_kind(values) is None:
            raise SettingsError(f"{place.at()}: there is no such judge{close}")
    if values.get("fill") == "inline":
        log.warning("the judge %s is filled inline: a text of a trace may give it orders (prompt injection)", name)
    return make_defined(table)


def _with_settings(place: Place, judge: Judge, values: Mapping[str, object]) -> Judge:
    kind = type(judge.settings)
    if values and not kind.__struct_fields__:
        fix = "unknown key; this judge has no settings, take it out"
        raise SettingsError(f"{place.at(next(iter(values)))}: {fix}")
    try:
        return judge.configured(values)
    except msgspec.ValidationError as error:
        raise SettingsError(describe_error(place.at(), kind, error)) from error
