"""The tables that define judges: those of the configuration, and one file each in a folder.

They are read whole at the start, with the templates they name: the settings then hold everything, and nothing is read
again while workers judge.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from judges.catalog import catalogue
from judges.defined import KINDS, DefinitionError, define, is_definition, nearly_kind
from judges.defined.installed import distribution_of, installed
from judges.judge import Judge
from judges.names import RULE, is_name
from worker.exported_names import clashes
from worker.files import read_text, read_toml, unread
from worker.settings import SettingsError
from worker.wording import complaint, nearest

__all__ = ["JudgeTable", "Place", "check", "checked", "file_of", "of_folder", "of_tables", "read_judge", "shown"]

_NAMING: Final = f"a judge's name is of {RULE}"
_KINDS: Final = ", ".join(KINDS)
_ENDING: Final = ".toml"
_MAX_FILE_CHARS: Final = 1000
"""A longer name of a file is a text that was put in its place, and no line of a terminal should hold it."""


class Place(NamedTuple):
    """Where the table of a judge stands.

    Attributes:
        file: A file, or a variable.
        table: The name of the table in it; nothing where the file is the table.
    """

    file: str
    table: str = ""

    def at(self, key: str = "") -> str:
        """Name a key of the table, as errors begin."""
        return ": ".join(filter(None, (self.file, ".".join(filter(None, (self.table, key))))))


class JudgeTable(NamedTuple):
    """What defines or configures one judge, with the text of a template that it names."""

    name: str
    place: Place
    values: Mapping[str, object]


def shown(path: Path) -> Path:
    """Write a path as it is told: short where it lies below the working directory, else whole."""
    # Links keep their names, but for those that a `..` leads out of.
    follow = os.path.realpath if ".." in path.parts else os.path.abspath
    try:
        here, whole = Path.cwd(), Path(follow(path.parent), path.name)
    except (OSError, ValueError):
        return path  # The working directory is gone, or this is no path at all.
    # Below the root everything would be short, and nobody would know from where.
    return whole.relative_to(here) if whole.is_relative_to(here) and here != Path(here.anchor) else whole


def of_tables(tables: Mapping[str, Mapping[str, object]], origin: str, base: Path) -> Iterator[JudgeTable]:
    """Take what stands under `[judges.*]`.

    Args:
        origin: The file or variable it stands in.
        base: What names of files in there are relative to.

    Raises:
        SettingsError: A template cannot be read.
    """
    for name, values in tables.items():
        yield _completed(JudgeTable(name, Place(origin, f"judges.{name}"), values), base)


def of_folder(folder: Path, place: str) -> Iterator[JudgeTable]:
    """Read each `NAME.toml` of a folder; other files in it are let be.

    Args:
        place: Where the folder is named, as errors begin.

    Raises:
        SettingsError: The folder or a file cannot be read.
    """
    try:
        found = sorted(path for path in folder.iterdir() if _ends_so(path) and not path.is_dir())
    except OSError as error:
        mend = "make that folder, or take the key out"
        raise SettingsError(f"{place}: {shown(folder)} {unread(error, mend)}") from error
    for path in found:
        if not path.name.startswith("."):
            yield read_judge(path)


def file_of(folder: Path, name: str) -> Path | None:
    """Find the file of a judge in a folder."""
    return next((path for path in folder.glob(f"{name}.*") if _ends_so(path) and path.stem == name), None)


def checked(tables: Iterable[JudgeTable]) -> Mapping[str, Mapping[str, object]]:
    """Check every table, and give what they hold by the name of the judge.

    Raises:
        SettingsError: Two tables bear one name, no judge can be made from one, or two judges could not be told apart
            where they are exported.
    """
    found: dict[str, JudgeTable] = {}
    for table in tables:
        if table.name in found:
            raise SettingsError(_twice(found[table.name], table))
        found[table.name] = table
    _check_exported(found, {name: check(table) for name, table in found.items()})
    return {name: table.values for name, table in found.items()}


def read_judge(path: Path) -> JudgeTable:
    """Read a file that defines one judge, which bears the file's name.

    Raises:
        SettingsError: It cannot be read, or its name is none for a judge.
    """
    path, advice = shown(path), "name the file of a judge, NAME.toml"
    _check_readable(path, f"{path}", advice)
    values = read_toml(path, advice)
    name = path.stem if _ends_so(path) else path.name
    if not is_name(name):
        raise SettingsError(f"{path}: bears no name of a judge; {_NAMING}: rename it")
    return _completed(JudgeTable(name, Place(f"{path}"), values), path.parent)


def check(table: JudgeTable) -> Judge:
    """Check one table by making its judge.

    Returns:
        That judge.

    Raises:
        SettingsError: No judge can be made from it.
    """
    name, place, values = table
    is_own = is_definition(values)
    if name in installed(frozenset(catalogue())):
        mend = f"rename it, or uninstall {distribution_of(name)}"
        raise SettingsError(f"{place.at()}: bears the name of a judge that an installed distribution brings; {mend}")
    if name in catalogue():
        if is_own or not place.table:
            mend = f"rename it; settings of that one stand in tracejudge.toml under [judges.{name}]"
            raise SettingsError(f"{place.at()}: bears the name of a built-in judge; {mend}")
        return _with_settings(place, catalogue()[name], values)
    if not place.table and isinstance(values.get("judges"), Mapping):
        mend = "in a judge's own file the keys stand at the top; take the line [judges.NAME] out"
        raise SettingsError(f"{place.at('judges')}: {mend}")
    if not is_own and nearly_kind(values) is None:
        raise SettingsError(f"{place.at()}: {_no_kind(name, place)}")
    return _defined(table)


def _check_exported(tables: Mapping[str, JudgeTable], own: Mapping[str, Judge]) -> None:
    for clash in clashes(own):
        if clash.judge in tables:
            said = f"a metric of {clash.judge} is exported as {clash.name}, and so is one of {clash.other}"
            raise SettingsError(f"{tables[clash.judge].place.at()}: {said}; rename this judge")


def _twice(first: JudgeTable, second: JudgeTable) -> str:
    """Say which of two tables of one name should go."""
    if not is_definition(first.values) and is_definition(second.values):
        mend = "write what is to be changed there, and take this table out"
        return f"{first.place.at()}: the judge {first.name} is defined in {second.place.at()}; {mend}"
    mend = f"{first.place.at()} bears that name too; rename one of them, or take it out"
    return f"{second.place.at()}: the judge {second.name} is there twice: {mend}"


def _ends_so(path: Path) -> bool:
    return path.suffix.casefold() == _ENDING


def _completed(table: JudgeTable, base: Path) -> JudgeTable:
    """Take in what a table names: the text of a template, the place of a file of Python."""
    return _with_code(_with_template(table, base), base)


def _with_code(table: JudgeTable, base: Path) -> JudgeTable:
    code = table.values.get("code")
    place, colon, name = code.rpartition(":") if isinstance(code, str) else ("", "", "")
    if not place.endswith(".py"):
        return table
    path = shown(base / place)
    _check_readable(path, f"{table.place.at('code')}: {path}", "name a file of Python")
    return table._replace(values={**table.values, "code": f"{base / place}{colon}{name}"})


def _with_template(table: JudgeTable, base: Path) -> JudgeTable:
    if "template" not in table.values:
        return table
    file, here = table.values["template"], table.place.at("template")
    if not isinstance(file, str) or not file.strip() or len(file) > _MAX_FILE_CHARS:
        raise SettingsError(f'{here}: must be the name of a file, as "facts.yaml"')
    path, advice = shown(base / file), "name a template file"
    place = f"{here}: {path}"
    _check_readable(path, place, advice)
    text = read_text(path, place, advice)
    return table._replace(values={**table.values, "template": {"file": file, "text": text}})


def _check_readable(path: Path, place: str, advice: str) -> None:
    """Refuse what would be waited for: nobody may ever write into a pipe."""
    try:
        is_pipe = path.is_fifo()
    except (OSError, ValueError):
        return  # Reading says what is wrong.
    if is_pipe:
        raise SettingsError(f"{place}: is a pipe and no file; {advice}")


def _no_kind(name: str, place: Place) -> str:
    mend = f"a judge of your own has one of {_KINDS}"
    if not place.table:
        return f"does not say what the judge asks; {mend}"
    close = nearest(name, catalogue())
    return f"there is no such judge{close if 'did you mean' in close else f'; {mend}'}"


def _with_settings(place: Place, judge: Judge, values: Mapping[str, object]) -> Judge:
    kind = type(judge.settings)
    if values and not kind.__struct_fields__:
        mend = "unknown key; this judge has no settings, take it out"
        raise SettingsError(f"{place.at(next(iter(values)))}: {mend}")
    try:
        return judge.configured(values)
    except msgspec.ValidationError as error:
        raise SettingsError(complaint(place.at(), kind, error)) from error


def _defined(table: JudgeTable) -> Judge:
    name, place, values = table
    if not is_name(name):
        raise SettingsError(f"{place.at()}: {_NAMING}; rename it")
    try:
        return define(name, values)
    except DefinitionError as error:
        raise SettingsError(f"{place.at(error.key)}: {error.mend}") from error
