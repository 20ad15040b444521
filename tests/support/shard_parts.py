"""What the tests of several Redis servers share: three grounds, each on a database of its own."""

from collections.abc import Iterator
from contextlib import contextmanager

from support.stage_parts import Ground
from tracejudge.sharding import shard_of

SHARDS = 3


@contextmanager
def three_grounds(url: str, prefix: str) -> Iterator[list[Ground]]:
    """Make the grounds of three shards that know each other; their keys are deleted at the end."""
    base = url.rpartition("/")[0]
    grounds = [Ground(f"{base}/{number}", prefix) for number in range(SHARDS)]
    stores = tuple(ground.store for ground in grounds)
    for number, store in enumerate(stores):
        store.shard, store.shards = number, stores
    try:
        for ground in grounds:
            ground.__enter__()
        yield grounds
    finally:
        for ground in grounds:
            for key in ground.client.scan_iter(match=f"{prefix}*", count=1000):
                ground.client.unlink(key)
            ground.__exit__()


def home(trace_id: str, session_id: str | None = None) -> int:
    return shard_of(trace_id, session_id, SHARDS)
