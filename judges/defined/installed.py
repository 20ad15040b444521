"""Judges in Python that installed distributions bring along: entry points of the group `tracejudge.judges`.

[project.entry-points."tracejudge.judges"]
has_link = "our_judges.links:has_link"
"""

from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Final

from judges.code.errors import CodeError
from judges.code.making import make
from judges.code.starting import load_at_start
from judges.defined.definition import asked, check_name
from judges.defined.errors import DefinitionError, short
from judges.judge import Judge

__all__ = ["GROUP", "distribution_of", "installed"]

GROUP: Final = "tracejudge.judges"


@cache
def installed(taken: frozenset[str] = frozenset()) -> Mapping[str, Judge]:
    """Load the judges of all installed distributions, by name.

    Args:
        taken: Names that they cannot bear: those of the built-in judges.

    Raises:
        DefinitionError: One is no judge, or its name is taken; the key names the distribution and the entry point.
    """
    judges: dict[str, Judge] = {}
    for entry in _entries():
        here = f"{_distribution(entry)}: {GROUP}.{short(entry.name)}"
        if entry.name in taken:
            raise DefinitionError(here, "that is the name of a built-in judge; uninstall the distribution")
        if entry.name in judges:
            raise DefinitionError(here, "another distribution has a judge of this name; uninstall one of them")
        check_name(entry.name, here)
        judges[entry.name] = _judge(entry, here)
    return MappingProxyType(judges)


def distribution_of(name: str) -> str:
    """Name the distribution that brings an installed judge."""
    return next(_distribution(entry) for entry in _entries() if entry.name == name)


def _entries() -> list[EntryPoint]:
    return sorted(entry_points(group=GROUP), key=lambda entry: entry.name)


def _judge(entry: EntryPoint, here: str) -> Judge:
    try:
        loaded = load_at_start(entry.value)
        return make(entry.name, entry.value, loaded, asks=asked(None, loaded.judge.asks))
    except CodeError as error:
        raise DefinitionError(here, f"{short(entry.value)}: {error}") from error


def _distribution(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "a distribution"
