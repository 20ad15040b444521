"""Whether Redis' user may run what workers run.

Commands are queued in a transaction that is thrown away: Redis checks the user's rights when it queues, and nothing is
done.
"""

from collections.abc import Sequence
from typing import Any, Final

from redis.exceptions import NoPermissionError, ResponseError

from worker.cli.doctor.finding import Finding, broken, ok
from worker.cli.doctor.redis_server import connect
from worker.keys import Keys

__all__ = ["broker_commands", "permissions", "worker_commands"]

Command = tuple[str, ...]

_SHOWN: Final = 8


def permissions(name: str, url: str, commands: Sequence[Command]) -> Finding:
    """See whether all these commands may be run."""
    missing = _missing(url, commands)
    if not missing:
        return ok(name, f"{len(commands)} commands")
    shown = ", ".join(missing[:_SHOWN]) + (f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else "")
    return broken(name, f"the user may not run: {shown}", "let the user run these on keys of the prefix (ACL SETUSER)")


def worker_commands(keys: Keys) -> list[Command]:
    """List what workers run, scripts included, each in a form that Redis would queue."""
    key = f"{keys.prefix}:doctor"
    return [
        *(("PING",), ("TIME",), ("SCAN", "0"), ("EVAL", "return 1", "0"), ("EVALSHA", "0" * 40, "0")),
        *(("SCRIPT", "LOAD", "return 1"), ("MEMORY", "USAGE", key), ("EXISTS", key), ("DEL", key)),
        *(("EXPIRE", key, "1"), ("PEXPIRE", key, "1"), ("TTL", key), ("GET", key), ("MGET", key), ("SET", key, "")),
        *(("STRLEN", key), ("HSET", key, "a", ""), ("HSETNX", key, "a", ""), ("HGET", key, "a"), ("HMGET", key, "a")),
        *(("HGETALL", key), ("HDEL", key, "a"), ("HEXISTS", key, "a"), ("HINCRBY", key, "a", "1"), ("HLEN", key)),
        *(("HVALS", key), ("HSCAN", key, "0"), ("ZADD", key, "1", "a"), ("ZREM", key, "a"), ("ZCARD", key)),
        *(
            ("ZINCRBY", key, "1", "a"),
            ("ZCOUNT", key, "0", "1"),
            ("ZRANGE", key, "0", "0"),
            ("ZREVRANGE", key, "0", "0"),
            ("ZRANGEBYSCORE", key, "0", "1"),
            ("ZSCORE", key, "a"),
            ("ZMSCORE", key, "a"),
        ),
        *(("XADD", key, "*", "a", ""), ("XLEN", key), ("XTRIM", key, "MAXLEN", "1"), ("XRANGE", key, "-", "+")),
        *(("XREVRANGE", key, "+", "-"), ("XREAD", "STREAMS", key, "0"), ("XDEL", key, "1-1"), ("XINFO", "STREAM", key)),
        *(("XINFO", "GROUPS", key), ("XINFO", "CONSUMERS", key, "a"), ("XGROUP", "CREATE", key, "a", "0")),
        *(("XGROUP", "DELCONSUMER", key, "a", "b"), ("XREADGROUP", "GROUP", "a", "b", "STREAMS", key, ">")),
        *(("XACK", key, "a", "1-1"), ("XPENDING", key, "a"), ("XCLAIM", key, "a", "b", "0", "1-1")),
    ]


def broker_commands(queue: str) -> list[Command]:
    """List what Celery runs on a Redis that carries the wake-ups."""
    binding, unacked, index = f"_kombu.binding.{queue}", "unacked", "unacked_index"
    return [
        *(("PING",), ("LPUSH", queue, ""), ("BRPOP", queue, "1"), ("LLEN", queue), ("SADD", binding, "")),
        *(("SMEMBERS", binding), ("HSET", unacked, "a", ""), ("HGET", unacked, "a"), ("HDEL", unacked, "a")),
        *(("ZADD", index, "1", "a"), ("ZREM", index, "a"), ("ZREVRANGEBYSCORE", index, "1", "0")),
        ("SET", "unacked_mutex", ""),
    ]


def _missing(url: str, commands: Sequence[Command]) -> list[str]:
    with connect(url) as client:
        # A connection by itself: the client would read the answers as those of the commands.
        connection = client.connection_pool.get_connection()
        try:
            refused = _refused(connection, commands)
        finally:
            # Where DISCARD is refused, the end of the connection throws the transaction away.
            connection.disconnect()
            client.connection_pool.release(connection)
    return list(dict.fromkeys(map(_shown, refused)))


def _refused(connection: Any, commands: Sequence[Command]) -> list[Command]:
    # Asked for before there is a transaction, which it would run.
    unended = [] if _allowed(connection, ("EXEC",)) else [("EXEC",)]
    if not _opened(connection):
        # Without a transaction each of them would be run.
        return [("MULTI",), *unended]
    refused = [command for command in commands if not _allowed(connection, command)]
    _allowed(connection, ("DISCARD",))
    return [*unended, *refused]


def _opened(connection: Any) -> bool:
    connection.send_command("MULTI")
    try:
        return bool(connection.read_response() == b"OK")
    except ResponseError:
        return False


def _allowed(connection: Any, command: Command) -> bool:
    connection.send_command(*command)
    try:
        connection.read_response()
    except NoPermissionError:
        return False
    except ResponseError as error:
        # Renamed away, or EXEC, whose refusals are those of a transaction. What else it says, another part tells.
        said = str(error).lower()
        return "unknown command" not in said and "noperm" not in said
    return True


def _shown(command: Command) -> str:
    """Name a command, with its subcommand, and the key where it is not one of the prefix."""
    return " ".join(command[:2]) if command[0] in {"SCRIPT", "MEMORY", "XINFO", "XGROUP"} else command[0]
