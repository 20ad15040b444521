"""The catalogue: every module of this package that defines ``JUDGE`` is a judge; no list to keep."""

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

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
    """Load all judges, each with its settings.

    Args:
        tables: The settings of judges by name; judges without any have their defaults.

    Raises:
        msgspec.ValidationError: A judge does not take its settings.
    """
    judges = {name: judge.configured(tables[name]) if name in tables else judge for name, judge in catalogue().items()}
    return MappingProxyType(judges)
