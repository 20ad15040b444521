"""What the guard measures of each version, in turns: evaluation, ingest, calls in flight, publication, gateway.

CPU is user and system of a whole process. Where valgrind is installed, it counts the instructions of all threads too.
"""

import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.figures import tell
from benchmarks.gateway import SPANS, Gateway, running
from benchmarks.judging import steady
from benchmarks.publishing import call, collector, cpu_of_a_call, percentiles
from benchmarks.workers import Cost, Pipeline, pipeline
from worker.base.embedded import EmbeddedRedis

__all__ = ["SUITES", "Goal", "Measured", "Side"]

_TURNS: Final = 8
_EVALUATIONS: Final = 10_000
_TRACES: Final = 200_000
_RATE: Final = 0.01
_REQUESTS: Final = 25
_PROCESSES: Final = 4
_PUBLICATIONS: Final = 200_000
_TIMED: Final = {"burst": 5_000, "paced": 2_000}
# Under valgrind everything takes fifty times as long.
_FEW_EVALUATIONS: Final = 500
_FEW_TRACES: Final = 10_000
_FEW_REQUESTS: Final = 8
_IDLE_S: Final = 5.0


class Side(NamedTuple):
    """One version of the product: its name, and the Python that runs our modules with its SDK, or its own modules."""

    name: str
    sdk: tuple[str, ...]
    product: tuple[str, ...]


class Goal(NamedTuple):
    """A bound of the ratio to one commit, or of the figure of this checkout by itself."""

    bound: float
    at_least: bool = False
    by_itself: bool = False

    def verdict(self, ratio: float, value: float) -> str:
        """Return the bound, and whether it is met."""
        reached = value if self.by_itself else ratio
        met = reached >= self.bound if self.at_least else reached <= self.bound
        sign, of = "≥" if self.at_least else "≤", " by itself" if self.by_itself else ""
        return f"{sign} {self.bound:g}{of}: {'met' if met else 'missed'}"


class Measured(NamedTuple):
    """A figure of one side in one round."""

    what: str
    value: float
    unit: str
    goal: Goal | None = None


Figures = Iterator[tuple[Side, Measured]]


def _medians(measures: Sequence[Callable[[], tuple[float, ...]]], turns: int) -> list[tuple[float, ...]]:
    """Measure all sides in short turns, so that other work of the machine falls upon all alike; one row a side."""
    taken: list[list[tuple[float, ...]]] = [[] for _ in measures]
    for number in range(turns):
        for place in range(len(measures))[:: -1 if number % 2 else 1]:
            taken[place].append(measures[place]())
    return [tuple(map(statistics.median, zip(*values, strict=True))) for values in taken]


