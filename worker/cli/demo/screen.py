"""The screen of the demo: the scoreboard, its table, and the progress, live or as lines."""

import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from judges.agreement.intervals import Interval, wilson
from judges.core.verdict import Verdict
from worker.cli.demo.sample_traffic import DROP
from worker.cli.options import OUT, note
from worker.config.settings import Settings
from worker.export.registry import enabled
from worker.queue.ledger import OutboxEntry, read_outbox_entry
from worker.report.figures import difference
from worker.storage.client import Store
from worker.telemetry.backlog import measure

# Parts of the run, each one character of a sparkline; an even number, so that the drop falls between two.
SLICES: Final = 20
# Number of latest ratings in the current pass share.
RECENT: Final = 20
_FAILURES: Final = 5
_BARS: Final = "▁▂▃▄▅▆▇█"
_NO_DATA: Final = "·"
CONFIDENCE: Final = "99.7 %"
# Of ten rows chance then marks one in some thirty runs; with 95 % it would in every second or third.
_Z: Final = 3.0
_READ_COUNT: Final = 500
_RATE_WINDOW_S: Final = 5.0
# Narrower terminals would wrap every row with counts, and those without them and intervals.
_FULL_WIDTH: Final = 110
_INTERVAL_WIDTH: Final = 92
_GOOD: Final = 0.7
_POOR: Final = 0.4
_PLAIN_WIDTH: Final = 112
_FIRST_LINE_S: Final = 1.0
_LINE_EVERY_S: Final = 5.0


@dataclass
class Tally:
    """Ratings that passed and failed; evaluations without a rating are in neither."""

    passed: int = 0
    failed: int = 0

    def add(self, *, passed: bool) -> None:
        """Count one rating."""
        self.passed += passed
        self.failed += not passed

    @property
    def rated(self) -> int:
        """Number of ratings."""
        return self.passed + self.failed

    @property
    def share(self) -> float | None:
        """Share that passed, 0..1; None without a rating."""
        return self.passed / self.rated if self.rated else None


@dataclass
class Series:
    """The ratings of one judge on one service."""

    service: str
    judge: str
    total: Tally = field(default_factory=Tally)
    before: Tally = field(default_factory=Tally)
    after: Tally = field(default_factory=Tally)
    slices: tuple[Tally, ...] = field(default_factory=lambda: tuple(Tally() for _ in range(SLICES)))
    recent: deque[bool] = field(default_factory=lambda: deque(maxlen=RECENT))
    abstained: int = 0
    unscored: Counter[str] = field(default_factory=Counter)

    @property
    def now(self) -> float | None:
        """Pass share of the latest ratings, 0..1."""
        return sum(self.recent) / len(self.recent) if self.recent else None

    @property
    def change(self) -> Interval | None:
        """Difference of the pass shares of the second and the first half, with its interval."""
        before, after = self.before.share, self.after.share
        if before is None or after is None:
            return None
        return difference(wilson(after, self.after.rated, _Z), wilson(before, self.before.rated, _Z))

    @property
    def has_changed(self) -> bool:
        """Whether the interval of the change holds no 0: chance hardly explains it."""
        return self.change is not None and not self.change.low <= 0 <= self.change.high


class Failure(NamedTuple):
    """A verdict that did not pass, and when its call ended, in seconds since the traffic began."""

    at_s: float
    verdict: Verdict


