"""Print tables whole where nobody looks at them through a window of some width: into a file, or to a program."""

from typing import Final

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

__all__ = ["print_line", "print_table"]

_WIDE: Final = 1000


def print_table(console: Console, table: Table) -> None:
    """Print a table, at least as wide as its title; wrapped on a terminal only."""
    if isinstance(table.title, str):
        table.min_width = cell_len(console.render_str(table.title).plain)
    if console.is_terminal:
        console.print(table)
    else:
        Console(file=console.file, width=_WIDE).print(table)


def print_line(console: Console, line: str) -> None:
    """Print a sentence, which a terminal alone wraps."""
    console.print(line, markup=False, soft_wrap=not console.is_terminal)
