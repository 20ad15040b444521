"""The constants of `tracejudge plan --capacity`: CPU of workers and Redis for a trace and for an evaluation.

A short run, within a factor of two: it shows a constant that is no longer true, and not a change of a few percent.
"""

import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import redis

import tracejudge
from benchmarks.figures import Figure, tell
from benchmarks.gateway import gateway
from benchmarks.traces import make
from benchmarks.workers import Pipeline, pipeline
from worker.embedded import EmbeddedRedis
from worker.report import capacity as constants

__all__ = ["capacity"]

_FACTOR: Final = 2.0
_TRACES: Final = 100_000
_EVALUATIONS: Final = 10_000
_PUBLISHED: Final = 50_000
_RATE: Final = 0.01
_SMALL_KB: Final = 0.3
_LARGE_KB: Final = 4.0


class _Cost(NamedTuple):
    """CPU of one thing in µs."""

    worker: float
    redis: float


def capacity() -> Iterator[Figure]:
    """Measure each constant, and fail where one is wrong by more than the factor."""
    small, large = _reading(small=True), _reading(small=False)
    published = _publishing()
    judged = _judging()
    share = _RATE * judged.worker
    per_kb = (large.worker - small.worker) / (_LARGE_KB - _SMALL_KB)
    measured = {
        "worker, a trace of 4 kB, read": (large.worker - share, constants.ingest_us(_LARGE_KB * 1000)),
        "worker, a trace of 300 B, read": (small.worker - share, constants.ingest_us(_SMALL_KB * 1000)),
        "Redis, a trace of 4 kB, published and read": (published + large.redis, constants.REDIS_TRACE.value),
        "worker, an evaluation with its export": (judged.worker - large.worker, constants.EVALUATION.value),
        "Redis, an evaluation with its export": (judged.redis - large.redis, constants.REDIS_EVALUATION.value),
    }
    tell(f"worker, a further kB of a trace: {per_kb:.1f} µs")
    wrong = []
    for what, (found, constant) in measured.items():
        yield Figure(what, f"{found:.0f} µs of CPU", f"{found / constant:.2f} x the constant", bar=f"{constant:.0f} µs")
        if not 1 / _FACTOR <= found / constant <= _FACTOR:
            wrong.append(what)
    yield from (figure for figure in gateway() if figure.what == "CPU a span")
    if wrong:
        raise RuntimeError(f"wrong by more than a factor of {_FACTOR:g}: {'; '.join(wrong)}")


def _reading(*, small: bool) -> _Cost:
    """Read traces, few of which are judged; the caller subtracts their judging."""
    with pipeline(rate=_RATE) as line:
        return _cost(line, _TRACES, line.read, small=small)


def _judging() -> _Cost:
    with pipeline() as line:
        line.warm_up()
        return _cost(line, _EVALUATIONS, line.verdicts)


def _cost(line: Pipeline, count: int, done: Callable[[], int], *, small: bool = False) -> _Cost:
    (worker,) = line.workers
    with line.paused():
        line.fill(count, small=small)
        begin, first = _Cost(worker.cpu_s(), _cpu_s(line.client)), done()
    while done() < first + count or not line.exported(line.verdicts()):
        worker.check()
        time.sleep(0.2)
    return _Cost(1e6 * (worker.cpu_s() - begin.worker) / count, 1e6 * (_cpu_s(line.client) - begin.redis) / count)


def _publishing() -> float:
    """Publish through the SDK; return the CPU of Redis for a trace."""
    with EmbeddedRedis() as server, redis.Redis.from_url(server.url) as client:
        tracejudge.init(service="bench", redis_url=server.url, max_items=_PUBLISHED, max_bytes=1 << 29)
        traces = make(_PUBLISHED)
        begin = _cpu_s(client)
        for trace in traces:
            tracejudge.publish(trace)
        tracejudge.flush(60)
        used = _cpu_s(client) - begin
        tracejudge.shutdown()
        return 1e6 * used / int(client.xlen("tracejudge:traces"))


def _cpu_s(client: "redis.Redis") -> float:
    found = client.info("cpu")
    return float(found["used_cpu_user"]) + float(found["used_cpu_sys"])
