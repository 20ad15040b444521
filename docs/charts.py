"""Draw the charts of docs/reference/measured/simulations.md from its tables, so that both show the same figures.

A chart has a line for each row of its table, a dot for each number of a cell, and a band for what was asked.
"""

import math
import random
import re
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Final, NamedTuple

from judges.agreement.reliability import Row, as_svg, fit, reliability

FOLDER: Final = Path(__file__).parent / "charts"
_PAGE: Final = Path(__file__).parent / "reference" / "measured" / "simulations.md"
_NUMBER: Final = re.compile(r"(?<![\w.-])\d*\.?\d+(?![\w-])")
_LINE, _LEFT, _PLOT, _TOP, _RIGHT = 20, 300, 400, 70, 30
_STYLE: Final = """\
text { font: 12px sans-serif; fill: #24292f } .title { font-weight: bold; font-size: 14px } .muted { fill: #57606a }
.grid { stroke: #d0d7de } .band { fill: #1f883d; opacity: .15 }
.first { fill: #0969da } .second { fill: #bc4c00 } .third { fill: #8250df }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .muted { fill: #9198a1 } .grid { stroke: #3d444d }
  .first { fill: #4493f8 } .second { fill: #f0883e } .third { fill: #ab7df8 }
}
"""
_CLASSES: Final = ("first", "second", "third")


class Chart(NamedTuple):
    """One chart.

    Attributes:
        title: What it shows, with the unit.
        table: How the header of its table begins.
        labels: The columns that name a row.
        columns: The columns of values, each with its name in the legend.
        span: The least and the largest value of the axis.
        band: The values that were asked for, if they are the same in all rows.
        row: Which rows are drawn: those whose label matches this.
    """

    title: str
    table: str
    labels: Sequence[int]
    columns: Sequence[tuple[int, str]]
    span: tuple[float, float]
    band: tuple[float, float] | None = None
    row: str = ""


CHARTS: Final = {
    "coverage": Chart(
        "Coverage of 95 % intervals by way of sampling, %",
        "| 2,000 windows each",
        (0, 1),
        ((2, "shares .5 to .95, 2,000 windows each"),),
        (90, 100),
        (93.5, 98.5),
    ),
    "sessions": Chart(
        "Coverage of 95 % intervals with five judgements a session, %",
        "| 2,000 windows of five",
        (0, 1),
        ((2, "window alone"), (3, "with 28 days of history")),
        (90, 100),
        (94, 97),
    ),
    "delays": Chart(
        "Median delay of an alarm, hours",
        "| simulation",
        (0,),
        ((1, "independent judgements"), (2, "five a session, correlation .25")),
        (0, 24),
        row=r"\d+ to \d+ %",
    ),
    "safety": Chart(
        "Median hours to a page at 2 % unsafe traces, by judgements an hour, judge's error and correlation",
        "| judgements an hour, judge's error",
        (0,),
        ((2, "one series / one of five"),),
        (0, 8),
    ),
    "corrected": Chart(
        "Width of the corrected interval beside other methods",
        "| share | drawn",
        (0,),
        ((2, "beside Rogan-Gladen"), (3, "beside the labels alone")),
        (0, 1),
    ),
}


def pages() -> dict[str, str]:
    """Draw every chart.

    Raises:
        ValueError: A table of the page is missing, not the only one, or has no numbers where a chart looks for them.
    """
    lines = _PAGE.read_text(encoding="utf-8").splitlines()
    drawn = {f"{name}.svg": _svg(chart, _rows(lines, chart)) for name, chart in CHARTS.items()}
    return {**drawn, "reliability.svg": _overconfident()}


def _overconfident() -> str:
    """Draw the diagram of `tracejudge calibrate` for simulated labels; logit of the truth is .4 * logit(p)."""
    generator = random.Random(11)  # noqa: S311 - simulated labels are no secret
    rows = []
    for _ in range(300):
        odds = generator.gauss(0.8, 1.8)
        is_good = generator.random() < 1 / (1 + math.exp(-0.4 * odds))
        rows.append(Row(round(1 / (1 + math.exp(-odds)), 4), is_good))
    return as_svg(reliability(rows), fit(rows), "safety by cheap: 300 labels")


def _rows(lines: Sequence[str], chart: Chart) -> list[tuple[str, list[list[float]]]]:
    """Return the label of each row and the numbers of its columns."""
    tables = [place for place, line in enumerate(lines) if line.startswith(chart.table)]
    if len(tables) != 1:
        raise ValueError(f"simulations.md has {len(tables)} tables {chart.table!r}, not one; correct docs/charts.py")
    rows, name = [], ""
    for line in lines[tables[0] + 2 :]:
        if not line.startswith("|"):
            break
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        name = cells[0] or name
        numbers = [[float(one) for one in _NUMBER.findall(_first_part(cells[column]))] for column, _ in chart.columns]
        if re.match(chart.row, name) and numbers[0]:
            label = " ".join([name, *(cells[column] for column in chart.labels[1:])])
            rows.append((re.split("[:(]", label)[0], numbers))
    if not rows:
        raise ValueError(f"simulations.md has no figures under {chart.table!r}; correct docs/charts.py")
    return rows


def _first_part(cell: str) -> str:
    """Leave out what follows a comma: further figures of another unit."""
    return cell.partition(",")[0]


def _svg(chart: Chart, rows: Sequence[tuple[str, list[list[float]]]]) -> str:
    height = _TOP + _LINE * len(rows) + 30
    width = _LEFT + _PLOT + _RIGHT
    body = "\n".join(_marks(chart, rows, height))
    title = escape(chart.title)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img" '
        f'aria-label="{title}">\n<title>{title}</title>\n<style>\n{_STYLE}</style>\n{body}\n</svg>\n'
    )


def _marks(chart: Chart, rows: Sequence[tuple[str, list[list[float]]]], height: int) -> Iterator[str]:
    low, high = chart.span
    bottom = height - 30

    def x(value: float) -> str:
        return f"{_LEFT + _PLOT * (min(max(value, low), high) - low) / (high - low):.1f}"

    yield f'<text class="title" x="10" y="20">{escape(chart.title)}</text>'
    place = 10
    for class_, (_, name) in zip(_CLASSES, chart.columns, strict=False):
        yield f'<circle class="{class_}" cx="{place + 5}" cy="38" r="4"/><text x="{place + 15}" y="42">{name}</text>'
        place += 30 + 7 * len(name)
    if chart.band is not None:
        first, last = map(x, chart.band)
        wide = float(last) - float(first)
        yield f'<rect class="band" x="{first}" y="{_TOP - 10}" width="{wide:.1f}" height="{bottom - _TOP + 10}"/>'
    for step in range(5):
        value = low + (high - low) * step / 4
        yield f'<line class="grid" x1="{x(value)}" x2="{x(value)}" y1="{_TOP - 10}" y2="{bottom}"/>'
        yield f'<text class="muted" x="{x(value)}" y="{bottom + 16}" text-anchor="middle">{value:g}</text>'
    for line, (label, columns) in enumerate(rows):
        y = _TOP + _LINE * line + 5
        yield f'<text x="{_LEFT - 12}" y="{y + 4}" text-anchor="end">{escape(label)}</text>'
        for class_, numbers in zip(_CLASSES, columns, strict=False):
            for number in numbers:
                yield f'<circle class="{class_}" cx="{x(number)}" cy="{y}" r="4"><title>{number:g}</title></circle>'
