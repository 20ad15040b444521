"""`tracejudge account`: the accounting, and whether it balances."""

import sys
from typing import Final

import click
from rich.table import Table

from worker.base.accounting.accounting import Account, read_account, summed
from worker.base.commands.options import JSON, OUT, REDIS, connect, counts_table, print_json

_TRACES: Final = {
    "published": "by services, as far as known",
    "dropped": "by the SDK, with a reason",
    "cut_off": "removed by the caps before they were read",
    "lost_by_redis": "confirmed by Redis, then lost with its last writes or an expired key",
    "invalid": "entries that are not traces",
    "duplicate": "sampled, but nothing new to judge",
    "no_rule": "match no rule",
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
    "dead": "given up after many attempts",
    "waiting": "not finished yet",
    "removed": "forgotten, dropped or aged out",
}
_REASONS: Final = {"shed": "evaluations that `tracejudge replay` recovers"}
_CONVERSATIONS: Final = {
    "opened": "conversations with a sampled trace",
    "judged": "for the first time",
    "updated": "judged again after they grew",
    "dropped": "before they were judged, for lack of space",
    "expired": "before they were judged, from Redis",
    "removed": "forgotten before they were judged",
}
_UNREADABLE: Final = "times that a batch was set aside"


@click.command("account")
@REDIS
@JSON
def command(config: str | None, redis_url: str | None, *, as_json: bool) -> None:
    """Print the accounting, summed over all shards.

    Exit code 1 when something is lost or counted twice, or when a Redis does not answer.
    """
    _, store = connect(config, redis_url)
    account = summed([read_account(one) for one in store.answering])
    if as_json:
        print_json(account)
    else:
        OUT.print(account_table(account))
    sys.exit(1 if account.lost or len(store.answering) < len(store.shards) else 0)


def account_table(account: Account, *, zeros: bool = True) -> Table:
    """Lay out the accounting; the first line of each part is the sum of the others. Zeros can be left out."""
    table = counts_table("Accounting")
    for title, rows in (("Traces", _TRACES), ("Evaluations", _EVALUATIONS)):
        table.add_row(f"[bold]{title}[/bold]", "", "")
        for name, meaning in rows.items():
            if zeros or getattr(account, name):
                _add_row(table, account, name, getattr(account, name), meaning)
    if unreadable := sum(count for reason, count in account.reasons.items() if reason.startswith("unreadable:")):
        table.add_row("[bold]Batches[/bold]", "", "")
        _add_row(table, account, "unreadable", unreadable, _UNREADABLE)
    if "session:opened" in account.reasons:
        table.add_row("[bold]Conversations[/bold]", "", "")
        for name, meaning in _CONVERSATIONS.items():
            if count := account.reasons.get(f"session:{name}"):
                table.add_row(name, f"{count:,}", meaning)
        table.add_row("gathering", f"{account.gathering:,}", "not judged yet")
    style = "bold red" if account.lost else "bold green"
    table.add_row(
        f"[{style}]lost[/{style}]",
        f"[{style}]{account.lost:,}[/{style}]",
        "unexplained; a negative number means counted twice",
    )
    return table


def _add_row(table: Table, account: Account, name: str, count: int, meaning: str) -> None:
    """Add a row, and below it its reasons: keys such as `dropped:buffer_full`."""
    table.add_row(name, f"{count:,}", meaning)
    for reason, amount in account.reasons.items():
        if reason.startswith(f"{name}:"):
            table.add_row(f"  {reason.split(':', 1)[1]}", f"{amount:,}", _REASONS.get(name, ""))
