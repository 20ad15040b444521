"""`tracejudge account`: the books, and whether they balance."""

import sys
from typing import Final

import click
import msgspec
from rich.table import Table

from worker.books import Account, read_account
from worker.cli.options import CONFIG, JSON, OUT, REDIS_URL, open_store, settings_from

__all__ = ["account_table", "command"]

_TRACES: Final = {
    "published": "by services, as far as known",
    "dropped": "by the SDK, with a reason",
    "cut_off": "removed by the caps before they were read",
    "invalid": "entries that are no trace",
    "duplicate": "sampled, but nothing new to judge",
    "no_rule": "no rule wants them",
    "not_sampled": "not chosen by the rate",
    "shed": "not chosen, since the judge model is down",
    "sampled": "chosen for at least one evaluation",
    "unread": "in buffers and in the stream",
}
_EVALUATIONS: Final = {
    "chosen": "of sampled traces",
    "scored": "with at least one score",
    "abstained": "the judge could not tell",
    "unscored": "no score, with a reason",
    "dead": "given up after many tries",
    "waiting": "not finished yet",
    "removed": "forgotten, dropped or aged out",
}

_REASONS: Final = {"shed": "evaluations that `tracejudge replay` brings back"}


@click.command("account")
@CONFIG
@REDIS_URL
@JSON
def command(config: str | None, redis_url: str | None, *, as_json: bool) -> None:
    """Print the books. Exit code 1 when something is lost or counted twice, or when Redis does not answer."""
    account = read_account(open_store(settings_from(config, {"redis_url": redis_url})))
    if as_json:
        print(msgspec.json.encode(account).decode())
    else:
        OUT.print(account_table(account))
    sys.exit(1 if account.lost else 0)


def account_table(account: Account) -> Table:
    """Lay the books out; the first line of each part is the sum of the others."""
    table = Table(title="The books", show_header=False, box=None, padding=(0, 2))
    table.add_column(justify="left")
    table.add_column(justify="right")
    table.add_column(style="dim")
    for title, rows in (("Traces", _TRACES), ("Evaluations", _EVALUATIONS)):
        table.add_row(f"[bold]{title}[/bold]", "", "")
        for name, meaning in rows.items():
            table.add_row(name, f"{getattr(account, name):,}", meaning)
            for reason, amount in account.reasons.items():
                if reason.startswith(f"{name}:"):
                    table.add_row(f"  {reason.split(':', 1)[1]}", f"{amount:,}", _REASONS.get(name, ""))
    style = "bold red" if account.lost else "bold green"
    table.add_row(f"[{style}]lost[/{style}]", f"[{style}]{account.lost:,}[/{style}]", "unexplained; negative: twice")
    return table
