"""Connections to Redis, directly or to the master that sentinels or a cluster name, and appending a producer's batches.

The URL's query holds options of redis-py, such as `ssl_ca_certs`, `ssl_certfile` and `ssl_keyfile`. Importing this
module imports redis.
"""

# Loaded here, where forks are held off: else the first connection loads it.
import encodings.idna  # noqa: F401
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from hashlib import sha1
from pkgutil import get_data
from time import monotonic, sleep
from typing import Any, cast

from redis import ConnectionPool, Redis, SSLConnection, UnixDomainSocketConnection
from redis.backoff import NoBackoff
from redis.connection import parse_url as _parse_url
from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    AuthenticationError,
    MovedError,
    NoScriptError,
    OutOfMemoryError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as LostConnectionError
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelConnectionPool

from tracejudge.delivery.buffer import Batch, Entry, Kind
from tracejudge.delivery.fork import block_forks_during_connect
from tracejudge.ids import MAX_PARTITIONS, partition_prefix
from tracejudge.log import DeliveryError, RedisFullError
from tracejudge.redis_url import cluster_url, parse_redis_url, sentinel_url
from tracejudge.settings import Settings

Argument = str | int | bytes

_SCRIPT = get_data("tracejudge", "scripts/append.lua") or b""
_DIGEST = sha1(_SCRIPT, usedforsecurity=False).hexdigest()
_CONNECT_TIMEOUT_S = 2.0
# A load balancer may have cut a connection that was idle for longer: the reply then never comes, whereas a new
# connection takes a moment.
_IDLE_S = 30.0
_LOGIN = "set user and password in redis_url or TRACEJUDGE_REDIS_URL, as redis://user:password@host:6379/0"
# Parts of texts of Redis, in lower case, and how to fix what they report.
_FIXES = {
    "password": _LOGIN,
    "authenticat": _LOGIN,
    "db index": "Redis has no such database: correct the number at the end of redis_url, 0 to 15 as a rule",
    "cluster support": "this Redis is no cluster: write redis_url as redis://host:port",
    "misconf": "Redis cannot write to its disk: free it, or see the log of Redis",
    "permission": "the Redis user lacks a right: docs/connecting.md lists those that a service needs",
}
_MOVING_WAITS_S = (0.02, 0.05, 0.1, 0.2, 0.4)  # a slot of small keys moves in less
_LOOKUP_TIMEOUT_S = 1.0  # then the next sentinel or node is asked; both answer at once
_NETWORK_OPTIONS = frozenset({"socket_connect_timeout", "socket_keepalive", "socket_keepalive_options"})
# Load balancers cut connections that are idle for a minute or more; a lost peer is noticed within a minute.
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}

# redis-py has no types for these three.
_options: Any = _parse_url
_make_sentinels: Any = Sentinel
_make_pool: Any = SentinelConnectionPool


class ClusterNodes:
    """Finds the master that owns a key's slot, as redis-py's `Sentinel` finds a master by its name."""

    def __init__(self, nodes: tuple[tuple[str, int], ...], **options: Any) -> None:
        self._configured = nodes
        self._known = nodes  # The one that answers is asked first.
        self._options = options

    def discover_master(self, key: str) -> tuple[str, int]:
        """Ask one node after the other for the master of a key's slot; ``ConnectionError`` if none knows it."""
        slot, failure = key_slot(key.encode()), "no node serves its slot"
        for host, port in dict.fromkeys((*self._known, *self._configured)):
            try:
                with closing(self.client(host, port)) as client:
                    rows = client.execute_command("CLUSTER SLOTS")
            except (ResponseError, AuthenticationError):
                raise  # the other nodes would say the same
            except RedisError as error:
                failure = type(error).__name__
                continue
            masters = {(row[0], row[1]): (_host_of(row[2][0], host), int(row[2][1])) for row in rows}
            for (first, last), master in masters.items():
                if first <= slot <= last:
                    self._known = ((host, port), *masters.values())
                    return master
        raise LostConnectionError(f"the cluster names no master for {key}: {failure}")

    def client(self, host: str, port: int, **options: Any) -> Any:
        """Make a client of one node."""
        return Redis(host, port, **{**self._options, **options})

    def prefer(self, node: tuple[str, int]) -> None:
        """Ask a node first: it has just become a master, and others may not know that yet."""
        self._known = (node, *self._known)


def _host_of(name: bytes | None, asked: str) -> str:
    # A node without a known address answers nothing, or `?`: it is then reached as the one that was asked.
    return asked if name in {None, b"", b"?"} else bytes(name or b"").decode()


