"""The whole of TraceJudge for one figure: a Redis of its own, an endpoint, an OTLP receiver, and workers.

Each is a process of its own on loopback. All telemetry is on unless a figure switches it off: the metrics of verdicts,
spans, events, and one log line for each verdict.
"""

import contextlib
import json
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Final, NamedTuple, cast

import redis

from benchmarks.programs import Program, program, until
from benchmarks.samples import Sample, watch
from benchmarks.traces import pieces
from worker.base.embedded import EmbeddedRedis, free_port
from worker.core.storage.keys import Keys

__all__ = ["Pipeline", "endpoint", "pipeline"]

_KEYS: Final = Keys("bench")
_PRODUCER: Final = "bench"
_FILLED_AT_ONCE: Final = 5_000
_WARM_UP: Final = 1_000
_HTTP_TIMEOUT_S: Final = 5.0
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
            **({"TRACEJUDGE_OTLP_ENDPOINT": receiver.url} if telemetry else _QUIET),
        }
        running = [parts.enter_context(_worker(number, settings)) for number in range(1, workers + 1)]
        line = Pipeline(server, endpoint_, receiver, running, exports=telemetry)
        parts.callback(line.client.close)
        yield line


@contextlib.contextmanager
def _worker(number: int, settings: Mapping[str, str]) -> Iterator[Program]:
    port = free_port()
    variables = {**settings, "TRACEJUDGE_METRICS_PORT": str(port)}
    with program(f"worker {number}", "-m", "worker.cli", "worker", **variables) as running:
        until(lambda: _answers(f"http://127.0.0.1:{port}/metrics"), running, what="the worker's metrics page")
        yield running


@contextlib.contextmanager
def _served(name: str, *command: str, arguments: Sequence[str] = ()) -> Iterator[Served]:
    port = free_port()
    with program(name, *command, str(port), *arguments) as running:
        served = Served(running, f"http://127.0.0.1:{port}")
        until(lambda: _answers(served.url), running, what=f"the {name} listens")
        yield served


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=_HTTP_TIMEOUT_S).close()  # noqa: S310 - a loopback address
    except OSError:
        return False
    return True
