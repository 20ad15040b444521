"""The books: what became of every trace and every evaluation, and what is unexplained (contract, section 4).

The counts come from the scripts that did the work, in the same step. What is on its way is not counted but
looked for: in the stream, in the batches, in what producers report. ``lost`` is what neither explains.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, cast

import msgspec
import redis
from msgspec import Struct

from worker.keys import Keys
from worker.measure import measure
from worker.store import Store

__all__ = ["Account", "read_account"]

_TRIES: Final = 20
_SCAN_COUNT: Final = 10_000
_TRACE_ENDS: Final = ("cut_off", "invalid", "duplicate", "no_rule", "not_sampled", "shed", "sampled")
_EVALUATION_ENDS: Final = ("scored", "abstained", "unscored", "dead", "removed")


class Account(Struct, frozen=True):
    """The books at one moment. ``lost`` is negative where something counts twice."""

    published: int
    dropped: int
    cut_off: int
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
    """Drops, invalid entries, unscored and dead evaluations by reason, as ``unscored:timeout``, and evaluations shed by
    judge model, as ``shed:gpt-4.1-mini``."""

    @property
    def settled(self) -> bool:
        """Tell whether nothing is on its way."""
        return self.unread == 0 and self.waiting == 0


class _BatchIds(Struct):
    items: list["_ItemIds"]


class _ItemIds(Struct):
    evaluations: list["_EvaluationId"]


class _EvaluationId(Struct):
    id: str


class _OfProducer(NamedTuple):
    """The fields of a producer's hash that the books need, under their names there with `:` for `_`."""

    sent: int
    dropped: int
    reported: int
    trimmed: int
    accounted: int
    sent_accounted: int
    trimmed_accounted: int


class _Producers(NamedTuple):
    """What producers' hashes say that the books do not hold yet, and what is still in their buffers."""

    published: int
    sent: int
    trimmed: int


def read_account(store: Store) -> Account:
    """Read the books.

    While work goes on, its parts cannot be read in one instant; then the reading with the least unexplained of
    several is given. What is really lost stays unexplained in each of them.

    Raises:
        StoreError: Redis did not answer.
    """
    best: Account | None = None
    # Once: this walks through all keys of the server, and a producer that comes meanwhile is on its way.
    producers = _producer_keys(store)
    for _ in range(_TRIES):
        account = _read_once(store, producers)
        if account.lost == 0:
            return account
        if best is None or abs(account.lost) < abs(best.lost):
            best = account
    assert best is not None  # noqa: S101 - the loop ran
    return best


def _read_once(store: Store, producer_keys: Sequence[bytes]) -> Account:
    counts = _counts(store)
    producers = _producers(store, producer_keys)
    lag = measure(store).traces.lag
    waiting = _waiting(store)
    ends = {name: counts.get(name, 0) for name in (*_TRACE_ENDS, *_EVALUATION_ENDS)}
    published, dropped = counts.get("published", 0) + producers.published, counts.get("dropped", 0)
    sent = counts.get("sent", 0) + producers.sent
    bare = counts.get("bare", 0)
    # Of producers' entries those that were not read are in the stream or cut off; entries without a producer are
    # published when they are read, so what the caps cut of them was never in the books.
    not_read = sent - (counts.get("arrived", 0) - bare)
    ends["cut_off"] = min(ends["cut_off"], max(0, not_read))
    in_buffers = published - bare - dropped - sent
    in_stream = min(max(0, not_read - ends["cut_off"]), lag)
    # A Redis that does not count what was added learns of what producers trimmed when their entries are read.
    ends["cut_off"] += min(max(0, not_read - ends["cut_off"] - in_stream), producers.trimmed)
    unread = in_buffers + in_stream
    lost_traces = published - dropped - unread - sum(ends[name] for name in _TRACE_ENDS)
    chosen = counts.get("chosen", 0)
    lost_evaluations = chosen - waiting - sum(ends[name] for name in _EVALUATION_ENDS)
    return Account(
        published=published,
        dropped=dropped,
        unread=unread,
        chosen=chosen,
        waiting=waiting,
        lost=_together(lost_traces, lost_evaluations),
        reasons={name: amount for name, amount in sorted(counts.items()) if ":" in name and _is_reason(name)},
        **ends,
    )


def _together(lost_traces: int, lost_evaluations: int) -> int:
    """Add both sums up; something lost in one is never evened out by something double in the other."""
    if lost_traces * lost_evaluations < 0:
        return max(lost_traces, lost_evaluations)
    return lost_traces + lost_evaluations


def _is_reason(name: str) -> bool:
    return name.split(":", 1)[0] in {"dropped", "invalid", "shed", "unscored", "dead"}


def _counts(store: Store) -> dict[str, int]:
    found = store.call(lambda client: client.hgetall(store.keys.books))
    return {name.decode(): int(amount) for name, amount in found.items()}


def _producer_keys(store: Store) -> list[bytes]:
    pattern = store.keys.producers
    return list(store.call(lambda client: list(client.scan_iter(pattern, count=_SCAN_COUNT, _type="HASH"))))


def _producers(store: Store, keys: Sequence[bytes]) -> _Producers:
    published = sent = trimmed = 0
    for key in keys:
        fields = store.call(partial(_producer, key))
        counts = _OfProducer(*(int(value or 0) for value in fields))
        published += max(0, max(counts.sent + counts.dropped, counts.reported) - counts.accounted)
        sent += counts.sent - counts.sent_accounted
        trimmed += counts.trimmed - counts.trimmed_accounted
    return _Producers(published, sent, trimmed)


def _waiting(store: Store) -> int:
    """Count evaluations in batches that are neither in the ledger nor dead."""
    keys = store.keys
    waiting = 0
    for batch_id in store.call(lambda client: client.zrange(keys.leases, 0, -1)):
        name = keys.batch(batch_id.decode())
        payload = store.call(partial(_get, name))
        if payload is None:
            continue
        try:
            batch = msgspec.json.decode(payload, type=_BatchIds)
        except msgspec.DecodeError:
            # Of a newer version: its evaluations stay unexplained here, and a worker that knows it accounts for them.
            continue
        ids = [evaluation.id for item in batch.items for evaluation in item.evaluations]
        waiting += _unfinished(store, keys, ids)
    return waiting


def _get(name: str, client: "redis.Redis") -> bytes | None:
    return cast("bytes | None", client.get(name))


def _producer(key: bytes, client: "redis.Redis") -> list[bytes | None]:
    return cast("list[bytes | None]", client.hmget(key, [name.replace("_", ":") for name in _OfProducer._fields]))


def _unfinished(store: Store, keys: Keys, ids: list[str]) -> int:
    ledger = store.call(lambda client: client.mget([keys.ledger(one) for one in ids]))
    # Those of a retry under way are dead until their verdicts are there.
    dead = store.call(lambda client: client.hmget(keys.dead, ids))
    return sum(one is None and other is None for one, other in zip(ledger, dead, strict=True))
