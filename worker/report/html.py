"""The report as one HTML page: no script, no external resource, charts as inline SVG, for light and dark screens."""

from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise
from typing import Final, NamedTuple

from worker.monitor.series import DAY_S
from worker.report.figures import Point, Report, Row, written
from worker.report.text import NO_LIMIT, coverage_lines, heading, label_titles, one_line, percent, source_lines, table

_WIDTH: Final = 360
_HEIGHT: Final = 120
_LEFT: Final = 44
_TOP: Final = 10
_BOTTOM: Final = 22
_RIGHT: Final = 12
_LEAST_SPAN: Final = 0.1
_STYLE: Final = """\
:root { color-scheme: light dark; --text: #1b1f24; --dim: #57606a; --line: #d0d7de; --page: #ffffff; --mark: #0550ae; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6edf3; --dim: #9198a1; --line: #3d444d; --page: #0d1117; --mark: #6cb6ff; }
}
body { background: var(--page); color: var(--text); font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto;
  max-width: 76rem; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; } th, td { border-bottom: 1px solid var(--line); padding: .3rem .7rem;
  text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
th.label, td.label { text-align: left; }
.charts { display: flex; flex-wrap: wrap; gap: 1rem; } figure { margin: 0; }
figcaption { max-width: 22rem; overflow-wrap: anywhere; }
svg text { fill: var(--dim); font: 11px system-ui, sans-serif; } svg .axis { stroke: var(--line); }
svg .band { fill: var(--mark); opacity: .2; } svg .share { fill: none; stroke: var(--mark); stroke-width: 1.5; }
svg .mark { fill: var(--mark); }
"""


def as_html(report: Report) -> str:
    """Write the page. Every text of verdicts is escaped."""
    title = escape(heading(report))
    charts = [
        f"<figure><figcaption>{escape(one_line(row.name))}</figcaption>{chart(report, row, number)}</figure>"
        for number, row in enumerate(row for row in report.rows if row.points)
    ]
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        # Nothing is loaded or run, whatever a label should hold.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<title>{title}</title><style>\n{_STYLE}</style></head><body>",
        f"<h1>{title}</h1>",
        *_table(report),
        *(
            ["<h2>Share over time, with its 95 % interval</h2>", '<div class="charts">', *charts, "</div>"]
            if charts
            else ()
        ),
        "<h2>Coverage</h2>",
        *(f"<p>{escape(line.strip())}</p>" for line in coverage_lines(report.coverage)),
        "<h2>Sources</h2>",
        *_list([f"{name}: {text}" for name, text in source_lines(report)]),
        "<h2>What these figures cannot say</h2>",
        *_list([limit.text for limit in report.limits] or [NO_LIMIT]),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _list(texts: Sequence[str]) -> Iterator[str]:
    yield "<ul>"
    yield from (f"<li>{escape(one_line(text))}</li>" for text in texts)
    yield "</ul>"


def _table(report: Report) -> Iterator[str]:
    titles, rows = table(report)
    left = len(label_titles(report))

    def cells(kind: str, texts: Sequence[str]) -> str:
        scope = ' scope="col"' if kind == "th" else ""
        marks = [f'{scope} class="label"' if place < left else scope for place in range(len(texts))]
        each = [f"<{kind}{mark}>{escape(text)}</{kind}>" for mark, text in zip(marks, texts, strict=True)]
        return f"<tr>{''.join(each)}</tr>"

    yield f'<div class="wide"><table><thead>{cells("th", titles)}</thead><tbody>'
    yield from (cells("td", row) for row in rows)
    yield "</tbody></table></div>"


class _Axes(NamedTuple):
    """Places on a chart: times in seconds from left to right, shares from bottom to top."""

    first: float
    last: float
    low: float
    high: float

    @classmethod
    def of(cls, report: Report, points: Sequence[Point]) -> "_Axes":
        """Begin with the axis of shares where the bands do, in tenths, so that a fall of few points is visible."""
        # The small summand keeps a limit such as .3, whose float is a little above, on its tenth.
        low = int(10 * min(point.share.low for point in points) + 1e-9) / 10
        high = -int(-10 * max(point.share.high for point in points) - 1 + 1e-9) / 10
        high = min(1.0, max(high, low + _LEAST_SPAN))
        return cls(report.since.timestamp(), report.until.timestamp(), min(low, high - _LEAST_SPAN), high)

    def x(self, at: float) -> float:
        part = (min(max(at, self.first), self.last) - self.first) / (self.last - self.first)
        return _LEFT + part * (_WIDTH - _LEFT - _RIGHT)

    def y(self, share: float) -> float:
        return _HEIGHT - _BOTTOM - (share - self.low) / (self.high - self.low) * (_HEIGHT - _TOP - _BOTTOM)


def chart(report: Report, row: Row, number: int) -> str:
    """Draw the share of each day or hour with its interval as a band.

    Args:
        report: The report; its period is the axis of time.
        row: The row; it has points.
        number: Makes the ids of this chart unlike those of others.
    """
    axes = _Axes.of(report, row.points)
    # A mark stands in the middle of the hours that it is of.
    seconds = [point.begins_at.timestamp() for point in row.points]
    step = min((later - earlier for earlier, later in pairwise(seconds)), default=0.0)
    xs = [axes.x(at + step / 2) for at in seconds]
    upper = [(x, axes.y(point.share.high)) for x, point in zip(xs, row.points, strict=True)]
    lower = [(x, axes.y(point.share.low)) for x, point in zip(xs, row.points, strict=True)]
    middle = [(x, axes.y(point.share.value)) for x, point in zip(xs, row.points, strict=True)]
    # The first day of a period may be a part of one; its mark is of that part.
    is_daily = all(at % DAY_S == 0 for at in seconds)
    times = [f"{point.begins_at:%Y-%m-%d}" if is_daily else written(point.begins_at) for point in row.points]
    described = (
        f"From {percent(row.points[0].share)} on {times[0]} to {percent(row.points[-1].share)} on "
        f"{times[-1]}; lowest {min(point.share.value for point in row.points):.1%}, highest "
        f"{max(point.share.value for point in row.points):.1%}."
    )
    names = f"title-{number} text-{number}"
    bottom = _HEIGHT - _BOTTOM
    grid = "".join(
        f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{axes.y(at):.1f}" y2="{axes.y(at):.1f}"/>'
        f'<text x="{_LEFT - 6}" y="{axes.y(at) + 4:.1f}" text-anchor="end">{at:.0%}</text>'
        for at in (axes.low, axes.high)
    )
    dates = (
        f'<text x="{_LEFT}" y="{bottom + 15}">{report.since:%d %b %H:%M}</text>'
        f'<text x="{_WIDTH - _RIGHT}" y="{bottom + 15}" text-anchor="end">{report.until:%d %b %H:%M}</text>'
    )
    marks = "".join(
        f'<circle class="mark" cx="{x:.1f}" cy="{y:.1f}" r="2"><title>{at}: '
        f"{percent(point.share)} ({point.share.low:.1%} to {point.share.high:.1%}), {point.judgements:,} judgements"
        "</title></circle>"
        for (x, y), at, point in zip(middle, times, row.points, strict=True)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'role="img" aria-labelledby="{names}">'
        f'<title id="title-{number}">{escape(one_line(row.name))}</title><desc id="text-{number}">{described}</desc>'
        f'{grid}{dates}<polygon class="band" points="{_path([*upper, *reversed(lower)])}"/>'
        f'<polyline class="share" points="{_path(middle)}"/>{marks}</svg>'
    )


def _path(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
