"""Accounting: what became of every trace and every evaluation, and what is unexplained (contract, section 4).

The counts come from the scripts that did the work, in the same step. Unfinished work is not counted but looked up: in
the stream, in the batches, in the totals of producers. ``lost`` is what neither explains. All functions raise
StoreError if Redis does not answer.
"""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from operator import methodcaller
from typing import Final, NamedTuple

import click
import msgspec
from msgspec import Struct
from rich.table import Table

from worker.base.commands.options import JSON, OUT, REDIS, connect, counts_table, print_json
from worker.core.queue.batch import EvaluationRef
from worker.core.queue.ledger import evaluation_states
from worker.core.storage.client import Store, StoreError
from worker.core.telemetry.backlog import measure

_CHUNK_COUNT: Final = 1_000
_ATTEMPTS: Final = 20
_REDIS_AWAY: Final = 3  # The exit code.
_TRACE_ENDS: Final = ("cut_off", "lost_by_redis", "invalid", "duplicate", "no_rule", "not_sampled", "shed", "sampled")
_EVALUATION_ENDS: Final = ("scored", "abstained", "unscored", "dead", "removed")
_WITH_REASONS: Final = frozenset({"dropped", "invalid", "shed", "unscored", "dead", "removed", "unreadable", "session"})

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


class Account(Struct, frozen=True):
    """The accounting at one moment. ``lost`` is negative if something counts twice."""

    published: int
    dropped: int
    cut_off: int
    lost_by_redis: int
    invalid: int
    duplicate: int
    no_rule: int
    not_sampled: int
    shed: int
    sampled: int
    unread: int
    chosen: int
    scored: int
    abstained: int
    unscored: int
    dead: int
    waiting: int
    removed: int
    lost: int
    reasons: Mapping[str, int]
    """Drops, invalid entries, unscored and dead evaluations by reason, as ``unscored:timeout``; evaluations shed by
    judge model, as ``shed:gpt-6-luna``; unreadable batches set aside, each time, as ``unreadable:wrong_type``; traces
    gathered for conversations as ``session:gathered``, and conversations as ``session:opened`` and ``session:judged``,
    ``updated`` (judged again), ``dropped`` (before they were judged), ``expired`` and ``removed`` (forgotten)."""

    @property
    def finished(self) -> int:
        """The evaluations that have an outcome."""
        return self.scored + self.abstained + self.unscored + self.dead

    @property
    def settled(self) -> bool:
        """Whether all work is finished."""
        return self.unread == 0 and self.waiting == 0 and self.gathering == 0

    @property
    def gathering(self) -> int:
        """Conversations that have not been judged for the first time."""
        ended = sum(self.reasons.get(f"session:{end}", 0) for end in ("judged", "dropped", "expired", "removed"))
        return max(0, self.reasons.get("session:opened", 0) - ended)


class _ItemIds(Struct):
    evaluations: list[EvaluationRef]


class _BatchIds(Struct):
    items: list[_ItemIds]


class _ProducerTotals(NamedTuple):
    """The counts in producers' hashes; the answer of the script ``producers``."""

    published: int = 0
    sent: int = 0
    lost_by_redis: int = 0
    trimmed: int = 0


def read_account(store: Store) -> Account:
    """Read the accounting."""
    # While work goes on, its parts cannot be read in one instant, so of several readings the one with the least
    # unexplained is returned. What is really lost is unexplained in all of them.
    best = _read_once(store)
    for _ in range(_ATTEMPTS - 1):
        if best.lost == 0:
            break
        best = min(best, _read_once(store), key=lambda account: abs(account.lost))
    return best


def sum_accounts(accounts: Sequence[Account]) -> Account:
    """Add up the accountings of all partitions; a loss on one is not evened out by a duplicate on another."""
    totals = {
        name: sum(getattr(account, name) for account in accounts)
        for name in Account.__struct_fields__
        if name not in {"lost", "reasons"}
    }
    reasons: Counter[str] = Counter()
    for account in accounts:
        reasons.update(account.reasons)
    lost = sum(max(0, account.lost) for account in accounts) or sum(account.lost for account in accounts)
    return Account(**totals, lost=lost, reasons=dict(sorted(reasons.items())))


