"""`tracejudge dead list`: what was given up, and why."""

import itertools
from typing import Any

import click
import msgspec
from rich.markup import escape
from rich.table import Table

from judges.prompt import neutralise
from worker.cli.dead.selecting import chosen_options, selected, selection, warn_of_unreadable
from worker.cli.options import CONFIG, JSON, NOTES, OUT, REDIS_URL, amount, open_store, settings_from
from worker.cli.whole import print_table
from worker.dead.letters import Found, Head, Letters

__all__ = ["list_letters", "row"]

_SHOWN_DIGITS = 12
_VERSION_DIGITS = 8
"""As many as metrics show."""
_AGES = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "m"), (1.0, "s"))


@click.command("list")
@selection
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, metavar="N", help="How many.")
@click.option("--oldest", is_flag=True, help="The oldest first, not the newest.")
@CONFIG
@REDIS_URL
@JSON
def list_letters(
    *, config: str | None, redis_url: str | None, limit: int, oldest: bool, as_json: bool, **options: Any
) -> None:
    """List dead letters, the newest first; with --json one on each line.

    A letter with the age in brackets is being retried. Nothing of the traces' texts is shown.

    \b
    Examples:
      tracejudge dead list
      tracejudge dead list --reason judge_unavailable --service 'support-*' --newer-than 2h
      tracejudge dead list --oldest --limit 1000 --json
    """  # noqa: D301 - click's mark for lines that stay as they are
    store = open_store(settings_from(config, {"redis_url": redis_url}))
    letters, now = Letters(store), store.now_ms() / 1000
    wanted = selected(chosen_options(options), store)
    found = list(itertools.islice(letters.find(wanted, newest_first=not oldest), limit))
    if as_json:
        for one in found:
            print(msgspec.json.encode(row(one, now)).decode())
    elif found:
        print_table(OUT, _table(found, now))
    total = store.call(lambda client: client.zcard(store.keys.dead_due))
    NOTES.print(f"{amount(len(found), 'letter')} of {total:,}", highlight=False)
    warn_of_unreadable(letters)


def row(found: Found[Head], now_s: float) -> dict[str, object]:
    """Give what tells a letter apart, without any text of its trace."""
    letter, retry = found.letter, found.retry
    return {
        "id": letter.evaluation.id,
        "reason": letter.reason,
        "attempts": letter.attempts,
        "service": letter.item.trace.service,
        "judge": letter.evaluation.judge,
        "judge_version": letter.evaluation.version,
        "judge_model": letter.judge_model,
        "origin": letter.evaluation.origin,
        "trace_id": letter.item.trace.trace_id,
        "chosen_at": letter.chosen_at,
        "given_up_at": letter.given_up_at,
        "age_s": round(max(0.0, now_s - found.given_up_ms / 1000), 3),
        "retrying": bool(retry.batch_id),
        "revivals": retry.times,
        "bytes": found.size,
    }


def _table(found: list[Found[Head]], now: float) -> Table:
    table = Table(box=None, padding=(0, 1), show_edge=False)
    for title in ("id", "age", "reason", "calls", "service", "judge", "version", "judge model"):
        table.add_column(title, justify="right" if title in {"age", "calls"} else "left", overflow="fold")
    for one in found:
        letter = one.letter
        age = _age(now - one.given_up_ms / 1000)
        table.add_row(
            letter.evaluation.id[:_SHOWN_DIGITS],
            f"({age})" if one.retry.batch_id else age,
            letter.reason,
            f"{letter.attempts:,}",
            *map(_plain, (letter.item.trace.service, letter.evaluation.judge)),
            _plain(letter.evaluation.version[:_VERSION_DIGITS]),
            _plain(letter.judge_model),
        )
    return table


def _age(seconds: float) -> str:
    for length_s, unit in _AGES:
        if seconds >= length_s:
            return f"{seconds / length_s:.0f}{unit}"
    return "0s"


def _plain(text: str) -> str:
    """Put a name of somebody else on one line, with nothing in it that rich or the terminal would obey."""
    return escape(neutralise(" ".join(text.split())))
