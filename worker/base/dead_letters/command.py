"""`tracejudge dead`: list, show, retry or drop evaluations that were given up."""

import itertools
import sys
import time
from collections.abc import Sequence
from operator import methodcaller
from typing import Any, Final

import click
import msgspec
from rich.table import Table

from judges.core.prompt import neutralise
from judges.core.verdict import REASONS
from judges.registry import load_judges
from tracejudge import Trace
from worker.base.commands.groups import SuggestingGroup
from worker.base.commands.options import (
    JSON,
    NOTES,
    OUT,
    REDIS,
    amount,
    connect,
    moments,
    note,
    options,
    plain,
    print_json,
    print_table,
)
from worker.base.dead_letters.retry import Retried, group_letters, retry
from worker.base.dead_letters.store import AllDeadLetters, FoundDeadLetter
from worker.base.lookup.verdict_filter import VerdictFilter
from worker.core.config.graders import Graders
from worker.core.config.settings import MIB, Settings
from worker.core.queue.ledger import Ledger, StoredDeadLetter
from worker.core.storage.client import Store, StoreError
from worker.core.telemetry.backlog import SHARE_OF_WAITING

# Letters removed in one script call, which blocks Redis while it runs.
_AT_ONCE: Final = 500
_AGES: Final = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "m"), (1.0, "s"))
# Fields of a trace without personal text; of all others only the length is shown.
_PLAIN: Final = frozenset(
    {
        *("trace_id", "service", "id", "span_id", "environment", "release", "name", "response_id"),
        *("started_at", "ended_at", "provider", "model", "usage"),
    }
)
assert set(Trace.__struct_fields__) >= _PLAIN  # noqa: S101 - a mistake of ours, not of the user

_SELECT: Final = options(
    click.option(
        "--reason",
        "reasons",
        multiple=True,
        type=click.Choice(sorted(REASONS)),
        metavar="REASON",
        help="Only those given up for this reason, such as timeout; repeatable.",
    ),
    click.option("--service", "services", multiple=True, metavar="PATTERN", help="Only of these services: support-*."),
    click.option("--judge", "judges", multiple=True, metavar="NAME", help="Only of this judge; repeatable."),
    click.option("--older-than", metavar="TIME", help="Only those given up at least this long ago: 90s, 15m, 2h, 3d."),
    click.option("--newer-than", metavar="TIME", help="Only those given up since then."),
    click.option("--trace-id", "traces", multiple=True, metavar="ID", help="Only of traces whose id begins so."),
    click.option("--id", "ids", multiple=True, metavar="ID", help="Only evaluations whose id begins so; repeatable."),
)
_ALL: Final = click.option("--all", "everything", is_flag=True, help="All of them.")


def _check_selection(selection: dict[str, Any], *, everything: bool) -> None:
    """Require a selection or --all: an option that is left out by mistake must not touch all letters."""
    if everything and any(selection.values()):
        raise click.UsageError("--all takes everything; leave out the other options, or leave out --all")
    if not everything and not any(selection.values()):
        raise click.UsageError(
            "select by --reason, --service, --judge, --older-than, --newer-than, --trace-id, --id, or --all"
        )


def _filter(store: Store, *, older_than: str | None, newer_than: str | None, **selection: Any) -> VerdictFilter:
    """Resolve the times by the clock of Redis, which has dated the letters."""
    times = moments(store, newer_than=newer_than, older_than=older_than)
    return VerdictFilter(**selection, since_ms=times["newer_than"], until_ms=times["older_than"])


def _warn_of_unreadable(letters: AllDeadLetters) -> None:
    if letters.unreadable:
        NOTES.print(f"{amount(letters.unreadable, 'dead letter')} of another version of tracejudge skipped")


