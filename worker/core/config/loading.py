"""Loads the whole configuration: what ``reading`` reads, with judges, objectives and the canary, and all checks.

Every mistake becomes a ``SettingsError`` of one line: the file or variable, the key, and how to fix it.
"""

from collections.abc import Mapping
from itertools import chain
from pathlib import Path

from msgspec import structs

from judges.core.faults import SettingsError
from judges.custom import DefinitionError
from judges.registry import CatalogueError
from worker.base.monitor.objectives import FILE_NAME, read_rows
from worker.core.config import judge_files
from worker.core.config.checks import setting_faults, with_files
from worker.core.config.errors import Faults, first_raised
from worker.core.config.reading import TABLES, Given, convert, read
from worker.core.config.rule_checks import endpoints_of, judge_names, rule_faults
from worker.core.config.settings import Settings
from worker.features.canary.canary_file import read_canary


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
    settings = yield from _with_objectives(settings, given)
    path = given.path
    if settings.canary_file is not None and path and given.origin["canary_file"] == path:
        settings = structs.replace(settings, canary_file=str(Path(path).parent / settings.canary_file))
    has_rules = "rules" in given.origin or "default" in settings.models
    # Labels may name a judge that is wrong itself.
    has_canary = settings.canary_file is not None and names == judge_names(settings)
    faults = chain(
        setting_faults(settings),
        rule_faults(settings, names, needs_rules=needs_rules, has_rules=has_rules),
        read_canary(settings) if has_canary else (),
        with_files(settings, environment, endpoints_of(settings) if of_worker else None),
    )
    for fault in faults:
        # Not what only follows from a wrong value, in place of which the default was checked.
        follows = fault.code == "unknown-name" and not wrong.isdisjoint(TABLES)
        if not follows and fault.key not in wrong:
            yield fault
    return settings


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
    tables = yield from judge_files.of_tables(settings.judges, origin.get("judges", ""), base.get("judges", Path()))
    if settings.judges_folder is not None:
        folder = base["judges_folder"] / settings.judges_folder
        further = yield from judge_files.of_folder(folder)
        settings = structs.replace(settings, judges_folder=str(folder))
        names |= {name for name, _ in further}
        tables += [table for _, table in further if table is not None]
    judges = yield from judge_files.checked(tables)
    return structs.replace(settings, judges=judges), names


def _with_objectives(settings: Settings, given: Given) -> Faults[Settings]:
    """Find and check the file of objectives: the one named, relative to the configuration, or the one beside it."""
    named, place, path = settings.monitor.objectives, given.origin.get("monitor", ""), given.path
    file = (Path(path).parent if path and place in {path, ""} else Path()) / (named or FILE_NAME)
    if named is None and (path is None or not file.exists()):
        return settings
    rows = yield from read_rows(file, f"{place}: monitor.objectives" if named else str(file))
    safety = tuple(dict.fromkeys((*settings.monitor.safety, *(row.judge for row in rows if row.safety))))
    monitor = structs.replace(settings.monitor, objectives=str(file), safety=safety)
    return structs.replace(settings, monitor=monitor)
