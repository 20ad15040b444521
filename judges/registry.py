"""All judges of a configuration: the built-in ones, those of installed distributions, and the user's own."""

from collections.abc import Mapping
from types import MappingProxyType

from judges.agreement.combine import JOINT
from judges.catalog import CatalogueError, catalogue
from judges.core.judge import Judge
from judges.custom import DefinitionError, define, is_definition, kind_of
from judges.custom.installed import installed

__all__ = ["CatalogueError", "catalogue", "configured"]


def configured(tables: Mapping[str, Mapping[str, object]]) -> Mapping[str, Judge]:
    """Load all judges with their settings, by name.

    Args:
        tables: Settings of judges and definitions of further ones, by name. Judges without a table have their defaults;
            a table that neither belongs to a judge nor defines one is ignored.

    Raises:
        DefinitionError: A definition is invalid or has the name of another judge that it is not based on, or an
            installed judge cannot be loaded.
        msgspec.ValidationError: The settings of a judge are invalid.
    """
    built_in = catalogue()
    definitions = {name: table for name, table in tables.items() if is_definition(table)}
    # The name of the combined verdict is taken too.
    taken = frozenset({*built_in, JOINT.name})
    from_distributions = installed(taken)
    for name, table in definitions.items():
        if name in from_distributions or (name in taken and table.get("based_on") != name):
            owner = "a built-in judge" if name in taken else "a judge that an installed distribution brings"
            raise DefinitionError(kind_of(table), f"{name} is the name of {owner}; give this one a name of its own")
    return MappingProxyType(
        {
            **{
                name: judge.configured(tables[name]) if name in tables and name not in definitions else judge
                for name, judge in built_in.items()
            },
            **from_distributions,
            **{name: define(name, table) for name, table in definitions.items()},
        }
    )