def _costs(sides: Sequence[Side], count: int, *, otlp: bool, rate: float, small: bool) -> list[Cost]:
    with ExitStack() as stack:
        lines = [stack.enter_context(pipeline(python=side.product, otlp=otlp, rate=rate)) for side in sides]

        def cost(line: Pipeline) -> Cost:
            with ExitStack() as others:
                for other in lines:
                    if other is not line:
                        others.enter_context(other.paused())
                return line.cost(count // _TURNS, line.verdicts if rate == 1.0 else line.read, small=small)

        for line in lines:
            line.warm_up(1_000) if rate == 1.0 else line.warm_up(20_000, verdicts=100)
        return [Cost(*row) for row in _medians([partial(cost, line) for line in lines], _TURNS)]


def _evaluation(sides: Sequence[Side], *, otlp: bool = False) -> Figures:
    """Judge traces of 4 kB for groundedness, on an endpoint that answers at once."""
    how = "with OTLP" if otlp else "without OTLP"
    for side, cost in zip(sides, _costs(sides, _EVALUATIONS, otlp=otlp, rate=1.0, small=False), strict=True):
        yield side, Measured(f"CPU of the worker an evaluation, {how}", cost.worker, "µs", Goal(0.80 if otlp else 0.75))
        yield side, Measured(f"CPU of Redis an evaluation, {how}", cost.redis, "µs", None if otlp else Goal(0.8))
        goal = None if otlp else Goal(1.6, at_least=True)
        yield side, Measured(f"evaluations/s of one worker, {how}", cost.per_s, "/s", goal)


def _ingest(sides: Sequence[Side]) -> Figures:
    for size, bound in (("300 B", 1.5), ("4 kB", 1.3)):
        costs = _costs(sides, _TRACES, otlp=False, rate=_RATE, small=size == "300 B")
        for side, cost in zip(sides, costs, strict=True):
            what, per_cpu_s = f"of {size} at rate 0.01", 1e6 / (cost.worker + cost.redis)
            goal = Goal(bound, at_least=True)
            yield side, Measured(f"traces {what} by CPU second of worker and Redis", per_cpu_s, "/s", goal)
            yield side, Measured(f"traces/s {what}", cost.per_s, "/s")
            yield side, Measured(f"CPU of the worker a trace {what}", cost.worker, "µs")
            yield side, Measured(f"CPU of Redis a trace {what}", cost.redis, "µs")


def _in_flight(sides: Sequence[Side]) -> Figures:
    what = "1,000 in flight at 2 s"
    for side in sides:
        with pipeline(python=side.product, otlp=False, delay_s=2.0, max_in_flight=1_000) as line:
            speed, _ = steady(line, 1_000, ideal := 1_000 / 2.0, ramp_s=45.0, window_s=30.0)
            peak_mib = line.workers[0].peak_mib()
        yield (
            side,
            Measured(f"share of the ideal rate, {what}", speed / ideal, "", Goal(0.98, at_least=True, by_itself=True)),
        )
        yield side, Measured(f"memory of the worker at its peak, {what}", peak_mib, "MiB", Goal(1.0))


def _publish(sides: Sequence[Side]) -> Figures:
    with EmbeddedRedis() as server, collector() as address:
        for mode, calls in _TIMED.items():
            ours = [partial(percentiles, "ours", mode, server.url, calls, python=side.sdk) for side in sides]
            theirs, *rows = _medians([partial(percentiles, "opentelemetry", mode, address, calls), *ours], _PROCESSES)
            for side, (p50, *_) in zip(sides, rows, strict=True):
                yield side, Measured(f"publish, p50, {mode}", p50, "µs")
                what = f"publish, p50, {mode}, of that of OpenTelemetry's batch processor"
                yield side, Measured(what, p50 / theirs[0], "", Goal(1 / 20, by_itself=True))
        calls = _PUBLICATIONS // _PROCESSES
        used = [partial(cpu_of_a_call, server.url, calls, python=side.sdk) for side in sides]
        for side, (cpu_us,) in zip(sides, _medians(used, _PROCESSES), strict=True):
            yield side, Measured("CPU of a service a publication, with delivery", cpu_us, "µs")


def _gateway(sides: Sequence[Side]) -> Figures:
    def cpu_us(gateway: Gateway) -> tuple[float]:
        begin = gateway.process.cpu_s()
        gateway.deliver(_REQUESTS)
        return (1e6 * (gateway.process.cpu_s() - begin) / (_REQUESTS * SPANS),)

    able = [side for side in sides if _has_gateway(side)]
    with ExitStack() as stack:
        gateways = [stack.enter_context(running(side.product)) for side in able]
        for gateway in gateways:
            gateway.deliver(_REQUESTS)
        for side, (used,) in zip(able, _medians([partial(cpu_us, one) for one in gateways], _TURNS), strict=True):
            yield side, Measured("CPU of the gateway a span", used, "µs")


def _has_gateway(side: Side) -> bool:
    command = [*side.product, "-m", "worker.cli", "gateway", "--help"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _instructions(sides: Sequence[Side]) -> Figures:
    """Count the instructions of all threads together, after the warm-up."""
    if shutil.which("valgrind") and shutil.which("vgdb"):
        yield from ((side, figure) for side in sides for figure in _counts(side))
    else:
        tell("valgrind is not installed: no instructions are counted")


def _counts(side: Side) -> Iterator[Measured]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out")
        valgrind = ("valgrind", "-q", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={out}")
        product = (*valgrind, *side.product)
        with pipeline(python=product, otlp=False) as line:
            line.warm_up(_FEW_EVALUATIONS)
            total = _counted(line.workers[0].pid, out, lambda: line.cost(_FEW_EVALUATIONS, line.verdicts))
        yield Measured("instructions an evaluation, without OTLP", total / _FEW_EVALUATIONS / 1000, "k")
        with pipeline(python=product, otlp=False, rate=_RATE) as line:
            line.warm_up(_FEW_TRACES, verdicts=1)
            total = _counted(line.workers[0].pid, out, lambda: line.cost(_FEW_TRACES, line.read))
        yield Measured("instructions a trace of 4 kB at rate 0.01", total / _FEW_TRACES / 1000, "k")
        with EmbeddedRedis() as server:
            call("ours", "instructions", server.url, _TIMED["burst"], python=(*valgrind, *side.sdk))
        yield Measured("instructions a publication, with delivery", _total(out, 1) / _TIMED["burst"] / 1000, "k")
        if _has_gateway(side):
            with running(product) as spans:
                spans.deliver(_FEW_REQUESTS)
                total = _counted(spans.process.pid, out, lambda: spans.deliver(_FEW_REQUESTS))
            yield Measured("instructions a span in the gateway", total / (_FEW_REQUESTS * SPANS) / 1000, "k")


def _counted(pid: int, out: Path, work: Callable[[], object]) -> float:
    """Count what the work adds to an idle program, whose timers take their share of the long time under valgrind."""

    def order(*words: str) -> float:
        subprocess.run(["vgdb", f"--pid={pid}", *words], capture_output=True, check=True)  # noqa: S607
        return time.monotonic()

    idle = order("instrumentation", "on")
    time.sleep(_IDLE_S)
    begin = order("dump")
    work()
    end = order("dump")
    return _total(out, 2) - _total(out, 1) * (end - begin) / (begin - idle)


def _total(out: Path, dump: int) -> int:
    lines = out.with_name(f"{out.name}.{dump}").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("totals:"))


SUITES: Final[Mapping[str, Callable[[Sequence[Side]], Figures]]] = {
    "evaluation": _evaluation,
    "otlp": partial(_evaluation, otlp=True),
    "ingest": _ingest,
    "in_flight": _in_flight,
    "publish": _publish,
    "gateway": _gateway,
    "instructions": _instructions,
}
