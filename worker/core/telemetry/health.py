"""Readiness of each role and liveness of each thread of a worker, as the probes report them.

``Readiness`` reads the pulse of each thread, and once a second gets the position of each consumer; it never asks Redis.
A consumer group knows no worker that reads nothing, so each worker publishes its state every second (``Heartbeat``).
Heartbeats raise ``StoreError`` if Redis does not answer.
"""

import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, NamedTuple, Protocol

import msgspec

from worker.core.storage.client import Store
from worker.core.storage.keys import INGEST_GROUP

State = Literal["ready", "paused", "starting", "stalled", "stopping"]
# With positions every second and a probe every ten, a stalled worker is unready within a minute.
_STALLED_S: Final = 50.0
HEARTBEAT_MS: Final = 10_000  # How long a heartbeat counts; it is renewed every second.
PROGRAMS: Final = ("gateway", "board")  # Programs that publish a heartbeat beside the workers, as a role of their name.
# Beside the roles, because workers of 0.2 read a mapping to booleans.
_CONFIG: Final = "config:"
_roles_decoder = msgspec.json.Decoder(dict[str, bool])
# Workers of 0.1 publish whether a circuit is open, and not for how long.
_circuits_decoder = msgspec.json.Decoder(dict[str, bool | float | None])


class Pulse(NamedTuple):
    """The state of one thread; times are of the steady clock."""

    progressed_at: float  # When it last completed a run.
    begun: bool = True  # Whether it has completed one.
    has_ended: bool = False  # Whether it ended without being asked to.
    blocked_by: str | None = None  # The cause that blocks it, in words for a probe; None while its runs complete.
    blocked_since: float = 0.0  # When that began.


class Watched(Protocol):
    """A thread with a pulse."""

    @property
    def pulse(self) -> Pulse:
        """Its state; read from any thread."""
        ...


class RoleState(NamedTuple):
    """The state of one role, with the seconds since its last progress and the reason why it is not ready."""

    role: str
    ready: bool
    state: State
    seconds: float
    why: str = ""


class _Part(NamedTuple):
    name: str
    role: str | None
    watched: Watched
    partition: int | None


class Flow(NamedTuple):
    """Something that a role consumes in a Redis. ``stalled`` describes the fault if it is not consumed."""

    name: str
    role: str
    stalled: str
    partition: int = 0


class _FlowState:
    """When a flow last moved: something was consumed, or nothing waited."""

    def __init__(self, flow: Flow, now: float) -> None:
        self.flow = flow
        self.moved_at = self.updated_at = now
        self._position: str | None = None

    def update(self, position: str | None, now: float) -> None:
        if position is None or position != self._position:
            self.moved_at = now
        self._position, self.updated_at = position, now


