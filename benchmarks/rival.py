"""Evaluations a second of the naive Celery task, in two processes, with what it has to do waiting in its queue."""

import time
from typing import Final, NamedTuple

import msgspec
import redis
from celery import Celery

from benchmarks.programs import program, until
from benchmarks.samples import Sample, watch
from benchmarks.traces import make
from benchmarks.workers import endpoint
from worker.base.embedded import EmbeddedRedis

__all__ = ["Naive", "naive"]

_TASKS: Final = 450
_WARM_UP: Final = 50
_COMMAND: Final = ("-m", "celery", "-A", "benchmarks.naive", "worker", "-c", "2", "--loglevel", "error")


class Naive(NamedTuple):
    """What the naive task makes of it: evaluations a second, and the CPU of all its processes for one."""

    judged_per_s: float
    cpu_ms: float


def naive() -> Naive:
    """Measure from the 50th task to the last, on an endpoint that answers at once."""
    with EmbeddedRedis() as server, endpoint(0) as served, redis.Redis.from_url(server.url) as client:
        variables = {"NAIVE_BROKER": server.url, "NAIVE_ENDPOINT": f"{served.url}/v1"}
        _send(server.url)
        with program("Celery worker", *_COMMAND, **variables) as worker:

            def done() -> int:
                return int(client.get("naive:done") or 0)

            until(lambda: done() >= _WARM_UP, worker, what="the first naive tasks")
            begin, cpu_s = Sample(time.perf_counter(), done()), worker.session_cpu_s()
            samples = watch(done, worker, served.program, begin=begin, target=_TASKS)
            judged = samples[-1].total - begin.total
            cpu_ms = 1000 * (worker.session_cpu_s() - cpu_s) / judged
            return Naive(judged / (samples[-1].at_s - begin.at_s), cpu_ms)


def _send(broker: str) -> None:
    with Celery(broker=broker) as app:
        for trace in make(_TASKS):
            app.send_task("benchmarks.naive.evaluate", args=[msgspec.json.encode(trace).decode()], ignore_result=True)
