"""Whether each role of a worker makes progress, and whether all of its threads live: what the probes are told.

Pure: threads tell how their turns go, housekeeping tells once a second what waits, and nothing here asks Redis.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, Literal, NamedTuple, Protocol

from prometheus_client import Gauge

__all__ = ["Pulse", "Readiness", "RoleState", "Watched"]

State = Literal["ready", "paused", "starting", "stalled", "stopping"]

_STALLED_S: Final = 50.0
"""Leaves the rest of a minute for what is told once a second and asked for every ten."""
_TROUBLE_SHARE: Final = 1 / 5
"""Who knows that something is away says so sooner than who only sees nothing move."""


class Pulse(NamedTuple):
    """How one thread fares, by the steady clock.

    Attributes:
        progressed_at: When it last ended a turn.
        begun: Whether it has ended one.
        dead: Whether it ended though nobody asked it to.
        trouble: What it waits for, in words that may be shown; nothing while its turns end.
        troubled_at: Since when.
    """

    progressed_at: float
    begun: bool = True
    dead: bool = False
    trouble: str | None = None
    troubled_at: float = 0.0


class Watched(Protocol):
    """A thread that tells how it fares."""

    @property
    def pulse(self) -> Pulse:
        """Tell it; asked from any thread."""
        ...


class RoleState(NamedTuple):
    """How one role fares: whether it is ready, in which state, for how long nothing moved, and why not."""

    role: str
    ready: bool
    state: State
    seconds: float
    why: str = ""


class _Part(NamedTuple):
    name: str
    role: str | None
    watched: Watched


class _Flow:
    """Something that waits to be taken, and when some of it was last taken, or nothing waited."""

    def __init__(self, role: str, what: str, now: float) -> None:
        self.role = role
        self.what = what
        self.moved_at = self.heard_at = now
        self._mark: str | None = None

    def hear(self, mark: str | None, now: float) -> None:
        if mark is None or mark != self._mark:
            self.moved_at = now
        self._mark, self.heard_at = mark, now


class Readiness:
    """All roles of one worker. Safe to share between threads."""

    def __init__(self, *, stalled_s: float = _STALLED_S, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with nothing to look at.

        Args:
            stalled_s: After so many seconds without progress a role is not ready; after a fifth of it when it is
                known what is away.
            clock: Steady, in seconds.
        """
        self._stalled_s = stalled_s
        self._troubled_s = stalled_s * _TROUBLE_SHARE
        self._clock = clock
        self._lock = threading.Lock()
        self._parts: list[_Part] = []
        self._flows: dict[str, _Flow] = {}
        self._paused: frozenset[str] = frozenset()
        self._stopping = False

    def watch(self, name: str, role: str | None, watched: Watched) -> None:
        """Look at a thread from now on; one without a role counts for liveness alone."""
        self._parts.append(_Part(name, role, watched))

    def expect(self, flow: str, role: str, what: str) -> None:
        """Expect to hear of something that a role takes.

        Args:
            what: What it means when nothing of it is taken, as ``entries wait and none is read``.
        """
        self._flows[flow] = _Flow(role, what, self._clock())

    def hear(self, marks: Mapping[str, str | None], paused: Iterable[str] = ()) -> None:
        """Take where the takers of all flows stand.

        Args:
            marks: By flow a mark that changes when something is taken; None where nothing waits that could be.
                Flows that nobody expects are passed by.
            paused: Roles that hold back on purpose.
        """
        now = self._clock()
        with self._lock:
            self._paused = frozenset(paused)
            for name, flow in self._flows.items():
                if name in marks:
                    flow.hear(None if flow.role in self._paused else marks[name], now)

    def end(self) -> None:
        """Say that the worker stops: from now on no role is ready, and a thread that ends is not dead."""
        self._stopping = True

    def dead(self) -> list[str]:
        """Name the threads that ended though nobody asked them to."""
        return [] if self._stopping else [part.name for part in self._parts if part.watched.pulse.dead]

    def show(self, gauge: Gauge) -> None:
        """Let a gauge with the label ``role`` tell the same at each scrape."""
        for state in self.roles():
            gauge.labels(state.role).set_function(partial(self._share, state.role))

    def roles(self) -> list[RoleState]:
        """Tell how each role fares, in the order in which they were made known."""
        names = dict.fromkeys(part.role for part in self._parts if part.role is not None)
        return [self.role(name) for name in names]

    def role(self, role: str) -> RoleState:
        """Tell how one role fares: as the worst of its threads and flows."""
        now = self._clock()
        pulses = {part.name: part.watched.pulse for part in self._parts if part.role == role}
        with self._lock:
            flows = [(flow.what, flow.moved_at, flow.heard_at) for flow in self._flows.values() if flow.role == role]
            paused = role in self._paused
        seconds = max(
            0.0, now - min([*(pulse.progressed_at for pulse in pulses.values()), *(at for _, at, _ in flows)])
        )
        if self._stopping:
            return RoleState(role, ready=False, state="stopping", seconds=seconds)
        why = self._trouble(pulses, now) or self._standstill(flows, now)
        if why:
            return RoleState(role, ready=False, state="stalled", seconds=seconds, why=why)
        if not all(pulse.begun for pulse in pulses.values()):
            return RoleState(role, ready=False, state="starting", seconds=seconds)
        return RoleState(role, ready=True, state="paused" if paused else "ready", seconds=seconds)

    def _share(self, role: str) -> float:
        return float(self.role(role).ready)

    def _trouble(self, pulses: Mapping[str, Pulse], now: float) -> str:
        for name, pulse in pulses.items():
            if pulse.dead:
                return f"{name}: its thread has ended"
            if pulse.trouble is not None and now - pulse.troubled_at > self._troubled_s:
                return f"{name}: {pulse.trouble} for {now - pulse.troubled_at:.0f} s"
            if now - pulse.progressed_at > self._stalled_s:
                return f"{name}: {pulse.trouble or 'no turn has ended'} for {now - pulse.progressed_at:.0f} s"
        return ""

    def _standstill(self, flows: Iterable[tuple[str, float, float]], now: float) -> str:
        for what, moved_at, heard_at in flows:
            if now - heard_at > self._stalled_s:
                return f"what waits was not looked at for {now - heard_at:.0f} s"
            if now - moved_at > self._stalled_s:
                return f"{what} for {now - moved_at:.0f} s"
        return ""
