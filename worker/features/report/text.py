"""The report as text for a terminal, and as Markdown for an issue or a page."""

import textwrap
from collections.abc import Iterator, Sequence
from io import StringIO
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from judges.core.prompt import neutralise
from worker.base.commands.options import PAGE_COLUMNS
from worker.features.report.figures import Coverage, Estimate, Report, Row, written

_FATES: Final = ("dropped", "cut_off", "invalid", "no_rule", "not_sampled", "shed")
_LIMITS: Final = "What these figures cannot say"
_NO_LIMIT: Final = "Nothing is known to limit these figures."
_FIXED: Final = ("share", "95 % interval", "difference", "corrected")
# Each of these begins a column of the text, and what follows it in the table stands below it.
_TOPS: Final = ("share", "difference", "judgements", "abstained")


def as_text(report: Report, *, colour: bool = False) -> str:
    """Write a table for people, then the coverage, the sources and the limits, in 80 columns."""
    titles, rows = table(report)
    # What all rows have stands above them; a single row keeps its last label and its figures.
    movable = len(titles if len(rows) > 1 else label_titles(report)[1:])
    same = [place for place in range(movable) if len({row[place] for row in rows}) == 1 and titles[place] not in _FIXED]
    above = [heading(report).replace("shares", "shares with 95 % intervals", 1)]
    if same:
        above.append("In all rows: " + ", ".join(f"{titles[place]}\xa0{rows[0][place]}" for place in same))
    page = Console(file=StringIO(), width=PAGE_COLUMNS, force_terminal=colour, highlight=False)
    with page.capture() as drawn:
        page.print(_stacked(report, titles, rows, [place for place in range(len(titles)) if place not in same]))
    below = [*_coverage_lines(report.coverage)]
    for title, texts in sections(report)[1:]:
        mark = "  - " if title == _LIMITS else "  "
        below += ["", title, *(f"{mark}{text}" for text in texts)]
    fill = textwrap.TextWrapper(PAGE_COLUMNS, subsequent_indent="    ", break_on_hyphens=False).fill
    rows_in_lines = map(str.rstrip, drawn.get().rstrip().splitlines())
    # A title and its value stay on one line.
    head = [fill(line).replace("\xa0", " ") for line in above]
    return "\n".join([*head, "", *rows_in_lines, "", *map(fill, below), ""])


def _stacked(report: Report, titles: Sequence[str], rows: Sequence[Sequence[str]], shown: Sequence[int]) -> Table:
    """Lay out these columns, several below each other: a fall is red, the interval of a sure change bold."""
    columns: list[list[int]] = []
    for place, title in enumerate(titles):
        if not columns or title in _TOPS:
            columns.append([])
        columns[-1] += [place] * (place in shown)
    columns = list(filter(None, columns))
    drawn = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    for _ in columns:
        drawn.add_column(justify="right" if drawn.columns else "left", overflow="fold")
    names = [[titles[place].removeprefix("95 % ") for place in column] for column in columns]
    drawn.add_row(*(Text("\n".join(column)) for column in names), style="bold")
    at = titles.index("difference") if "difference" in titles else 0
    for row, cells in zip(report.rows, rows, strict=True):
        change = row.difference or Estimate(0.0, 0.0, 0.0)
        styles = {at: "red" * (change.value < 0), at + 1: "bold" * (change.low > 0 or change.high < 0)}
        texts = [Text(cell.replace("% to ", " to "), styles.get(place, "")) for place, cell in enumerate(cells)]
        drawn.add_row(*(Text("\n").join(texts[place] for place in column) for column in columns))
        drawn.add_row()
    return drawn


def as_markdown(report: Report) -> str:
    """Write the same as `as_text` with a table and lists of Markdown."""
    titles, rows = table(report)
    left = len(label_titles(report))
    marks = [":--" if place < left else "--:" for place in range(len(titles))]
    lines = [f"## {heading(report)}", ""]
    lines += [f"| {' | '.join(map(_escaped, cells))} |" for cells in (titles, *rows)]
    lines.insert(3, f"| {' | '.join(marks)} |")
    for title, texts in sections(report):
        lines += ["", f"### {title}", "", *(f"- {_escaped(text)}" for text in texts)]
    return "\n".join(lines) + "\n"


def sections(report: Report) -> list[tuple[str, list[str]]]:
    """Return the titles and lines that follow the table."""
    sources = report.sources
    of_figures = (("shares", sources.shares), ("cost", sources.cost), ("coverage", sources.coverage))
    cascades = [one_line(row.text) for row in report.cascades]
    votes = [one_line(row.sentence) for row in report.votes]
    return [
        ("Coverage", [one_line(line) for line in _coverage_lines(report.coverage)]),
        *([("Cascades", cascades)] if cascades else []),
        *([("Votes", votes)] if votes else []),
        ("Sources", [one_line(f"{figures}: {text}") for figures, text in of_figures]),
        (_LIMITS, [one_line(limit.text) for limit in report.limits] or [_NO_LIMIT]),
    ]


