"""Reads the tables that define judges: those of the configuration, and one file each in a folder.

They are read once at the start, with the templates they name: no file is read again while workers judge. Every mistake
raises ``SettingsError``.
"""

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from judges.core.judge import RULE, Judge, is_name
from judges.custom import KINDS, DefinitionError, define, is_definition, nearly_kind
from judges.custom.installed import distribution_of, installed
from judges.registry import catalogue
from worker.config.checks import clashes
from worker.config.errors import describe_error, nearest, read_text, read_toml, unread
from worker.config.settings import SettingsError

log = logging.getLogger("tracejudge.config")
_NAMING: Final = f"a judge's name is of {RULE}"
_KINDS: Final = ", ".join(KINDS)
_ENDING: Final = ".toml"
# A longer name is a template's text in the place of its file; no error line should repeat it.
_MAX_FILE_CHARS: Final = 1000


class Place(NamedTuple):
    """Where the table of a judge stands: a file or variable, and the table in it unless the file is the table."""

    file: str
    table: str = ""

    def at(self, key: str = "") -> str:
        """Return the place of a key, with which errors begin."""
        return ": ".join(filter(None, (self.file, ".".join(filter(None, (self.table, key))))))


class JudgeTable(NamedTuple):
    """The definition or the settings of one judge, with the text of a template that it names."""

    name: str
    place: Place
    values: Mapping[str, object]


def shown(path: Path) -> Path:
    """Shorten a path below the working directory for error texts; others are absolute."""
    # Links are not resolved, except where a `..` follows one.
    follow = os.path.realpath if ".." in path.parts else os.path.abspath
    try:
        here, whole = Path.cwd(), Path(follow(path.parent), path.name)
    except (OSError, ValueError):
        return path  # the working directory is gone, or this is no path at all
    # Relative to the root directory every path would be short, and ambiguous.
    return whole.relative_to(here) if whole.is_relative_to(here) and here != Path(here.anchor) else whole


def of_tables(tables: Mapping[str, Mapping[str, object]], origin: str, base: Path) -> Iterator[JudgeTable]:
    """Read the tables `[judges.*]` of a file or variable; names of files in them are relative to ``base``."""
    for name, values in tables.items():
        yield _completed(JudgeTable(name, Place(origin, f"judges.{name}"), values), base)


def of_folder(folder: Path, place: str) -> Iterator[JudgeTable]:
    """Read each `NAME.toml` of a folder, which is named at ``place``; other files are ignored."""
    try:
        found = sorted(path for path in folder.iterdir() if _ends_so(path) and not path.is_dir())
    except OSError as error:
        fix = "make that folder, or take the key out"
        raise SettingsError(f"{place}: {shown(folder)} {unread(error, fix)}") from error
    for path in found:
        if not path.name.startswith("."):
            yield read_judge(path)


def file_of(folder: Path, name: str) -> Path | None:
    """Return the file of a judge in a folder."""
    return next((path for path in folder.glob(f"{name}.*") if _ends_so(path) and path.stem == name), None)


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


def read_judge(path: Path) -> JudgeTable:
    """Read a file that defines one judge, whose name is the file's."""
    path, advice = shown(path), "name the file of a judge, NAME.toml"
    _check_readable(path, f"{path}", advice)
    values = read_toml(path, advice)
    name = path.stem if _ends_so(path) else path.name
    if not is_name(name):
        raise SettingsError(f"{path}: is not the name of a judge; {_NAMING}: rename it")
    return _completed(JudgeTable(name, Place(f"{path}"), values), path.parent)


def check(table: JudgeTable) -> Judge:
    """Check one table by making its judge, which is returned."""
    name, place, values = table
    is_own = is_definition(values)
    if name in installed(frozenset(catalogue())):
        fix = f"rename it, or uninstall {distribution_of(name)}"
        raise SettingsError(f"{place.at()}: has the name of a judge of an installed distribution; {fix}")
    if name in catalogue() and values.get("based_on") != name:
        if is_own or not place.table:
            fix = f"rename it; settings of the built-in judge belong in tracejudge.toml under [judges.{name}]"
            raise SettingsError(f"{place.at()}: has the name of a built-in judge; {fix}")
        return _with_settings(place, catalogue()[name], values)
    if not place.table and isinstance(values.get("judges"), Mapping):
        fix = "in a judge's own file the keys stand at the top; take the line [judges.NAME] out"
        raise SettingsError(f"{place.at('judges')}: {fix}")
    if not is_own and nearly_kind(values) is None:
        fix = f"; a judge of your own has one of {_KINDS}"
        if not place.table:
            raise SettingsError(f"{place.at()}: does not say what the judge asks{fix}")
        close = nearest(name, catalogue())
        raise SettingsError(f"{place.at()}: there is no such judge{close if 'did you mean' in close else fix}")
    if not is_name(name):
        raise SettingsError(f"{place.at()}: {_NAMING}; rename it")
    if values.get("fill") == "inline":
        log.warning("the judge %s is filled inline: a text of a trace may give it orders (prompt injection)", name)
    try:
        return define(name, values)
    except DefinitionError as error:
        raise SettingsError(f"{place.at(error.key)}: {error.fix}") from error


def _ends_so(path: Path) -> bool:
    return path.suffix.casefold() == _ENDING


def _completed(table: JudgeTable, base: Path) -> JudgeTable:
    """Add what a table names: the text of a template, and the absolute place of a Python file."""
    if "template" in table.values:
        file, here = table.values["template"], table.place.at("template")
        if not isinstance(file, str) or not file.strip() or len(file) > _MAX_FILE_CHARS:
            raise SettingsError(f'{here}: must be the name of a file, as "facts.yaml"')
        path, advice = shown(base / file), "name a template file"
        _check_readable(path, f"{here}: {path}", advice)
        text = read_text(path, f"{here}: {path}", advice)
        table = table._replace(values={**table.values, "template": {"file": file, "text": text}})
    code = table.values.get("code")
    place, colon, name = code.rpartition(":") if isinstance(code, str) else ("", "", "")
    if not place.endswith(".py"):
        return table
    path = shown(base / place)
    _check_readable(path, f"{table.place.at('code')}: {path}", "name a file of Python")
    return table._replace(values={**table.values, "code": f"{base / place}{colon}{name}"})


def _check_readable(path: Path, place: str, advice: str) -> None:
    """Refuse a pipe: reading it would block until some program writes."""
    try:
        is_pipe = path.is_fifo()
    except (OSError, ValueError):
        return  # the read that follows describes the error
    if is_pipe:
        raise SettingsError(f"{place}: is a pipe and no file; {advice}")


def _with_settings(place: Place, judge: Judge, values: Mapping[str, object]) -> Judge:
    kind = type(judge.settings)
    if values and not kind.__struct_fields__:
        fix = "unknown key; this judge has no settings, take it out"
        raise SettingsError(f"{place.at(next(iter(values)))}: {fix}")
    try:
        return judge.configured(values)
    except msgspec.ValidationError as error:
        raise SettingsError(describe_error(place.at(), kind, error)) from error
