"""A batch as it stands in Redis: one judge model, a few dozen evaluations, each trace once.

Version 1. Ingest writes it piecewise (its script keeps only evaluations that were not chosen before); a worker
that does not know the version puts the batch back.
"""

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Struct

from judges.verdict import Origin
from tracejudge import Trace

__all__ = ["BATCH_VERSION", "Batch", "BatchError", "Evaluation", "Item", "decode", "head"]

BATCH_VERSION: Final = 1


class BatchError(ValueError):
    """The payload of a batch is not one of ours, or is newer than we are."""


class Evaluation(Struct, frozen=True):
    """One chosen evaluation of a trace."""

    id: str
    judge: str
    version: str
    probability: float
    origin: Origin = "live"


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


def head(batch_id: str, model: str, judge_model: str, created_at: float) -> str:
    """Write the beginning of a batch's JSON, up to its items."""
    fields: Mapping[str, object] = {
        "v": BATCH_VERSION,
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
        if version != BATCH_VERSION:
            raise BatchError(f"version {version} of a batch is unknown here")
        return msgspec.json.decode(payload, type=Batch)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BatchError("the payload is no batch") from error
