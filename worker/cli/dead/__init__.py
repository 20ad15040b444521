"""`tracejudge dead`: the evaluations that were given up, and what may be done about them."""

import click

from worker.cli.dead.drop import drop
from worker.cli.dead.list import list_letters
from worker.cli.dead.retry import retry_letters
from worker.cli.dead.show import show

__all__ = ["command"]


@click.group("dead")
def command() -> None:
    """Look after evaluations that could not be made in time: list, show, retry or drop them.

    \b
    Examples:
      tracejudge dead list --reason judge_rejected
      tracejudge dead show 3f9a2c1b
      tracejudge dead retry --judge safety --newer-than 2h
      tracejudge dead drop --older-than 3d --dry-run
    """  # noqa: D301 - click's mark for lines that stay as they are


command.add_command(list_letters)
command.add_command(show)
command.add_command(retry_letters)
command.add_command(drop)
