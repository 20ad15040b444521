"""The backlog: traces, batches, dead letters and outbox, measured in one step; and what ingest may add to it.

The script ``measure`` also trims the streams to their caps, so that the figures and the cuts agree. Functions that ask
Redis raise ``StoreError`` when it does not answer.
"""

import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import redis
from msgspec import Struct
from redis.exceptions import NoPermissionError

from worker.core.storage.client import Store

# The circuit of a slow model may open for a moment; ingest must not shed its whole backlog in that moment.
_MIN_OPEN_S: Final = 10.0
# Retries and replays stop at this share of `max_waiting_bytes`, because above all of it ingest would pause or shed.
SHARE_OF_WAITING: Final = 0.5


class Position(NamedTuple):
    """How far a consumer group of a stream is behind."""

    lag: int
    newly_cut: int
    oldest_ms: float


class Backlog(Struct, frozen=True):
    """The answer of script `measure`."""

    traces: Position
    capacity: int
    batches: int
    parked: int
    dead: int
    cut_off: int
    waiting: Mapping[str, int] = {}  # Bytes of unfinished batches by judge model.
    outbox: Mapping[str, Position] = {}
    # Bytes of traces, outbox, unfinished batches, dead letters and gathered conversations.
    bytes: Mapping[str, int] = {}


class Memory(NamedTuple):
    """Redis' used memory and its ``maxmemory``; 0 is no bound."""

    used_bytes: int
    max_bytes: int


class Caps(NamedTuple):
    """Bounds of the stream of traces (oldest entry id, bytes, entries) and of the outbox."""

    oldest: str = "0"
    max_bytes: int = 1 << 50
    max_entries: int = 1 << 50
    mean_age_ms: int = 0  # How old the mean entry size may be that converts bytes into entries.
    max_outbox_bytes: int = 1 << 50


def measure(
    store: Store,
    caps: Caps = Caps(),  # noqa: B008 - frozen
    *,
    groups: tuple[str, ...] = (),
    report_cuts: bool = False,
    open_circuits: Sequence[str] = (),
) -> Backlog:
    """Trim the streams to their caps and measure everything.

    ``report_cuts`` returns the entries newly cut off; each cut is reported once, to one caller. Ready
    batches of the judge models ``open_circuits`` count as parked.
    """
    keys = store.keys
    fixed = (keys.traces, keys.verdicts, keys.account_all, keys.leases, keys.holders, keys.waiting)
    names = (*fixed, keys.dead, keys.dead_refs, keys.sessions, *map(keys.ready, open_circuits))
    of_traces = (caps.oldest, caps.max_bytes, caps.max_entries, caps.mean_age_ms)
    arguments: tuple[str | int, ...] = (*of_traces, int(report_cuts), caps.max_outbox_bytes, *groups)
    return msgspec.json.decode(store.run("measure", names, arguments), type=Backlog)


def read_memory(store: Store) -> Memory | None:
    """Return the memory of Redis; None if its user may not run INFO."""

    def read(client: "redis.Redis") -> Memory | None:
        try:
            info = client.info("memory")
        except NoPermissionError:
            return None
        return Memory(int(info["used_memory"]), int(info.get("maxmemory", 0)))

    measured: Memory | None = store.call(read)
    return measured


class Bounds(NamedTuple):
    """Whether ingest is paused, and the judge models whose evaluations it sheds."""

    paused: bool
    shed: frozenset[str]


class Backpressure:
    """Decides from the unfinished work by judge model whether ingest pauses or sheds. Safe to share between threads."""

    def __init__(self, max_waiting_bytes: int, judge_models: Collection[str]) -> None:
        """Set the bound of each judge model. Models not listed get no new work, so their backlog does not count."""
        self._max_waiting_bytes = max_waiting_bytes
        self._judge_models = frozenset(judge_models)
        self._lock = threading.Lock()
        self._waiting: Mapping[str, int] = {}
        self._open_circuits: Mapping[str, float] = {}
        self._over_while_closed: frozenset[str] = frozenset()
        self._is_paused = False
        self.bounds = Bounds(paused=False, shed=frozenset())  # The current decision.
        self.slow: frozenset[str] = frozenset()  # The judge models that pause ingest.

    def set_waiting(self, waiting: Mapping[str, int]) -> None:
        """Set the bytes of unfinished work by judge model."""
        with self._lock:
            self._waiting = waiting
            self._decide()

    def set_open_circuits(self, open_circuits: Mapping[str, float]) -> None:
        """Set for how many seconds the circuits of judge models have been open in every worker."""
        with self._lock:
            self._open_circuits = open_circuits
            self._decide()

    def set_paused(self, *, paused: bool) -> None:
        """Pause ingest at any backlog, or end that pause."""
        with self._lock:
            self._is_paused = paused
            self._decide()

    def _decide(self) -> None:
        waiting = {name: size for name, size in self._waiting.items() if name in self._judge_models}
        over = frozenset(name for name, size in waiting.items() if size > self._max_waiting_bytes)
        # A model that passed the bound while its circuit was closed counts as slow until it is below again.
        self._over_while_closed = (self._over_while_closed & over) | (over - self._open_circuits.keys())
        shed = {
            name
            for name in over & self._open_circuits.keys()
            if name not in self._over_while_closed or self._open_circuits[name] >= _MIN_OPEN_S
        }
        self.slow = over - shed
        self.bounds = Bounds(paused=self._is_paused or bool(self.slow), shed=frozenset(shed))
