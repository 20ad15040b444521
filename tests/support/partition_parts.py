"""What the tests of several partitions share: three keyspaces that know each other."""

from collections.abc import Iterator
from contextlib import contextmanager

from support.stage_parts import Keyspace
from tracejudge.ids import partition_prefix, place_of

PARTITIONS = 3


@contextmanager
def three_partitions(url: str, prefix: str, count: int = PARTITIONS) -> Iterator[list[Keyspace]]:
    """Make the keyspaces of partitions, on a cluster or on one server; the fixture `prefix` deletes their keys."""
    keyspaces = [Keyspace(url, partition_prefix(prefix, number), number) for number in range(count)]
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


def home(trace_id: str, session_id: str | None = None, count: int = PARTITIONS) -> int:
    """Return the partition of a trace."""
    return place_of(trace_id, session_id) % count


def named_in(number: int, count: int = PARTITIONS, start: str = "s") -> str:
    """Return a name that belongs to a partition."""
    return next(name for name in (f"{start}{each}" for each in range(999)) if home(name, None, count) == number)
