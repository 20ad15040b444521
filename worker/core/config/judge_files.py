"""Reads the tables that define judges: those of the configuration, and one file each in a folder.

They are read once at the start, with the templates they name: no file is read again while workers judge.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import structs

from judges.core.combine import metrics_of
from judges.core.faults import SettingsError, fault_of
from judges.core.judge import Judge
from judges.custom import is_definition, nearly_kind
from judges.custom.definition import nearest, unread
from judges.registry import (
    JudgeTable,
    Place,
    catalogue,
    complete,
    display,
    distributed,
    is_toml,
    make_defined,
    read_judge,
)
from worker.core.config.errors import Faults, caught, conversion_fault

log = logging.getLogger("tracejudge.config")


def of_tables(tables: Mapping[str, Mapping[str, object]], origin: str, base: Path) -> Faults[list[JudgeTable]]:
    """Read the tables `[judges.*]` of a file or variable; names of files in them are relative to ``base``."""
    whole = []
    for name, values in tables.items():
        table = JudgeTable(name, Place(origin, f"judges.{name}"), values)
        whole.append((yield from caught(partial(complete, table, base))))
    return [table for table in whole if table is not None]


def of_folder(folder: Path) -> Faults[list[tuple[str, JudgeTable | None]]]:
    """Read each `NAME.toml` of a folder, None for one that is wrong; other files are ignored."""
    try:
        paths = sorted(path for path in folder.iterdir() if is_toml(path) and path.name[0] != "." and not path.is_dir())
    except OSError as error:
        message = f"{display(folder)} {unread(error, 'make that folder, or take the key out')}"
        yield fault_of("judges_folder", message, "unreadable-file")
        return []
    tables = []
    for path in paths:
        table = yield from caught(partial(read_judge, path))
        tables.append((path.stem, table))
    return tables


def file_of(folder: Path, name: str) -> Path | None:
    """Return the file of a judge in a folder."""
    return next((path for path in folder.glob(f"{name}.*") if is_toml(path) and path.stem == name), None)


def checked(tables: Iterable[JudgeTable]) -> Faults[Mapping[str, Mapping[str, object]]]:
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
        if (judge := (yield from caught(partial(check, table)))) is not None:
            judges[name] = judge
    for clash in clashes(judges):
        if clash.judge in named:
            what = f"a metric of {clash.judge} is exported as {clash.name}, and so is one of {clash.other}"
            yield named[clash.judge].place.fault(f"{what}; rename this judge", "conflict")
    return {name: named[name].values for name in judges}


def check(table: JudgeTable) -> Judge:
    """Check one table by making its judge, which is returned."""
    name, place, values = table
    if place.table and not is_definition(values) and name not in distributed():
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
    for judge in {**built_in, **distributed(frozenset(built_in)), **own}.values():
        # With the metrics that only panels give.
        for metric in metrics_of(judge.metrics):
            name = exported_name(judge.name, metric.name)
            other = taken.setdefault(name, judge.name)
            if other != judge.name:
                yield Clash(name, judge.name, other)
