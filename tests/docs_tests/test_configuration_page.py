"""The reference of the configuration has the tables of every installed feature, without a list of them."""

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec import Struct, field

from docs import configuration
from worker.core.features import Table


class Item(Struct):
    """One item.

    Attributes:
        size: How large it is.
    """

    size: int


class Shelf(Struct):
    """A shelf.

    Attributes:
        items: What is on it.
        names: How it is called.
    """

    items: Mapping[str, Item] = field(default_factory=dict)
    names: tuple[str, ...] = ("shelf",)


def test_tables_of_features_have_sections(monkeypatch: pytest.MonkeyPatch) -> None:
    tables: tuple[Table[Any], ...] = (
        Table("shelf", Shelf, Shelf(), "The shelf."),
        Table("racks", Shelf, {}, "Shelves.", is_named=True),
        Table("boxes", Struct, {}, "Boxes.", is_named=True, kinds={"large": Item}),
        Table("slow_s", float | None, 1.5, "A number."),
    )
    monkeypatch.setattr(configuration, "installed_tables", lambda _="tables": {table.key: table for table in tables})
    top, *sections = configuration.page().split("\n## ")[1:]
    assert "| `shelf` | - | The shelf. |\n| `racks` | - | Shelves. |" in top
    assert "| `slow_s` | `1.5` | A number. |" in top
    titles = [section.partition("\n")[0] for section in sections]
    own = ["`[shelf]`", "`[shelf.items.NAME]`", "`[racks.NAME]`", "`[racks.NAME.items.NAME]`"]
    assert titles[-5:] == [*own, '`[boxes.NAME]` with `kind = "large"`']
    shelf, item, *_ = sections[-5:]
    assert '| `items` | - | What is on it. |\n| `names` | `["shelf"]` | How it is called. |' in shelf
    assert "| `size` | required | How large it is. |" in item
