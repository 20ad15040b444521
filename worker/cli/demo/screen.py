"""How the demo looks: the scoreboard and what stands around it, for the live screen and for the last page."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from worker.cli.demo.scoreboard import RECENT, SLICES, Scoreboard, Series, sparkline
from worker.cli.demo.traffic import DROP
from worker.cli.demo.watch import Lag

__all__ = [
    "View",
    "drop_line",
    "failure_lines",
    "introduction",
    "page",
    "percent",
    "score_table",
    "status",
    "unscored_line",
]

_COUNTS: Final = ("pass", "fail", "abst.", "unsc.")
_FULL_WIDTH: Final = 102
_GOOD: Final = 0.7
_POOR: Final = 0.4


class View(NamedTuple):
    """Everything there is to see at one moment."""

    elapsed_s: float
    seconds: float
    phase: str
    board: Scoreboard
    lag: Lag
    published: int
    published_per_s: float
    judged_per_s: float
    redis_version: str
    metrics_url: str


def introduction(view: View) -> Text:
    """Say what runs, where scores come from, and what is planted."""
    return Text.assemble(
        ("TraceJudge demo", "bold"),
        f": sample traces of three services, a worker, an embedded Redis {view.redis_version}\n",
        ("Scores come from the built-in lexical heuristic: shared words are counted, no model is asked.\n", "yellow"),
        f"Planted at {view.seconds / 2:g} s: {percent(DROP.after.share)} of {DROP.service}'s answers are well grounded",
        f", {percent(DROP.before.share)} before; hard samples are left out.",
    )


def page(view: View, width: int) -> RenderableType:
    """Lay the whole screen out for a terminal of so many columns."""
    return Group(
        introduction(view),
        Text(f"Metrics page of the worker: {view.metrics_url}\n", style="dim"),
        Text(f"{view.phase} {view.elapsed_s:.0f} of {view.seconds:g} s | {status(view)}", style="bold"),
        score_table(view.board, view.elapsed_s, width),
        unscored_line(view.board),
        Text("\nLatest verdicts that did not pass", style="bold"),
        *failure_lines(view.board),
    )


def status(view: View) -> str:
    """Tell how much goes through, and whether the worker keeps up."""
    return (
        f"{view.published:,} traces published ({view.published_per_s:.0f}/s) | "
        f"{view.board.verdicts:,} verdicts ({view.judged_per_s:.0f}/s) | "
        f"lag: stream {view.lag.stream}, outbox {view.lag.outbox}"
    )


def score_table(board: Scoreboard, elapsed_s: float, width: int) -> Table:
    """Draw one line per service and judge; a change beyond chance is marked. A narrow table leaves counts out."""
    counts = _COUNTS if width >= _FULL_WIDTH else ()
    table = Table(box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    table.add_column("service")
    table.add_column("judge")
    table.add_column(f"last {RECENT}", justify="right")
    table.add_column("pass share over time", width=SLICES, no_wrap=True)
    for name in (*counts, "before", "after", "change"):
        table.add_column(name, justify="right")
    slices = board.slices_at(elapsed_s)
    service = ""
    for row in board.rows(first=DROP.service):
        cells = (*_share_cells(row, slices), *(_count_cells(row) if counts else ()), *_change_cells(row))
        table.add_row(row.service if row.service != service else "", row.judge, *cells)
        service = row.service
    return table


def _share_cells(row: Series, slices: int) -> Iterable[RenderableType]:
    yield Text(percent(row.now), style=_style(row.now))
    yield sparkline(part.share for part in row.slices[:slices])


def _count_cells(row: Series) -> Iterable[RenderableType]:
    for count in (row.total.passed, row.total.failed, row.abstained, row.unscored.total()):
        yield f"{count:,}" if count else Text("0", style="dim")


def _change_cells(row: Series) -> Iterable[RenderableType]:
    yield percent(row.before.share)
    yield percent(row.after.share)
    yield _change(row)


def _change(row: Series) -> Text:
    if row.change is None:
        return Text("")
    points = f"{row.change * 100:+.0f}"
    if not row.has_changed:
        return Text(points, style="dim")
    return Text(f"▼ {points}", style="bold red") if row.change < 0 else Text(f"▲ {points}", style="bold green")


def _style(share: float | None) -> str:
    if share is None:
        return "dim"
    return "green" if share >= _GOOD else "yellow" if share >= _POOR else "red"


def unscored_line(board: Scoreboard) -> Text:
    """Say why evaluations have no score; they are in no share."""
    reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(board.unscored().items()))
    return Text(f"Unscored, by reason: {reasons or 'none'} (in no share; a call that failed has no answer to judge)")


def failure_lines(board: Scoreboard) -> Iterable[Text]:
    """Quote the latest verdicts that did not pass, one a line."""
    for at_s, verdict in board.failures:
        why = " ".join((verdict.rationale or "").split())
        yield Text.assemble(
            (f"{at_s:5.1f} s  {verdict.service} {verdict.trace_id[:8]} ", "dim"),
            (f"{verdict.judge} ", "red"),
            why,
            no_wrap=True,
            overflow="ellipsis",
        )


def drop_line(board: Scoreboard, seconds: float) -> str:
    """Say what the judge saw of the planted drop."""
    row = board.series(DROP.service, DROP.judge)
    shares = f"{percent(row.before.share)} → {percent(row.after.share)}"
    return f"{DROP.service} {DROP.judge}: {shares} after the planted drop at {seconds / 2:g} s"


def percent(share: float | None) -> str:
    """Write a share, 0..1; nothing measured is no zero."""
    return "-" if share is None else f"{share:.0%}".replace("%", " %")
