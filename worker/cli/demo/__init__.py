"""`tracejudge demo`: sample traffic through an embedded Redis and a real worker, with a planted quality drop.

`traffic` is what is published, `session` what it runs on, `watch` and `scoreboard` what is seen of it, `screen`,
`display` and `report` how that looks; `run` holds them together, and `signals` ends it all early.
"""

import io
import sys
from typing import Final, NoReturn

import click

from worker import logs
from worker.cli.demo.display import LinesDisplay, LiveDisplay, out
from worker.cli.demo.report import json_document, print_report
from worker.cli.demo.run import Outcome, play
from worker.cli.demo.session import DemoError, open_session
from worker.cli.demo.signals import ending_on_signals
from worker.cli.options import JSON, NOTES, OUT

__all__ = ["command"]

_MAX_SECONDS: Final = 3600
_MIN_SECONDS: Final = 4
"""Shorter, and too few traces come before and after the drop to tell it from chance."""


@click.command("demo")
@click.option(
    "--seconds",
    type=click.IntRange(min=_MIN_SECONDS, max=_MAX_SECONDS),
    default=25,
    show_default=True,
    metavar="N",
    help="How long traffic runs; the drop comes half-way.",
)
@JSON
def command(seconds: int, *, as_json: bool) -> None:
    """Watch the quality of three services, one of which gets worse half-way.

    Nothing has to be prepared and nothing is left behind: Redis and worker are the demo's own. Scores come from the
    built-in lexical heuristic. Exit code 1 when a trace or a verdict is lost, or something is not finished in time.
    """
    # What libraries complain about would tear the screen; what matters ends as an error of ours.
    logs.configure("error")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without block characters shows question marks
    NOTES.print(f"Starting an embedded Redis and a worker; then traffic runs for {seconds} s.", highlight=False)
    try:
        with ending_on_signals():
            outcome = _run(seconds, as_json=as_json)
    except DemoError as error:
        _fail(str(error))
    if outcome.fault is not None:
        _fail(outcome.fault)


def _run(seconds: int, *, as_json: bool) -> Outcome:
    is_live = sys.stdout.isatty() and not OUT.is_dumb_terminal and not as_json
    with open_session() as session:
        # The live screen is left first: what is told from here on, good or bad, goes to the one that stays.
        with LiveDisplay() if is_live else LinesDisplay() as display:
            outcome = play(session, seconds, display)
        if as_json:
            print(json_document(outcome), flush=True)
        else:
            print_report(out(), outcome)
    return outcome


def _fail(message: str) -> NoReturn:
    print(f"tracejudge: {message}", file=sys.stderr)
    sys.exit(1)
