"""What a publication costs the calling thread, ours beside others, and how many a process delivers."""

import contextlib
import http.server
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import tracejudge
from benchmarks.figures import Figure, Percentiles
from benchmarks.traces import fields

__all__ = ["call", "collector", "cpu_of_a_call", "percentiles", "publishing"]

_ROOT: Final = Path(__file__).parents[1]

_BURST: Final = 5_000
_PACED: Final = 2_000
_SLOW_BURST: Final = 1_000  # where every call waits for the network
_TIMED_OUT: Final = 3  # where every call waits for its timeout, set to 1 s
_RETRYING: Final = 200  # where kombu tries a second time, though told not to
_DELIVERED: Final = 60_000
_REDACTED: Final = 10_000

_NAMES: Final = {
    "nothing": "nothing but a copy of the fields",
    "ours": "`tracejudge.publish`",
    "ours_in_span": "`tracejudge.publish` within an OpenTelemetry span",
    "opentelemetry": "OpenTelemetry span, batch processor",
    "xadd": "bare `XADD`",
    "send_task": "Celery `send_task`",
}


class _Peers(NamedTuple):
    """Where a library sends to, by the state of what is there."""

    up: str
    dead: str
    hanging: str


def publishing(redis_url: str) -> Iterator[Figure]:
    """Measure all on the same trace of 4 kB, in processes of their own; microseconds as p50 / p99 / p99.9."""
    with collector() as listening, _silent() as silent:
        dead = "127.0.0.1:1"
        redis = _Peers(redis_url, f"redis://{dead}/0", f"redis://{silent}/0")
        otlp = _Peers(listening, f"http://{dead}/", f"http://{silent}/")
        baseline: dict[str, Percentiles] = {}
        for library in _NAMES:
            yield from _calls(library, otlp if library == "opentelemetry" else redis, baseline)
    yield from _throughput(redis_url)
    yield Figure("`import tracejudge`, CPU, compiled before", f"{_import_ms():.0f} ms", bar="≤ 60 ms")


def _import_ms() -> float:
    """Import in processes of their own, and take the best of some: the first one compiles."""
    program = "import time; a = time.process_time(); import tracejudge; print(time.process_time() - a)"
    with tempfile.TemporaryDirectory() as compiled:
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        variables["PYTHONPYCACHEPREFIX"] = compiled
        runs = [
            subprocess.run([sys.executable, "-c", program], env=variables, capture_output=True, check=True)
            for _ in range(6)
        ]
    return 1000 * min(float(run.stdout) for run in runs[1:])


def _calls(library: str, peers: _Peers, baseline: dict[str, Percentiles]) -> Iterator[Figure]:
    states = ("up",) if library in {"nothing", "ours_in_span"} else _Peers._fields
    for state in states:
        for mode in ("burst", "paced"):
            calls = _count(library, state, mode)
            if calls in {_TIMED_OUT, _RETRYING} and mode == "paced":
                continue  # no pace to keep when a call takes so long
            figures = percentiles(library, mode, getattr(peers, state), calls)
            what = _NAMES[library] if library == "nothing" else f"{_NAMES[library]}, {state}"
            suffix = {_TIMED_OUT: ", 3 calls until their timeout", _RETRYING: ", 200 calls"}.get(calls, "")
            if library == "ours":
                baseline[f"{state} {mode}"] = figures
            against = baseline.get(f"{state} {mode}") if library in {"opentelemetry", "xadd", "send_task"} else None
            ratio = f"{figures.p50 / against.p50:,.0f} x ours at p50" if against else ""
            yield Figure(f"{what}, {mode}{suffix}", str(figures), ratio)


def _count(library: str, state: str, mode: str) -> int:
    if library in {"xadd", "send_task"}:
        if state == "hanging":
            return _TIMED_OUT
        return _RETRYING if (library, state) == ("send_task", "dead") else _SLOW_BURST
    return _BURST if mode == "burst" else _PACED


def percentiles(
    library: str, mode: str, url: str, calls: int, *, python: Sequence[str] = (sys.executable,)
) -> Percentiles:
    """Time single calls in a process of its own."""
    return Percentiles(*json.loads(call(library, mode, url, calls, python=python)))


def cpu_of_a_call(url: str, calls: int, *, python: Sequence[str]) -> tuple[float]:
    """Measure the CPU of a process that publishes and delivers, in µs a publication."""
    return (float(call("ours", "cpu", url, calls, python=python)),)


def call(library: str, mode: str, url: str, calls: int, *, python: Sequence[str] = (sys.executable,)) -> str:
    """Run `benchmarks.callers` with the library that the environment of a Python has; return what it prints."""
    command = [*python, "-m", "benchmarks.callers", library, mode, url, str(calls)]
    # The path of modules begins with this checkout, which has the benchmarks there and not the SDK.
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=600, cwd=_ROOT, env=variables)
    return done.stdout.decode()


def _throughput(redis_url: str) -> Iterator[Figure]:
    plain = _delivered_per_s(redis_url, _DELIVERED, redact=False)
    yield Figure("traces of 4 kB delivered by one process, from the first `publish` to `flush`", f"{plain:,.0f}/s")
    redacted = _delivered_per_s(redis_url, _REDACTED, redact=True)
    yield Figure("the same, with the built-in redaction", f"{redacted:,.0f}/s")


def _delivered_per_s(redis_url: str, count: int, *, redact: bool) -> float:
    given = fields()
    tracejudge.init(
        service="bench", redis_url=redis_url, prefix="bench", max_items=10**6, max_bytes=10**10, redact=redact
    )
    tracejudge.publish(**given)
    tracejudge.flush(30)
    start = time.perf_counter()
    for _ in range(count):
        tracejudge.publish(**given)
    if not tracejudge.flush(60):
        raise RuntimeError("not delivered within a minute")
    taken_s = time.perf_counter() - start
    tracejudge.shutdown()
    return count / taken_s


class _Sink(http.server.BaseHTTPRequestHandler):
    """Reads what is posted and says yes."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


@contextlib.contextmanager
def collector() -> Iterator[str]:
    """Accept what is posted, as a collector does; give its address."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Sink) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@contextlib.contextmanager
def _silent() -> Iterator[str]:
    """A peer that accepts and never answers: the system accepts for it."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
