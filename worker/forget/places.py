"""Where data of traces stands, read piece by piece, and of each thing only whose it is."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, cast

import msgspec
import redis
from msgspec import Struct

from worker.batches import KNOWN_VERSIONS
from worker.forget.subject import Owner
from worker.pieces import next_count
from worker.store import Entry, Store

__all__ = ["HeldBatch", "HeldItem", "Thing", "batches", "gathered", "read_batch", "stream"]

_FIRST_PIECE_COUNT: Final = 16
_PIECE_COUNT: Final = 500
_PIECE_BYTES: Final = 4 * 1024 * 1024
"""About how much is read at once: Redis serves nobody else meanwhile."""
_PAYLOADS: Final = (b"t", b"f", b"j", b"d")


class _Named(Struct):
    """Whose a payload is; everything else is passed over unread, and what was refused as no trace is read as well."""

    trace_id: Any = None
    user_id: Any = None


class _EvaluationName(Struct):
    id: str


class _ItemName(Struct):
    trace: _Named
    evaluations: list[_EvaluationName]


class _RawBatch(Struct):
    v: int
    id: str
    model: str
    judge_model: str
    created_at: float
    items: list[msgspec.Raw]


class Thing(NamedTuple):
    """Something by which it is erased (an entry's id, a member of a set), its kind, and whose it is."""

    name: str
    kind: str
    owner: Owner


class HeldItem(NamedTuple):
    """A trace in a batch, as it stands there, and its evaluations."""

    raw: bytes
    owner: Owner
    evaluation_ids: Sequence[str]


class HeldBatch(NamedTuple):
    """A batch with its payload as it was read."""

    payload: bytes
    v: int
    id: str
    model: str
    judge_model: str
    created_at: float
    items: Sequence[HeldItem]


_decoder = msgspec.json.Decoder(_Named)
_batch_decoder = msgspec.json.Decoder(_RawBatch)
_item_decoder = msgspec.json.Decoder(_ItemName)


def stream(store: Store, name: str) -> Iterator[list[Thing]]:
    """Read a stream from its oldest entry to the one that is the newest now; a list for each piece.

    Raises:
        StoreError: Redis did not answer.
    """
    newest = store.call(lambda client: client.xrevrange(name, count=1))
    position, count = "-", _FIRST_PIECE_COUNT
    while newest:
        entries: list[Entry] = store.call(partial(_range, name, position, newest[0][0], count))
        size = sum(len(value) for _, fields in entries for value in (fields or {}).values())
        yield [_thing(entry) for entry in entries]
        if len(entries) < count:
            return
        position = f"({entries[-1][0].decode()}"
        count = next_count(count, len(entries), size, most=_PIECE_COUNT, most_bytes=_PIECE_BYTES)


def gathered(store: Store) -> list[Thing]:
    """Read the gathered feedback.

    Raises:
        StoreError: Redis did not answer.
    """
    members = store.call(lambda client: client.zrange(store.keys.feedback, 0, -1))
    return [Thing(raw.decode("utf-8", "surrogateescape"), "f", _owner(raw)) for raw in members]


def batches(store: Store) -> list[str]:
    """List the unfinished batches.

    Raises:
        StoreError: Redis did not answer.
    """
    return [raw.decode() for raw in store.call(lambda client: client.zrange(store.keys.leases, 0, -1))]


def read_batch(store: Store, batch_id: str) -> HeldBatch | None:
    """Read a batch; None where it was finished meanwhile.

    Raises:
        StoreError: Redis did not answer.
        ValueError: It is of another version.
    """
    payload = cast("bytes | None", store.call(lambda client: client.get(store.keys.batch(batch_id))))
    if payload is None:
        return None
    try:
        batch = _batch_decoder.decode(payload)
        items = [_item(bytes(raw)) for raw in batch.items]
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError("the payload is no batch") from error
    if batch.v not in KNOWN_VERSIONS:
        raise ValueError(f"version {batch.v} of a batch is unknown here")
    return HeldBatch(payload, batch.v, batch.id, batch.model, batch.judge_model, batch.created_at, items)


def _item(raw: bytes) -> HeldItem:
    item = _item_decoder.decode(raw)
    owner = Owner(item.trace.trace_id, item.trace.user_id)
    return HeldItem(raw, owner, [evaluation.id for evaluation in item.evaluations])


def _range(name: str, first: str, last: bytes, count: int, client: "redis.Redis") -> Any:
    return client.xrange(name, min=first, max=last, count=count)


def _thing(entry: Entry) -> Thing:
    entry_id, fields = entry
    for kind in _PAYLOADS:
        if fields and kind in fields:
            return Thing(entry_id.decode(), kind.decode(), _owner(fields[kind]))
    return Thing(entry_id.decode(), "", Owner(None))


def _owner(payload: bytes) -> Owner:
    try:
        named = _decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # What is no JSON names nobody.
        return Owner(None)
    return Owner(named.trace_id, named.user_id)
