"""Judges defined by users: a table of the configuration, or a file, becomes a ``Judge``.

A definition has exactly one of the keys in ``KINDS``. Each kind is a module of this package with ``make(name, table)``.
Nothing in such a table is executed, except the module that `code` names.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Final

from judges.core.judge import Judge
from judges.custom.definition import KINDS, DefinitionError, check_name, is_definition, kind_of, nearly_kind

__all__ = ["KINDS", "DefinitionError", "define", "is_definition", "kind_of", "nearly_kind"]

# Modules that are not named as their kinds; the module of judges in Python is in a feature.
_MODULES: Final = {"code": "judges.features.python.installed", "based_on": f"{__name__}.guidance"}


def define(name: str, table: Mapping[str, object]) -> Judge:
    """Make a judge from its table `[judges.NAME]`, or raise ``DefinitionError``."""
    kind = kind_of(table)
    check_name(name, kind)
    # Imported on demand: a configuration loads only the kinds that it defines.
    make: Callable[[str, Mapping[str, object]], Judge] = import_module(_MODULES.get(kind, f"{__name__}.{kind}")).make
    return make(name, table)
