"""The built-in judges: every module of this package that defines ``JUDGE`` is one; there is no list to edit."""

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from judges.core.judge import Judge


class CatalogueError(Exception):
    """A module of this package is no judge; the message names the file and how to fix it, in one line."""


@cache
def catalogue() -> Mapping[str, Judge]:
    """Load all built-in judges, by name; raises ``CatalogueError``."""
    judges: dict[str, Judge] = {}
    for name in sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")):
        file = f"judges/catalog/{name}.py"
        try:
            judge = getattr(importlib.import_module(f"{__name__}.{name}"), "JUDGE", None)
        except Exception as error:
            cause = " ".join(f"{type(error).__name__}: {error}".split())
            raise CatalogueError(f"{file}: cannot be loaded ({cause})") from error
        if not isinstance(judge, Judge):
            fix = "define one, or start the name of a helper with an underscore"
            raise CatalogueError(f"{file}: defines no JUDGE; {fix}")
        if judge.name != name:
            raise CatalogueError(f"{file}: defines a judge named {judge.name!r}; give it the name of its file")
        judges[name] = judge
    return MappingProxyType(judges)
