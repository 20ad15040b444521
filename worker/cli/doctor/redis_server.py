"""Redis itself: whether it lets us in, takes what we write, and keeps it."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import redis
from redis.exceptions import AuthenticationError, BusyLoadingError, NoPermissionError, RedisError, ResponseError

from tracejudge.connecting import make_pool
from worker.addresses import address
from worker.cli.doctor.connections import Cause, cause_of, chain
from worker.cli.doctor.finding import Finding, broken, ok, warning

__all__ = ["clock", "connect", "keeping", "reach"]

_OLDEST: Final = (6, 2)
_NEARLY_FULL: Final = 0.8
_FULL: Final = 0.98
_OFF_S: Final = 5.0
_FAR_OFF_S: Final = 60.0
_MIB: Final = 1 << 20
_TIMEOUT_S: Final = 2.0


def connect(url: str) -> "redis.Redis":
    """Make a client with less patience than a worker's."""
    return redis.Redis.from_pool(make_pool(url, reply_timeout_s=_TIMEOUT_S, connect_timeout_s=_TIMEOUT_S))


def reach(name: str, url: str) -> Finding:
    """See whether a Redis answers and lets us in."""
    with connect(url) as client:
        try:
            client.ping()
        except NoPermissionError:
            # It let us in; what is missing is another part's matter.
            pass
        except RedisError as error:
            return broken(name, *_refusal(error, url))
    return ok(name, address(url))


def keeping(url: str) -> Sequence[Finding]:
    """See whether it is a Redis that takes what we write, and keeps it."""
    with connect(url) as client:
        try:
            info: Mapping[str, Any] = client.info()
        except NoPermissionError:
            mend = "allow the user +info, or ask who runs Redis for version, eviction and persistence"
            return [warning("redis keeping", "we may not ask for it (INFO)", mend)]
        return [
            _version(info),
            _writable(info),
            _eviction(info),
            _persistence(info, snapshots=_snapshots(client)),
            _memory(info),
        ]


def clock(url: str, now: Callable[[], float] = time.time) -> Sequence[Finding]:
    """Compare this machine's clock with Redis'."""
    with connect(url) as client:
        before = now()
        seconds, micros = client.time()
        after = now()
    off_s = (before + after) / 2 - (seconds + micros / 1e6)
    what = f"this machine's clock is {abs(off_s):.1f} s {'ahead of' if off_s > 0 else 'behind'} Redis'"
    mend = "set both clocks by NTP (chrony, systemd-timesyncd)"
    if abs(off_s) > _FAR_OFF_S:
        return [broken("clock", what, mend)]
    return [warning("clock", what, mend)] if abs(off_s) > _OFF_S else [ok("clock", what)]


def _refusal(error: RedisError, url: str) -> Cause:
    where = address(url)
    cause = _said(error, where) or cause_of(error, where, "Redis")
    if url.startswith("rediss") and any(isinstance(each, TimeoutError) for each in chain(error)):
        # What speaks no TLS waits for the rest of what it takes for a command.
        return cause._replace(mend=f"use redis:// if it speaks no TLS; else {cause.mend}")
    return cause


def _said(error: RedisError, where: str) -> Cause | None:
    """Explain what Redis itself has answered."""
    text = str(error)
    if isinstance(error, AuthenticationError) or "NOAUTH" in text or "WRONGPASS" in text:
        mend = "correct user and password in the URL, as redis://user:password@host:6379/0"
        return Cause(f"{where} refuses the user or the password, or asks for one", mend)
    if isinstance(error, BusyLoadingError):
        return Cause(f"{where} is still loading its data", "wait until it has; large files take minutes")
    if "max number of clients" in text:
        return Cause(f"{where} has no room for another client", "raise maxclients there, or find who holds so many")
    if isinstance(error, ResponseError):
        return Cause(f"{where} refuses us ({text.split(' ', 1)[0][:32]})", "see its log")
    if "closed by server" in text and not any(isinstance(each, OSError) for each in chain(error)):
        return Cause(f"{where} closes the connection", "perhaps it speaks TLS: use rediss://")
    return None


def _version(info: Mapping[str, Any]) -> Finding:
    version = str(info.get("redis_version", "0"))
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if numbers < _OLDEST:
        return broken("redis version", f"it is {version}", "use Redis 6.2 or newer")
    return ok("redis version", version)


def _writable(info: Mapping[str, Any]) -> Finding:
    if info.get("redis_mode") == "cluster":
        mend = "use a Redis without cluster mode; several keys of ours change in one step"
        return broken("redis role", "it is part of a cluster", mend)
    if info.get("role") in {"slave", "replica"}:
        mend = "give redis_url the address of the master, or let sentinels find it (redis+sentinel://)"
        return broken("redis role", "it is a replica, which takes no writes", mend)
    return ok("redis role", "master")


def _eviction(info: Mapping[str, Any]) -> Finding:
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if policy == "noeviction":
        return ok("redis eviction", policy)
    when = "" if info.get("maxmemory") else " as soon as maxmemory is set"
    what = f"maxmemory-policy is {policy}: Redis throws away what counts evaluations once{when}"
    return broken("redis eviction", what, "set maxmemory-policy noeviction, in redis.conf too")


def _snapshots(client: "redis.Redis") -> bool | None:
    """Tell whether it writes snapshots; nothing where we may not ask."""
    try:
        return bool(client.config_get("save").get("save"))
    except ResponseError:
        return None


def _persistence(info: Mapping[str, Any], *, snapshots: bool | None) -> Finding:
    name, mend = "redis persistence", "set appendonly yes and appendfsync everysec, in redis.conf too"
    failed = [key for key in ("aof_last_write_status", "aof_last_bgrewrite_status") if info.get(key) == "err"]
    if info.get("aof_enabled"):
        return (
            broken(name, "its last write to disk failed", "make room on its disk") if failed else ok(name, "appendonly")
        )
    if snapshots and info.get("rdb_last_bgsave_status") == "err":
        return broken(name, "its last snapshot failed, and it may refuse writes", "make room on its disk")
    if snapshots:
        return warning(name, "snapshots alone: a crash loses what came since the last one", mend)
    if snapshots is None:
        return warning(name, "appendonly is off, and we may not ask for snapshots (CONFIG GET save)", mend)
    return broken(name, "it keeps nothing on disk: a restart loses all traces and the books", mend)


def _memory(info: Mapping[str, Any]) -> Finding:
    used, bound = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    if not bound:
        return ok("redis memory", f"{used / _MIB:,.0f} MiB used, no bound")
    what = f"{used / _MIB:,.0f} of {bound / _MIB:,.0f} MiB used"
    mend = "raise maxmemory, or lower max_stream_bytes, max_outbox and retention"
    if used >= _FULL * bound:
        return broken("redis memory", f"{what}: writes are refused", mend)
    return warning("redis memory", what, mend) if used >= _NEARLY_FULL * bound else ok("redis memory", what)
