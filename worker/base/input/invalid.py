"""`tracejudge invalid`: list the last entries of the stream that were no traces."""

import time

import click
from rich.table import Table

from tracejudge.dialects.unread import ADVICE
from worker.base.commands.groups import SuggestingGroup
from worker.base.commands.options import JSON, NOTES, OUT, PAGE_COLUMNS, REDIS, amount, connect, plain, print_json
from worker.base.input.unusable import MAX_INVALID, NO_CONTENT, read_invalid, read_unread


@click.group("invalid", cls=SuggestingGroup)
def command() -> None:
    """List the last entries of the stream that were no traces.

    \b
    Examples:
      tracejudge invalid list
    """  # noqa: D301 - click's mark for lines that stay as they are


@command.command("list")
@click.option("--limit", type=click.IntRange(1, MAX_INVALID), default=MAX_INVALID, metavar="N", help="How many.")
@REDIS
@JSON
def list_entries(*, config: str | None, redis_url: str | None, limit: int, as_json: bool) -> None:
    """List the last invalid entries, the newest first; with --json one on each line.

    Shown are the reason, the trace id, and the names in the payload. No text of an entry is kept. After them come the
    instrumentations whose spans no dialect reads, the commonest first, with the names of their attributes.

    \b
    Examples:
      tracejudge invalid list --limit 10
      tracejudge invalid list --json
    """  # noqa: D301 - click's mark for lines that stay as they are
    _, store = connect(config, redis_url)
    rows, unread = read_invalid(store, limit), read_unread(store)
    if as_json:
        for row in (*rows, *unread):
            print_json(row)
        unread = []
    published = dict.fromkeys(row.detail for row in rows if row.reason == NO_CONTENT)
    rows = [row for row in rows if row.reason != NO_CONTENT]
    if rows and not as_json:
        table = _table("time\nreason", "detail\ntrace id, names")
        for row in rows:
            at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(row.at))
            names = plain(", ".join(filter(None, (row.trace_id, *row.keys))))
            table.add_row(f"{at}\n{plain(row.reason)}", f"{plain(row.detail)}\n{names}")
        OUT.print(table)
    if unread:
        table = _table("spans", "instrumentation\nattributes that no dialect reads")
        for kind in unread:
            table.add_row(f"{kind.spans:,}", f"{plain(kind.instrumentation)}\n{plain(', '.join(kind.names))}")
        OUT.print(table)
        NOTES.print(f"To have them read, {ADVICE}.")
    for detail in () if as_json else published:
        NOTES.print(f"Published without content: {plain(detail)}.")
    NOTES.print(f"{amount(len(rows), 'invalid entry') if len(rows) == 1 else f'{len(rows):,} invalid entries'}")


def _table(left: str, right: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, width=PAGE_COLUMNS)
    table.add_column(left, overflow="fold", min_width=19)
    table.add_column(right, overflow="fold", ratio=1)
    return table
