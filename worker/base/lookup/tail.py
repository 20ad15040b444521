"""`tracejudge tail`: verdicts as they arrive."""

import fnmatch
import heapq
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import methodcaller
from typing import Any, get_args

import click
import msgspec

from judges.core.judge import RESULT
from judges.core.verdict import Origin
from judges.custom.definition import nearest
from judges.registry import load_judges
from worker.base.commands.options import JSON, OUT, PATTERNS, REDIS, connect, note, plain, print_json
from worker.base.lookup.lookup import usable_prefix
from worker.base.lookup.verdict_filter import FAILED, VerdictFilter
from worker.base.monitor.counts import step_of
from worker.base.monitor.series import read_series
from worker.core.config.settings import Settings
from worker.core.queue.ledger import OutboxEntry, read_outbox_entry
from worker.core.storage.client import Entry, Store, StoreError
from worker.core.storage.group_reader import entry_position

_SEARCHED = 10_000


@click.command("tail")
@REDIS
@JSON
@click.option("--failed", is_flag=True, help="Only verdicts that did not pass or have no score, abstained included.")
@PATTERNS
@click.option(
    "--origin",
    type=click.Choice(get_args(Origin)),
    help="Only verdicts of this origin; live ones are those of the quality series.",
)
@click.option("--trace-id", metavar="ID", help="Only verdicts on this trace; the first 6 characters are enough.")
@click.option("--last", type=click.IntRange(min=0), metavar="N", help="Begin with the last N verdicts.")
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="End after N verdicts.")
@click.option("--no-follow", "ends", is_flag=True, help="Print the last N (10 unless given), and end.")
def command(
    config: str | None,
    redis_url: str | None,
    *,
    as_json: bool,
    failed: bool,
    services: tuple[str, ...],
    judges: tuple[str, ...],
    origin: str | None,
    trace_id: str | None,
    last: int | None,
    count: int | None,
    ends: bool,
) -> None:
    """Follow verdicts until Ctrl-C; with --no-follow print the last N, or as many as there are, and end.

    With --json each line is a verdict; its `dead` is true for an evaluation that was given up and may be retried.
    Of the last N, first verdicts of cascades whose chosen second verdict is not there are marked.

    Exit code 0 on success, 1 if --no-follow finds no verdict, 2 on wrong usage.
    """
    if last is None:
        last = 10 if ends else 0
    settings, store = connect(config, redis_url)
    traces = () if trace_id is None else (usable_prefix(trace_id),)
    chosen = VerdictFilter(services, judges, origin, FAILED if failed else (), traces=traces)
    accepts = None if chosen.accepts_all else chosen.accepts
    unknown = _describe_unmatched(settings, store, services, judges)
    entries: Iterable[OutboxEntry] = _newest(store, last, accepts)[0] if ends else follow(store, last, accepts)
    if ends and last and not entries:
        none = f"no such verdict among the newest {_SEARCHED:,}" if accepts else "no verdict in the outbox"
        raise click.ClickException(f"{none}{unknown}")
    if not ends and (unknown or not last):
        note(
            f"waiting for new verdicts{unknown}" if unknown else "waiting for new verdicts; --last N shows earlier ones"
        )
    for entry in itertools.islice(entries, count):
        if as_json:
            print_json({**msgspec.to_builtins(entry.verdict), "dead": entry.kind == "d"})
        else:
            OUT.print(verdict_line(entry), soft_wrap=True)


def _describe_unmatched(settings: Settings, store: Store, services: Sequence[str], judges: Sequence[str]) -> str:
    """Name the pattern that matches nothing configured and no series, with similar names; empty without one."""
    series = read_series(store).values()
    installed = {*load_judges(settings.judges), *(labels.judge for labels in series)}
    for option, patterns, names in (
        ("service", services, {labels.service for labels in series}),
        ("judge", judges, installed),
    ):
        for pattern in patterns if names else ():
            if not fnmatch.filter(names, pattern):
                return f"; no {option} so far matches {pattern}{nearest(pattern, sorted(names))}"
    return ""


