"""The connection to Redis and the scripts that run in it: the one place that knows redis-py.

StoreError is what leaves this module when Redis does not answer; every caller keeps its work and tries again.
All scripts may be repeated: what took effect once does not take effect twice.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Final

import redis
from redis.exceptions import AuthenticationError, OutOfMemoryError, RedisError, ResponseError

from tracejudge.connecting import make_pool
from worker.addresses import address
from worker.keys import Keys

__all__ = ["Entry", "Store", "StoreError", "address", "connect", "redis_now_ms"]

Entry = tuple[bytes, dict[bytes, bytes] | None]
"""Id and fields of a stream entry; fields are None when the entry was trimmed away."""

_SOCKET_TIMEOUT_S: Final = 10.0
_CONNECT_TIMEOUT_S: Final = 3.0
_READ_BYTES: Final = 1 << 20
_MASTERS_ALONE: Final = ("READONLY", "UNBLOCKED", "MASTERDOWN", "LOADING")
"""What a server answers that is not, no longer, or not yet, the master."""


class StoreError(Exception):
    """Redis did not answer, or refused. The message names the kind of failure, never an address or a payload."""


def connect(url: str) -> "redis.Redis":
    """Make a client that never retries by itself: a repeated write is decided here, not in the driver.

    Args:
        url: A server (`redis://`, `rediss://`, `unix://`), or sentinels (`redis+sentinel://`), which each new
            connection asks for the master.
    """
    pool = make_pool(
        url,
        reply_timeout_s=_SOCKET_TIMEOUT_S,
        connect_timeout_s=_CONNECT_TIMEOUT_S,
        socket_keepalive=True,
        # Each read of a socket gives up the interpreter's lock; by default large replies come in pieces of 64 kB.
        socket_read_size=_READ_BYTES,
        health_check_interval=30,
    )
    return redis.Redis.from_pool(pool)


_CHOOSING: Final = ("counts", "batches", "choosing")
_AFTER_INGEST: Final = (*_CHOOSING, "entry_ids", "delivered", "settled")
_LETTERS: Final = ("counts", "letters")
_SHARED: Final = {
    "choose": _CHOOSING,
    "pull": _AFTER_INGEST,
    "replay": _AFTER_INGEST,
    "measure": ("entry_ids",),
    "record": _LETTERS,
    "bury": _LETTERS,
    "dead_remove": _LETTERS,
    "forget_batch": _LETTERS,
    "dead_retry": ("batches",),
    "forget_entries": ("delivered",),
}
"""The parts of `scripts/shared` that stand before a script: one text to Redis, since scripts cannot call each other."""


@cache
def _source(name: str) -> str:
    parts = (*(f"shared/{part}" for part in _SHARED.get(name, ())), name)
    return "\n".join(files("worker").joinpath(f"scripts/{part}.lua").read_text(encoding="utf-8") for part in parts)


class Store:
    """Redis as the stages use it. Safe to share between threads."""

    def __init__(self, url: str, keys: Keys) -> None:
        """Take the address; the first command connects."""
        self.keys = keys
        self._redis = connect(url)
        self._scripts: dict[str, Any] = {}

    def run(self, script: str, keys: Sequence[str], arguments: Iterable[bytes | str | int | float]) -> Any:
        """Run one of the named scripts.

        Raises:
            StoreError: Redis did not answer or refused.
        """
        registered = self._scripts.get(script)
        if registered is None:
            registered = self._scripts[script] = self._redis.register_script(_source(script))
        return self.call(lambda client: registered(keys=list(keys), args=list(arguments), client=client))

    def call(self, command: "Callable[[redis.Redis], Any]") -> Any:
        """Run commands.

        Raises:
            StoreError: Redis did not answer or refused.
        """
        try:
            return command(self._redis)
        except RedisError as error:
            if _is_no_master(error):
                # The name may lead elsewhere by now, and sentinels know the master: each new connection asks again.
                self._redis.connection_pool.disconnect(inuse_connections=False)
            raise StoreError(_kind(error)) from error

    def now_ms(self) -> int:
        """Ask Redis for the time, in milliseconds since the epoch.

        Raises:
            StoreError: Redis did not answer or refused.
        """
        now: int = self.call(redis_now_ms)
        return now

    def make_group(self, stream: str, group: str) -> None:
        """Make a consumer group that reads from the stream's beginning, unless there is one.

        Raises:
            StoreError: Redis did not answer or refused.
        """

        def make(client: "redis.Redis") -> None:
            try:
                client.xgroup_create(stream, group, id="0", mkstream=True)
            except ResponseError as error:
                if "BUSYGROUP" not in str(error):
                    raise

        self.call(make)

    def read_group(self, stream: str, group: str, consumer: str, *, count: int, block_ms: int) -> list[Entry]:
        """Read what nobody has read yet; waits up to ``block_ms`` for the first entry.

        Raises:
            StoreError: Redis did not answer or refused.
        """
        try:
            reply = self.call(
                lambda client: client.xreadgroup(group, consumer, {stream: ">"}, count=count, block=block_ms)
            )
        except StoreError as error:
            if isinstance(error.__cause__, ResponseError) and "NOGROUP" in str(error.__cause__):
                # Redis came back without its data: the group is made anew and reading goes on.
                self.make_group(stream, group)
                return []
            raise
        return list(reply[0][1]) if reply else []

    def claim_stale(self, stream: str, group: str, consumer: str, *, idle_ms: int, count: int) -> list[Entry]:
        """Take over entries that their reader has not acknowledged for ``idle_ms``.

        Done by XPENDING and XCLAIM: XAUTOCLAIM of Redis 6.2 loses entries that were trimmed away. Those come back
        here with None for their fields.

        Raises:
            StoreError: Redis did not answer or refused.
        """

        def claim(client: "redis.Redis") -> list[Entry]:
            stale = client.xpending_range(stream, group, min="-", max="+", count=count, idle=idle_ms)
            ids: list[Any] = [entry["message_id"] for entry in stale]
            if not ids:
                return []
            claimed: Any = client.xclaim(stream, group, consumer, min_idle_time=idle_ms, message_ids=ids)
            found = {entry_id: fields for entry_id, fields in claimed if entry_id is not None}
            # What XCLAIM leaves out is either gone from the stream, or was claimed by another worker just now.
            gone = [entry_id for entry_id in ids if entry_id not in found and not _exists(client, stream, entry_id)]
            return [*found.items(), *((entry_id, None) for entry_id in gone)]

        return list(self.call(claim))

    def close(self) -> None:
        """Close all connections."""
        self._redis.close()


def redis_now_ms(client: "redis.Redis") -> int:
    """Ask for the time of Redis, which dates entries, leases and letters, in milliseconds since the epoch."""
    seconds, microseconds = client.time()
    return int(seconds) * 1000 + microseconds // 1000


def _exists(client: "redis.Redis", stream: str, entry_id: bytes) -> bool:
    return bool(client.xrange(stream, min=entry_id, max=entry_id, count=1))


def _is_no_master(error: RedisError) -> bool:
    """Tell whether another server should be asked; in Redis 6.2 the word stands within the error of a script."""
    words = f"{error.status_code} {error}"
    return any(word in words for word in _MASTERS_ALONE)


def _kind(error: RedisError) -> str:
    """Name a failure without the driver's text, which may hold an address or a command."""
    if isinstance(error, AuthenticationError):
        return "Redis refuses the user or the password"
    # The driver knows it in answers to commands, but not, from 6.2, within the error of a script.
    if isinstance(error, OutOfMemoryError) or (isinstance(error, ResponseError) and "OOM" in str(error)):
        return "Redis is full: raise its maxmemory, or lower our caps"
    if isinstance(error, ResponseError):
        return f"Redis refused the command ({str(error).split(' ', 1)[0][:32]})"
    return f"Redis does not answer ({type(error).__name__})"