def heading(report: Report) -> str:
    """Name the period and what it is compared with; times are in UTC."""
    text = f"Pass shares, {written(report.since)} to {written(report.until)} UTC"
    if report.compared_since is None or report.compared_until is None:
        return text
    return f"{text}, compared with {written(report.compared_since)} to {written(report.compared_until)}"


def label_titles(report: Report) -> list[str]:
    """List the keys that get a column: those with a value; the metric only if it differs from its judge."""
    # All rows have the same keys.
    keys = report.rows[0].labels if report.rows else ()
    return [
        key
        for key in keys
        if any(row.labels[key] != (row.labels["judge"] if key == "metric" else "") for row in report.rows)
    ]


def table(report: Report) -> tuple[list[str], list[list[str]]]:
    """Lay out the rows: titles, then cells."""
    labels = label_titles(report)
    has_corrected = any(row.corrected for row in report.rows)
    has_unknown = any(row.lowest is not None for row in report.rows)
    titles = [*labels, "share", "95 % interval", *(["not known"] if has_unknown else [])]
    titles += ["difference", "95 % interval"] if report.compared_since is not None else []
    titles += ["corrected", "95 % interval", "method"] if has_corrected else []
    titles += ["judgements", "of traffic", "abstained", "unscored", "USD per 1,000"]
    return titles, [
        [one_line(row.labels[key]) for key in labels]
        + _figures(report, row, has_corrected=has_corrected, has_unknown=has_unknown)
        for row in report.rows
    ]


def _figures(report: Report, row: Row, *, has_corrected: bool, has_unknown: bool) -> list[str]:
    cells = [percent(row.share), limits(row.share)]
    span = "" if row.lowest is None or row.highest is None else f"{row.lowest:.1%} to {row.highest:.1%}"
    if span and (row.judged_text or row.share is None):
        # The range that the unknown verdicts allow stands first.
        cells = [span, row.judged_text or "-"]
    if has_unknown:
        cells.append(f"{row.unknown:.1%}, {span}" if span and not row.judged_text else f"{row.unknown:.1%}")
    if report.compared_since is not None:
        # In points: a percentage of a percentage would be read as relative.
        change = row.difference
        cells += ["-" if change is None else f"{100 * change.value:+.1f} points", limits(row.difference, signed=True)]
    if has_corrected:
        # One method in a table; the document has all.
        fixed = row.corrected[0] if row.corrected else None
        share = None if fixed is None else fixed.share
        method = "-" if fixed is None else f"{fixed.method}, {fixed.labels:,} labels"
        cells += [percent(share), limits(share), method]
    cost = row.usd_per_thousand
    cells += [f"{row.judgements:,}", f"{row.verdicts / row.traffic:.1%}" if row.traffic else "-"]
    return [*cells, percent(row.abstained), percent(row.unscored), "-" if cost is None else f"{cost:,.2f}"]


def percent(share: Estimate | None) -> str:
    """Write a share in percent."""
    return "-" if share is None else f"{share.value:.1%}"


def limits(interval: Estimate | None, *, signed: bool = False) -> str:
    """Write the limits of an interval, signed in points, else in percent."""
    if interval is None:
        return "-"
    return (
        f"{100 * interval.low:+.1f} to {100 * interval.high:+.1f}"
        if signed
        else f"{interval.low:.1%} to {interval.high:.1%}"
    )


def _coverage_lines(coverage: Coverage | None) -> Iterator[str]:
    """Write what became of the traces, from publication to score."""
    if coverage is None:
        yield "Coverage is not known"
        return
    yield f"Coverage of the whole installation, {coverage.first_day} to {coverage.last_day} UTC"
    fates = ", ".join(f"{getattr(coverage, name):,} {name}" for name in _FATES if getattr(coverage, name))
    yield f"  {coverage.published:,} traces published, {coverage.sampled:,} sampled" + (f" ({fates})" if fates else "")
    ends = ", ".join(f"{getattr(coverage, name):,} {name}" for name in ("scored", "abstained", "unscored", "dead"))
    yield f"  {coverage.chosen:,} evaluations chosen: {ends}"
    if coverage.reasons:
        yield f"  unscored: {', '.join(f'{count:,} {reason}' for reason, count in coverage.reasons.items())}"


def one_line(text: str) -> str:
    """Put foreign text on one line, with nothing in it that a terminal interprets."""
    return neutralise(" ".join(text.split()))


def _escaped(text: str) -> str:
    """Escape what Markdown and the HTML in it interpret."""
    safe = one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join(f"\\{sign}" if sign in "\\`*_[]|~#!" else sign for sign in safe)