class Readiness:
    """The roles of one worker, safe to share; each is ready while it makes progress on one of its partitions."""

    def __init__(self, *, stalled_s: float = _STALLED_S, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin without threads; a role is unready after ``stalled_s`` without progress, earlier with a known cause."""
        self._stalled_s = stalled_s
        # A known cause is reported sooner than a mere standstill.
        self._blocked_s = stalled_s / 5
        self._clock = clock
        self._lock = threading.Lock()
        self._parts: list[_Part] = []
        self._flows: dict[tuple[int, str], _FlowState] = {}
        self._paused: dict[int, frozenset[str]] = {}
        self._stopping = False

    def watch(self, name: str, role: str | None, watched: Watched, partition: int | None = 0) -> None:
        """Add a thread; one without a role counts for liveness only, one without a partition is needed for all."""
        self._parts.append(_Part(name, role, watched, partition))

    def add_flow(self, flow: Flow) -> None:
        """Add a flow; its positions are expected from now on."""
        self._flows[flow.partition, flow.name] = _FlowState(flow, self._clock())

    def update(self, positions: Mapping[str, str | None], paused: Iterable[str] = (), partition: int = 0) -> None:
        """Set a partition's ``flow_positions`` and the roles that pause there; unknown flows are ignored."""
        now = self._clock()
        with self._lock:
            self._paused[partition] = frozenset(paused)
            for (of_partition, name), state in self._flows.items():
                if of_partition == partition and name in positions:
                    state.update(None if state.flow.role in self._paused[partition] else positions[name], now)

    def begin_stop(self) -> None:
        """Report every role as stopping from now on, and no thread as ended."""
        self._stopping = True

    def ended_threads(self) -> list[str]:
        """List the threads that ended without being asked to."""
        return [] if self._stopping else [part.name for part in self._parts if part.watched.pulse.has_ended]

    def publish(self, gauge_of: Callable[[str], Any]) -> None:
        """Set the gauge that ``gauge_of`` returns for each role, at each scrape."""
        for state in self.roles():
            gauge_of(state.role).set_function(partial(lambda role: float(self.role(role).ready), state.role))

    def roles(self, partition: int | None = None) -> list[RoleState]:
        """Return the state of each role, in the order in which threads were added; of one partition if it is given."""
        parts = [part for part in self._parts if partition is None or part.partition in {None, partition}]
        names = dict.fromkeys(part.role for part in parts if part.role is not None)
        return [self.role(name) if partition is None else self._on_partition(name, partition) for name in names]

    def role(self, role: str) -> RoleState:
        """Return the state of one role on the partition with the best state."""
        partitions = dict.fromkeys(
            part.partition for part in self._parts if part.role == role and part.partition is not None
        )
        states = [self._on_partition(role, partition) for partition in partitions or (0,)]
        return max(states, key=lambda state: (state.ready, state.state == "ready", -state.seconds))

    def _on_partition(self, role: str, partition: int) -> RoleState:
        """Return the state of one role on one partition: the worst state of its threads and flows."""
        now = self._clock()
        pulses = {
            part.name: part.watched.pulse
            for part in self._parts
            if part.role == role and part.partition in {None, partition}
        }
        with self._lock:
            flows = [
                state for state in self._flows.values() if state.flow.role == role and state.flow.partition == partition
            ]
            paused = role in self._paused.get(partition, ())
        moved = [*(pulse.progressed_at for pulse in pulses.values()), *(flow.moved_at for flow in flows)]
        seconds = max(0.0, now - min(moved))
        if self._stopping:
            return RoleState(role, ready=False, state="stopping", seconds=seconds)
        why = self._find_cause(pulses, flows, now)
        if why:
            return RoleState(role, ready=False, state="stalled", seconds=seconds, why=why)
        if not all(pulse.begun for pulse in pulses.values()):
            return RoleState(role, ready=False, state="starting", seconds=seconds)
        return RoleState(role, ready=True, state="paused" if paused else "ready", seconds=seconds)

    def _find_cause(self, pulses: Mapping[str, Pulse], flows: Iterable[_FlowState], now: float) -> str:
        """Return the cause that blocks a thread or a flow, in words for a probe; empty if there is none."""
        for name, pulse in pulses.items():
            if pulse.has_ended:
                return f"{name}: its thread has ended"
            if pulse.blocked_by is not None and now - pulse.blocked_since > self._blocked_s:
                return f"{name}: {pulse.blocked_by} for {now - pulse.blocked_since:.0f} s"
            if now - pulse.progressed_at > self._stalled_s:
                return f"{name}: {pulse.blocked_by or 'no run completed'} for {now - pulse.progressed_at:.0f} s"
        for state in flows:
            if now - state.updated_at > self._stalled_s:
                # Nothing is known of the flow itself, because the maintenance thread lacks CPU or hangs.
                return f"backlog not measured for {now - state.updated_at:.0f} s"
            if now - state.moved_at > self._stalled_s:
                return f"{state.flow.stalled} for {now - state.moved_at:.0f} s"
        return ""


def flows(
    roles: Sequence[str], groups: Mapping[str, str], judge_models: Sequence[str], partition: int = 0
) -> list[Flow]:
    """List the flows of a worker with these roles, exporters by name with their roles, and judge models."""
    all_flows = [Flow(INGEST_GROUP, "ingest", "entries wait in the stream and none is read", partition)]
    all_flows += [
        Flow(f"export:{group}", role, "verdicts wait in the outbox and none is read", partition)
        for group, role in groups.items()
    ]
    stalled = "batches are ready, there is capacity, and none is leased"
    all_flows += [Flow(f"judge:{judge_model}", "judge", stalled, partition) for judge_model in judge_models]
    return [flow for flow in all_flows if flow.role in roles]


def flow_positions(store: Store, groups: Sequence[str], capacity: Mapping[str, bool]) -> dict[str, str | None]:
    """Read the positions of all consumers.

    ``capacity`` says by judge model whether more batches may be leased here; it is empty if this worker does not
    judge. A position changes when something is consumed; it is None if nothing waits that could be.
    """
    keys = store.keys
    ready = [keys.ready(judge_model) for judge_model in capacity]
    replies = store.run("flow_positions", (keys.traces, keys.verdicts, *ready), (INGEST_GROUP, *groups))
    names = [INGEST_GROUP, *(f"export:{group}" for group in groups), *(f"judge:{model}" for model in capacity)]
    positions = {name: raw.decode() or None for name, raw in zip(names, replies, strict=True)}
    return positions | {f"judge:{model}": None for model, has_capacity in capacity.items() if not has_capacity}


class LiveWorker(NamedTuple):
    """A worker, or another program, with a recent heartbeat: by role, whether it makes progress."""

    process: str
    roles: Mapping[str, bool]

    @property
    def config_hash(self) -> str:
        """The hash of its configuration; empty of workers of 0.2."""
        return "".join(name.removeprefix(_CONFIG) for name in self.roles if name.startswith(_CONFIG))


class Heartbeat:
    """The heartbeat of one worker."""

    def __init__(
        self, store: Store, circuits: Callable[[], Mapping[str, float | None]] = dict, config_hash: str = ""
    ) -> None:
        """Make an id for this process.

        ``circuits`` returns by judge model the seconds since its circuit is open, 0 while it is closed, None before
        the first call has ended; nothing in a worker that does not judge.
        """
        self._store = store
        self._circuits = circuits
        self._config = {f"{_CONFIG}{config_hash}": True} if config_hash else {}
        self._process = f"{socket.gethostname()}-{secrets.token_hex(4)}"
        # The judge models that any worker judges with, as of the last exchange; None before the first.
        self.configured_models: frozenset[str] | None = None
        # Seconds for which the circuit of a judge model has been open in every worker that asks it.
        self.open_circuits: dict[str, float] = {}

    def beat(self, roles: Mapping[str, bool]) -> None:
        """Publish which roles of this worker make progress."""
        encoded = msgspec.json.encode({**roles, **self._config})
        # Longer than it counts, so that the doctor sees which worker was there a moment ago.
        self._store.run("heartbeat", (self._store.keys.workers,), (self._process, encoded, 60_000))

    def exchange_circuits(self) -> dict[str, float]:
        """Publish the circuits of this worker; return for how many seconds those of judge models have been open."""
        # A circuit counts as open if it is open in every worker that asks the model: one worker that gets through is
        # enough to close it, and a model that no worker asks has none.
        own = dict(self._circuits())
        arguments = (self._process if own else "", msgspec.json.encode(own), HEARTBEAT_MS)
        reply = self._store.run("circuits", (self._store.keys.circuits,), arguments)
        reported = [_circuits_decoder.decode(raw) for raw in reply]
        self.configured_models = frozenset(name for circuits in reported for name in circuits)
        open_for: dict[str, float] = {}
        for name, seconds in (item for circuits in reported for item in circuits.items()):
            if seconds is not None:
                open_for[name] = min(seconds, open_for.get(name, seconds))
        self.open_circuits = {name: seconds for name, seconds in open_for.items() if seconds > 0}
        return self.open_circuits

    def withdraw(self) -> None:
        """Remove the heartbeat, since this worker stops."""
        self._store.call(lambda client: client.hdel(self._store.keys.workers, self._process))


def live_workers(store: Store) -> list[LiveWorker]:
    """List the workers and other programs with a recent heartbeat, by Redis' clock."""
    return [LiveWorker(process, _roles_decoder.decode(roles)) for process, roles in _recent(store, store.keys.workers)]


def live_circuits(store: Store) -> list[dict[str, float | None]]:
    """List the circuits of each worker that judges and has a recent heartbeat."""
    return [_circuits_decoder.decode(circuits) for _, circuits in _recent(store, store.keys.circuits)]


def _recent(store: Store, key: str) -> list[tuple[str, bytes]]:
    now_ms = store.now_ms()
    stored: dict[bytes, bytes] = store.call(lambda client: client.hgetall(key))
    read: list[Any] = [(process.decode(), *value.split(b" ", 1)) for process, value in sorted(stored.items())]
    return [(process, value) for process, at_ms, value in read if abs(now_ms - int(at_ms)) <= HEARTBEAT_MS]
