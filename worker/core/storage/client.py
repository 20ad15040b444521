"""Redis client and scripts; translates redis-py's errors: callers look at one only as ``__cause__``.

    StoreError          Redis did not answer or refused; the message names no address and no payload
    └── LayoutError     another version of TraceJudge wrote the keys

Every method of `Store`, and every function that is given a store, raises StoreError; callers keep their work and try
again.
Scripts can be repeated: what took effect once does not take effect twice. Those that lease then lease further items.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import redis
import structlog
from redis.exceptions import (
    AskError,
    AuthenticationError,
    ClusterCrossSlotError,
    MovedError,
    NoScriptError,
    OutOfMemoryError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as LostConnectionError

from judges.core.faults import ReportedError
from tracejudge.delivery.transport import make_pool
from tracejudge.ids import partition_prefix
from tracejudge.redis_url import cluster_url, mask_url
from worker.core.features import installed
from worker.core.storage.cluster import PartitionClient
from worker.core.storage.keys import Keys

log = structlog.get_logger("tracejudge.consumers")
Entry = tuple[bytes, dict[bytes, bytes] | None]
"""Id and fields of a stream entry; fields are None when the entry was trimmed away."""
# Version of all keys under the prefix except those that services write.
LAYOUT: Final = b"2"
_SOCKET_TIMEOUT_S: Final = 10.0
# Of a text that waits for its script, which is sent with it, also in each further attempt.
_TEXT_TTL_S: Final = 60
# Far longer than a live consumer with something to read stays silent.
IDLE_MS: Final = 15 * 60 * 1000
# Prefix of the errors of scripts/guard.lua, which name only keys and commands.
_REFUSED: Final = "REFUSED "
_FORBIDDEN: Final = "the Redis user lacks a right: tracejudge doctor names it"
_MEANINGS: Final = {
    "WRONGTYPE": "a key of ours in Redis holds another type: find it with redis-cli --scan and TYPE, then delete it",
    "NOPERM": _FORBIDDEN,
    "MISCONF": "Redis cannot write to its disk and refuses writes: free the disk, or see the log of Redis",
    "CLUSTERDOWN": "the cluster serves not all of its slots: see CLUSTER INFO of its nodes",
    "cluster support": "this Redis is no cluster: write redis_url as redis://host:port",
    "DB index": "Redis has no database of this number: correct the number at the end of the URL, 0 to 15 as a rule",
    # Redis 6.2 writes these words if a script runs the command.
    "can't run this command": _FORBIDDEN,
    "has no permissions": _FORBIDDEN,
}
# Errors of a server that is not, no longer, or not yet, the master.
_NO_MASTER: Final = ("READONLY", "UNBLOCKED", "MASTERDOWN", "LOADING", "CLUSTERDOWN")
_INCLUDE: Final = re.compile(r"^-- @include (.+)$", re.MULTILINE)
_SECTION: Final = re.compile(r"^-- @script (\w+)$", re.MULTILINE)


class StoreError(ReportedError):
    """Redis did not answer, or refused. The message names the kind of failure, never an address or a payload."""

    def __init__(self, text: str, address: str = "") -> None:
        super().__init__(text)
        self.address = address  # Where Redis is, without user and password, for a log.


class StoreFullError(StoreError):
    """Redis refused a write because its memory is full."""

    def __init__(self, address: str = "") -> None:
        super().__init__("Redis is full: raise its maxmemory, or lower our caps", address)


class ScriptCall(NamedTuple):
    """One call of a script by name."""

    script: str
    keys: Sequence[str]
    arguments: Sequence[bytes | str | int | float]


class LayoutError(StoreError):
    """The keys under the prefix were written by another version."""


def connect(url: str, key: str = "") -> "redis.Redis":
    """Make a client that never retries by itself: whether to repeat a write is decided here, not in the driver."""
    # Each new connection asks sentinels or nodes of a cluster for the master, on a cluster for that of the key's slot.
    pool = make_pool(
        url,
        key=key,
        # One thread serves all partitions, so a master that hangs must not hold up the heartbeats of others.
        reply_timeout_s=_SOCKET_TIMEOUT_S if cluster_url(url) is None else 3.0,
        connect_timeout_s=3.0,
        # Each read of a socket releases the GIL; by default large replies are read in parts of 64 kB.
        socket_read_size=1 << 20,
        health_check_interval=30,
    )
    return (redis.Redis if cluster_url(url) is None else PartitionClient).from_pool(pool)


@cache
def script_sources() -> dict[str, str]:
    """Read the scripts of the core and of all features, `scripts/*.lua`, by name."""
    # A line `-- @script NAME` begins a script. The text before the first one is shared by all scripts of the file.
    # `-- @include FILE …` puts the shared text of other files, in any of the folders, before it, each once. Redis gets
    # one text per script, because scripts cannot call each other.
    packages = ("worker.core.storage", *(feature.scripts for feature in installed() if feature.scripts))
    parsed = {
        path.name.removesuffix(".lua"): _SECTION.split(path.read_text(encoding="utf-8"))
        for package in packages
        for path in files(package).joinpath("scripts").iterdir()
        if path.name.endswith(".lua")
    }

    def with_includes(text: str, seen: set[str]) -> str:
        parts = []
        for name in " ".join(_INCLUDE.findall(text)).split():
            if name not in seen:
                seen.add(name)
                parts.append(with_includes(parsed[name][0], seen))
        return "\n".join((*parts, text))

    return {
        name: with_includes(f"{shared}\n{text}", {file})
        for file, (shared, *sections) in parsed.items()
        for name, text in zip(sections[::2], sections[1::2], strict=True)
    }


class Store:
    """One partition: a Redis with our scripts, or a part of a cluster. Safe to share between threads."""

    def __init__(self, url: str, keys: Keys, partition: int = 0) -> None:
        """Read all scripts, so that an upgrade on disk changes no running process. The first command connects."""
        self.keys = keys
        self.partition = partition  # Its number, from 0.
        self.address = mask_url(url)  # Where it is, without user and password.
        # None if it is the only one, because in a cycle connections would stay open until garbage is collected.
        self._partitions: tuple[Store, ...] | None = None
        self.is_away = False  # Whether it did not answer when it was last asked.
        self._redis = connect(url, keys.layout)
        sources = script_sources()
        # A script that touches a key which has moved away stops half-way. One that declares a key that exists, and one
        # that does not, is refused as a whole while the slot moves. The script itself does not see the two.
        self._guards: tuple[str, ...] = ()
        if cluster_url(url) is not None:
            self._guards = keys.layout, keys.never
            sources = {name: f"KEYS[#KEYS] = nil KEYS[#KEYS] = nil {source}" for name, source in sources.items()}
        self._scripts = {name: self._redis.register_script(source) for name, source in sources.items()}
        self._is_open = False

    @property
    def partitions(self) -> "tuple[Store, ...]":
        """All partitions of the installation in order, this one included."""
        return (self,) if self._partitions is None else self._partitions

    @partitions.setter
    def partitions(self, stores: "tuple[Store, ...]") -> None:
        self._partitions = stores if len(stores) > 1 else None

    @property
    def first(self) -> "Store":
        """The first partition, which keeps all data that belong to no trace."""
        return self.partitions[0]

    @property
    def reachable(self) -> "tuple[Store, ...]":
        """All partitions but those that did not answer when they were last asked; this one in any case."""
        return tuple(store for store in self.partitions if store is self or not store.is_away)

    def own_key(self, key: str) -> str:
        """Return the key of this partition with the name of a key of the first."""
        return f"{self.keys.prefix}{key.removeprefix(self.first.keys.prefix)}"

    def probe(self, url: str) -> None:
        """Ask whether Redis answers within 2 s."""
        pool = make_pool(url, key=self.keys.layout, reply_timeout_s=2.0, connect_timeout_s=2.0)
        with redis.Redis.from_pool(pool) as client:
            self.call(lambda _: client.ping())

    def open(self) -> None:
        """Check the keys' version and partitions, or raise ``LayoutError``, and load all scripts into Redis."""
        wrong = self.call(lambda client: find_wrong_keys(client, self))
        if wrong is not None:
            raise LayoutError(wrong)
        self._load()
        self._is_open = True

    def run(
        self,
        script: str,
        keys: Sequence[str],
        arguments: Iterable[bytes | str | int | float],
        texts: Mapping[str, bytes] = MappingProxyType({}),
    ) -> Any:
        """Run a script, after texts are written, which last a minute unless it keeps them, or ``LayoutError``."""
        if not self._is_open:
            # Redis was away when the process began, and nothing is written before the version of the keys is known.
            self.open()
        sha, encoded = self._scripts[script].sha, list(arguments)
        declared = (*keys, *self._guards)

        def run(client: "redis.Redis") -> Any:
            try:
                if not texts:
                    return client.evalsha(sha, len(declared), *declared, *encoded)
                pipe = client.pipeline(transaction=False)
                for name, text in texts.items():
                    pipe.set(name, text, ex=_TEXT_TTL_S, nx=True)
                return pipe.evalsha(sha, len(declared), *declared, *encoded).execute()[-1]
            except NoScriptError:
                # Redis was restarted, or another server is the master now.
                self._load()
                return client.evalsha(sha, len(declared), *declared, *encoded)

        return self.call(run)

    def run_each(self, calls: "Sequence[ScriptCall]") -> list[Any]:
        """Run scripts in one round trip; return their replies, or the ``StoreError`` of a script that failed."""
        if not self._is_open:
            self.open()

        def run(client: "redis.Redis", some: "Sequence[ScriptCall]") -> list[Any]:
            pipe = client.pipeline(transaction=False)
            for script, keys, arguments in some:
                declared = (*keys, *self._guards)
                pipe.evalsha(self._scripts[script].sha, len(declared), *declared, *arguments)
            replies: list[Any] = pipe.execute(raise_on_error=False)
            return replies

        replies = self.call(lambda client: run(client, calls))
        missing = [number for number, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if missing:
            self._load()
            again = self.call(lambda client: run(client, [calls[number] for number in missing]))
            for number, reply in zip(missing, again, strict=True):
                replies[number] = reply
        return [self._translate(reply) if isinstance(reply, RedisError) else reply for reply in replies]

    def _load(self) -> None:
        self.pipeline(lambda pipe: [pipe.script_load(script.script) for script in self._scripts.values()])

    def pipeline(self, add: "Callable[[redis.client.Pipeline], object]") -> list[Any]:
        """Run the commands that ``add`` puts into a pipeline, not as a transaction; return their replies."""

        def run(client: "redis.Redis") -> list[Any]:
            pipe = client.pipeline(transaction=False)
            add(pipe)
            return pipe.execute()

        replies: list[Any] = self.call(run)
        return replies

    def read_hashes(self, names: Iterable[str]) -> list[dict[bytes, bytes]]:
        """Read hashes at once; one that does not exist is empty."""
        return self.pipeline(lambda pipe: [pipe.hgetall(name) for name in names])

    def call(self, command: "Callable[[redis.Redis], Any]") -> Any:
        """Run commands on the client, and translate the driver's errors."""
        try:
            reply = command(self._redis)
        except RedisError as error:
            self.is_away = isinstance(error, LostConnectionError | redis.TimeoutError)
            raise self._translate(error) from error
        self.is_away = False
        return reply

    def _translate(self, error: RedisError) -> "StoreError":
        # In Redis 6.2 the code is within the error of a script.
        text = f"{error.status_code} {error}"
        if any(code in text for code in _NO_MASTER):
            # Another server may be the master now, and each new connection asks the sentinels or resolves the name.
            self._redis.connection_pool.disconnect(inuse_connections=False)
        # The driver recognises OOM in replies to commands but not, since Redis 6.2, within the error of a script.
        is_full = isinstance(error, OutOfMemoryError) or (isinstance(error, ResponseError) and "OOM" in str(error))
        # The configured nodes of a cluster may be well, and the master of this partition away.
        address = with_master(self.address, self._redis.connection_pool) if self._guards else self.address
        return StoreFullError(address) if is_full else StoreError(_describe(error), address)

    def now_ms(self) -> int:
        """Return the time by Redis' clock, in milliseconds since the epoch."""
        now: int = self.call(redis_now_ms)
        return now

    def acquire_lock(self, lock: str, holder: str, length_ms: int) -> bool:
        """Acquire or keep a lock that one worker holds at a time; return whether it is held."""
        return bool(self.run("hold", (lock,), (holder, length_ms)))

    def release_lock(self, lock: str, holder: str) -> None:
        """Release a lock if it is held."""
        self.run("hold", (lock,), (holder, 0))

    def make_group(self, stream: str, group: str) -> None:
        """Create a consumer group unless it exists; one that was destroyed continues at its last acknowledged entry."""
        keys = self.keys
        names = (stream, keys.account_all, keys.groups, keys.layout, keys.partitions)
        name = f"{stream.removeprefix(keys.prefix)[1:]}:{group}"
        count = len(self.partitions) if self is self.first else ""
        self.run("open_group", names, (group, name, int(stream == keys.verdicts), LAYOUT, count))

    def read_group(self, stream: str, group: str, consumer: str, *, count: int, block_ms: int) -> list[Entry]:
        """Read new entries; waits up to ``block_ms`` for the first one."""
        try:
            reply = self.call(
                lambda client: client.xreadgroup(group, consumer, {stream: ">"}, count=count, block=block_ms)
            )
        except StoreError as error:
            if not isinstance(error.__cause__, ResponseError) or "NOGROUP" not in str(error.__cause__):
                raise
            # Redis came back without its data.
            self.make_group(stream, group)
            return []
        return list(reply[0][1]) if reply else []

    def claim_stale(
        self, stream: str, group: str, consumer: str, *, idle_ms: int, count: int, max_bytes: int = 8 * 1024 * 1024
    ) -> list[Entry]:
        """Claim entries that were not acknowledged for ``idle_ms``; no further one after ``max_bytes``."""
        reply = self.run("claim", (stream,), (group, consumer, count, max_bytes, idle_ms))
        return [
            (entry_id, dict(zip(fields[::2], fields[1::2], strict=True)) if fields else None)
            for entry_id, fields in reply
        ]

    def retire_consumers(self, stream: str, group: str, idle_ms: int = IDLE_MS) -> int:
        """Remove consumers with nothing pending that were silent for ``idle_ms``, at most 1,000; return how many."""
        return int(self.run("retire", (stream,), (group, idle_ms, 1_000)))

    def remove_consumer(self, stream: str, group: str, consumer: str) -> None:
        """Remove the caller's own consumer unless entries are pending there; if Redis is away, others retire it."""
        try:
            self.run("leave", (stream,), (group, consumer))
        except StoreError as error:
            log.debug("consumer not removed from its group", group=group, error=str(error))

    def close(self) -> None:
        """Close all connections."""
        self._redis.close()


def make_stores(url: str, prefix: str, count: int) -> tuple[Store, ...]:
    """Make the stores of all partitions of an installation."""
    if cluster_url(url) is None:
        return (Store(url, Keys(prefix)),)
    stores = tuple(Store(url, Keys(partition_prefix(prefix, number)), number) for number in range(count))
    for store in stores:
        store.partitions = stores
    return stores


def find_wrong_keys(client: "redis.Redis", store: Store) -> str | None:
    """Return an error text if another version, or one with other partitions, has written the keys, else None."""
    wrong = find_foreign_layout(client, store.keys)
    return find_wrong_count(client, store) if wrong is None and store is store.first else wrong


def find_wrong_count(client: "redis.Redis", store: Store) -> str | None:
    """Return an error text if a worker with another number of partitions has written the keys, else None."""
    name, count = store.keys.partitions, len(store.partitions)
    stored: Any = client.get(name)
    if stored is None or stored == str(count).encode():
        return None
    number = stored.decode(errors="replace")
    return f"Redis has {number} partitions by its key {name}, not {count}; set partitions to {number}"


def find_foreign_layout(client: "redis.Redis", keys: Keys) -> str | None:
    """Return an error text if another version has written under the prefix, else None."""
    how = "let that version finish its work, then delete its keys or flush this Redis; or set another prefix"
    layout: Any = client.get(keys.layout)
    if layout is not None:
        return None if layout == LAYOUT else f"Redis holds {keys.prefix}:* of another version of TraceJudge; {how}"
    # Scans only once per prefix, or after a flush. Version 0.1 had a key per evaluation, so the first reply holds one.
    old = next(client.scan_iter(f"{keys.prefix}:[cl][he][od][sg]*", count=1_000), None)
    return None if old is None else f"Redis holds {keys.prefix}:* of TraceJudge 0.1; {how}"


def with_master(address: str, pool: "redis.ConnectionPool") -> str:
    """Add the master that a pool with several servers has found to their address."""
    master = getattr(pool, "master_address", None)
    return address if master is None else f"{address}, master {master[0]}:{master[1]}"


def redis_now_ms(client: "redis.Redis") -> int:
    """Return the time of Redis, which dates entries, leases and dead letters, in milliseconds since the epoch."""
    seconds, microseconds = client.time()
    return int(seconds) * 1000 + microseconds // 1000


def _describe(error: RedisError) -> str:
    """Name a failure without the driver's text, which may hold an address or a command."""
    text = str(error)
    if isinstance(error, AuthenticationError):
        return "Redis refuses the user or the password"
    if text.startswith(_REFUSED):
        return f"Redis refuses a script: {text.removeprefix(_REFUSED)}"
    if isinstance(error, TryAgainError) or (isinstance(error, AskError) and not isinstance(error, MovedError)):
        return "a slot is moving to another master of the cluster"
    if isinstance(error, MovedError | ClusterCrossSlotError):
        return "Redis is a cluster, or its slots have moved: write redis_url as redis+cluster://host:port"
    # The driver removes the codes that it knows from the text.
    meaning = next((meaning for words, meaning in _MEANINGS.items() if words in f"{error.status_code} {text}"), None)
    if meaning or isinstance(error, ResponseError):
        return meaning or f"Redis refused the command ({text.split(' ', 1)[0][:32]})"
    return f"Redis does not answer ({type(error).__name__})"
