"""The report that ends the demo: scores, their words, an answer from before and after the drop, the alert, commands."""

import contextlib
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from shlex import quote
from typing import Final, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from judges.agreement.intervals import wilson
from judges.core.verdict import Verdict
from judges.registry import catalogue
from tracejudge import Trace
from worker.accounting import Account
from worker.cli.account import account_table
from worker.cli.demo.sample_traffic import DROP, EXAMPLES, Shot
from worker.cli.demo.screen import CONFIDENCE, RECENT, Scoreboard, View, missing_scores, percent, score_table
from worker.monitor.baseline import flat
from worker.monitor.detector import Moments, State, limits_of, step
from worker.queue.ledger import OutboxEntry

ALERT: Final = "TraceJudgeQualityDrop"
SEVERITY: Final = "page"
_WEEK_S: Final = 7 * 86_400
_DOCUMENT_CHARS: Final = 600


class Example(NamedTuple):
    """A judged answer, and when its call ended, in seconds since the traffic began."""

    at_s: float
    trace: Trace
    verdict: Verdict

    def rows(self) -> Iterator[tuple[str, Text]]:
        """Yield what is shown of it: question, document, answer, verdict and reason."""
        first = next(iter(self.trace.context or ()), "")
        document = first if isinstance(first, str) else first.text
        if len(document) > _DOCUMENT_CHARS:
            document = f"{document[:_DOCUMENT_CHARS]}…"
        texts = {"question": self.trace.input, "document": document, "answer": self.trace.output}
        for name, text in texts.items():
            yield name, Text(" ".join(str(text).split()))
        passed = self.verdict.scores[0].passed
        said, color = ("passed", "green") if passed else ("failed", "red")
        yield "verdict", Text(f"{self.verdict.judge} {said}", style=f"bold {color}")
        yield "reason", Text(" ".join((self.verdict.rationale or "").split()))


class Examples:
    """Two answers of the service that gets worse: one that passes before the drop, and one that fails after it."""

    def __init__(self, published: Mapping[str, Shot], drop_at_s: float) -> None:
        """Set where published samples are found by trace id, and the time of the drop."""
        self.before: Example | None = None
        self.after: Example | None = None
        self._published = published
        self._drop_at_s = drop_at_s

    def add(self, entries: Iterable[OutboxEntry]) -> None:
        """Keep the first of each kind."""
        for entry in entries:
            verdict = entry.verdict
            shot = self._published.get(verdict.trace_id)
            if shot is None or verdict.judge != DROP.judge or not verdict.scores:
                continue
            good, bad = EXAMPLES
            found = Example(shot.at_s, shot.trace, verdict)
            kind = (shot.trace.tags or {})["sample"], shot.at_s >= self._drop_at_s, verdict.scores[0].passed
            if kind == (good, False, True):
                self.before = self.before or found
            elif kind == (bad, True, False):
                self.after = self.after or found


class Alert(NamedTuple):
    """An alert of `deploy/prometheus/rules` as it would read."""

    name: str
    severity: str
    summary: str
    reason: str


def planted_alert(board: Scoreboard, seconds: float, environment: str) -> Alert | None:
    """Compare the second half with the first by the monitor's own detector; None when it finds no drop.

    The first half stands in for the baseline, which the monitor learns in seven days, with the traffic of the demo.
    """
    row = board.series(DROP.service, DROP.judge)
    before, after = row.before, row.after
    if before.share is None or after.share is None:
        return None
    # Laplace's rule of succession: a share of exactly 0 or 1 has no likelihood ratio.
    expected = (before.passed + 1) / (before.rated + 2)
    norm = flat(expected, per_week=before.rated / (seconds / 2) * _WEEK_S)
    limits = limits_of(norm, Moments(), series=len(board.rows()))
    if step(State(), 0, after.passed, after.failed, expected=expected, limits=limits) is None:
        return None
    # As the rule's own text; Prometheus writes percentages with four digits and no space.
    now, was = (f"{100 * round(share, 3):.4g}%" for share in (after.share, before.share))
    interval = wilson(after.share, after.rated)
    return Alert(
        ALERT,
        SEVERITY,
        f"{DROP.judge}/{DROP.judge} of {DROP.service} in {environment} dropped: {now} passed, {was} expected",
        f"{after.passed:,} of {after.rated:,} judgements since the drop passed "
        f"(95 % interval {percent(interval.low)} to {percent(interval.high)}).",
    )


