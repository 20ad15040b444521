"""Keep the dead letters within their bounds of count and age; what goes counts as removed in the books."""

from functools import partial
from typing import Any, Final

import redis

from worker.ledger import Ledger
from worker.settings import Settings
from worker.store import Store, redis_now_ms

__all__ = ["cut"]

_PIECE_COUNT: Final = 200
_MAX_PIECES: Final = 50


def cut(store: Store, settings: Settings) -> int:
    """Cut off the dead letters that are too old, and the oldest of too many; return how many this call cut.

    At most 10,000 at a time, two hundred in one step; what is left goes with the next call. Any number of workers may
    call it at once: each letter is cut, and told of, once. A letter whose retry is under way goes as well, and a
    verdict that would come of it no longer counts.

    Raises:
        StoreError: Redis did not answer; it is safe to call again.
    """
    ledger = Ledger(store, settings)
    total = 0
    for _ in range(_MAX_PIECES):
        oldest = store.call(partial(_oldest, store.keys.dead_due, settings))
        if not oldest:
            break
        ids, latest_ms = [raw.decode() for raw, _ in oldest], int(oldest[-1][1])
        # One that was renewed meanwhile is not one of the oldest any more.
        total += sum(ledger.remove(ids, given_up_until_ms=latest_ms))
    return total


def _oldest(due: str, settings: Settings, client: "redis.Redis") -> list[Any]:
    """List the oldest letters that must go, by Redis' clock, which has dated them."""
    too_old_ms = redis_now_ms(client) - int(settings.dead_retention * 1000)
    too_many = client.zcard(due) - settings.max_dead
    if too_many > 0:
        return client.zrange(due, 0, min(too_many, _PIECE_COUNT) - 1, withscores=True)
    return client.zrangebyscore(due, "-inf", too_old_ms, start=0, num=_PIECE_COUNT, withscores=True)
