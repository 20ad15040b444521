"""`tracejudge tail`: verdicts as they come."""

import fnmatch
import itertools
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
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
_SOUGHT = 10_000


@click.command("tail")
@CONFIG
@REDIS_URL
@JSON
@click.option("--failed", is_flag=True, help="Only what did not pass or has no score, abstained included.")
@click.option("--service", metavar="PATTERN", help="Only these services, with *, ? and [...] as in rules.")
@click.option("--judge", metavar="PATTERN", help="Only these judges.")
@click.option("--last", type=click.IntRange(min=0), default=0, metavar="N", help="Begin with the last N verdicts.")
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="End after N verdicts.")
@click.option("--no-follow", "ends", is_flag=True, help="End after what there is of the last N.")
def command(
    config: str | None,
    redis_url: str | None,
    *,
    as_json: bool,
    failed: bool,
    service: str | None,
    judge: str | None,
    last: int,
    count: int | None,
    ends: bool,
) -> None:
    """Follow verdicts until Ctrl-C; with --no-follow print the last N, or as many as there are, and end.

    With --json each line is a verdict; its `dead` tells what was given up from what is unscored for good.
    """
    if ends and not last:
        raise click.UsageError("--no-follow prints the last verdicts and ends; say how many with --last N")
    store = open_store(settings_from(config, {"redis_url": redis_url}))
    wanted = _wanted(service, judge, failed=failed)
    entries: Iterable[OutboxEntry] = _newest(store, last, wanted)[0] if ends else follow(store, last, wanted)
    for entry in itertools.islice(entries, count):
        if as_json:
            print(_json(entry), flush=True)
        else:
            OUT.print(_line(entry), soft_wrap=True)


def follow(store: Store, last: int = 0, wanted: Callable[[Verdict], bool] | None = None) -> Iterator[OutboxEntry]:
    """Yield the last few entries of the outbox, then every new one; only those that are wanted.

    The last few are sought among the newest 10,000.

    Raises:
        StoreError: Redis did not answer.
    """
    entries, position = _newest(store, last, wanted)
    yield from entries
    while True:
        reply = store.call(partial(_read, store.keys.verdicts, position))
        for _, come in reply:
            position = come[-1][0]
            yield from _readable(come, wanted)


def _newest(store: Store, last: int, wanted: Callable[[Verdict], bool] | None) -> tuple[Sequence[OutboxEntry], bytes]:
    """Find the last few entries that are wanted, in order, and where the outbox ends."""
    sought = _SOUGHT if last and wanted else max(1, last)
    newest = store.call(lambda client: client.xrevrange(store.keys.verdicts, count=sought))
    found = list(itertools.islice(_readable(newest, wanted), last))
    return found[::-1], newest[0][0] if newest else b"0"


def _readable(entries: Iterable[Entry], wanted: Callable[[Verdict], bool] | None) -> Iterator[OutboxEntry]:
    for entry in entries:
        read = read_outbox_entry(entry)
        if read is not None and (wanted is None or wanted(read.verdict)):
            yield read


def _read(stream: str, position: bytes, client: "redis.Redis") -> list[tuple[bytes, list[Entry]]]:
    reply: Any = client.xread({stream: position}, count=_READ_COUNT, block=_BLOCK_MS)
    return list(reply or [])


def _wanted(service: str | None, judge: str | None, *, failed: bool) -> Callable[[Verdict], bool] | None:
    if service is None and judge is None and not failed:
        return None
    of_service, of_judge = (re.compile(fnmatch.translate(pattern or "*")) for pattern in (service, judge))

    def wanted(verdict: Verdict) -> bool:
        is_named = of_service.match(verdict.service) and of_judge.match(verdict.judge)
        return is_named is not None and (not failed or _is_failed(verdict))

    return wanted


def _is_failed(verdict: Verdict) -> bool:
    return verdict.outcome != "scored" or any(score.passed is False for score in verdict.scores)


def _json(entry: OutboxEntry) -> str:
    return msgspec.json.encode({**msgspec.to_builtins(entry.verdict), "dead": entry.kind == "d"}).decode()


def _line(entry: OutboxEntry) -> str:
    verdict = entry.verdict
    if entry.kind == "d":
        result = f"[magenta]dead[/magenta] {verdict.reason}"
    elif verdict.outcome != "scored":
        result = f"[yellow]{verdict.outcome}[/yellow] {verdict.reason or ''}"
    else:
        result = " ".join(_score(score, verdict.judge) for score in verdict.scores)
    why = _plain(verdict.rationale or verdict.note or "")
    when = time.strftime("%H:%M:%S", time.localtime(verdict.started_at + verdict.duration_s))
    whose = f"[dim]{when}[/dim] {_plain(verdict.service)} [dim]{_plain(verdict.trace_id[:8])}[/dim]"
    return f"{whose} {verdict.judge} [dim]by {_plain(verdict.judge_model)}[/dim]: {result} [dim]{why}[/dim]"


def _score(score: Score, judge: str) -> str:
    style = {True: "green", False: "red", None: "cyan"}[score.passed]
    said = score.label or f"{score.value:.2f}"
    if score.passed is not None and score.label not in {"yes", "no", "pass", "fail"}:
        said += " pass" if score.passed else " fail"
    named = "" if score.metric == judge else f"{score.metric} "
    return f"[{style}]{named}{_plain(said)}[/{style}]"


def _plain(text: str) -> str:
    """Put a text of somebody else on one line, with nothing in it that rich or the terminal would obey."""
    return escape(neutralise(" ".join(text.split())))