class Scoreboard:
    """Adds up verdicts by the time when the call ended, so that a lag of the worker moves no verdict."""

    def __init__(self, began_at: float, seconds: float) -> None:
        """Set the start of the traffic, in seconds since the epoch, and its length."""
        self.verdicts = 0
        # Newest first.
        self.failures: deque[Failure] = deque(maxlen=_FAILURES)
        self._began_at = began_at
        self._seconds = seconds
        self._series: dict[tuple[str, str], Series] = {}

    def add(self, entries: Iterable[OutboxEntry]) -> None:
        """Count entries of the outbox; a dead letter counts as unscored."""
        for entry in entries:
            self.verdicts += 1
            verdict = entry.verdict
            series = self.series(verdict.service, verdict.judge)
            if verdict.outcome == "abstained":
                series.abstained += 1
            elif verdict.outcome == "unscored":
                series.unscored[verdict.reason or "unknown"] += 1
            at_s = (verdict.trace_ended_at or verdict.started_at) - self._began_at
            half = series.before if at_s < self._seconds / 2 else series.after
            part = series.slices[min(SLICES - 1, max(0, int(at_s / self._seconds * SLICES)))]
            for passed in (score.passed for score in verdict.scores if score.passed is not None):
                for tally in (series.total, half, part):
                    tally.add(passed=passed)
                series.recent.append(passed)
                if not passed:
                    self.failures.appendleft(Failure(at_s, verdict))

    def series(self, service: str, judge: str) -> Series:
        """Return one series, empty without a verdict."""
        return self._series.setdefault((service, judge), Series(service, judge))

    def rows(self, first: str = "") -> Sequence[Series]:
        """List all series by service and judge, the service ``first`` before the others."""
        return sorted(self._series.values(), key=lambda row: (row.service != first, row.service, row.judge))

    def unscored(self) -> Counter[str]:
        """Sum unscored evaluations by reason."""
        return sum((row.unscored for row in self._series.values()), Counter())

    def slices_at(self, elapsed_s: float) -> int:
        """Return how many slices have begun."""
        return min(SLICES, int(elapsed_s / self._seconds * SLICES) + 1)


def sparkline(shares: Iterable[float | None]) -> str:
    """Draw shares, 0..1, as one bar each; None is drawn as no data, not as zero."""
    last = len(_BARS) - 1
    return "".join(_NO_DATA if share is None else _BARS[round(min(1.0, max(0.0, share)) * last)] for share in shares)


class Lag(NamedTuple):
    """Unread entries: of ingest in the stream of traces, of the exporters in the outbox."""

    stream: int = 0
    outbox: int = 0


class Watch:
    """Reads the outbox from its beginning."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._position = b"0"

    def read(self, block_s: float) -> list[OutboxEntry]:
        """Read new entries; wait up to ``block_s`` for one."""
        stream = self._store.keys.verdicts
        block_ms = max(1, round(block_s * 1000))  # 0 would wait for ever
        reply: Any = self._store.call(
            lambda client: client.xread({stream: self._position}, count=_READ_COUNT, block=block_ms)
        )
        entries = reply[0][1] if reply else []
        if entries:
            self._position = entries[-1][0]
        return [read for entry in entries if (read := read_outbox_entry(entry)) is not None]

    def lag(self) -> Lag:
        """Measure the lag of the worker's readers."""
        found = measure(self._store, groups=tuple(enabled(Settings())))
        return Lag(found.traces.lag, sum(position.lag for position in found.outbox.values()))


