"""Simulate what docs/statistics.md and docs/reference/measured/cascades.md claim, and write their tables.

Each scene prints one line: its figures, the goal, and whether it was met; exit code 1 if one was missed. The seeds are
fixed. At full length, which takes about an hour and a half, the tables of the pages are written; `--brief` simulates
less of each, within a minute, and only prints. The simulations call the functions and classes of the product.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

_DOCS: Final = Path(__file__).parent.parent / "docs"


class Length(NamedTuple):
    """How much is simulated, and by how many standard errors a figure may be beyond its goal."""

    is_brief: bool

    @property
    def errors(self) -> float:
        """Two standard errors; more of them in brief, where hundreds of figures have few runs each."""
        return 3.5 if self.is_brief else 2.0

    def runs(self, full: int, brief: int) -> int:
        """Return the number of runs, series or weeks."""
        return brief if self.is_brief else full


class Figure(NamedTuple):
    """A figure as a table shows it, and whether it meets its goal."""

    text: str
    is_met: bool = True


class Row(NamedTuple):
    """A scene: its name in the first columns of a table, the figures of each further column, and the goal in words."""

    names: Sequence[str]
    cells: Sequence[Sequence[Figure]]
    goal: str = ""

    @property
    def is_met(self) -> bool:
        """Whether all figures meet their goals."""
        return all(figure.is_met for cell in self.cells for figure in cell)

    @property
    def texts(self) -> list[str]:
        """The cells of the table."""
        return [*self.names, *(" / ".join(figure.text for figure in cell) for cell in self.cells)]


class Table(NamedTuple):
    """Scenes of one kind.

    Attributes:
        header: The columns of the table; one page has a table with this header.
        rows: Simulates the scenes.
        page: The page of the documentation; empty for scenes that no table shows.
    """

    header: Sequence[str]
    rows: Callable[[Length], Iterator[Row]]
    page: str = "statistics.md"


def coverage(share: float, runs: int, length: Length, least: float = 0.94) -> Figure:
    """Return the share of intervals that hold the truth, in percent; it may be below by the standard errors of .95."""
    return Figure(f"{100 * share:.1f}", share >= least - length.errors * math.sqrt(0.95 * 0.05 / runs))


def at_most(value: float, most: float, digits: int = 2, unit: str = "") -> Figure:
    """Return a figure with an upper limit."""
    return Figure(f"{value:.{digits}f}{unit}", value <= most)


def events(rate: float, most: float, exposure: float, length: Length, digits: int = 1) -> Figure:
    """Return a rate of events with an upper limit, which may be passed by the standard errors of their number."""
    return Figure(f"{rate:.{digits}f}", rate <= most + length.errors * math.sqrt(most / exposure))


def part(value: float, least: float, runs: int, length: Length) -> Figure:
    """Return a share of runs in percent with a lower limit, less its standard errors."""
    spread = math.sqrt(max(least * (1 - least), 1 / runs) / runs)
    return Figure(f"{100 * value:.1f}", value >= least - length.errors * spread)


def lines_with(lines: Sequence[str], table: Table, rows: Sequence[Row]) -> list[str]:
    """Return the lines of a page with the rows of a table in place of those that it has.

    Raises:
        ValueError: The page has not one table with this header.
    """
    header = f"| {' | '.join(table.header)} |"
    places = [place for place, line in enumerate(lines) if line == header]
    if len(places) != 1:
        raise ValueError(f"{table.page} has {len(places)} tables with the header {header!r}, not one")
    begin = places[0] + 2
    end = next((place for place in range(begin, len(lines)) if not lines[place].startswith("|")), len(lines))
    return [*lines[:begin], *(f"| {' | '.join(row.texts)} |" for row in rows), *lines[end:]]


def main(tables: Mapping[str, Table], arguments: Sequence[str]) -> int:
    """Simulate the tables named as arguments, all unless given; return 1 if a goal was missed."""
    parser = argparse.ArgumentParser("python -m benchmarks statistics", description=__doc__)
    parser.add_argument("tables", metavar="TABLE", nargs="*", help=f"of {', '.join(tables)}")
    parser.add_argument("--brief", action="store_true", help="fewer runs of each scene; no page is written")
    parsed = parser.parse_args(arguments)
    if unknown := set(parsed.tables) - set(tables):
        parser.error(f"no such table: {', '.join(sorted(unknown))}; there are {', '.join(tables)}")
    missed, begin = 0, time.process_time()
    for name in parsed.tables or tables:
        table, rows, before = tables[name], list[Row](), time.process_time()
        for row in table.rows(Length(parsed.brief)):
            goal = f"; goal {row.goal}: {'met' if row.is_met else 'missed'}" if row.goal else ""
            print(f"{name}: {' | '.join(row.texts)}{goal}", flush=True)
            missed += not row.is_met
            rows.append(row)
        print(f"({time.process_time() - before:.0f} s of CPU)", file=sys.stderr, flush=True)
        if table.page and not parsed.brief:
            path = _DOCS / table.page
            lines = lines_with(path.read_text(encoding="utf-8").splitlines(), table, rows)
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(
        f"{missed or 'no'} goal{'s' * (missed != 1)} missed; {time.process_time() - begin:.0f} s of CPU",
        file=sys.stderr,
    )
    return int(missed > 0)
