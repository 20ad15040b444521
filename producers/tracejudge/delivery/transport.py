"""Connections to Redis, directly or through sentinels, and appending the batches of one producer to the stream.

The URL's query holds options of redis-py, such as `ssl_ca_certs`, `ssl_certfile` and `ssl_keyfile`. Importing this
module imports redis.
"""

# Loaded here, where forks are held off: else the first connection loads it.
import encodings.idna  # noqa: F401
import socket
from collections.abc import Callable
from hashlib import sha1
from pkgutil import get_data
from time import monotonic
from typing import Any, cast

from redis import ConnectionPool, SSLConnection, UnixDomainSocketConnection
from redis.backoff import NoBackoff
from redis.connection import parse_url as _parse_url
from redis.exceptions import ConnectionError as LostConnectionError
from redis.exceptions import NoScriptError, OutOfMemoryError, RedisError, ResponseError
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelConnectionPool

from tracejudge.delivery.buffer import Batch, Kind
from tracejudge.delivery.fork import block_forks_during_connect
from tracejudge.log import DeliveryError, RedisFullError
from tracejudge.redis_url import parse_redis_url, sentinel_url
from tracejudge.settings import Settings

Argument = str | int | bytes

_SENTINEL_TIMEOUT_S = 1.0  # then the next sentinel is asked; they hold little and answer at once
_NETWORK_OPTIONS = frozenset({"socket_connect_timeout", "socket_keepalive", "socket_keepalive_options"})
# Load balancers cut connections that are idle for a minute or more; a lost peer is noticed within a minute.
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}

# redis-py has no types for these three.
_options: Any = _parse_url
_make_sentinels: Any = Sentinel
_make_pool: Any = SentinelConnectionPool


def make_pool(url: str, *, reply_timeout_s: float, connect_timeout_s: float, **options: Any) -> ConnectionPool:
    """Make a pool from a checked URL. Its connections never retry by themselves; `options` are the driver's.

    With sentinels each new connection asks them for the current master.
    """
    common = {
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": reply_timeout_s,
        "socket_connect_timeout": connect_timeout_s,
        "socket_keepalive": True,
        # Not every system has all of them.
        "socket_keepalive_options": {
            getattr(socket, name): value for name, value in _KEEPALIVE.items() if hasattr(socket, name)
        },
        **options,
    }
    url = parse_redis_url(url).secret  # what the check has read is what is opened
    sentinels = sentinel_url(url)
    own = _options(url if sentinels is None else sentinels.server)
    kind = own.get("connection_class", object)
    if issubclass(kind, SSLConnection):
        # Before redis-py 6 a certificate of any host would do; the URL may still say otherwise.
        common["ssl_check_hostname"] = own.get("ssl_check_hostname", own.get("ssl_cert_reqs") != "none")
    if sentinels is None:
        if issubclass(kind, UnixDomainSocketConnection):
            # Older drivers refuse network options for sockets.
            common = {name: value for name, value in common.items() if name not in _NETWORK_OPTIONS}
        return ConnectionPool.from_url(url, **common)
    if own.pop("connection_class", None) is not None:
        own |= {"ssl": True, "ssl_check_hostname": common["ssl_check_hostname"]}
    # The sentinels get the same TLS options as the master.
    tls = {name: value for name, value in own.items() if name.partition("_")[0] == "ssl"}
    clients = _make_sentinels(
        sentinels.nodes,
        sentinel_kwargs={
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),
            "socket_timeout": _SENTINEL_TIMEOUT_S,
            "socket_connect_timeout": _SENTINEL_TIMEOUT_S,
            **tls,
            **dict(sentinels.credentials),
        },
    )
    return cast("ConnectionPool", _make_pool(sentinels.service, clients, **{**common, **own}))


def pack(*arguments: Argument) -> bytes:
    """Pack a command and its arguments."""
    parts = [b"*%d" % len(arguments)]
    for argument in arguments:
        encoded = argument if isinstance(argument, bytes) else str(argument).encode()
        parts += (b"$%d" % len(encoded), encoded)
    parts.append(b"")
    return b"\r\n".join(parts)


_CONNECT_TIMEOUT_S = 2.0
# A load balancer may have cut a connection that was idle for longer: the reply then never comes, whereas a new
# connection takes a moment.
_IDLE_S = 30.0


