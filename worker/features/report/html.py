"""The report as one HTML page: no script, no external resource, charts as inline SVG, for light and dark screens."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import jinja2

from worker.base.monitor.series import DAY_S
from worker.features.report.figures import Report, Row, written
from worker.features.report.text import heading, label_titles, limits, one_line, percent, sections, table

TEMPLATES: Final = Path(__file__).parent / "templates"
_LEFT: Final = 44
_TOP: Final = 10
_BOTTOM: Final = 98
_RIGHT: Final = 348
_LEAST_SPAN: Final = 0.1


def as_html(report: Report) -> str:
    """Write the page. Every text of verdicts is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined
    )
    titles, rows = table(report)
    page = environment.get_template("report.html").render(
        heading=heading(report),
        titles=titles,
        rows=rows,
        left=len(label_titles(report)),
        charts=[chart(report, row) for row in report.rows if row.points],
        sections=sections(report),
    )
    return page + "\n"


class Chart(NamedTuple):
    """A drawing of template `chart.html`: places in pixels, from the left and from the top, and texts."""

    title: str  # The name of the row.
    description: str  # What the chart shows, for those who do not see it.
    grid: Sequence[tuple[float, str]]  # Horizontal lines with their labels.
    begin: str  # The begin of the axis of time.
    end: str  # Its end.
    band: str  # The outline of the interval.
    line: str  # The shares.
    marks: Sequence[tuple[float, float, str]]  # Each share with a text.
    width: int = 360
    height: int = 120
    left: int = _LEFT
    right: int = _RIGHT
    bottom: int = _BOTTOM


def chart(report: Report, row: Row) -> Chart:
    """Draw the shares of a row with points, by day or hour, and their intervals as a band, over the report's period."""
    since, until = report.since.timestamp(), report.until.timestamp()
    # The axis of shares begins where the bands do, in tenths, so that a fall of few points is visible.
    # The small summand keeps a limit such as .3, whose float is a little above, on its tenth.
    low = int(10 * min(point.share.low for point in row.points) + 1e-9) / 10
    high = -int(-10 * max(point.share.high for point in row.points) - 1 + 1e-9) / 10
    high = min(1.0, max(high, low + _LEAST_SPAN))
    low = min(low, high - _LEAST_SPAN)

    def y(share: float) -> float:
        return _BOTTOM - (share - low) / (high - low) * (_BOTTOM - _TOP)

    # A mark stands in the middle of the hours that it is of.
    seconds = [point.begins_at.timestamp() for point in row.points]
    step = min((later - earlier for earlier, later in pairwise(seconds)), default=0.0)
    middles = (min(max(at + step / 2, since), until) for at in seconds)
    xs = [_LEFT + (at - since) / (until - since) * (_RIGHT - _LEFT) for at in middles]
    places = list(zip(xs, row.points, strict=True))
    upper = [(x, y(point.share.high)) for x, point in places]
    lower = [(x, y(point.share.low)) for x, point in places]
    middle = [(x, y(point.share.value)) for x, point in places]
    # The first day of a period may be a part of one; its mark is of that part.
    is_daily = all(at % DAY_S == 0 for at in seconds)
    times = [f"{point.begins_at:%Y-%m-%d}" if is_daily else written(point.begins_at) for point in row.points]
    shares = [point.share.value for point in row.points]
    return Chart(
        title=one_line(row.name),
        description=(
            f"From {shares[0]:.1%} on {times[0]} to {shares[-1]:.1%} on {times[-1]}; lowest {min(shares):.1%}, highest "
            f"{max(shares):.1%}."
        ),
        grid=[(y(share), f"{share:.0%}") for share in (low, high)],
        begin=f"{report.since:%d %b %H:%M}",
        end=f"{report.until:%d %b %H:%M}",
        band=_path([*upper, *reversed(lower)]),
        line=_path(middle),
        marks=[
            (*place, f"{at}: {percent(point.share)} ({limits(point.share)}), {point.judgements:,} judgements")
            for place, at, point in zip(middle, times, row.points, strict=True)
        ],
    )


def _path(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
