"""Checks of Redis and the broker: whether they accept the login, take writes, and keep the data."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import redis
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    InvalidResponse,
    NoPermissionError,
    RedisError,
    ResponseError,
)

from tracejudge.delivery.transport import make_pool
from tracejudge.redis_url import mask_url, parse_redis_url
from worker.base.doctor.finding import Cause, Finding, broken, cause_of, chain, ok, warning
from worker.core.config.checks import addresses
from worker.core.config.settings import MIB, Settings
from worker.core.storage.client import Store, find_wrong_keys, with_master
from worker.core.storage.keys import Keys

Command = tuple[str, ...]

# This is longer than for Redis, because AMQP needs several round trips and often TLS.
_CONNECT_S: Final = 4.0
_TIMEOUT_S: Final = 2.0
_FULL_SHARE: Final = 0.98
_WARN_OFF_S: Final = 5.0
_BROKEN_OFF_S: Final = 60.0
_MAX_NAMED: Final = 8


def connect(url: str, key: str = "") -> "redis.Redis":
    """Make a client with shorter timeouts than a worker's, on a cluster of the master that owns the slot of a key."""
    pool = make_pool(url, key=key, reply_timeout_s=_TIMEOUT_S, connect_timeout_s=_TIMEOUT_S)
    return redis.Redis.from_pool(pool)


def reach(name: str, url: str, key: str = "") -> Finding:
    """Check that a Redis answers and accepts the login."""
    is_cluster = parse_redis_url(url).is_cluster
    with connect(url, key) as client:
        try:
            client.ping()
        except NoPermissionError:
            pass  # the login was accepted; missing permissions are reported by their own check
        except RedisError as error:
            where = with_master(mask_url(url), client.connection_pool) if is_cluster else mask_url(url)
            cause = _answer(error, where) or cause_of(error, where, "Redis")
            if url.startswith("rediss") and any(isinstance(link, TimeoutError) for link in chain(error)):
                # A server without TLS takes the handshake for the beginning of a command, and waits for its rest.
                cause = cause._replace(fix=f"use redis:// if it speaks no TLS; else {cause.fix}")
            return broken(name, *cause)
        return ok(name, with_master(mask_url(url), client.connection_pool) if is_cluster else mask_url(url))


_ANSWERS: Final[Sequence[tuple[type[RedisError], str, str]]] = (
    (
        InvalidResponse,
        "{where} is no Redis: another program answers there",
        "correct host and port; if it is a Redis with TLS, use rediss://",
    ),
    (
        BusyLoadingError,
        "{where} is still loading its data",
        "wait until it has finished; large files take minutes",
    ),
)


def _answer(error: RedisError, where: str) -> Cause | None:
    text = str(error)
    if isinstance(error, AuthenticationError) or "NOAUTH" in text or "WRONGPASS" in text:
        fix = "correct user and password in the URL, as redis://user:password@host:6379/0"
        return Cause(f"{where} refuses the user or the password, or asks for one", fix)
    for kind, what, fix in _ANSWERS:
        if isinstance(error, kind):
            return Cause(what.format(where=where), fix)
    if "max number of clients" in text:
        return Cause(f"{where} accepts no further client", "raise maxclients there, or find who holds so many")
    if isinstance(error, ResponseError):
        said, fix = text.split(" ", 1)[0][:32], "see its log"
        if "MISCONF" in text:
            said, fix = "it cannot write to its disk", "free the disk, or see the log of Redis"
        elif "cluster support" in text:
            said, fix = "it is no cluster", "set redis_url to redis://host:port"
        elif "DB index" in text:
            said, fix = (
                "it has no database of this number",
                "correct the number at the end of the URL, 0 to 15 as a rule",
            )
        return Cause(f"{where} refuses the connection ({said})", fix)
    if "closed by server" in text and not any(isinstance(link, OSError) for link in chain(error)):
        return Cause(f"{where} closes the connection", "perhaps it speaks TLS: use rediss://")
    return None


def server(url: str, key: str = "") -> Sequence[Finding]:
    """Check version, role, eviction, persistence and memory."""
    with connect(url, key) as client:
        try:
            info: Mapping[str, Any] = client.info()
        except NoPermissionError:
            fix = "allow the user +info, or ask who runs Redis for version, eviction and persistence"
            return [warning("redis keeping", "the user may not read it (INFO)", fix)]
        try:
            snapshots = bool(client.config_get("save").get("save"))
        except ResponseError:
            snapshots = None
    policy = str(info.get("maxmemory_policy", "noeviction"))
    eviction = ok("redis eviction", policy)
    if policy != "noeviction":
        # The ledger has no second copy, so a verdict whose record was evicted would count again.
        when = "" if info.get("maxmemory") else " as soon as maxmemory is set"
        what = f"maxmemory-policy is {policy}: Redis deletes the records that make evaluations count once{when}"
        eviction = broken("redis eviction", what, "set maxmemory-policy noeviction, in redis.conf too")
    role = ok("redis role", "master")
    if info.get("redis_mode") == "cluster" and not parse_redis_url(url).is_cluster:
        role = broken("redis role", "it is a node of a cluster", "set redis_url to redis+cluster://host:port")
    elif info.get("role") in {"slave", "replica"}:
        fix = "set redis_url to the address of the master, or let sentinels find it (redis+sentinel://)"
        role = broken("redis role", "it is a replica, which takes no writes", fix)
    return [version(info), role, eviction, _persistence(info, snapshots=snapshots), memory(info)]