def _check_ids(letters: AllDeadLetters, selected: Sequence[object], selection: dict[str, Any]) -> None:
    """Refuse ids that no dead letter has: a mistyped one must not look like success."""
    ids = *selection["traces"], *selection["ids"]
    if ids and not selected:
        _warn_of_unreadable(letters)
        raise click.ClickException(
            f"no dead letter fits {', '.join(map(repr, ids))}; `tracejudge dead list --json` prints whole ids"
        )


@click.group("dead", cls=SuggestingGroup)
def command() -> None:
    """List, show, retry or drop evaluations that could not be made in time.

    \b
    Examples:
      tracejudge dead list --reason judge_rejected
      tracejudge dead show 3f9a2c1b
      tracejudge dead retry --judge safety --newer-than 2h
      tracejudge dead drop --older-than 3d --dry-run
    """  # noqa: D301 - click's mark for lines that stay as they are


@command.command("list")
@_SELECT
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, metavar="N", help="How many.")
@click.option("--oldest", is_flag=True, help="The oldest first, not the newest.")
@REDIS
@JSON
def list_letters(
    *, config: str | None, redis_url: str | None, limit: int, oldest: bool, as_json: bool, **selection: Any
) -> None:
    """List dead letters, the newest first; with --json one on each line.

    An age in brackets means that the dead letter is being retried. No text of a trace is shown.

    \b
    Examples:
      tracejudge dead list
      tracejudge dead list --reason timeout --service 'support-*' --newer-than 2h
      tracejudge dead list --oldest --limit 1000 --json
    """  # noqa: D301 - click's mark for lines that stay as they are
    _, store = connect(config, redis_url)
    letters, now = AllDeadLetters(store), store.now_ms() / 1000
    listed = list(itertools.islice(letters.find(_filter(store, **selection), newest_first=not oldest), limit))
    _check_ids(letters, listed, selection)
    if as_json:
        for dead in listed:
            print_json(_row(dead, now))
    elif listed:
        table = Table(box=None, padding=(0, 1), show_edge=False)
        for title in ("id", "age", "reason", "calls", "service", "judge", "version", "judge model"):
            table.add_column(title, justify="right" if title in {"age", "calls"} else "left", overflow="fold")
        for dead in listed:
            letter, seconds = dead.letter, now - dead.given_up_ms / 1000
            age = next((f"{seconds / length_s:.0f}{unit}" for length_s, unit in _AGES if seconds >= length_s), "0s")
            # As many as metrics show.
            version = letter.evaluation.version[:8]
            table.add_row(
                letter.evaluation.id[:12],
                f"({age})" if dead.retry.batch_id else age,
                letter.reason,
                f"{letter.attempts:,}",
                *map(plain, (letter.owner.service, letter.evaluation.judge, version, letter.judge_model)),
            )
        print_table(OUT, table)
    total = sum(part.call(methodcaller("zcard", part.keys.dead_due)) for part in store.reachable)
    NOTES.print(f"{amount(len(listed), 'dead letter')} of {total:,}")
    _warn_of_unreadable(letters)


def _row(dead: FoundDeadLetter[StoredDeadLetter], now_s: float) -> dict[str, object]:
    """Lay out a letter for JSON, without any text of its trace."""
    letter, retry = dead.letter, dead.retry
    return {
        "id": letter.evaluation.id,
        "reason": letter.reason,
        "attempts": letter.attempts,
        "service": letter.owner.service,
        "judge": letter.evaluation.judge,
        "judge_version": letter.evaluation.version,
        "judge_model": letter.judge_model,
        "origin": letter.evaluation.origin,
        "trace_id": letter.owner.trace_id,
        "chosen_at": letter.chosen_at,
        "given_up_at": letter.given_up_at,
        "age_s": round(max(0.0, now_s - dead.given_up_ms / 1000), 3),
        "retrying": bool(retry.batch_id),
        "revivals": retry.times,
        "bytes": dead.size,
    }


