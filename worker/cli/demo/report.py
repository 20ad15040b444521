"""The demo's last page, in words or as one JSON document."""

import msgspec
from rich.console import Console

from worker.cli.account import account_table
from worker.cli.demo.run import Outcome
from worker.cli.demo.scoreboard import Scoreboard, Series, Tally
from worker.cli.demo.screen import drop_line, failure_lines, introduction, score_table, status, unscored_line
from worker.cli.demo.traffic import DROP

__all__ = ["json_document", "print_report"]


def print_report(console: Console, outcome: Outcome) -> None:
    """Print the scoreboard, the planted drop and the books."""
    view = outcome.view
    console.print(introduction(view))
    console.print(f"\nAfter {view.elapsed_s:.0f} s: {status(view)}", style="bold")
    console.print(score_table(view.board, view.seconds, console.width))
    console.print(unscored_line(view.board))
    console.print("\nLatest verdicts that did not pass", style="bold")
    for line in failure_lines(view.board):
        console.print(line, no_wrap=True, overflow="ellipsis")
    console.print()
    console.print(account_table(outcome.account))
    console.print(f"\n{drop_line(view.board, view.seconds)}", style="bold")


def json_document(outcome: Outcome) -> str:
    """Write one document on one line: the books as `tracejudge account --json` has them, and what the judges saw."""
    view = outcome.view
    row = view.board.series(DROP.service, DROP.judge)
    document = msgspec.to_builtins(outcome.account) | {
        "services": _services(view.board),
        "planted": {
            "service": DROP.service,
            "judge": DROP.judge,
            "at_s": view.seconds / 2,
            "labelled_before": DROP.before.share,
            "labelled_after": DROP.after.share,
            "judged_before": row.before.share,
            "judged_after": row.after.share,
        },
        "seconds": view.seconds,
        "model": "lexical",
    }
    return msgspec.json.encode(document).decode()


def _services(board: Scoreboard) -> dict[str, dict[str, object]]:
    services: dict[str, dict[str, object]] = {}
    for row in board.rows():
        services.setdefault(row.service, {})[row.judge] = _series(row)
    return services


def _series(row: Series) -> dict[str, object]:
    return {
        **_tally(row.total),
        "abstained": row.abstained,
        "unscored": row.unscored.total(),
        "unscored_reasons": dict(row.unscored),
        "first_half": _tally(row.before),
        "second_half": _tally(row.after),
        "changed": row.has_changed,
    }


def _tally(tally: Tally) -> dict[str, object]:
    return {"pass": tally.passed, "fail": tally.failed, "share": tally.share}
