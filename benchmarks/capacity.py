"""The figures of docs/sizing.md that capacity is computed from: CPU of workers and Redis for a trace and an evaluation.

A short run, within a factor of two: it shows a figure that is no longer true, and not a change of a few percent.
"""

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import redis

import tracejudge
from benchmarks.figures import Figure, tell
from benchmarks.gateway import gateway
from benchmarks.traces import make
from benchmarks.workers import Pipeline, pipeline
from worker.base.embedded import EmbeddedRedis

__all__ = ["capacity"]

_PAGE: Final = Path(__file__).parents[1] / "docs" / "sizing.md"
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
    """Measure each figure, and fail where the page is wrong by more than the factor."""
    small, large = _reading(small=True), _reading(small=False)
    published = _publishing()
    judged = _judging()
    share = _RATE * judged.worker
    per_kb = (large.worker - small.worker) / (_LARGE_KB - _SMALL_KB)
    read = _stated("CPU of a worker to read a trace and decide about it")
    read_kb = _stated("further CPU of it for each kB of the trace")
    redis_trace = _stated("CPU of Redis for a trace of 4 kB: append, read, acknowledge, remove")
    evaluation = _stated("CPU of a worker for an evaluation: one call, verdict, spans, metrics, monitor")
    redis_evaluation = _stated("CPU of Redis for an evaluation")
    measured = {
        "worker, a trace of 4 kB, read": (large.worker - share, read + read_kb * _LARGE_KB),
        "worker, a trace of 300 B, read": (small.worker - share, read + read_kb * _SMALL_KB),
        "Redis, a trace of 4 kB, published and read": (published + large.redis, redis_trace),
        "worker, an evaluation with its export": (judged.worker - large.worker, evaluation),
        "Redis, an evaluation with its export": (judged.redis - large.redis, redis_evaluation),
    }
    tell(f"worker, a further kB of a trace: {per_kb:.1f} µs")
    wrong = []
    for what, (used, stated) in measured.items():
        yield Figure(what, f"{used:.0f} µs of CPU", f"{used / stated:.2f} x the figure", bar=f"{stated:.0f} µs")
        if not 1 / _FACTOR <= used / stated <= _FACTOR:
            wrong.append(what)
    yield from (figure for figure in gateway() if figure.what == "CPU a span")
    if wrong:
        raise RuntimeError(f"wrong by more than a factor of {_FACTOR:g}: {'; '.join(wrong)}")


def _stated(what: str) -> float:
    """Read a figure from the table of the page, in µs."""
    row = re.search(rf"^\| {re.escape(what)} \| ([\d.]+) µs \|", _PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    if row is None:
        raise RuntimeError(f"{_PAGE.name} has no row {what!r} with µs; correct its name here or there")
    return float(row[1])


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