@command.command("show")
@click.argument("evaluation_id", metavar="ID")
@click.option("--texts", is_flag=True, help="Show the texts and the user of the trace, not only their lengths.")
@REDIS
@JSON
def show(evaluation_id: str, *, texts: bool, config: str | None, redis_url: str | None, as_json: bool) -> None:
    """Print the dead letter of an evaluation; the beginning of its ID is enough.

    Texts of end users and models are shown with --texts only.

    \b
    Examples:
      tracejudge dead show 3f9a2c1b77aa
      tracejudge dead show 3f9a2c1b77aa --texts --json
    """  # noqa: D301 - click's mark for lines that stay as they are
    _, store = connect(config, redis_url)
    letters, now = AllDeadLetters(store), store.now_ms() / 1000
    rows = [_row(dead, now) for dead in letters.find(VerdictFilter(ids=(evaluation_id,)))]
    _warn_of_unreadable(letters)
    if len(rows) > 1:
        raise click.ClickException(f"{len(rows):,} dead letters begin with {evaluation_id!r}; write more of the id")
    # The search decodes heads only; a letter may also be gone since.
    whole = list(letters.read([str(row["id"]) for row in rows]))
    if not whole:
        raise click.ClickException(f"there is no dead letter {evaluation_id!r}; see `tracejudge dead list`")
    head, letter = rows[0], whole[0].letter
    document = {
        **head,
        "note": letter.note,
        "model": letter.grader,
        "probability": letter.evaluation.probability,
        "input_tokens": letter.spent.input_tokens,
        "output_tokens": letter.spent.output_tokens,
        "cost_usd": letter.spent.reported.cost_usd,
    }
    trace: dict[str, object] = msgspec.to_builtins(letter.item.trace)
    if not texts:
        trace = {name: value if name in _PLAIN else _length(value) for name, value in trace.items()}
    if as_json:
        print_json({**document, "trace": trace})
        return
    for name, value in document.items():
        print(f"{name}: {_text(value)}")
    print("trace:")
    for name, value in trace.items():
        print(f"  {name}: {_text(value)}")


def _length(value: object) -> str:
    if isinstance(value, str):
        return amount(len(value), "sign")
    size = len(msgspec.json.encode(value))
    items = f"{amount(len(value), 'item')}, " if isinstance(value, list | dict) else ""
    return f"{items}{size:,} bytes"


def _text(value: object) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return neutralise(text)


@command.command("retry")
@_SELECT
@_ALL
@click.option("--dry-run", is_flag=True, help="Count them, and choose nothing.")
@REDIS
@JSON
def retry_letters(
    *, config: str | None, redis_url: str | None, everything: bool, dry_run: bool, as_json: bool, **selection: Any
) -> None:
    """Retry evaluations that were given up; workers judge them along with new traces.

    A dead letter keeps its id, and stays until its verdict is written; then the verdict replaces it. One that is being
    retried is not chosen twice. If the retry does not end within `give_up_after`, it stays, with the calls of
    all attempts. The command waits while a judge model has enough to do; after Ctrl-C, repeat it to continue.

    \b
    Examples:
      tracejudge dead retry --reason judge_rejected
      tracejudge dead retry --id 3f9a2c1b77aa
      tracejudge dead retry --all --dry-run
    """  # noqa: D301 - click's mark for lines that stay as they are
    _check_selection(selection, everything=everything)
    settings, store = connect(config, redis_url)
    letters, graders = AllDeadLetters(store), Graders(settings, load_judges(settings.judges))
    selected, unknown_models = _filter(store, **selection), set[str]()
    counts = {"chosen": 0, "under_way": 0, "gone": 0, "batches": 0}
    by_partition = letters.ids(selected)
    _check_ids(letters, [*itertools.chain(*by_partition.values())], selection)
    try:
        for partition, ids in by_partition.items():
            for group in group_letters(letters.by_partition[partition].read(ids), settings.batch_size):
                letter = group[0].letter
                # The batch is made all the same, because workers may know a model that this configuration lacks.
                if (
                    letter.grader not in unknown_models
                    and graders.find_grader(letter.grader, letter.judge_model) is None
                ):
                    unknown_models.add(letter.grader)
                    missing = f"there is no [models.{letter.grader}] for {letter.judge_model} here"
                    note(f"{missing}: dead letters wait for a worker with it")
                if dry_run:
                    busy = [dead.letter.evaluation.id for dead in group if dead.retry.batch_id]
                    free = [dead.letter.evaluation.id for dead in group if not dead.retry.batch_id]
                    retried = Retried(free, busy, ())
                else:
                    _wait_for_room(settings, partition, letter.judge_model)
                    retried = retry(partition, settings, group)
                for name, counted in retried._asdict().items():
                    counts[name] += len(counted)
                counts["batches"] += bool(retried.chosen)
    finally:
        _warn_of_unreadable(letters)
        if as_json:
            print_json({**counts, "unreadable": letters.unreadable, "dry_run": dry_run})
        else:
            text = f"{amount(counts['chosen'], 'evaluation')} {'would be ' if dry_run else ''}chosen again"
            under_way = f"; {counts['under_way']:,} under way already" if counts["under_way"] else ""
            OUT.print(text + under_way)
    sys.exit(1 if letters.unreadable else 0)