def words(board: Scoreboard) -> Iterator[tuple[str, Text]]:
    """Yield the words of the table with their meanings."""
    yield "pass share", Text("judgements that passed, of those that passed or failed; what has no score is in none")
    yield f"last {RECENT}", Text(f"pass share of the latest {RECENT} judgements")
    yield "before, after", Text("pass share before and after the drop, by the time of the call")
    yield (
        "change",
        Text(f"after less before, in points; ▼ or ▲ marks it where its {CONFIDENCE} interval does not hold 0"),
    )
    judges = catalogue()
    for name in sorted({row.judge for row in board.rows()}):
        yield name, Text(judges[name].asks)


def commands(redis_url: str | None, trace_id: str | None = None) -> tuple[tuple[str, str], ...]:
    """Return three commands with their purposes.

    Args:
        redis_url: Address of a Redis that keeps running.
        trace_id: The trace of the example that fails, if there is one.
    """
    typed = sys.argv[0]
    # As it was typed, since `make demo` runs the one of `.venv`, which need not be on PATH.
    program = typed if Path(typed).name == "tracejudge" and shutil.which("tracejudge") != typed else "tracejudge"
    if redis_url is not None:
        tail = (
            f"tail --redis-url {redis_url} --failed --service {DROP.service} --judge {DROP.judge} --no-follow --last 5"
        )
        whole = (f"{program} account --redis-url {redis_url}", "the outcome of every trace and every evaluation")
        if trace_id is not None:
            whole = (f"{program} show --redis-url {redis_url} {trace_id}", "the answer above that failed")
        return (
            (f"{program} {tail}", "the latest answers without support in their documents, and why"),
            (
                f"{program} report --redis-url {redis_url} --since 1h",
                "pass shares with 95 % intervals, coverage and cost",
            ),
            whole,
        )
    sample = Path(str(files("judges").joinpath("samples", f"{DROP.service}.jsonl")))
    with contextlib.suppress(ValueError):
        sample = sample.relative_to(Path.cwd())
    test = f"judges test {DROP.judge} {quote(str(sample))} --label grounded"
    return (
        (
            f"{program} demo --keep",
            "the same, but Redis, worker and board stay until Ctrl-C, for the board, `tail`, `report` and `show`",
        ),
        (f"{program} {test}", "how often the heuristic agrees with the labels of the samples; needs no Redis"),
        (f"{program} judges show {DROP.judge}", "the prompt that a configured model receives in its place"),
    )


def print_report(
    console: Console, view: View, account: Account, examples: Examples, *, environment: str, redis_url: str | None
) -> None:
    """Print everything that remains in the terminal; ``redis_url`` is the address of a Redis that keeps running."""

    def title(text: str) -> None:
        console.print(f"\n{text}", style="bold")

    def pairs(rows: Iterable[tuple[str, Text]]) -> None:
        table = Table(show_header=False, box=None, padding=(0, 2))
        table.add_column(style="dim", no_wrap=True)
        table.add_column()
        for row in rows:
            table.add_row(*row)
        console.print(table)

    row = view.board.series(DROP.service, DROP.judge)
    shares = f"{percent(row.before.share)} → {percent(row.after.share)}"
    title(f"{DROP.service} {DROP.judge}: {shares} after the planted drop at {view.seconds / 2:g} s")
    done = f"{view.published:,} traces published, {view.board.verdicts:,} evaluations finished"
    console.print(f"{done}, {view.elapsed_s:.0f} s in all.\n")
    console.print(score_table(view.board, view.seconds, console.width))
    if (missing := missing_scores(view.board)) is not None:
        console.print(missing)
    title("The words")
    pairs(words(view.board))
    for name, example in (("before", examples.before), ("after", examples.after)):
        if example is not None:
            title(f"An answer of {DROP.service} from {name} the drop, at {example.at_s:.1f} s")
            pairs(example.rows())
    alert = planted_alert(view.board, view.seconds, environment)
    if alert is None:
        title("No alert would fire")
        text = (
            "The judgements after the drop are too few to exclude chance at one false alarm a week: try more --seconds."
        )
        console.print(text, highlight=False)
    else:
        title("The alert that would fire")
        pairs(
            [
                (alert.name, Text(alert.summary, style="bold red")),
                (f"severity: {alert.severity}", Text(alert.reason)),
                (
                    "",
                    Text(
                        "Here the time before the drop is the baseline. In production the monitor learns it in 7 days."
                    ),
                ),
            ]
        )
    console.print()
    console.print(account_table(account, zeros=False))
    title("Try next")
    failed = None if examples.after is None else examples.after.verdict.trace_id
    for line, purpose in commands(redis_url, failed):
        # Not wrapped, so that it can be copied.
        console.print(f"  {line}", style="bold", soft_wrap=True, highlight=False, markup=False)
        console.print(f"    {purpose}", style="dim", highlight=False)
