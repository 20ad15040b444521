"""`tracejudge dead drop`: let go of evaluations that were given up."""

import sys
from typing import Any, Final

import click
import msgspec

from worker.cli.dead.selecting import chosen_options, require_choice, selected, selection, warn_of_unreadable
from worker.cli.options import CONFIG, JSON, OUT, REDIS_URL, amount, open_store, settings_from
from worker.dead.letters import Letters
from worker.ledger import Ledger

__all__ = ["drop"]

_AT_ONCE: Final = 500


@click.command("drop")
@selection
@click.option("--all", "everything", is_flag=True, help="All of them.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Count them, and drop nothing.")
@CONFIG
@REDIS_URL
@JSON
def drop(
    *,
    config: str | None,
    redis_url: str | None,
    everything: bool,
    yes: bool,
    dry_run: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Drop dead letters for good; in the books they count as removed.

    A verdict that comes of a retry under way no longer counts either. It asks first, and without a terminal it needs
    --yes.

    \b
    Examples:
      tracejudge dead drop --older-than 3d --dry-run
      tracejudge dead drop --reason internal_error --yes
    """  # noqa: D301 - click's mark for lines that stay as they are
    chosen = chosen_options(options)
    require_choice(chosen, everything=everything)
    if not yes and not dry_run and not sys.stdin.isatty():
        raise click.UsageError("there is no terminal to ask on: say --yes, or look with --dry-run")
    settings = settings_from(config, {"redis_url": redis_url})
    store = open_store(settings)
    letters = Letters(store)
    ids = [found.letter.evaluation.id for found in letters.find(selected(chosen, store), newest_first=False)]
    warn_of_unreadable(letters)
    if ids and not yes and not dry_run:
        click.confirm(f"Drop {amount(len(ids), 'dead letter')} for good?", abort=True, err=True)
    dropped = 0 if dry_run else _drop(Ledger(store, settings), ids)
    if as_json:
        document = {"found": len(ids), "dropped": dropped, "unreadable": letters.unreadable, "dry_run": dry_run}
        print(msgspec.json.encode(document).decode())
    elif dry_run:
        OUT.print(f"{amount(len(ids), 'dead letter')} would be dropped", highlight=False)
    else:
        OUT.print(f"{amount(dropped, 'dead letter')} dropped", highlight=False)
    sys.exit(1 if letters.unreadable else 0)


def _drop(ledger: Ledger, ids: list[str]) -> int:
    return sum(sum(ledger.remove(ids[first : first + _AT_ONCE])) for first in range(0, len(ids), _AT_ONCE))
