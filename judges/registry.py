"""All judges of a configuration: the built-in ones, the installed ones, and the user's own.

A user's judge is a table of the configuration, or a file of its own. Files are read once, with the templates they name.
Every mistake raises ``SettingsError``, which names the file and the key.
"""

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec
from msgspec import structs

from judges.catalog import CatalogueError, catalogue
from judges.core.combine import GROUNDED_AND_RELEVANT, metrics_of
from judges.core.faults import Fault, Faults, Kind, SettingsError, catch_fault, fault_of
from judges.core.judge import RULE, Judge, is_name
from judges.custom import KINDS, DefinitionError, define, is_definition, kind_of, nearly_kind
from judges.custom.definition import conversion_fault, nearest, read_text, read_toml, unread

__all__ = ["CatalogueError", "catalogue", "load_judges"]
log = logging.getLogger("tracejudge.config")
_PYTHON: Final = "judges.features.python"
_NAMING: Final = f"a judge's name is of {RULE}"
# A longer name is a template's text in the place of its file; no error line should repeat it.
_MAX_FILE_CHARS: Final = 1000


def load_installed_judges(taken: frozenset[str] | None = None) -> Mapping[str, Judge]:
    """Load the judges in Python of distributions by name, if installed, or raise ``DefinitionError``."""
    if find_spec(_PYTHON) is None:
        return {}
    judges: Mapping[str, Judge] = import_module(f"{_PYTHON}.installed").installed(taken or frozenset(catalogue()))
    return judges


def origin_of(name: str) -> str:
    """Return the name of the distribution that contains an installed judge."""
    return str(import_module(f"{_PYTHON}.installed").distribution_of(name))


def load_judges(tables: Mapping[str, Mapping[str, object]]) -> Mapping[str, Judge]:
    """Load all judges with their settings, by name. Judges without a table have their defaults.

    A table that neither belongs to a judge nor defines one is ignored. ``DefinitionError`` if a definition is invalid
    or has the name of another judge that it is not based on, or an installed judge cannot be loaded;
    ``msgspec.ValidationError`` if the settings of a judge are invalid.
    """
    built_in = catalogue()
    definitions = {name: table for name, table in tables.items() if is_definition(table)}
    # The name of the combined verdict is taken too.
    taken = frozenset({*built_in, GROUNDED_AND_RELEVANT.name})
    from_distributions = load_installed_judges(taken)
    for name, table in definitions.items():
        if name in from_distributions or (name in taken and table.get("based_on") != name):
            owner = "a built-in judge" if name in taken else "a judge that an installed distribution brings"
            raise DefinitionError(kind_of(table), f"{name} is the name of {owner}; give this one a name of its own")
    judges: Mapping[str, Judge] = MappingProxyType(
        {
            **{
                name: judge.configured(tables[name]) if name in tables and name not in definitions else judge
                for name, judge in built_in.items()
            },
            **from_distributions,
            **{name: define(name, table) for name, table in definitions.items()},
        }
    )
    if any(judge.exploration is not None for judge in judges.values()):
        # Now, and not when the first trace is judged.
        import_module("judges.agent.loop")
    return judges


class Place(NamedTuple):
    """The place of a judge's table: a file or variable, and the table in it unless the file is the table."""

    file: str
    table: str = ""

    def describe(self, key: str = "") -> str:
        """Return the place of a key, with which errors begin."""
        return ": ".join(filter(None, (self.file, self.whole(key))))

    def whole(self, key: str) -> str:
        """Return a key with the table before it."""
        return ".".join(filter(None, (self.table, key)))

    def fault(self, message: str, code: Kind = "wrong-value", key: str = "") -> Fault:
        """Make a fault of a message that holds the fix after a semicolon."""
        return fault_of(self.whole(key), message, code, self.file)

    def error(self, message: str, code: Kind = "wrong-value", key: str = "") -> SettingsError:
        """Make an error of such a fault."""
        return SettingsError(self.fault(message, code, key))


class JudgeTable(NamedTuple):
    """The definition or the settings of one judge, with the text of a template that it names."""

    name: str
    place: Place
    values: Mapping[str, object]


