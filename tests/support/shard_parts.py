"""What the tests of several Redis servers share: three keyspaces, each on a database of its own."""

from collections.abc import Iterator
from contextlib import contextmanager

from support.stage_parts import Keyspace
from tracejudge.sharding import shard_of

SHARDS = 3


@contextmanager
def three_shards(url: str, prefix: str) -> Iterator[list[Keyspace]]:
    """Make the keyspaces of three shards that know each other; their keys are deleted at the end."""
    base = url.rpartition("/")[0]
    keyspaces = [Keyspace(f"{base}/{number}", prefix) for number in range(SHARDS)]
    stores = tuple(keyspace.store for keyspace in keyspaces)
    for number, store in enumerate(stores):
        store.shard, store.shards = number, stores
    try:
        for keyspace in keyspaces:
            keyspace.__enter__()
        yield keyspaces
    finally:
        for keyspace in keyspaces:
            for key in keyspace.client.scan_iter(match=f"{prefix}*", count=1000):
                keyspace.client.unlink(key)
            keyspace.__exit__()


def home(trace_id: str, session_id: str | None = None) -> int:
    return shard_of(trace_id, session_id, SHARDS)