class Rate:
    """The growth of a count over the last seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._points: deque[tuple[float, int]] = deque([(clock(), 0)])

    def update(self, count: int) -> None:
        """Record the current count."""
        now_s = self._clock()
        self._points.append((now_s, count))
        while len(self._points) > 2 and self._points[1][0] <= now_s - _RATE_WINDOW_S:  # noqa: PLR2004 - a line's ends
            self._points.popleft()

    @property
    def per_s(self) -> float:
        """Growth per second."""
        (began_s, first), (ended_s, last) = self._points[0], self._points[-1]
        return (last - first) / (ended_s - began_s) if ended_s > began_s else 0.0


class View(NamedTuple):
    """Everything that is shown at one moment."""

    elapsed_s: float
    seconds: float
    phase: str
    board: Scoreboard
    lag: Lag
    published: int
    published_per_s: float
    judged_per_s: float
    addresses: str


Show = Callable[[View], None]


def introduction(seconds: float) -> Text:
    """Say what is shown, in two sentences, and where the scores come from."""
    return Text.assemble(
        ("TraceJudge demo\n", "bold"),
        f"Three sample services answer questions for {seconds:g} s, and a worker judges every answer. ",
        f"At {seconds / 2:g} s {DROP.service} begins to invent answers: its documents support ",
        f"{percent(DROP.before.share)} of them before and {percent(DROP.after.share)} after, ",
        f"so its pass share of {DROP.judge} has to fall.\n",
        ("Scores come from the built-in lexical heuristic, which counts shared words; ", "yellow"),
        ("hard samples are left out.", "yellow"),
    )


def status(view: View) -> str:
    """Write the throughput, and what waits."""
    waiting = {"traces to read": view.lag.stream, "verdicts to export": view.lag.outbox}
    return " | ".join(
        (
            f"{view.published:,} traces published ({view.published_per_s:.0f}/s)",
            f"{view.board.verdicts:,} verdicts ({view.judged_per_s:.0f}/s)",
            *(f"{count:,} {name}" for name, count in waiting.items() if count),
        )
    )


def score_table(board: Scoreboard, elapsed_s: float, width: int) -> Table:
    """Lay out one row per service and judge; a change beyond chance is marked. A narrow table has fewer columns."""
    rows = board.rows(first=DROP.service)
    counts = {
        "pass": [row.total.passed for row in rows],
        "fail": [row.total.failed for row in rows],
        "abst.": [row.abstained for row in rows],
        "unsc.": [row.unscored.total() for row in rows],
    }
    counts = {name: column for name, column in counts.items() if width >= _FULL_WIDTH and any(column)}
    table = Table(box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    table.add_column("service")
    table.add_column("judge")
    table.add_column(f"last {RECENT}", justify="right")
    table.add_column("pass share over time", width=SLICES, no_wrap=True)
    for name in (*counts, "before", "after", "change", *(("interval",) if width >= _INTERVAL_WIDTH else ())):
        table.add_column(name, justify="right")
    slices = board.slices_at(elapsed_s)
    service = ""
    for place, row in enumerate(rows):
        style = "dim" if row.now is None else "green" if row.now >= _GOOD else "yellow" if row.now >= _POOR else "red"
        change, interval = Text(), ""
        if (found := row.change) is not None:
            points, low, high = (f"{share * 100:+.0f}" for share in found)
            interval = f"{low} to {high}"
            change = Text(points, style="dim")
            if row.has_changed:
                mark, color = ("▼", "red") if found.value < 0 else ("▲", "green")
                change = Text(f"{mark} {points}", style=f"bold {color}")
        table.add_row(
            row.service if row.service != service else "",
            row.judge,
            Text(percent(row.now), style=style),
            sparkline(part.share for part in row.slices[:slices]),
            *(f"{column[place]:,}" if column[place] else "" for column in counts.values()),
            percent(row.before.share),
            percent(row.after.share),
            change,
            *((Text(interval, style="dim"),) if width >= _INTERVAL_WIDTH else ()),
        )
        service = row.service
    return table


def missing_scores(board: Scoreboard) -> Text | None:
    """List evaluations without a score by reason, None without any."""
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in sorted(board.unscored().items()))
    text = "in no share: a call that failed has no answer to judge"
    return Text(f"Unscored, by reason: {reasons} ({text})") if reasons else None


def percent(share: float | None) -> str:
    """Write a share, 0..1; no data is not zero."""
    return "-" if share is None else f"{share:.0%}".replace("%", " %")


def page() -> Console:
    """Return the console of the result: as wide as the terminal, or without one wide enough for the table."""
    return OUT if sys.stdout.isatty() else Console(width=_PLAIN_WIDTH, highlight=False)


@contextmanager
def live_display() -> Iterator[Show]:
    """Draw the scoreboard repeatedly on a screen of its own, which disappears when the block is left."""
    with Live(console=OUT, screen=True, auto_refresh=False) as live:

        def show(view: View) -> None:
            page: list[RenderableType] = [
                introduction(view.seconds),
                Text(f"{view.addresses}\n", style="dim"),
                Text(f"{view.phase} {view.elapsed_s:.0f} of {view.seconds:g} s | {status(view)}", style="bold"),
                score_table(view.board, view.elapsed_s, OUT.width),
                missing_scores(view.board) or "",
                Text("\nLatest verdicts that did not pass", style="bold"),
            ]
            for at_s, verdict in view.board.failures:
                line = Text.assemble(
                    (f"{at_s:5.1f} s  {verdict.service} {verdict.trace_id[:8]} ", "dim"),
                    (f"{verdict.judge} ", "red"),
                    " ".join((verdict.rationale or "").split()),
                    no_wrap=True,
                    overflow="ellipsis",
                )
                page.append(line)
            live.update(Group(*page), refresh=True)

        yield show


@contextmanager
def lines_display() -> Iterator[Show]:
    """Print the progress on standard error every few seconds."""
    next_s = _FIRST_LINE_S

    def show(view: View) -> None:
        nonlocal next_s
        if view.elapsed_s < next_s:
            return
        next_s += _LINE_EVERY_S
        share = percent(view.board.series(DROP.service, DROP.judge).now)
        note(f"{view.elapsed_s:3.0f} s  {status(view)} | {DROP.service} {DROP.judge} {share}")

    yield show