def _wait_for_room(settings: Settings, store: Store, judge_model: str) -> None:
    # Retries take at most their share of `max_waiting_bytes`; the rest is left to new traces.
    most = settings.max_waiting_bytes * SHARE_OF_WAITING
    key, is_reported = store.keys.waiting, False
    try:
        while (waiting := int(store.call(lambda client: client.hget(key, judge_model)) or 0)) > most:
            if not is_reported:
                is_reported = True
                note(f"waiting: batches for {judge_model} hold {waiting / MIB:,.0f} MiB")
            time.sleep(0.5)
    except StoreError:
        NOTES.print("stopped; repeat the command to continue")
        raise


@command.command("drop")
@_SELECT
@_ALL
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Count them, and drop nothing.")
@REDIS
@JSON
def drop(
    *,
    config: str | None,
    redis_url: str | None,
    everything: bool,
    yes: bool,
    dry_run: bool,
    as_json: bool,
    **selection: Any,
) -> None:
    """Drop dead letters for good; the accounting counts them as removed.

    A verdict of a retry under way no longer counts either. The command asks first; without a terminal it needs --yes.

    \b
    Examples:
      tracejudge dead drop --older-than 3d --dry-run
      tracejudge dead drop --reason internal_error --yes
    """  # noqa: D301 - click's mark for lines that stay as they are
    _check_selection(selection, everything=everything)
    if not yes and not dry_run and not sys.stdin.isatty():
        raise click.UsageError("there is no terminal to confirm on: add --yes, or try --dry-run")
    settings, store = connect(config, redis_url)
    letters = AllDeadLetters(store)
    selected = _filter(store, **selection)
    by_partition = letters.ids(selected)
    ids = [*itertools.chain(*by_partition.values())]
    _check_ids(letters, ids, selection)
    _warn_of_unreadable(letters)
    if ids and not yes and not dry_run:
        click.confirm(f"Drop {amount(len(ids), 'dead letter')} for good?", abort=True, err=True)
    dropped = 0
    for partition, of_partition in ({} if dry_run else by_partition).items():
        ledger = Ledger(partition, settings)
        dropped += sum(
            sum(ledger.remove(of_partition[at : at + _AT_ONCE])) for at in range(0, len(of_partition), _AT_ONCE)
        )
    if as_json:
        print_json({"found": len(ids), "dropped": dropped, "unreadable": letters.unreadable, "dry_run": dry_run})
    else:
        text = f"{amount(len(ids), 'dead letter')} would be" if dry_run else amount(dropped, "dead letter")
        OUT.print(f"{text} dropped")
    sys.exit(1 if letters.unreadable else 0)