def display(path: Path) -> Path:
    """Shorten a path below the working directory for error texts; others are absolute."""
    # Links are not resolved, except if a `..` follows one.
    follow = os.path.realpath if ".." in path.parts else os.path.abspath
    try:
        here, whole = Path.cwd(), Path(follow(path.parent), path.name)
    except (OSError, ValueError):
        return path  # the working directory is gone, or this is no path at all
    # Relative to the root directory every path would be short, and ambiguous.
    return whole.relative_to(here) if whole.is_relative_to(here) and here != Path(here.anchor) else whole


def read_judge(path: Path) -> JudgeTable:
    """Read a file that defines one judge, whose name is the file's."""
    path, advice = display(path), "name the file of a judge, NAME.toml"
    _check_readable(path, Place(f"{path}"), advice)
    values = read_toml(path, advice)
    name = path.stem if is_toml(path) else path.name
    if not is_name(name):
        raise Place(f"{path}").error(f"is not the name of a judge; {_NAMING}: rename it")
    return complete(JudgeTable(name, Place(f"{path}"), values), path.parent)


def is_toml(path: Path) -> bool:
    """Return whether a file has the ending of a judge file."""
    return path.suffix.casefold() == ".toml"


def make_defined(table: JudgeTable) -> Judge:
    """Make the judge that a table defines."""
    name, place, values = table
    if name in load_installed_judges():
        fix = f"rename it, or uninstall {origin_of(name)}"
        raise place.error(f"has the name of a judge of an installed distribution; {fix}", "conflict")
    if name in catalogue() and values.get("based_on") != name:
        fix = f"rename it; settings of the built-in judge belong in tracejudge.toml under [judges.{name}]"
        raise place.error(f"has the name of a built-in judge; {fix}", "conflict")
    if not place.table and isinstance(values.get("judges"), Mapping):
        fix = "in a judge's own file the keys stand at the top; take the line [judges.NAME] out"
        raise place.error(fix, "conflict", "judges")
    if not is_definition(values) and nearly_kind(values) is None:
        what = "there is no such judge" if place.table else "does not say what the judge asks"
        code: Kind = "unknown-name" if place.table else "missing-key"
        raise place.error(f"{what}; a judge of your own has one of {', '.join(KINDS)}", code)
    if not is_name(name):
        raise place.error(f"{_NAMING}; rename it")
    try:
        return define(name, values)
    except DefinitionError as error:
        raise place.error(error.fix, error.fault.code, error.key) from error


def complete(table: JudgeTable, base: Path) -> JudgeTable:
    """Add what a table names: the text of a template, and the absolute place of a Python file."""
    if "template" in table.values:
        file = table.values["template"]
        if not isinstance(file, str) or not file.strip() or len(file) > _MAX_FILE_CHARS:
            raise table.place.error('must be the name of a file, as "facts.yaml"', key="template")
        path, advice = display(base / file), "name a template file"
        _check_readable(path, table.place, advice, "template")
        text = read_text(path, advice, table.place.whole("template"), table.place.file)
        table = table._replace(values={**table.values, "template": {"file": file, "text": text}})
    code = table.values.get("code")
    place, colon, name = code.rpartition(":") if isinstance(code, str) else ("", "", "")
    if not place.endswith(".py"):
        return table
    path = display(base / place)
    _check_readable(path, table.place, "name a file of Python", "code")
    return table._replace(values={**table.values, "code": f"{base / place}{colon}{name}"})


def _check_readable(path: Path, place: Place, advice: str, key: str = "") -> None:
    """Refuse a pipe: reading it would block until some program writes."""
    try:
        is_pipe = path.is_fifo()
    except (OSError, ValueError):
        return  # the read that follows describes the error
    if is_pipe:
        raise place.error(f"{f'{path}: ' if key else ''}is a pipe and no file; {advice}", "unreadable-file", key)


def read_tables(tables: Mapping[str, Mapping[str, object]], origin: str, base: Path) -> Faults[list[JudgeTable]]:
    """Read the tables `[judges.*]` of a file or variable; names of files in them are relative to ``base``."""
    whole = []
    for name, values in tables.items():
        table = JudgeTable(name, Place(origin, f"judges.{name}"), values)
        whole.append((yield from catch_fault(partial(complete, table, base))))
    return [table for table in whole if table is not None]


