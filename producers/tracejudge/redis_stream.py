"""The stream in Redis, seen from one producer. Importing this module imports redis."""

from hashlib import sha1
from pkgutil import get_data

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError, ResponseError
from redis.retry import Retry

from tracejudge.entries import Batch
from tracejudge.errors import DeliveryError
from tracejudge.settings import Settings

_CONNECT_TIMEOUT_S = 2.0
_REPLY_TIMEOUT_S = 5.0
_PRODUCER_TTL_S = 30 * 24 * 3600
"""Longer than a process stays silent: whose totals were forgotten would report its whole past a second time."""


class RedisStream:
    """Appends numbered batches. Used by one thread; connects when it must."""

    def __init__(self, settings: Settings, producer: str) -> None:
        self._redis = _connect(settings)
        self._script = (get_data("tracejudge", "scripts/append.lua") or b"").decode()
        self._digest = sha1(self._script.encode(), usedforsecurity=False).hexdigest()
        self._keys = (f"{settings.prefix}:traces", f"{settings.prefix}:producer:{producer}")
        self._constants = (producer, settings.max_stream, _PRODUCER_TTL_S, settings.service)

    def append(self, batch: Batch) -> None:
        """Append a batch, or learn that it stands there already.

        Raises:
            DeliveryError: Redis gave no confirmation. The batch may stand in the stream or not; only the same
                batch under the same number may follow.
        """
        arguments: list[str | int | bytes] = [batch.number, *self._constants]
        for kind, payload in batch.entries:
            arguments += (kind.value, payload)
        try:
            self._run(arguments)
        except (RedisError, OSError) as error:
            # A reply that is still on its way would answer the next question, and after a failover the same
            # connection leads to a replica that cannot write.
            self.disconnect()
            raise DeliveryError(_describe(error)) from error

    def disconnect(self) -> None:
        """Close the connection; the next batch opens another."""
        self._redis.close()

    def _run(self, arguments: list[str | int | bytes]) -> None:
        try:
            self._redis.evalsha(self._digest, len(self._keys), *self._keys, *arguments)
        except NoScriptError:
            self._redis.eval(self._script, len(self._keys), *self._keys, *arguments)


def _connect(settings: Settings) -> Redis:
    """Make a client that never retries: on its own it would append a batch anew and wait for minutes."""
    options: dict[str, float] = {}
    if not settings.redis_url.secret.startswith("unix:"):  # sockets of older drivers refuse this option
        options["socket_connect_timeout"] = _CONNECT_TIMEOUT_S
    return Redis.from_url(
        settings.redis_url.secret,
        protocol=2,
        retry=Retry(NoBackoff(), 0),
        socket_timeout=_REPLY_TIMEOUT_S,
        **options,
    )


def _describe(error: Exception) -> str:
    """Name an error without quoting it: Redis repeats arguments in some, and drivers addresses."""
    name = type(error).__name__
    if isinstance(error, ResponseError):
        code = str(error).partition(" ")[0]
        return f"{name} {code}" if code.isalpha() and code.isupper() else name
    reason = error.__cause__ or error.__context__
    return f"{name}: {reason.strerror}" if isinstance(reason, OSError) and reason.strerror else name
