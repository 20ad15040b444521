"""Which dead letters: the options that the verbs of `dead` share, and what they mean."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import click

from judges.verdict import REASONS
from worker.cli.options import NOTES, amount
from worker.dead.letters import Letters, Wanted
from worker.replay.times import moment
from worker.store import Store

__all__ = ["Selected", "chosen_options", "require_choice", "selected", "selection", "warn_of_unreadable"]

_F = TypeVar("_F", bound=Callable[..., Any])
_NAMES: Final = ("reasons", "services", "judges", "ids", "older_than", "newer_than")
_OPTIONS: Final = (
    click.option(
        "--reason",
        "reasons",
        multiple=True,
        type=click.Choice(sorted(REASONS)),
        metavar="REASON",
        help="Only those given up for this reason, as timeout; repeatable.",
    ),
    click.option("--service", "services", multiple=True, metavar="PATTERN", help="Only of these services: support-*."),
    click.option("--judge", "judges", multiple=True, metavar="NAME", help="Only of this judge; repeatable."),
    click.option("--older-than", metavar="TIME", help="Only those given up so long ago or longer: 90, 15m, 2h, 3d."),
    click.option("--newer-than", metavar="TIME", help="Only those given up since then."),
    click.option("--id", "ids", multiple=True, metavar="ID", help="Only this evaluation, or those that begin so."),
)


class Selected(NamedTuple):
    """What the options say."""

    reasons: tuple[str, ...]
    services: tuple[str, ...]
    judges: tuple[str, ...]
    ids: tuple[str, ...]
    older_than: str | None
    newer_than: str | None


def selection(function: _F) -> _F:
    """Give a verb the options that select letters; it gets them as `selected` reads them."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def chosen_options(options: dict[str, Any]) -> Selected:
    """Take the options of `selection` out of a verb's."""
    return Selected(**{name: options.pop(name) for name in _NAMES})


def selected(options: Selected, store: Store) -> Wanted:
    """Say which letters the options mean, by Redis' clock, which has dated them.

    Raises:
        click.UsageError: A time is none.
        StoreError: Redis did not answer.
    """
    now = store.now_ms() / 1000
    read = partial(_milliseconds, now=now)
    return Wanted(
        reasons=options.reasons,
        services=options.services,
        judges=options.judges,
        ids=options.ids,
        since_ms=read("--newer-than", options.newer_than),
        until_ms=read("--older-than", options.older_than),
    )


def require_choice(options: Selected, *, everything: bool) -> None:
    """Let nobody touch all letters by leaving something out.

    Raises:
        click.UsageError: Nothing was selected, or everything and something.
    """
    if everything and any(options):
        raise click.UsageError("--all takes everything; leave out the other options, or leave out --all")
    if not everything and not any(options):
        raise click.UsageError("say which: --reason, --service, --judge, --older-than, --newer-than, --id, or --all")


def warn_of_unreadable(letters: Letters) -> None:
    """Say that letters were passed over."""
    if letters.unreadable:
        NOTES.print(f"{amount(letters.unreadable, 'letter')} of another version of tracejudge passed over")


def _milliseconds(option: str, text: str | None, *, now: float) -> int | None:
    if text is None:
        return None
    try:
        return int(moment(text, now) * 1000)
    except ValueError as error:
        raise click.UsageError(f"{option}: {error}") from error