def read_folder(folder: Path) -> Faults[list[tuple[str, JudgeTable | None]]]:
    """Read each `NAME.toml` of a folder, None for one that is wrong; other files are ignored."""
    try:
        paths = sorted(path for path in folder.iterdir() if is_toml(path) and path.name[0] != "." and not path.is_dir())
    except OSError as error:
        message = f"{display(folder)} {unread(error, 'make that folder, or take the key out')}"
        yield fault_of("judges_folder", message, "unreadable-file")
        return []
    tables = []
    for path in paths:
        table = yield from catch_fault(partial(read_judge, path))
        tables.append((path.stem, table))
    return tables


def find_file(folder: Path, name: str) -> Path | None:
    """Return the file of a judge in a folder."""
    return next((path for path in folder.glob(f"{name}.*") if is_toml(path) and path.stem == name), None)


def check_tables(tables: Iterable[JudgeTable]) -> Faults[Mapping[str, Mapping[str, object]]]:
    """Check every table; return the values of those that are right by the name of the judge."""
    named: dict[str, JudgeTable] = {}
    for table in tables:
        if (first := named.setdefault(table.name, table)) is table:
            continue
        here, there = table.place.describe(), first.place.describe()
        if not is_definition(first.values) and is_definition(table.values):
            fix = "write what is to be changed there, and take this table out"
            yield first.place.fault(f"the judge {table.name} is defined in {here}; {fix}", "conflict")
        else:
            fix = f"{there} has that name too; rename one of them, or take it out"
            yield table.place.fault(f"the judge {table.name} is there twice: {fix}", "conflict")
    judges = {}
    for name, table in named.items():
        if (judge := (yield from catch_fault(partial(check_table, table)))) is not None:
            judges[name] = judge
    for clash in clashes(judges):
        if clash.judge in named:
            what = f"a metric of {clash.judge} is exported as {clash.name}, and so is one of {clash.other}"
            yield named[clash.judge].place.fault(f"{what}; rename this judge", "conflict")
    return {name: named[name].values for name in judges}


def check_table(table: JudgeTable) -> Judge:
    """Check one table by making its judge, which is returned."""
    name, place, values = table
    if place.table and not is_definition(values) and name not in load_installed_judges():
        if name in catalogue():
            return _with_settings(place, catalogue()[name], values)
        close = nearest(name, catalogue())
        if "did you mean" in close and nearly_kind(values) is None:
            raise place.error(f"there is no such judge{close}", "unknown-name")
    if values.get("fill") == "inline":
        log.warning("the judge %s is filled inline: a text of a trace may give it orders (prompt injection)", name)
    return make_defined(table)


def _with_settings(place: Place, judge: Judge, values: Mapping[str, object]) -> Judge:
    kind = type(judge.settings)
    if values and not kind.__struct_fields__:
        raise place.error("unknown key; this judge has no settings, take it out", "unknown-key", next(iter(values)))
    try:
        return judge.configured(values)
    except msgspec.ValidationError as error:
        fault = conversion_fault(place.table, kind, error)
        raise SettingsError(structs.replace(fault, place=place.file)) from error


class Clash(NamedTuple):
    """An exported name that metrics of two judges share; ``judge`` is listed after ``other``."""

    name: str
    judge: str
    other: str


def exported_name(judge: str, metric: str) -> str:
    """Return the name of a metric in exports: the judge's name where the metric has it too, else both."""
    return judge if metric == judge else f"{judge}_{metric}"


def clashes(own: Mapping[str, Judge]) -> Iterator[Clash]:
    """Find exported names that two judges share: the user's own, those of distributions, and the built-in ones."""
    # Exporters name a result after its judge and metric alone, so equal names would be one series there.
    built_in = catalogue()
    taken: dict[str, str] = {}
    for judge in {**built_in, **load_installed_judges(frozenset(built_in)), **own}.values():
        # With the metrics that only panels give.
        for metric in metrics_of(judge.metrics):
            name = exported_name(judge.name, metric.name)
            other = taken.setdefault(name, judge.name)
            if other != judge.name:
                yield Clash(name, judge.name, other)