class RedisStream:
    """Appends numbered batches. Used by one thread; connects when needed."""

    def __init__(self, settings: Settings, producer: str) -> None:
        self._connected = False
        self._used_s = 0.0
        # Kept: with sentinels the connection asks its pool for the address.
        self._pool = make_pool(settings.redis_url.secret, reply_timeout_s=5.0, connect_timeout_s=_CONNECT_TIMEOUT_S)
        self._connection: Any = self._pool.make_connection()  # the driver's types omit its methods
        self._script = get_data("tracejudge", "scripts/append.lua") or b""
        self._digest = sha1(self._script, usedforsecurity=False).hexdigest()
        self._confirmed = self._confirmed_number = 0
        prefix = settings.prefix
        keys = (f"{prefix}:traces", f"{prefix}:producer:{producer}", f"{prefix}:caps", f"{prefix}:producers")
        self._keys: tuple[Argument, ...] = (len(keys), *keys)
        # Applies only if no worker runs: workers remove a producer's hash two days after its last batch.
        self._constants: tuple[Argument, ...] = (producer, settings.max_stream, 30 * 24 * 3600, settings.service)

    def append(self, batch: Batch, meanwhile: Callable[[], None]) -> None:
        """Append a batch unless it is in the stream already, and run `meanwhile` while Redis works.

        Raises:
            DeliveryError: Redis gave no confirmation. The batch may be in the stream or not; only the same batch
                under the same number may follow.
        """
        kinds = "".join(entry.kind.value for entry in batch.entries)
        payloads = (entry.payload for entry in batch.entries)
        arguments = [batch.number, *self._constants, self._confirmed, kinds, *payloads]
        if self._connected and monotonic() - self._used_s > _IDLE_S:
            self.disconnect()
        may_be_stale = self._connected
        try:
            try:
                self._run(arguments, meanwhile)
            except (LostConnectionError, OSError):
                # An idle connection may have been cut, which is no failure yet. Sending again is safe: the script
                # appends a number once.
                if not may_be_stale:
                    raise
                self.disconnect()
                self._run(arguments, meanwhile)
            if batch.number > self._confirmed_number:
                self._confirmed_number = batch.number
                self._confirmed += kinds.count(Kind.TRACE.value)
        except (RedisError, OSError) as error:
            self.disconnect()
            # Redis 6.2 puts the code of an error within a script into the middle of a sentence.
            is_full = isinstance(error, OutOfMemoryError) or "-OOM " in str(error)
            kind = RedisFullError if is_full else DeliveryError
            raise kind("OutOfMemoryError" if is_full else _describe(error)) from error
        except BaseException:
            self.disconnect()
            raise

    def disconnect(self) -> None:
        """Close the connection; the next batch opens another."""
        # After an error a late reply would answer the next command, and after a failover the connection leads to a
        # replica, which cannot write.
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
        self._used_s = monotonic()

    def _send(self, command: str, script: Argument, arguments: list[Argument]) -> None:
        if not self._connected:
            with block_forks_during_connect():
                self._connection.connect()
            self._connected = True
        self._connection.send_packed_command([pack(command, script, *self._keys, *arguments)])


# Parts of texts of Redis, in lower case, and how to fix what they report.
_LOGIN = "set user and password in redis_url or TRACEJUDGE_REDIS_URL, as redis://user:password@host:6379/0"
_FIXES = {
    "password": _LOGIN,
    "authenticat": _LOGIN,
    "db index": "Redis has no such database: correct the number at the end of redis_url, 0 to 15 as a rule",
    "permission": "the Redis user lacks a right: docs/connecting.md lists those that a service needs",
}


def _describe(error: Exception) -> str:
    # Error texts are not quoted: Redis repeats arguments in some, and the driver addresses.
    name, text = type(error).__name__, str(error).lower()
    if isinstance(error, RedisError) and (fix := next((fix for part, fix in _FIXES.items() if part in text), None)):
        return f"{name}: {fix}"
    if isinstance(error, ResponseError):
        code = str(error).partition(" ")[0]
        return f"{name} {code}" if code.isalpha() and code.isupper() else name
    reason = error.__cause__ or error.__context__
    return f"{name}: {reason.strerror}" if isinstance(reason, OSError) and reason.strerror else name
