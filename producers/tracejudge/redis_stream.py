"""The stream in Redis, seen from one producer. Importing this module imports redis."""

# Only so that it is loaded here, where a fork waits: else the first connection loads it.
import encodings.idna  # noqa: F401
from collections.abc import Callable
from hashlib import sha1
from pkgutil import get_data
from typing import Any

from redis.exceptions import NoScriptError, RedisError, ResponseError

from tracejudge.connecting import make_pool
from tracejudge.entries import Batch
from tracejudge.errors import DeliveryError
from tracejudge.forking import unforked_connect
from tracejudge.packing import Argument, pack
from tracejudge.settings import Settings

_CONNECT_TIMEOUT_S = 2.0
_REPLY_TIMEOUT_S = 5.0
_PRODUCER_TTL_S = 30 * 24 * 3600
"""Longer than a process stays silent: whose totals were forgotten would report its whole past a second time."""


class RedisStream:
    """Appends numbered batches. Used by one thread; connects when it must."""

    def __init__(self, settings: Settings, producer: str) -> None:
        self._connected = False
        # It stays with us: behind sentinels the connection asks its pool where to go.
        self._pool = make_pool(
            settings.redis_url.secret, reply_timeout_s=_REPLY_TIMEOUT_S, connect_timeout_s=_CONNECT_TIMEOUT_S
        )
        # Never retried: on its own it would append a batch anew and wait for minutes.
        self._connection: Any = self._pool.make_connection()  # the driver's own types say too little of it
        self._script = get_data("tracejudge", "scripts/append.lua") or b""
        self._digest = sha1(self._script, usedforsecurity=False).hexdigest()
        keys = (f"{settings.prefix}:traces", f"{settings.prefix}:producer:{producer}")
        self._keys: tuple[Argument, ...] = (len(keys), *keys)
        self._constants: tuple[Argument, ...] = (producer, settings.max_stream, _PRODUCER_TTL_S, settings.service)

    def append(self, batch: Batch, meanwhile: Callable[[], None]) -> None:
        """Append a batch, or learn that it stands there already; use the time of Redis for something else.

        Raises:
            DeliveryError: Redis gave no confirmation. The batch may stand in the stream or not; only the same
                batch under the same number may follow.
        """
        kinds = "".join(entry.kind.value for entry in batch.entries)
        arguments = [batch.number, *self._constants, kinds, *(entry.payload for entry in batch.entries)]
        try:
            self._run(arguments, meanwhile)
        except (RedisError, OSError) as error:
            self.disconnect()
            raise DeliveryError(_describe(error)) from error
        except BaseException:
            self.disconnect()
            raise

    def disconnect(self) -> None:
        """Close the connection; the next batch opens another.

        A reply that is still on its way would answer the next question, and after a failover the same connection
        leads to a replica that cannot write.
        """
        self._connected = False
        self._connection.disconnect()

    def _run(self, arguments: list[Argument], meanwhile: Callable[[], None]) -> None:
        try:
            self._send("EVALSHA", self._digest, arguments)
            meanwhile()
            self._connection.read_response()
        except NoScriptError:
            self._send("EVAL", self._script, arguments)
            self._connection.read_response()

    def _send(self, command: str, script: Argument, arguments: list[Argument]) -> None:
        if not self._connected:
            with unforked_connect():
                self._connection.connect()
            self._connected = True
        self._connection.send_packed_command([pack(command, script, *self._keys, *arguments)])


def _describe(error: Exception) -> str:
    """Name an error without quoting it: Redis repeats arguments in some, and drivers addresses."""
    name = type(error).__name__
    if isinstance(error, ResponseError):
        code = str(error).partition(" ")[0]
        return f"{name} {code}" if code.isalpha() and code.isupper() else name
    reason = error.__cause__ or error.__context__
    return f"{name}: {reason.strerror}" if isinstance(reason, OSError) and reason.strerror else name
