"""What the tests of several partitions share: three keyspaces that know each other."""

from collections.abc import Iterator
from contextlib import contextmanager

from support.stage_parts import Keyspace
from tracejudge.partitions import partition_prefix, place_of

PARTITIONS = 3


@contextmanager
def three_partitions(url: str, prefix: str) -> Iterator[list[Keyspace]]:
    """Make the keyspaces of three partitions, on a cluster or one server; the fixture `prefix` deletes the keys."""
    keyspaces = [Keyspace(url, partition_prefix(prefix, number), number) for number in range(PARTITIONS)]
    stores = tuple(keyspace.store for keyspace in keyspaces)
    for store in stores:
        store.partitions = stores
    try:
        for keyspace in keyspaces:
            keyspace.__enter__()
        yield keyspaces
    finally:
        for keyspace in keyspaces:
            keyspace.__exit__()


def home(trace_id: str, session_id: str | None = None) -> int:
    return place_of(trace_id, session_id) % PARTITIONS
