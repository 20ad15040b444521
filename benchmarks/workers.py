"""The whole of TraceJudge for one figure: a Redis of its own, an endpoint, an OTLP receiver, and workers.

Each is a process of its own on loopback. All telemetry is on unless a figure switches it off: the metrics of verdicts,
spans, events, and one log line for each verdict.
"""

import contextlib
import json
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Final, NamedTuple, cast

import redis

from benchmarks.programs import Program, program, until
from benchmarks.samples import Sample, watch
from benchmarks.traces import pieces
from worker.base.embedded import EmbeddedRedis, free_port
from worker.core.storage.keys import Keys

__all__ = ["Cost", "Pipeline", "endpoint", "pipeline", "redis_cpu_s"]

_KEYS: Final = Keys("bench")
_PRODUCER: Final = "bench"
_FILLED_AT_ONCE: Final = 5_000
_WARM_UP: Final = 1_000
_HTTP_TIMEOUT_S: Final = 5.0
_SETTLED_S: Final = 0.5
_UNLIMITED: Final = str(1 << 40)
_SETTINGS: Final = {
    "TRACEJUDGE_PREFIX": _KEYS.prefix,
    "TRACEJUDGE_MAX_STREAM": _UNLIMITED,
    "TRACEJUDGE_MAX_STREAM_BYTES": _UNLIMITED,
    "TRACEJUDGE_MAX_OUTBOX": _UNLIMITED,
    "TRACEJUDGE_GRACE_S": "0.5",  # what is unfinished when the figure stands is of no use
}
_QUIET: Final = {"TRACEJUDGE_ROLES": "ingest,judge", "TRACEJUDGE_LOG_LEVEL": "warning"}


class Served(NamedTuple):
    """A peer that listens on loopback."""

    program: Program
    url: str

    def counts(self) -> Mapping[str, int]:
        """Ask what has come to it so far.

        Raises:
            OSError: It does not listen.
        """
        with urllib.request.urlopen(self.url, timeout=_HTTP_TIMEOUT_S) as reply:  # noqa: S310 - a loopback address
            return cast("Mapping[str, int]", json.loads(reply.read()))


class Cost(NamedTuple):
    """How many a second were done, and the CPU of one of them in µs."""

    per_s: float
    worker: float
    redis: float


