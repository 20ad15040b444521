"""`tracejudge dead show`: everything about one dead letter."""

from typing import Final

import click
import msgspec

from judges.prompt import neutralise
from tracejudge import Trace
from worker.cli.dead.list import row
from worker.cli.dead.selecting import warn_of_unreadable
from worker.cli.options import CONFIG, JSON, REDIS_URL, amount, open_store, settings_from
from worker.dead.letters import Letters, Wanted
from worker.ledger import DeadLetter
from worker.store import Store

__all__ = ["show"]

_PLAIN: Final = frozenset(
    {
        *("trace_id", "service", "id", "span_id", "environment", "release", "name", "response_id"),
        *("started_at", "ended_at", "provider", "model", "usage"),
    }
)
"""Fields of a trace that hold no text of anybody; all others are shown by their lengths."""


@click.command("show")
@click.argument("evaluation_id", metavar="ID")
@click.option("--texts", is_flag=True, help="Show the texts of the trace, and whose it is, not their lengths only.")
@CONFIG
@REDIS_URL
@JSON
def show(evaluation_id: str, *, texts: bool, config: str | None, redis_url: str | None, as_json: bool) -> None:
    """Print a dead letter: the evaluation ID, or the one that begins so.

    What end users wrote and models answered is shown with --texts only.

    \b
    Examples:
      tracejudge dead show 3f9a2c1b77aa
      tracejudge dead show 3f9a2c1b77aa --texts --json
    """  # noqa: D301 - click's mark for lines that stay as they are
    store = open_store(settings_from(config, {"redis_url": redis_url}))
    head, letter = _find(store, evaluation_id)
    trace: dict[str, object] = msgspec.to_builtins(letter.item.trace)
    document = {**head, "model": letter.model, "probability": letter.evaluation.probability}
    shown = trace if texts else _lengths(trace)
    if as_json:
        print(msgspec.json.encode({**document, "trace": shown}).decode())
        return
    for name, value in document.items():
        print(f"{name}: {_text(value)}")
    print("trace:")
    for name, value in shown.items():
        print(f"  {name}: {_text(value)}")


def _find(store: Store, evaluation_id: str) -> tuple[dict[str, object], DeadLetter]:
    letters, now = Letters(store), store.now_ms() / 1000
    found = [row(one, now) for one in letters.find(Wanted(ids=(evaluation_id,)))]
    warn_of_unreadable(letters)
    if len(found) > 1:
        raise click.UsageError(
            f"{amount(len(found), 'dead letter')} begin with {evaluation_id!r}; write more of the id"
        )
    for one in letters.read([str(each["id"]) for each in found]):
        return found[0], one.letter
    raise click.UsageError(f"there is no dead letter {evaluation_id!r}; see `tracejudge dead list`")


def _lengths(trace: dict[str, object]) -> dict[str, object]:
    return {name: value if name in _PLAIN else _length(value) for name, value in trace.items()}


def _length(value: object) -> str:
    if isinstance(value, str):
        return amount(len(value), "sign")
    size = len(msgspec.json.encode(value))
    items = f"{amount(len(value), 'item')}, " if isinstance(value, list | dict) else ""
    return f"{items}{size:,} bytes"


def _text(value: object) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return neutralise(text)


assert set(Trace.__struct_fields__) >= _PLAIN  # noqa: S101 - a slip of ours, not of the user
