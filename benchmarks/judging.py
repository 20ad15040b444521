"""Evaluations a second: one worker process against a naive Celery task in two processes, on the same endpoint."""

import contextlib
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

import httpx
import msgspec
import redis

import tracejudge
from benchmarks.figures import Figure
from benchmarks.traces import make
from worker.embedded import free_port

__all__ = ["judging"]

_OURS, _NAIVE, _SLOW = 8000, 800, 200
_DEADLINE_S = 120.0


def judging(redis_url: str) -> Iterator[Figure]:
    """Measure with an endpoint that answers at once, then with one that takes a second."""
    with _endpoint(0) as base_url:
        naive = _naive(redis_url, base_url)
        ours, cpu_ms = _ours(redis_url, base_url, _OURS)
    yield Figure("evaluations/s, naive Celery task, two processes, endpoint at once", f"{naive:.0f}/s")
    yield Figure("the same, one worker process of ours", f"{ours:.0f}/s", f"{ours / naive:.1f} x naive")
    yield Figure("CPU of the worker per evaluation", f"{cpu_ms:.2f} ms")
    with _endpoint(1.0) as base_url:
        slow, _ = _ours(redis_url, base_url, _SLOW)
    yield Figure(f"{_SLOW} evaluations, endpoint of 1 s, from publication to the last verdict", f"{_SLOW / slow:.2f} s")


def _ours(redis_url: str, base_url: str, count: int) -> tuple[float, float]:
    """Publish traces and wait for their verdicts; evaluations a second, and CPU milliseconds each."""
    prefix = f"bench-{time.time_ns()}"
    client = redis.Redis.from_url(redis_url)
    model = {"provider": "openai", "base_url": base_url, "model": "bench", "max_in_flight": 256}
    port = free_port()
    variables = {
        "TRACEJUDGE_REDIS_URL": redis_url,
        "TRACEJUDGE_PREFIX": prefix,
        "TRACEJUDGE_METRICS_PORT": str(port),
        "TRACEJUDGE_MODELS": msgspec.json.encode({"default": model}).decode(),
        "TRACEJUDGE_RULES": '[{"name": "all", "judges": ["groundedness"]}]',
    }
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with _program("-m", "worker.cli", "worker", **variables):
        _until(lambda: _answers(f"http://127.0.0.1:{port}/metrics"))
        _publish(redis_url, prefix, 200)  # warm-up
        _until(lambda: client.xlen(f"{prefix}:verdicts") >= 200)  # noqa: PLR2004
        start = time.perf_counter()
        _publish(redis_url, prefix, count)
        _until(lambda: client.xlen(f"{prefix}:verdicts") >= 200 + count)
        seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    client.close()
    return count / seconds, cpu_s / (count + 200) * 1000


def _naive(redis_url: str, base_url: str) -> float:
    client = redis.Redis.from_url(redis_url)
    os.environ.update(NAIVE_BROKER=redis_url, NAIVE_ENDPOINT=base_url)
    from benchmarks.naive import evaluate  # noqa: PLC0415 - reads the broker's address when it is imported

    payloads = [msgspec.json.encode(trace).decode() for trace in make(_NAIVE)]
    arguments = ("-m", "celery", "-A", "benchmarks.naive", "worker", "-c", "2", "--loglevel", "error")
    with _program(*arguments, NAIVE_BROKER=redis_url, NAIVE_ENDPOINT=base_url):
        evaluate.delay(payloads[0])
        _until(lambda: int(client.get("naive:done") or 0) >= 1)
        start = time.perf_counter()
        for payload in payloads:
            evaluate.delay(payload)
        _until(lambda: int(client.get("naive:done") or 0) >= 1 + _NAIVE)
        seconds = time.perf_counter() - start
    client.close()
    return _NAIVE / seconds


def _publish(redis_url: str, prefix: str, count: int) -> None:
    tracejudge.init(service="bench", redis_url=redis_url, prefix=prefix, max_items=50_000, max_bytes=1 << 30)
    for trace in make(count):
        tracejudge.publish(trace)
    if not tracejudge.flush(60):
        raise TimeoutError("Redis did not take the traces")
    tracejudge.shutdown()


@contextlib.contextmanager
def _endpoint(seconds: float) -> Iterator[str]:
    port = free_port()
    with _program("-m", "benchmarks.endpoint", str(port), str(seconds)):
        _until(lambda: _answers(f"http://127.0.0.1:{port}/"))
        yield f"http://127.0.0.1:{port}/v1"


@contextlib.contextmanager
def _program(*arguments: str, **variables: str) -> Iterator[None]:
    """Run a Python program until the block is left; what it says is kept only for a failure."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [sys.executable, *arguments], stdout=output, stderr=output, env={**os.environ, **variables}
        )
        try:
            yield
        except TimeoutError:
            output.seek(0)
            sys.stderr.write(output.read()[-4000:].decode(errors="replace"))
            raise
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _answers(url: str) -> bool:
    try:
        httpx.get(url, timeout=1)
    except httpx.TransportError:
        return False
    return True


def _until(condition: "object") -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while not condition():  # type: ignore[operator]
        if time.monotonic() > deadline:
            raise TimeoutError("the benchmark did not get on")
        time.sleep(0.01)
