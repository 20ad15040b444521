"""Keys and tables that features add to the configuration, beside the fields of ``Settings``.

In the file and in variables they look as keys of the core. If the folder of a feature is removed, its keys are unknown.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from msgspec import structs

from worker.core.features import installed

if TYPE_CHECKING:
    from worker.core.config.settings import Settings

T = TypeVar("T")


@dataclass(frozen=True)
class Table(Generic[T]):
    """A key of the configuration that belongs to a feature or to a part of base.

    Attributes:
        key: The key in the file; the variable is `TRACEJUDGE_KEY`.
        type: The type of the value, or of each table if there are several.
        default: The value if the key is absent.
        text: The text of the reference page.
        is_named: Whether the value is tables by name, as `[key.NAME]`.
        kinds: Types by what a named table has as `kind`, in place of ``type``. Each feature adds its own kinds.
        is_secret: Whether hashes leave the value out.
    """

    key: str
    type: Any
    default: T
    text: str
    is_named: bool = False
    kinds: Mapping[str, Any] = field(default_factory=dict)
    is_secret: bool = False

    def of(self, settings: "Settings") -> T:
        """Return the value, or the default."""
        value: T = settings.tables.get(self.key, self.default)
        return value

    def replace(self, settings: "Settings", value: T) -> "Settings":
        """Return settings with another value."""
        return structs.replace(settings, tables={**settings.tables, self.key: value})


@cache
def installed_tables() -> Mapping[str, Table[Any]]:
    """Return the tables of installed features by key; features that name the same key share it and its kinds."""
    tables: dict[str, Table[Any]] = {}
    for table in (table for feature in installed() for table in feature.tables):
        kinds = {**tables[table.key].kinds, **table.kinds} if table.key in tables else table.kinds
        tables[table.key] = replace(table, kinds=kinds)
    return tables
