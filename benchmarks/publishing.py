"""What a publication costs the calling thread: ours, one XADD, one Celery task."""

import contextlib
from collections.abc import Iterator

import msgspec
import redis
from celery import Celery

import tracejudge
from benchmarks.figures import Figure, Percentiles, each_call
from benchmarks.traces import fields, make

__all__ = ["publishing"]

_CALLS = 5000
_SLOW_CALLS = 1500


def publishing(redis_url: str) -> Iterator[Figure]:
    """Measure all three on the same trace of 4 kB, with Redis up."""
    ours = _ours(redis_url)
    payload = msgspec.json.encode(make(1)[0])
    client = redis.Redis.from_url(redis_url)
    xadd = each_call(lambda: client.xadd("bench:bare", {"v": "1", "t": payload}, maxlen=10_000), _SLOW_CALLS)
    client.close()
    app = Celery("bench", broker=redis_url)
    text = payload.decode()
    task = each_call(lambda: app.send_task("bench.nobody", args=[text], ignore_result=True), _SLOW_CALLS)
    app.close()
    yield Figure("`publish`, calling thread (p50 / p99 / p99.9)", str(ours))
    yield Figure("one `XADD`, bare", str(xadd), f"{xadd.p50 / ours.p50:.0f} x ours at p50")
    yield Figure("one Celery `send_task`", str(task), f"{task.p50 / ours.p50:.0f} x ours at p50")


def _ours(redis_url: str) -> Percentiles:
    given = fields()
    tracejudge.init(service="bench", redis_url=redis_url, prefix="bench", max_items=100_000)
    try:
        return each_call(lambda: tracejudge.publish(**given), _CALLS)
    finally:
        with contextlib.suppress(Exception):
            tracejudge.flush(30)
        tracejudge.shutdown()
