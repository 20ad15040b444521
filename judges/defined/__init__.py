"""Judges that users define: a table of the configuration, or a file, becomes a ``Judge``.

A definition holds exactly one of the keys in ``KINDS``; each kind is a module of this package, named as its key, with
``make(name, table)``. Nothing that a user writes in such a table is executed, but for the module that `code` names.
"""

from collections.abc import Callable, Mapping
from importlib import import_module

from judges.defined.definition import KINDS, check_name, is_definition, kind_of, nearly_kind
from judges.defined.errors import DefinitionError
from judges.judge import Judge

__all__ = ["KINDS", "DefinitionError", "define", "is_definition", "kind_of", "nearly_kind"]


def define(name: str, table: Mapping[str, object]) -> Judge:
    """Make a judge of a definition.

    Args:
        name: The judge's name, which its metric bears too.
        table: What stands under `[judges.NAME]`.

    Raises:
        DefinitionError: The table defines no judge; the error names the key in it and the mend.
    """
    kind = kind_of(table)
    check_name(name, kind)
    # Imported only now: the template kind looks into the catalogue, which itself imports this package.
    make: Callable[[str, Mapping[str, object]], Judge] = import_module(f"{__name__}.{kind}").make
    return make(name, table)
