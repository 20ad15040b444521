"""`tracejudge tail`: verdicts as they come."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import click
import msgspec
import redis
from rich.markup import escape

from judges.prompt import neutralise
from judges.verdict import Score, Verdict
from worker.cli.options import CONFIG, JSON, OUT, REDIS_URL, open_store, settings_from
from worker.export.outbox import OutboxEntry, read_outbox_entry
from worker.store import Entry, Store

__all__ = ["command", "follow"]

_BLOCK_MS = 1000
_READ_COUNT = 500


@click.command("tail")
@CONFIG
@REDIS_URL
@JSON
@click.option("--failed", is_flag=True, help="Only verdicts that did not pass, or have no score.")
@click.option("--last", type=click.IntRange(min=0), default=0, metavar="N", help="Begin with the last N verdicts.")
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="End after N verdicts.")
def command(
    config: str | None, redis_url: str | None, *, as_json: bool, failed: bool, last: int, count: int | None
) -> None:
    """Follow verdicts until Ctrl-C."""
    store = open_store(settings_from(config, {"redis_url": redis_url}))
    shown = 0
    for entry in follow(store, last):
        if failed and not _is_failed(entry.verdict):
            continue
        if as_json:
            print(msgspec.json.encode(entry.verdict).decode(), flush=True)
        else:
            OUT.print(_line(entry), soft_wrap=True)
        shown += 1
        if shown == count:
            return


def follow(store: Store, last: int = 0) -> Iterator[OutboxEntry]:
    """Yield the last few entries of the outbox, then every new one.

    Raises:
        StoreError: Redis did not answer.
    """
    stream = store.keys.verdicts
    newest = store.call(lambda client: client.xrevrange(stream, count=max(1, last)))
    position = newest[0][0] if newest else b"0"
    for entry in reversed(newest[:last]):
        if (read := read_outbox_entry(entry)) is not None:
            yield read
    while True:
        reply = store.call(partial(_read, stream, position))
        for entry in reply[0][1] if reply else []:
            position = entry[0]
            if (read := read_outbox_entry(entry)) is not None:
                yield read


def _read(stream: str, position: bytes, client: "redis.Redis") -> list[tuple[bytes, list[Entry]]]:
    reply: Any = client.xread({stream: position}, count=_READ_COUNT, block=_BLOCK_MS)
    return list(reply or [])


def _is_failed(verdict: Verdict) -> bool:
    return verdict.outcome == "unscored" or any(score.passed is False for score in verdict.scores)


def _line(entry: OutboxEntry) -> str:
    verdict = entry.verdict
    if entry.kind == "d":
        result = f"[magenta]dead[/magenta] {verdict.reason}"
    elif verdict.outcome != "scored":
        result = f"[yellow]{verdict.outcome}[/yellow] {verdict.reason or ''}"
    else:
        result = " ".join(map(_score, verdict.scores))
    why = _plain(verdict.rationale or verdict.note or "")
    whose = f"{_plain(verdict.service)} [dim]{_plain(verdict.trace_id[:8])}[/dim]"
    return f"{whose} {verdict.judge}: {result} [dim]{why}[/dim]"


def _score(score: Score) -> str:
    style = {True: "green", False: "red", None: "cyan"}[score.passed]
    return f"[{style}]{score.metric} {_plain(score.label or f'{score.value:.2f}')}[/{style}]"


def _plain(text: str) -> str:
    """Put a text of somebody else on one line, with nothing in it that rich or the terminal would obey."""
    return escape(neutralise(" ".join(text.split())))
