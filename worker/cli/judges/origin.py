"""Where a judge comes from, and what the template says about itself that it asks with."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from judges.catalog import catalogue
from judges.defined.installed import distribution_of, installed
from judges.defined.template import metadata_of
from worker.judge_files import file_of, shown
from worker.settings import Settings

__all__ = ["BUILT_IN", "CONFIGURATION", "origin", "template"]

BUILT_IN: Final = "built-in"
CONFIGURATION: Final = "configuration"


def origin(name: str, settings: Settings) -> str:
    """Say where a judge is defined: here, by a distribution, in a file of the folder, or in the configuration."""
    if name in catalogue():
        return BUILT_IN
    if name in installed(frozenset(catalogue())):
        return f"distribution {distribution_of(name)}"
    file = file_of(Path(settings.judges_folder), name) if settings.judges_folder else None
    return CONFIGURATION if file is None else str(shown(file))


def template(name: str, settings: Settings) -> Mapping[str, object] | None:
    """Give the file and the metadata of a judge's template; nothing for a judge without one."""
    return metadata_of(settings.judges.get(name, {}))