class Pipeline:
    """What a figure is measured on. Traces are numbered, so that all of them differ."""

    def __init__(
        self,
        server: EmbeddedRedis,
        endpoint: Served,
        receiver: Served,
        workers: Sequence[Program],
        *,
        exports: bool = True,
    ) -> None:
        """Measure programs that run already; ``exports`` says whether the workers send spans and events."""
        self._exports = exports
        self.redis_url = server.url
        self.prefix = _KEYS.prefix
        self.outbox = _KEYS.verdicts
        self.endpoint = endpoint
        self.receiver = receiver
        self.workers = workers
        self.client = redis.Redis.from_url(server.url)
        self._script = self.client.register_script(files("benchmarks").joinpath("fill.lua").read_text())
        self._filled = 0

    @property
    def programs(self) -> tuple[Program, ...]:
        """List all processes but Redis."""
        return (self.endpoint.program, self.receiver.program, *self.workers)

    def verdicts(self) -> int:
        """Count the outbox."""
        return int(self.client.xlen(self.outbox))

    def read(self) -> int:
        """Count the entries that ingest has dealt with, by the books."""
        return int(self.client.hget(_KEYS.account_all, "read") or 0)

    def fill(self, count: int, *, small: bool = False) -> None:
        """Put traces into the stream, within about a second for 100,000."""
        cut = pieces(small=small)
        keys = (_KEYS.traces, _KEYS.producer(_PRODUCER))
        for first in range(0, count, _FILLED_AT_ONCE):
            some = min(_FILLED_AT_ONCE, count - first)
            self._script(keys=keys, args=[_PRODUCER, self._filled, some, *cut])
            self._filled += some

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Hold all workers still, so that what is done in the block costs the measured time nothing."""
        with contextlib.ExitStack() as held:
            for worker in self.workers:
                held.enter_context(worker.paused())
            yield

    def warm_up(self, count: int = _WARM_UP, *, verdicts: int | None = None) -> None:
        """Run the workers on some traces, and on all that follows from them."""
        self.fill(count)
        wanted = count if verdicts is None else verdicts
        until(
            lambda: self.read() >= count and self.verdicts() >= wanted and self.exported(self.verdicts()),
            *self.programs,
            what="warming up",
        )

    def exported(self, verdicts: int) -> bool:
        """Return whether spans and events of this many verdicts have arrived; a verdict has two spans and an event."""
        if not self._exports:
            return True
        counts = self.receiver.counts()
        return counts["spans"] >= 2 * verdicts and counts["events"] >= verdicts

    def cost(self, count: int, done: Callable[[], int], *, small: bool = False) -> Cost:
        """Measure the only worker, from when so many traces wait in the stream; CPU until all that follows is done."""
        (worker,) = self.workers
        with self.paused():
            self.fill(count, small=small)
            worker_s, redis_s = worker.session_cpu_s(), redis_cpu_s(self.client)
            begin = Sample(time.perf_counter(), done())
        end = watch(done, *self.programs, begin=begin, target=begin.total + count)[-1]
        self._settle()
        worker_s, redis_s = worker.session_cpu_s() - worker_s, redis_cpu_s(self.client) - redis_s
        return Cost(count / (end.at_s - begin.at_s), 1e6 * worker_s / count, 1e6 * redis_s / count)

    def _settle(self) -> None:
        """Wait until no verdict is added to the outbox, and all its readers have acknowledged the last one."""
        before = -1
        while before != (verdicts := self.verdicts()) or not (self.exported(verdicts) and self._is_acknowledged()):
            for one in self.programs:
                one.check()
            before = verdicts
            time.sleep(_SETTLED_S)

    def _is_acknowledged(self) -> bool:
        last = self.client.xinfo_stream(self.outbox)["last-generated-id"]
        groups = self.client.xinfo_groups(self.outbox)
        return all(not group["pending"] and group["last-delivered-id"] == last for group in groups)

    def watch_verdicts(self, target: int | None = None, *, begin: Sample, for_s: float = 240.0) -> list[Sample]:
        """Look at the outbox until it holds so many, or for some time."""
        return watch(self.verdicts, *self.programs, begin=begin, target=target, for_s=for_s)


@contextlib.contextmanager
def endpoint(delay_s: float) -> Iterator[Served]:
    """Run an endpoint that answers after a time."""
    with _served("endpoint", "-m", "benchmarks.endpoint", arguments=(str(delay_s),)) as served:
        yield served


@contextlib.contextmanager
def pipeline(
    *,
    delay_s: float = 0.0,
    workers: int = 1,
    rate: float = 1.0,
    max_in_flight: int | None = None,
    budgets: Mapping[str, Mapping[str, int]] = {},
    provider: str = "openai",
    telemetry: bool = True,
    otlp: bool = True,
    python: Sequence[str] = (sys.executable,),
) -> Iterator[Pipeline]:
    """Run everything until the block is left.

    Args:
        delay_s: How long the endpoint takes for an answer.
        workers: How many worker processes.
        rate: Share of the traces that is judged, for groundedness.
        max_in_flight: How many calls a worker may have under way; the default of the settings where absent.
        budgets: As in the settings.
        provider: Of the judge model.
        telemetry: Whether verdicts are exported and logged.
        otlp: Whether spans and events are among what is exported.
        python: The command that interprets the workers, which may be of another version of the product.
    """
    with contextlib.ExitStack() as parts:
        server = parts.enter_context(EmbeddedRedis())
        endpoint_ = parts.enter_context(endpoint(delay_s))
        receiver = parts.enter_context(_served("receiver", "-m", "benchmarks.receiver"))
        model: dict[str, object] = {"provider": provider, "base_url": f"{endpoint_.url}/v1", "model": "bench"}
        if max_in_flight is not None:
            model["max_in_flight"] = max_in_flight
        settings = _SETTINGS | {
            "TRACEJUDGE_REDIS_URL": server.url,
            "TRACEJUDGE_MODELS": json.dumps({"default": model}),
            "TRACEJUDGE_RULES": json.dumps([{"name": "all", "judges": ["groundedness"], "rate": rate}]),
            "TRACEJUDGE_BUDGETS": json.dumps(budgets),
            **({} if telemetry else _QUIET),
            **({"TRACEJUDGE_OTLP_ENDPOINT": receiver.url} if telemetry and otlp else {}),
        }
        running = [parts.enter_context(_worker(number, settings, python)) for number in range(1, workers + 1)]
        line = Pipeline(server, endpoint_, receiver, running, exports=telemetry and otlp)
        parts.callback(line.client.close)
        yield line


@contextlib.contextmanager
def _worker(number: int, settings: Mapping[str, str], python: Sequence[str]) -> Iterator[Program]:
    port = free_port()
    variables = {**settings, "TRACEJUDGE_METRICS_PORT": str(port)}
    with program(f"worker {number}", "-m", "worker.cli", "worker", python=python, **variables) as running:
        until(lambda: _answers(f"http://127.0.0.1:{port}/metrics"), running, what="the worker's metrics page")
        yield running


@contextlib.contextmanager
def _served(name: str, *command: str, arguments: Sequence[str] = ()) -> Iterator[Served]:
    port = free_port()
    with program(name, *command, str(port), *arguments) as running:
        served = Served(running, f"http://127.0.0.1:{port}")
        until(lambda: _answers(served.url), running, what=f"the {name} listens")
        yield served


def redis_cpu_s(client: "redis.Redis") -> float:
    """Read the CPU seconds that the server has used, user and system."""
    used = client.info("cpu")
    return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=_HTTP_TIMEOUT_S).close()  # noqa: S310 - a loopback address
    except OSError:
        return False
    return True