def make_pool(
    url: str, *, reply_timeout_s: float, connect_timeout_s: float, key: str = "", **options: Any
) -> ConnectionPool:
    """Make a pool from a checked URL. Its connections never retry by themselves; `options` are the driver's.

    With sentinels each new connection asks them for the current master, and on a cluster the nodes for that of `key`.
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
    sentinels, cluster = sentinel_url(url), cluster_url(url)
    several = sentinels or cluster
    own = _options(url if several is None else several.server)
    kind = own.get("connection_class", object)
    if issubclass(kind, SSLConnection):
        # Before redis-py 6 a certificate of any host would do; the URL may still say otherwise.
        common["ssl_check_hostname"] = own.get("ssl_check_hostname", own.get("ssl_cert_reqs") != "none")
    if several is None:
        if issubclass(kind, UnixDomainSocketConnection):
            # Older drivers refuse network options for sockets.
            common = {name: value for name, value in common.items() if name not in _NETWORK_OPTIONS}
        return ConnectionPool.from_url(url, **common)
    if own.pop("connection_class", None) is not None:
        own |= {"ssl": True, "ssl_check_hostname": common["ssl_check_hostname"]}
    lookup = {
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": _LOOKUP_TIMEOUT_S,
        "socket_connect_timeout": _LOOKUP_TIMEOUT_S,
        # Sentinels and nodes get the same TLS options as the master.
        **{name: value for name, value in own.items() if name.partition("_")[0] == "ssl"},
    }
    if sentinels is not None:
        clients = _make_sentinels(sentinels.nodes, sentinel_kwargs={**lookup, **dict(sentinels.credentials)})
        key = sentinels.service
    else:
        login = {name: own[name] for name in ("username", "password") if name in own}
        clients = ClusterNodes(several.nodes, **lookup, **login)
    return cast("ConnectionPool", _make_pool(key, clients, **{**common, **own}))


def pack(*arguments: Argument) -> bytes:
    """Pack a command and its arguments."""
    parts = [b"*%d" % len(arguments)]
    for argument in arguments:
        encoded = argument if isinstance(argument, bytes) else str(argument).encode()
        parts += (b"$%d" % len(encoded), encoded)
    parts.append(b"")
    return b"\r\n".join(parts)


class _Lane:
    """The connection to one partition, and what Redis has confirmed there."""

    def __init__(self, settings: Settings, producer: str, prefix: str) -> None:
        self._connected = self._may_be_stale = False
        self._used_s = 0.0
        # Kept: with sentinels and on a cluster the connection asks its pool for the address.
        self._pool: Any = make_pool(
            settings.redis_url.secret, key=prefix, reply_timeout_s=5.0, connect_timeout_s=_CONNECT_TIMEOUT_S
        )
        self._connection: Any = self._pool.make_connection()  # the driver's types omit its methods
        # A slot that moves refuses a script with a key that exists and one that never does, which else stops half-way.
        guards = (f"{prefix}:layout", f"{prefix}:never") if settings.redis_url.is_cluster else ()
        keys = (f"{prefix}:traces", f"{prefix}:producer:{producer}", f"{prefix}:caps", f"{prefix}:producers", *guards)
        self._keys: tuple[Argument, ...] = (len(keys), *keys)
        # Applies only if no worker runs: workers remove a producer's hash two days after its last batch.
        self._constants: tuple[Argument, ...] = (producer, settings.max_stream, 30 * 24 * 3600, settings.service)
        self._number = self._confirmed = self._newly_confirmed = 0
        self._kinds = ""
        self._arguments: list[Argument] = []

    def send(self, number: int, entries: Sequence[Entry]) -> None:
        """Send the entries of a batch."""
        if number > self._number:
            # Not before: the batch is sent again until all partitions have it, and one may have lost it meanwhile.
            self._confirmed += self._newly_confirmed
            self._number, self._newly_confirmed = number, 0
        self._kinds = "".join(entry.kind.value for entry in entries)
        payloads = (entry.payload for entry in entries)
        self._arguments = [number, *self._constants, self._confirmed, self._kinds, *payloads]
        if self._connected and monotonic() - self._used_s > _IDLE_S:
            self.disconnect()
        self._may_be_stale = self._connected
        try:
            self._send("EVALSHA", _DIGEST)
        except (LostConnectionError, OSError):
            if not self._may_be_stale:
                raise
            self.disconnect()

    def finish(self) -> None:
        """Wait for the confirmation; while the slot moves, send the batch again."""
        for wait_s in (*_MOVING_WAITS_S, None):
            try:
                if not self._connected:
                    self._send("EVALSHA", _DIGEST)
                self._read()
                break
            except (LostConnectionError, OSError, MovedError) as error:
                # An idle connection may have been cut, or its slot has moved, which is no failure yet. Sending again is
                # safe: the script appends a number once.
                if not self._may_be_stale or wait_s is None:
                    raise
                self.disconnect()
                self._may_be_stale = False
                if isinstance(error, MovedError):
                    self._pool.sentinel_manager.prefer(error.node_addr)
            except (AskError, TryAgainError):
                # Nothing of the script has run.
                if wait_s is None:
                    raise
                sleep(wait_s)
                self._send("EVALSHA", _DIGEST)
        self._used_s = monotonic()
        self._newly_confirmed = self._kinds.count(Kind.TRACE.value)

    def ask(self, *command: Argument) -> Any:
        """Run one command."""
        self._connect()
        self._connection.send_packed_command([pack(*command)])
        return self._connection.read_response()

    def disconnect(self) -> None:
        """Close the connection."""
        self._connected = False
        self._connection.disconnect()

    def _read(self) -> None:
        try:
            self._connection.read_response()
        except NoScriptError:
            self._send("EVAL", _SCRIPT)
            self._connection.read_response()

    def _send(self, command: str, script: Argument) -> None:
        self._connect()
        self._connection.send_packed_command([pack(command, script, *self._keys, *self._arguments)])

    def _connect(self) -> None:
        if not self._connected:
            with block_forks_during_connect():
                self._connection.connect()
            self._connected = True


class RedisStream:
    """Appends numbered batches, on a cluster to the partitions of their entries. Used by one thread."""

    def __init__(self, settings: Settings, producer: str) -> None:
        self._make_lane = partial(_Lane, settings, producer)
        self._prefix, is_cluster = settings.prefix, settings.redis_url.is_cluster
        # Made here, where forks are held off: the driver imports further modules for its first connection.
        self._lanes = [self._make_lane(partition_prefix(self._prefix, 0) if is_cluster else self._prefix)]
        self._is_counted = not is_cluster

    def partitions(self) -> int:
        """Return how many partitions there are; on a cluster ``DeliveryError`` until the first worker wrote it."""
        if not self._is_counted:
            with self._translated_errors():
                stored = self._lanes[0].ask("GET", f"{partition_prefix(self._prefix, 0)}:partitions")
            if not (stored and stored.isdigit() and 0 < int(stored) <= MAX_PARTITIONS):
                # Not guessed: in a partition that no worker reads the traces would be lost.
                raise DeliveryError("the cluster has no number of partitions yet: start a worker, which writes it")
            further = range(1, int(stored))
            self._lanes += [self._make_lane(partition_prefix(self._prefix, number)) for number in further]
            self._is_counted = True
        return len(self._lanes)

    def append(self, batch: Batch, meanwhile: Callable[[], None]) -> None:
        """Append a batch unless it is in the stream already, and run `meanwhile` while Redis works.

        ``DeliveryError`` without a confirmation: the batch may be in the stream or not, or a part of it; only the same
        batch under the same number may follow.
        """
        count = self.partitions()
        parts: Mapping[int, Sequence[Entry]] = {0: batch.entries}
        if count > 1:
            numbers = [entry.place % count for entry in batch.entries]
            parts = {
                number: [entry for entry, own in zip(batch.entries, numbers, strict=True) if own == number]
                for number in dict.fromkeys(numbers)
            }
        lanes = [self._lanes[number] for number in parts]
        with self._translated_errors():
            for lane, entries in zip(lanes, parts.values(), strict=True):
                lane.send(batch.number, entries)
            meanwhile()
            for lane in lanes:
                lane.finish()

    def disconnect(self) -> None:
        """Close the connections; the next batch opens others."""
        # After an error a late reply would answer the next command, and after a failover the connection leads to a
        # replica, which cannot write.
        for lane in self._lanes:
            lane.disconnect()

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except (RedisError, OSError) as error:
            self.disconnect()
            # Redis 6.2 puts the code of an error within a script into the middle of a sentence.
            is_full = isinstance(error, OutOfMemoryError) or "-OOM " in str(error)
            kind = RedisFullError if is_full else DeliveryError
            raise kind("OutOfMemoryError" if is_full else _describe(error)) from error
        except BaseException:
            self.disconnect()
            raise


def _describe(error: Exception) -> str:
    # Error texts are not quoted: Redis repeats arguments in some, and the driver addresses.
    name, text = type(error).__name__, str(error).lower()
    if isinstance(error, RedisError) and (fix := next((fix for part, fix in _FIXES.items() if part in text), None)):
        return f"{name}: {fix}"
    if isinstance(error, MovedError):
        return f"{name}: Redis is a cluster, or its slots have moved; write redis_url as redis+cluster://host:port"
    if isinstance(error, ResponseError):
        code = str(error).partition(" ")[0]
        return f"{name} {code}" if code.isalpha() and code.isupper() else name
    reason = error.__cause__ or error.__context__
    return f"{name}: {reason.strerror}" if isinstance(reason, OSError) and reason.strerror else name
