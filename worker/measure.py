"""One look at everything that waits: the stream and who reads it, batches, dead letters, exporters' outbox.

``measure.lua`` looks and trims the stream to its caps in one step, so that what it tells and what it cuts agree.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec import Struct

from worker.store import Store

__all__ = ["Caps", "Measure", "Position", "measure"]


class Position(NamedTuple):
    """Where a reader of a stream stands."""

    lag: int
    newly_cut: int
    oldest_ms: float


class Measure(Struct, frozen=True):
    """What ``measure.lua`` found."""

    traces: Position
    capacity: int
    batches: int
    parked: int
    dead: int
    cut_off: int
    waiting: Mapping[str, int] = {}
    """Bytes of unfinished batches by judge model."""
    outbox: Mapping[str, Position] = {}


class Caps(NamedTuple):
    """What the stream of traces may hold: nothing older than the entry ``oldest``, bytes, entries.

    ``mean_age_ms`` is how old the mean size of an entry may be that turns bytes into entries.
    """

    oldest: str = "0"
    max_bytes: int = 1 << 50
    max_entries: int = 1 << 50
    mean_age_ms: int = 0


def measure(
    store: Store,
    caps: Caps = Caps(),  # noqa: B008 - frozen
    *,
    groups: tuple[str, ...] = (),
    tell: bool = False,
    dead_models: Sequence[str] = (),
) -> Measure:
    """Trim the stream to its caps and measure everything.

    Args:
        groups: The exporters to look at.
        tell: Be told what was newly cut off; each cut is told once to one caller.
        dead_models: Judge models whose circuit is open: their batches count as parked.

    Raises:
        StoreError: Redis did not answer.
    """
    keys = store.keys
    fixed = (keys.traces, keys.verdicts, keys.books, keys.leases, keys.holders, keys.waiting, keys.dead)
    names = (*fixed, *map(keys.ready, dead_models))
    arguments: tuple[str | int, ...] = (*caps, int(tell), *groups)
    return msgspec.json.decode(store.run("measure", names, arguments), type=Measure)
