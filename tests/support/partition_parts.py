"""What the tests of partitions share: several partitions on one Redis, each under its own prefix."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from support.stage_parts import Keyspace
from tracejudge.partitions import partition_prefix, place_of

PARTITIONS = 3


@contextmanager
def partitioned(url: str, prefix: str, count: int = PARTITIONS) -> Iterator[list[Keyspace]]:
    """Make the keyspaces of partitions that know each other; their keys are deleted at the end."""
    keyspaces = [Keyspace(url, partition_prefix(prefix, number)) for number in range(count)]
    stores = tuple(keyspace.store for keyspace in keyspaces)
    for number, store in enumerate(stores):
        store.partition, store.partitions = number, stores
    with ExitStack() as stack:
        for keyspace in keyspaces:
            stack.enter_context(keyspace)
        yield keyspaces
        for keyspace in keyspaces:
            for key in keyspace.client.scan_iter(match=f"{keyspace.prefix}*", count=1000):
                keyspace.client.unlink(key)


def home(trace_id: str, session_id: str | None = None, count: int = PARTITIONS) -> int:
    """Return the partition of a trace."""
    return place_of(trace_id, session_id) % count


def named_in(number: int, count: int = PARTITIONS, start: str = "s") -> str:
    """Return a name that belongs to a partition."""
    return next(name for name in (f"{start}{each}" for each in range(999)) if home(name, None, count) == number)
