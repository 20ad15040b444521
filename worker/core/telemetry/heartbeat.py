"""Worker heartbeats in Redis: readiness per role, and the circuits of judge models.

A consumer group knows no worker that reads nothing, so each worker publishes its state every second. Everything here
raises ``StoreError`` when Redis does not answer.
"""

import secrets
import socket
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from worker.core.storage.client import Store

HEARTBEAT_MS: Final = 10_000
"""How long a heartbeat counts; it is renewed every second."""
# Longer than it counts, so that the doctor sees which worker was there a moment ago.
_KEPT_MS: Final = 60_000
_roles_decoder = msgspec.json.Decoder(dict[str, bool])
# Workers of 0.1 publish whether a circuit is open, and not for how long.
_circuits_decoder = msgspec.json.Decoder(dict[str, bool | float | None])


class LiveWorker(NamedTuple):
    """A worker with a recent heartbeat: by role, whether it makes progress."""

    process: str
    roles: Mapping[str, bool]


class Heartbeat:
    """The heartbeat of one worker.

    Attributes:
        configured_models: The judge models that any worker judges with, as of the last exchange; None before the first.
        dead: Seconds since the circuit of a judge model is open in every worker that asks it.
    """

    def __init__(self, store: Store, circuits: Callable[[], Mapping[str, float | None]] = dict) -> None:
        """Make an id for this process.

        ``circuits`` returns by judge model the seconds since its circuit is open, 0 while it is closed, None before
        the first call has ended; nothing in a worker that does not judge.
        """
        self._store = store
        self._circuits = circuits
        self._process = f"{socket.gethostname()}-{secrets.token_hex(4)}"
        self.configured_models: frozenset[str] | None = None
        self.dead: dict[str, float] = {}

    def beat(self, roles: Mapping[str, bool]) -> None:
        """Publish which roles of this worker make progress."""
        encoded = msgspec.json.encode(dict(roles))
        self._store.run("heartbeat", (self._store.keys.workers,), (self._process, encoded, _KEPT_MS))

    def exchange_circuits(self) -> dict[str, float]:
        """Publish the circuits of this worker; return for how many seconds judge models have been dead.

        A model is dead when its circuit is open in every worker that asks it: one worker that gets through is enough
        for it to be alive, and a model that no worker asks is not dead.
        """
        own = dict(self._circuits())
        arguments = (self._process if own else "", msgspec.json.encode(own), HEARTBEAT_MS)
        reply = self._store.run("circuits", (self._store.keys.circuits,), arguments)
        known = [_circuits_decoder.decode(each) for each in reply]
        self.configured_models = frozenset(name for circuits in known for name in circuits)
        open_for: dict[str, float] = {}
        for name, seconds in (item for circuits in known for item in circuits.items()):
            if seconds is not None:
                open_for[name] = min(seconds, open_for.get(name, seconds))
        self.dead = {name: seconds for name, seconds in open_for.items() if seconds > 0}
        return self.dead

    def withdraw(self) -> None:
        """Remove the heartbeat, since this worker stops."""
        self._store.call(lambda client: client.hdel(self._store.keys.workers, self._process))


def live_workers(store: Store) -> list[LiveWorker]:
    """List the workers with a recent heartbeat, by Redis' clock."""
    return [LiveWorker(process, _roles_decoder.decode(roles)) for process, roles in _recent(store, store.keys.workers)]


def live_circuits(store: Store) -> list[dict[str, float | None]]:
    """List the circuits of each worker that judges and has a recent heartbeat."""
    return [_circuits_decoder.decode(circuits) for _, circuits in _recent(store, store.keys.circuits)]


def _recent(store: Store, key: str) -> list[tuple[str, bytes]]:
    now_ms = store.now_ms()
    stored: dict[bytes, bytes] = store.call(lambda client: client.hgetall(key))
    read: list[Any] = [(process.decode(), *value.split(b" ", 1)) for process, value in sorted(stored.items())]
    return [(process, value) for process, at_ms, value in read if abs(now_ms - int(at_ms)) <= HEARTBEAT_MS]
