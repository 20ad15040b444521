"""A batch as it stands in Redis: one judge model, a few dozen evaluations, each trace once.

Its id tells when it was made and for which judge model, so that scripts can put it among its like without reading it.
Ingest writes it piecewise (its script keeps only evaluations that were not chosen before); a worker that does not know
the version puts the batch back.

Version 2 holds evaluations that are combined, or combine others; all else is of version 1. Workers that know version 1
alone pass over what they do not know of an evaluation: they would judge a member and keep no scores of it.
"""

import hashlib
import secrets
from collections.abc import Collection, Mapping
from functools import cache
from typing import Final

import msgspec
from msgspec import Struct

from judges.verdict import Origin
from tracejudge import Trace

__all__ = [
    "BATCH_VERSION",
    "COMBINED_VERSION",
    "KNOWN_VERSIONS",
    "Batch",
    "BatchError",
    "Evaluation",
    "Item",
    "Member",
    "brief",
    "count",
    "decode",
    "fresh_id",
    "head",
    "made_at_ms",
    "mark",
    "mark_of",
    "without",
]

BATCH_VERSION: Final = 1
COMBINED_VERSION: Final = 2
KNOWN_VERSIONS: Final = frozenset({BATCH_VERSION, COMBINED_VERSION})


class BatchError(ValueError):
    """The payload of a batch is not one of ours, or is newer than we are."""


class Member(Struct, frozen=True):
    """One of the evaluations that are combined into another: who makes it, and its id."""

    judge_model: str
    id: str


class Evaluation(Struct, frozen=True, omit_defaults=True):
    """One chosen evaluation of a trace.

    Attributes:
        keep: Whether the ledger keeps its scores, for the evaluation that they are combined into.
        members: What is combined into this one; nothing where it is a judge's own.
    """

    id: str
    judge: str
    version: str
    probability: float
    origin: Origin = "live"
    keep: bool = False
    members: tuple[Member, ...] = ()

    @property
    def batch_version(self) -> int:
        """The version of batches and dead letters that hold it."""
        return COMBINED_VERSION if self.keep or self.members else BATCH_VERSION


class Item(Struct, frozen=True):
    """One trace with the evaluations that were chosen for it."""

    trace: Trace
    evaluations: tuple[Evaluation, ...]


class Batch(Struct, frozen=True):
    """What one lease covers. ``created_at`` is in seconds since the epoch."""

    v: int
    id: str
    model: str
    judge_model: str
    created_at: float
    items: tuple[Item, ...]


class _Version(Struct):
    v: int


@cache
def mark(judge_model: str) -> str:
    """Give the mark of a judge model in the ids of its batches."""
    return hashlib.blake2b(judge_model.encode(), digest_size=4).hexdigest()


def fresh_id(judge_model: str, created_at: float) -> str:
    """Make the id of a new batch."""
    return f"{int(created_at * 1000):011x}-{mark(judge_model)}-{secrets.token_hex(4)}"


def mark_of(batch_id: str) -> str:
    """Read from its id for which judge model a batch is; nothing where it is no id of ours."""
    return batch_id.split("-", 2)[1] if batch_id.count("-") > 1 else ""


def made_at_ms(batch_id: str) -> int:
    """Read from its id when a batch was made, in milliseconds since the epoch."""
    return int(batch_id.split("-", 1)[0], 16)


def head(batch_id: str, model: str, judge_model: str, created_at: float, version: int = BATCH_VERSION) -> str:
    """Write the beginning of a batch's JSON, up to its items.

    Args:
        version: The highest of those that its evaluations need.
    """
    fields: Mapping[str, object] = {
        "v": version,
        "id": batch_id,
        "model": model,
        "judge_model": judge_model,
        "created_at": created_at,
    }
    return f'{msgspec.json.encode(fields).decode()[:-1]},"items":['


def decode(payload: bytes) -> Batch:
    """Read a batch.

    Raises:
        BatchError: It is of another version, or no batch.
    """
    try:
        version = msgspec.json.decode(payload, type=_Version).v
        if version not in KNOWN_VERSIONS:
            raise BatchError(f"version {version} of a batch is unknown here")
        return msgspec.json.decode(payload, type=Batch)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BatchError("the payload is no batch") from error


def brief(trace: Trace) -> Trace:
    """Leave only what a verdict tells of its trace: what combines verdicts needs no texts."""
    return Trace(
        trace_id=trace.trace_id,
        service=trace.service,
        output="",
        id=trace.id,
        span_id=trace.span_id,
        environment=trace.environment,
        release=trace.release,
        name=trace.name,
        session_id=trace.session_id,
        user_id=trace.user_id,
        response_id=trace.response_id,
        started_at=trace.started_at,
        ended_at=trace.ended_at,
        model=trace.model,
    )


def count(batch: Batch) -> int:
    """Count the evaluations of a batch."""
    return sum(len(item.evaluations) for item in batch.items)


def without(batch: Batch, evaluation_ids: Collection[str]) -> Batch:
    """Leave some evaluations out, and the traces that only they wanted."""
    if not evaluation_ids:
        return batch
    left = (
        Item(item.trace, tuple(each for each in item.evaluations if each.id not in evaluation_ids))
        for item in batch.items
    )
    return msgspec.structs.replace(batch, items=tuple(item for item in left if item.evaluations))