def _read_once(store: Store) -> Account:
    fields = store.call(lambda client: client.hgetall(store.keys.account_all))
    counts = {name.decode(): int(amount) for name, amount in fields.items()}
    members = store.call(lambda client: client.zrange(store.keys.producers, 0, -1))
    names = [store.keys.producer(raw.decode()) for raw in members]
    chunks = (names[first : first + _CHUNK_COUNT] for first in range(0, len(names), _CHUNK_COUNT))
    answers = [store.run("producers", chunk, ()) for chunk in chunks]
    producers = _ProducerTotals(*map(sum, zip(*answers, strict=True)))
    lag = measure(store).traces.lag
    waiting = _count_waiting(store)
    ends = {name: counts.get(name, 0) for name in (*_TRACE_ENDS, *_EVALUATION_ENDS)}
    published, dropped = counts.get("published", 0) + producers.published, counts.get("dropped", 0)
    sent = counts.get("sent", 0) + producers.sent
    bare = counts.get("bare", 0)
    ends["lost_by_redis"] += producers.lost_by_redis
    in_buffers = published - bare - dropped - sent
    # Producers' unread traces are in the stream, lost by Redis, or cut off. Cut-offs also count reports, feedback, and
    # entries without a producer, which are published only when they are read: the others.
    not_read = max(0, sent - ends["lost_by_redis"] - (counts.get("arrived", 0) - bare))
    others = min(ends["cut_off"], counts.get("cut_off_others", 0)) if lag else 0
    ends["cut_off"] = min(ends["cut_off"] - others, not_read)
    in_stream = min(not_read - ends["cut_off"], lag)
    # Redis 6.2 does not count added entries: what producers trimmed is known when their entries are read.
    ends["cut_off"] += min(not_read - in_stream - ends["cut_off"], producers.trimmed)
    unread = in_buffers + in_stream
    lost_traces = published - dropped - unread - sum(ends[name] for name in _TRACE_ENDS)
    chosen = counts.get("chosen", 0)
    lost_evaluations = chosen - waiting - sum(ends[name] for name in _EVALUATION_ENDS)
    # Redis had confirmed what a key held that somebody removed, and its content cannot be counted any more.
    if counts.get("vanished:traces") and lost_traces > 0:
        ends["lost_by_redis"] += lost_traces
        lost_traces = 0
    if counts.get("vanished:batches") and lost_evaluations > 0:
        ends["removed"] += lost_evaluations
        counts["removed:lost_by_redis"] = lost_evaluations
        lost_evaluations = 0
    # A loss in one sum must not be evened out by a duplicate in the other.
    is_mixed = lost_traces * lost_evaluations < 0
    return Account(
        published=published,
        dropped=dropped,
        unread=unread,
        chosen=chosen,
        waiting=waiting,
        lost=max(lost_traces, lost_evaluations) if is_mixed else lost_traces + lost_evaluations,
        reasons={
            name: amount
            for name, amount in sorted(counts.items())
            if ":" in name and name.split(":", 1)[0] in _WITH_REASONS
        },
        **ends,
    )


def _count_waiting(store: Store) -> int:
    """Count evaluations in batches that are neither in the ledger nor dead."""
    keys = store.keys
    waiting = 0
    for raw in store.call(lambda client: client.zrange(keys.leases, 0, -1)):
        # MGET, because GET fails if the key has another type, and such a batch must not hide all others.
        (payload,) = store.call(methodcaller("mget", [keys.batch(raw.decode())]))
        if not payload:
            continue
        try:
            batch = msgspec.json.decode(payload, type=_BatchIds)
        except (msgspec.DecodeError, RecursionError):
            # Evaluations of a newer version stay unexplained here, and a worker of that version accounts for them.
            continue
        periods = {evaluation.id: evaluation.period for item in batch.items for evaluation in item.evaluations}
        # Evaluations with a retry under way are dead until their verdicts exist.
        states = evaluation_states(store, periods)
        waiting += sum(not state.ended and not state.letter for state in states.values())
    return waiting


@click.command("account")
@REDIS
@JSON
def command(config: str | None, redis_url: str | None, *, as_json: bool) -> None:
    """Print the accounting, summed over all partitions.

    Exit code 1 when something is lost or counted twice, 3 when a Redis does not answer.
    """
    try:
        _, store = connect(config, redis_url)
        account = sum_accounts([read_account(partition) for partition in store.reachable])
    except StoreError as error:
        print(f"tracejudge: {error}", file=sys.stderr)
        sys.exit(_REDIS_AWAY)
    if as_json:
        print_json(account)
    else:
        OUT.print(_account_table(account))
    sys.exit(1 if account.lost else _REDIS_AWAY if len(store.reachable) < len(store.partitions) else 0)


def _account_table(account: Account) -> Table:
    """Lay out the accounting; the first line of each part is the sum of the others."""
    table = counts_table("Accounting")
    for title, rows in (("Traces", _TRACES), ("Evaluations", _EVALUATIONS)):
        table.add_row(f"[bold]{title}[/bold]", "", "")
        for name, meaning in rows.items():
            _add_row(table, account, name, getattr(account, name), meaning)
    if unreadable := sum(count for reason, count in account.reasons.items() if reason.startswith("unreadable:")):
        table.add_row("[bold]Batches[/bold]", "", "")
        _add_row(table, account, "unreadable", unreadable, "times that a batch was set aside")
    if "session:opened" in account.reasons:
        table.add_row("[bold]Conversations[/bold]", "", "")
        for name, meaning in _CONVERSATIONS.items():
            if count := account.reasons.get(f"session:{name}"):
                table.add_row(name, f"{count:,}", meaning)
        table.add_row("gathering", f"{account.gathering:,}", "not judged yet")
    style = "bold red" if account.lost else "bold green"
    meaning = "unexplained" if account.lost >= 0 else f"below 0: {describe_lost(account.lost)}"
    table.add_row(f"[{style}]lost[/{style}]", f"[{style}]{account.lost:,}[/{style}]", meaning)
    return table


def describe_lost(lost: int) -> str:
    """Describe what is unexplained; below zero it is counted twice."""
    return f"{lost:,} lost" if lost >= 0 else f"{-lost:,} counted twice"


def _add_row(table: Table, account: Account, name: str, count: int, meaning: str) -> None:
    """Add a row, and below it its reasons: keys such as `dropped:buffer_full`."""
    table.add_row(name, f"{count:,}", meaning)
    for reason, amount in account.reasons.items():
        if reason.startswith(f"{name}:"):
            table.add_row(f"  {reason.split(':', 1)[1]}", f"{amount:,}", _REASONS.get(name, ""))
