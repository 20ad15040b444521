"""Loads the whole configuration: what ``reading`` reads, with judges and the files of features, and all checks.

Every mistake becomes a ``SettingsError`` of one line: the file or variable, the key, and how to fix it.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from itertools import chain
from pathlib import Path

from msgspec import structs

from judges.core.faults import Fault, Faults, SettingsError, first_raised
from judges.custom import DefinitionError
from judges.registry import CatalogueError, check_tables, read_folder, read_tables
from worker.core.config.checks import setting_faults, with_files
from worker.core.config.reading import Given, convert, named_keys, read
from worker.core.config.rule_checks import endpoints_of, judge_names, rule_faults
from worker.core.config.settings import Settings
from worker.core.features import installed


def load(
    environment: Mapping[str, str],
    config: str | None = None,
    arguments: Mapping[str, object] | None = None,
    *,
    needs_rules: bool = True,
) -> Settings:
    """Load and check the settings.

    Args:
        environment: The environment variables.
        config: A file that must exist; otherwise `TRACEJUDGE_CONFIG`, or `tracejudge.toml` where it exists.
        arguments: Settings of the command line; None is absent.
        needs_rules: Whether the rules are used. Without them no model need be called default.

    Raises:
        SettingsError: A value is wrong, or values do not go together.
    """
    given = first_raised(read(environment, config, arguments))
    return first_raised(given.placed(build(given, environment, needs_rules=needs_rules)))


def build(
    given: Given, environment: Mapping[str, str], *, needs_rules: bool = True, of_worker: bool = False
) -> Faults[Settings]:
    """Convert and check what was read; ``of_worker`` opens all files that a worker opens at its start."""
    settings, wrong = yield from convert(given)
    settings, names = yield from _with_judges(settings, given)
    for feature in installed():
        if feature.complete is not None:
            settings = yield from _without_followers(feature.complete(settings, given, names), wrong)
    has_rules = "rules" in given.origin or "default" in settings.models
    faults = chain(
        setting_faults(settings),
        rule_faults(settings, names, needs_rules=needs_rules, has_rules=has_rules),
        with_files(settings, environment, endpoints_of(settings) if of_worker else None),
    )
    for fault in faults:
        if not _follows(fault, wrong):
            yield fault
    return settings


def _follows(fault: Fault, wrong: AbstractSet[str]) -> bool:
    """Return whether a fault only follows from a wrong value, in place of which the default was checked."""
    return fault.key in wrong or (fault.code == "unknown-name" and not wrong.isdisjoint(named_keys()))


def _without_followers(faults: Faults[Settings], wrong: AbstractSet[str]) -> Faults[Settings]:
    """Leave out the faults that only follow from a wrong value."""
    while True:
        try:
            fault = next(faults)
        except StopIteration as end:
            settings: Settings = end.value
            return settings
        if not _follows(fault, wrong):
            yield fault


def _with_judges(settings: Settings, given: Given) -> Faults[tuple[Settings, frozenset[str]]]:
    """Add the judges of the folder and all templates; names of files in a file are relative to it.

    Returns:
        The settings with the judges that are right, and the names of all judges.
    """
    try:
        names = judge_names(settings)
    except (CatalogueError, DefinitionError) as error:
        raise SettingsError(f"{error}") from error
    origin, path = given.origin, given.path
    base = {key: Path(path).parent if path and place == path else Path() for key, place in origin.items()}
    tables = yield from read_tables(settings.judges, origin.get("judges", ""), base.get("judges", Path()))
    if settings.judges_folder is not None:
        folder = base["judges_folder"] / settings.judges_folder
        further = yield from read_folder(folder)
        settings = structs.replace(settings, judges_folder=str(folder))
        names |= {name for name, _ in further}
        tables += [table for _, table in further if table is not None]
    judges = yield from check_tables(tables)
    return structs.replace(settings, judges=judges), names
