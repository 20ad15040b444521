"""A client of one partition on a Redis Cluster: a plain client of the master that owns the partition's slot.

The pool of its connections finds that master (`tracejudge.delivery.transport`). Here a command that meets a slot in
motion is answered as by a single Redis:

    MOVED      the slot has another master: its idle connections are closed, and the command is sent to the new one
    ASK        the key has moved already: a single command follows; a script waits, since its other keys may not have
    TRYAGAIN   keys of a script are on both masters: it waits until the slot has moved, and nothing of it has run

Everything else, as a master that is away, is the caller's: it tries again as with one Redis.
"""

import time
from contextlib import closing
from typing import Any, Final

from redis import Redis
from redis.client import Pipeline
from redis.exceptions import AskError, MovedError, RedisError, TryAgainError

# A slot of small keys moves in less; a caller whose script is still refused keeps its work and comes again.
_WAITS_S: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
_SCRIPTS: Final = frozenset({"EVALSHA", "EVAL"})


class PartitionClient(Redis):
    """Follows redirections of a cluster for one partition."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Run a command where its keys are, also while they move."""
        run: Any = super().execute_command
        for wait_s in _WAITS_S:
            try:
                return run(*args, **options)
            except MovedError as error:
                pool: Any = self.connection_pool
                pool.sentinel_manager.prefer(error.node_addr)
                pool.disconnect(inuse_connections=False)
                failure: RedisError = error
            except AskError as error:
                if args[0] not in _SCRIPTS:
                    return self._ask(error, args, options)
                failure = error
            except TryAgainError as error:
                failure = error
            time.sleep(wait_s)
        raise failure

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> "PartitionPipeline":  # noqa: FBT001, FBT002 - as in redis-py
        """Make a pipeline, of which redirected commands are sent again one by one."""
        return PartitionPipeline(self, transaction=transaction, shard_hint=shard_hint)

    def _ask(self, error: AskError, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        pool: Any = self.connection_pool
        timeouts = {name: pool.connection_kwargs[name] for name in ("socket_timeout", "socket_connect_timeout")}
        with closing(pool.sentinel_manager.client(*error.node_addr, single_connection_client=True, **timeouts)) as node:
            node.execute_command("ASKING")
            return node.execute_command(*args, **options)


class PartitionPipeline(Pipeline):
    """A pipeline that is no transaction."""

    def __init__(self, client: PartitionClient, **options: Any) -> None:
        super().__init__(client.connection_pool, client.response_callbacks, **options)
        self._client = client

    def execute(self, raise_on_error: bool = True) -> list[Any]:  # noqa: FBT001, FBT002 - as in redis-py
        """Run the commands; those that were redirected run again by themselves, after all others."""
        commands = list(self.command_stack)
        replies = super().execute(raise_on_error=False)
        for number, (arguments, options) in enumerate(commands):
            if isinstance(replies[number], AskError | TryAgainError):
                try:
                    replies[number] = self._client.execute_command(*arguments, **options)
                except RedisError as error:
                    replies[number] = error
        if raise_on_error:
            for reply in replies:
                if isinstance(reply, RedisError):
                    raise reply
        return replies