def follow(store: Store, last: int = 0, accepts: Callable[[OutboxEntry], bool] | None = None) -> Iterator[OutboxEntry]:
    """Yield the last few wanted entries among the newest 10,000 of the outbox, then every new one."""
    entries, positions = _newest(store, last, accepts)
    yield from entries
    # With several partitions the wait for each is short, so that none is late.
    block_ms = 1000 // len(positions)
    while True:
        for partition, position in positions.items():
            streams: dict[Any, Any] = {partition.keys.verdicts: position}
            try:
                reply: Any = partition.call(lambda client: client.xread(streams, count=500, block=block_ms))  # noqa: B023
            except StoreError as error:
                if len(positions) == 1:
                    raise
                note(f"partition {partition.partition}: {error}; others are followed")
                time.sleep(block_ms / 1000)
                continue
            for _, arrived in reply or []:
                positions[partition] = arrived[-1][0]
                yield from _readable(arrived, accepts)


def _newest(
    store: Store, last: int, accepts: Callable[[OutboxEntry], bool] | None
) -> tuple[Sequence[OutboxEntry], dict[Store, bytes]]:
    """Find the last few entries that are wanted, in order, and the id of the newest entry of each Redis."""
    # A rare verdict among millions must not make Redis return the whole outbox.
    searched = _SEARCHED if last and accepts else max(1, last)
    newest = {
        partition: partition.call(methodcaller("xrevrange", partition.keys.verdicts, count=searched))
        for partition in store.reachable
    }
    entries = heapq.merge(*newest.values(), key=lambda entry: entry_position(entry[0]), reverse=True)
    newest_entries, answered = list[OutboxEntry](), set[str]()
    for entry in _readable(entries, None):
        if len(newest_entries) == last:
            break
        # A second verdict of a cascade is newer than the first one.
        verdict, step = entry.verdict, step_of(entry.verdict)
        if step is not None and step.first and verdict.outcome == "scored":
            answered.add(step.first)
        elif step is not None and step.is_chosen and not step.first and verdict.evaluation_id not in answered:
            marked = {**msgspec.to_builtins(step), "second": "missing"}
            verdict = msgspec.structs.replace(verdict, details={**verdict.details, "cascade": marked})
            entry = entry._replace(verdict=verdict)  # noqa: PLW2901
        if accepts is None or accepts(entry):
            newest_entries.append(entry)
    return newest_entries[::-1], {partition: rows[0][0] if rows else b"0" for partition, rows in newest.items()}


def _readable(entries: Iterable[Entry], accepts: Callable[[OutboxEntry], bool] | None) -> Iterator[OutboxEntry]:
    for entry in entries:
        read = read_outbox_entry(entry)
        if read is not None and (accepts is None or accepts(read)):
            yield read


def verdict_line(entry: OutboxEntry, *, with_date: bool = False) -> str:
    """Write a verdict on one line, with the whole id of its trace."""
    verdict = entry.verdict
    if entry.kind == "d":
        result = f"[magenta]dead[/magenta] {verdict.reason}"
    elif verdict.outcome != "scored":
        result = f"[yellow]{verdict.outcome}[/yellow] {verdict.reason or ''}"
    else:
        scores = []
        if RESULT in verdict.details:
            shown = verdict.details[RESULT]
            text = shown if isinstance(shown, str) else msgspec.json.encode(shown).decode()
            scores.append(f"[cyan]{plain(text)}[/cyan]")
        for score in verdict.scores:
            text = score.label or f"{score.value:.2f}"
            if score.passed is not None and score.label not in {"yes", "no", "pass", "fail"}:
                text += " pass" if score.passed else " fail"
            style = {True: "green", False: "red", None: "cyan"}[score.passed]
            metric = "" if score.metric == verdict.judge else f"{score.metric} "
            scores.append(f"[{style}]{metric}{plain(text)}[/{style}]")
        result = " ".join(scores)
    why = plain(verdict.rationale or verdict.note or "")
    when = time.strftime(
        "%Y-%m-%d %H:%M:%S" if with_date else "%H:%M:%S", time.localtime(verdict.started_at + verdict.duration_s)
    )
    trace = f"[dim]{when}[/dim] {plain(verdict.service)} [dim]{plain(verdict.trace_id)}[/dim]"
    if "session" in verdict.details:
        trace += f" [dim]session[/dim] {plain(verdict.session_id or '-')}"
    if "session" in verdict.details or verdict.origin != "live":
        trace += f" [dim]{verdict.origin}[/dim]"
    cascade = verdict.details.get("cascade")
    if isinstance(cascade, dict) and cascade.get("second") == "missing":
        result += " [yellow]second verdict missing[/yellow]"
    return f"{trace} {verdict.judge} [dim]by {plain(verdict.judge_model)}[/dim]: {result} [dim]{why}[/dim]"
