"""The catalogue: every module of this package that defines ``JUDGE`` is a judge; no list to keep."""

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from judges.defined import DefinitionError, define, is_definition, kind_of
from judges.defined.installed import installed
from judges.judge import Judge

__all__ = ["CatalogueError", "catalogue", "configured"]


class CatalogueError(Exception):
    """A file of this package is no judge; the message names it and the mend, in one line."""


@cache
def catalogue() -> Mapping[str, Judge]:
    """Load all judges, by name.

    Raises:
        CatalogueError: A file is no judge.
    """
    names = sorted(found.name for found in pkgutil.iter_modules(__path__) if not found.name.startswith("_"))
    return MappingProxyType({name: _load(name) for name in names})


def _load(name: str) -> Judge:
    place = f"judges/catalog/{name}.py"
    try:
        judge = getattr(importlib.import_module(f"{__name__}.{name}"), "JUDGE", None)
    except Exception as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise CatalogueError(f"{place}: cannot be loaded ({said})") from error
    if not isinstance(judge, Judge):
        mend = "define one, or begin the name of a helper with an underscore"
        raise CatalogueError(f"{place}: defines no JUDGE; {mend}")
    if judge.name != name:
        raise CatalogueError(f"{place}: bears the name {judge.name!r}; a judge bears the name of its file")
    return judge


def configured(tables: Mapping[str, Mapping[str, object]]) -> Mapping[str, Judge]:
    """Load all judges, each with its settings: the built-in ones, those of distributions, and the user's own.

    Args:
        tables: The settings of judges by name, and the definitions of further ones; judges without any have their
            defaults. A table that neither belongs to a judge nor defines one is left out.

    Raises:
        DefinitionError: A table defines a judge, and not as it must, or under the name of another; or a judge of an
            installed distribution cannot be loaded.
        msgspec.ValidationError: A judge does not take its settings.
    """
    definitions = {name: table for name, table in tables.items() if is_definition(table)}
    brought = installed(frozenset(catalogue()))
    for name, table in definitions.items():
        if name in catalogue() or name in brought:
            owner = "a built-in judge" if name in catalogue() else "a judge that an installed distribution brings"
            raise DefinitionError(kind_of(table), f"{name} is the name of {owner}; give this one a name of its own")
    built_in = {
        name: judge.configured(tables[name]) if name in tables else judge for name, judge in catalogue().items()
    }
    defined = {name: define(name, table) for name, table in definitions.items()}
    return MappingProxyType({**built_in, **brought, **defined})