def version(info: Mapping[str, Any]) -> Finding:
    """Check the version: the scripts use commands of Redis 6.2."""
    text = str(info.get("redis_version", "0"))
    numbers = tuple(int(part) for part in text.split(".")[:2] if part.isdecimal())
    if numbers < (6, 2):
        return broken("redis version", f"it is {text}", "use Redis 6.2 or newer")
    return ok("redis version", text)


def _persistence(info: Mapping[str, Any], *, snapshots: bool | None) -> Finding:
    """Check persistence; ``snapshots`` is None if the user may not ask."""
    name, fix = "redis persistence", "set appendonly yes and appendfsync everysec, in redis.conf too"
    room = "make room on its disk"
    if info.get("aof_enabled"):
        failed = any(info.get(key) == "err" for key in ("aof_last_write_status", "aof_last_bgrewrite_status"))
        return broken(name, "its last write to disk failed", room) if failed else ok(name, "appendonly")
    if snapshots and info.get("rdb_last_bgsave_status") == "err":
        return broken(name, "its last snapshot failed, and it may refuse writes", room)
    if snapshots:
        return warning(name, "snapshots alone: a crash loses the writes since the last one", fix)
    if snapshots is None:
        return warning(name, "appendonly is off, and the user may not ask for snapshots (CONFIG GET save)", fix)
    return broken(name, "it keeps nothing on disk: a restart loses all traces and the accounting", fix)


def memory(info: Mapping[str, Any]) -> Finding:
    """Check how far Redis is from its memory limit, at which it refuses writes."""
    used, bound = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    if not bound:
        return ok("redis memory", f"{used / MIB:,.0f} MiB used, no limit (maxmemory 0)")
    what = f"{used / MIB:,.0f} of {bound / MIB:,.0f} MiB used"
    fix = "raise maxmemory, or lower max_stream_bytes, max_outbox and retention"
    if used >= _FULL_SHARE * bound:
        return broken("redis memory", f"{what}: writes are refused", fix)
    return warning("redis memory", what, fix) if used >= 0.8 * bound else ok("redis memory", what)


def foreign_keys(store: Store) -> Sequence[Finding]:
    """Check whether another version, or another number of partitions, has written: a worker would not start."""
    wrong = store.call(lambda client: find_wrong_keys(client, store))
    what, _, fix = (wrong or "").partition("; ")
    return [broken("redis keys", what, fix)] if wrong else []


def clock(url: str, key: str = "", now: Callable[[], float] = time.time) -> Sequence[Finding]:
    """Compare this machine's clock with the clock of Redis."""
    with connect(url, key) as client:
        before = now()
        seconds, micros = client.time()
        after = now()
    off_s = (before + after) / 2 - (seconds + micros / 1e6)
    what = f"this machine's clock is {abs(off_s):.1f} s {'ahead of' if off_s > 0 else 'behind'} Redis'"
    fix = "set both clocks by NTP (chrony, systemd-timesyncd)"
    if abs(off_s) > _BROKEN_OFF_S:
        return [broken("clock", what, fix)]
    return [warning("clock", what, fix)] if abs(off_s) > _WARN_OFF_S else [ok("clock", what)]


def broker(settings: Settings) -> Sequence[Finding]:
    """Check that messages can be sent; one attempt, because Celery would retry for ever."""
    url = settings.broker_url or settings.redis_url
    if ";" in url or urlsplit(url).scheme not in {"redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel"}:
        return [_connect_by_kombu(settings, addresses(url))]
    reached = reach("broker", url)
    if reached.result != "ok":
        return [reached]
    return [reached, permissions("broker permissions", url, broker_commands(settings.prefix))]


def _connect_by_kombu(settings: Settings, where: str) -> Finding:
    from kombu import Connection  # type: ignore[attr-defined] # noqa: PLC0415 - for a broker beside Redis alone
    from kombu.exceptions import KombuError  # noqa: PLC0415 - as above

    from worker.core.queue.notify import broker as celery_broker  # noqa: PLC0415 - as above

    url, transport_options, use_ssl = celery_broker(settings)
    options = {"connect_timeout": _CONNECT_S, "ssl": use_ssl, "transport_options": transport_options}
    try:
        with Connection(url, **options) as connection:  # type: ignore[no-untyped-call]
            connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0, timeout=_CONNECT_S)
    except ImportError as error:
        return broken("broker", f"its driver is not installed ({error.name})", "install what Celery needs for it")
    except (KombuError, OSError) as error:
        if any("AccessRefused" in type(link).__name__ for link in chain(error)):
            fix = "correct user, password and virtual host in TRACEJUDGE_BROKER_URL"
            return broken("broker", f"{where} refuses the user or the password", fix)
        return broken("broker", *cause_of(error, where, "the broker"))
    return ok("broker", where)


