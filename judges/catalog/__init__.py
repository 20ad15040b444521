"""The catalogue: every module of this package that defines ``JUDGE`` is a judge; no list to keep."""

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from judges.judge import Judge

__all__ = ["catalogue", "configured"]


@cache
def catalogue() -> Mapping[str, Judge]:
    """Load all judges, by name."""
    found: dict[str, Judge] = {}
    for module_info in sorted(pkgutil.iter_modules(__path__), key=lambda info: info.name):
        judge = getattr(importlib.import_module(f"{__name__}.{module_info.name}"), "JUDGE", None)
        if isinstance(judge, Judge):
            if judge.name in found or judge.name != module_info.name:
                raise RuntimeError(f"the judge in {module_info.name} must bear that name, once")
            found[judge.name] = judge
    return MappingProxyType(found)


def configured(tables: Mapping[str, Mapping[str, object]]) -> Mapping[str, Judge]:
    """Load all judges, each with its settings.

    Args:
        tables: The settings of judges by name; judges without any have their defaults.

    Raises:
        msgspec.ValidationError: A judge does not take its settings.
    """
    judges = {name: judge.configured(tables[name]) if name in tables else judge for name, judge in catalogue().items()}
    return MappingProxyType(judges)