def permissions(name: str, url: str, commands: Sequence[Command], key: str = "") -> Finding:
    """Check that the user may run all these commands."""
    with connect(url, key) as client:
        # Use a bare connection, because the client would parse the answers as results of the commands.
        connection = client.connection_pool.get_connection()
        try:
            refused = _find_refused(connection, commands)
        finally:
            # Where DISCARD is refused, the end of the connection drops the transaction.
            connection.disconnect()
            client.connection_pool.release(connection)
    # Of these commands ACL rules name the subcommand as well.
    names = (
        " ".join(words[:2]) if words[0] in {"SCRIPT", "MEMORY", "XINFO", "XGROUP"} else words[0] for words in refused
    )
    missing = list(dict.fromkeys(names))
    if not missing:
        return ok(name, f"{len(commands)} commands")
    shown = ", ".join(missing[:_MAX_NAMED]) + (
        f" and {len(missing) - _MAX_NAMED} more" if len(missing) > _MAX_NAMED else ""
    )
    return broken(name, f"the user may not run: {shown}", "let the user run these on keys of the prefix (ACL SETUSER)")


def _find_refused(connection: Any, commands: Sequence[Command]) -> list[Command]:
    # Before the transaction, since EXEC would run it.
    unended = [] if _is_allowed(connection, ("EXEC",)) else [("EXEC",)]
    connection.send_command("MULTI")
    try:
        is_open = connection.read_response() == b"OK"
    except ResponseError:
        is_open = False
    if not is_open:
        # Outside a transaction the commands would be run, not only queued.
        return [("MULTI",), *unended]
    refused = [command for command in commands if not _is_allowed(connection, command)]
    _is_allowed(connection, ("DISCARD",))
    return [*unended, *refused]


def _is_allowed(connection: Any, command: Command) -> bool:
    connection.send_command(*command)
    try:
        connection.read_response()
    except NoPermissionError:
        return False
    except ResponseError as error:
        # A renamed command, or EXEC, which answers with the refusals of the transaction. Other errors are expected.
        text = str(error).lower()
        return "unknown command" not in text and "noperm" not in text
    return True


def worker_commands(keys: Keys) -> list[Command]:
    """List the commands that workers run, scripts included, each in a form that Redis queues."""
    commands = (
        "PING|TIME|SCAN 0|EVALSHA {zeros} 0|MEMORY USAGE {key}|EXISTS {key}|DEL {key}|EXPIRE {key} 1|PEXPIRE {key} 1|"
        "TTL {key}|GET {key}|MGET {key}|SET {key} a|PERSIST {key}|STRLEN {key}|HSET {key} a b|"
        "HSETNX {key} a b|HGET {key} a|HMGET {key} a|HGETALL {key}|HDEL {key} a|HEXISTS {key} a|HINCRBY {key} a 1|"
        "HLEN {key}|HVALS {key}|HSTRLEN {key} a|HSCAN {key} 0|ZADD {key} 1 a|ZREM {key} a|ZCARD {key}|"
        "ZINCRBY {key} 1 a|ZCOUNT {key} 0 1|ZRANGE {key} 0 0|ZREVRANGE {key} 0 0|ZRANGEBYSCORE {key} 0 1|"
        "ZSCORE {key} a|ZMSCORE {key} a|XADD {key} * a b|"
        "XLEN {key}|XTRIM {key} MAXLEN 1|XRANGE {key} - +|XREVRANGE {key} + -|XREAD STREAMS {key} 0|XDEL {key} 1-1|"
        "XINFO STREAM {key}|XINFO GROUPS {key}|XINFO CONSUMERS {key} a|XGROUP CREATE {key} a 0|"
        "XGROUP DELCONSUMER {key} a b|XREADGROUP GROUP a b STREAMS {key} >|XACK {key} a 1-1|XPENDING {key} a|"
        "XGROUP SETID {key} a 0-1|XCLAIM {key} a b 0 1-1"
    )
    scripts = [("EVAL", "return 1", "0"), ("SCRIPT", "LOAD", "return 1")]
    return [*scripts, *_commands(commands, key=f"{keys.prefix}:doctor", zeros="0" * 40)]


def broker_commands(prefix: str) -> list[Command]:
    """List the commands that Celery runs on a Redis that carries its messages."""
    commands = (
        "PING|LPUSH {queue} a|BRPOP {queue} 1|LLEN {queue}|SADD {binding} a|SMEMBERS {binding}|HSET unacked a b|"
        "HGET unacked a|HDEL unacked a|ZADD unacked_index 1 a|ZREM unacked_index a|ZREVRANGEBYSCORE unacked_index 1 0|"
        "SET unacked_mutex a|"
        # Remote control needs these, and without them Celery's consumer does not start.
        "PUBLISH /0.celery.pidbox a|PSUBSCRIBE /0.celery.pidbox"
    )
    return _commands(commands, queue=f"{prefix}.judge.doctor", binding=f"_kombu.binding.{prefix}.judge")


def _commands(text: str, **names: str) -> list[Command]:
    return [tuple(word.format(**names) for word in command.split()) for command in text.split("|")]
