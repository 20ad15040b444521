"""This checkout beside other commits, by one driver and in turns: it sees a change of 5 %.

Each commit gets an environment of its own from its `constraints.txt`, because one version needs packages that another
removed. The endpoint, the receiver, Redis, the traces and what measures are of this checkout on all sides: all versions
know the same variables and keep the keys that are read here. CPU is user and system of the whole process.
"""

import datetime as dt
import shutil
import statistics
import subprocess
import sys
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

__all__ = ["RELEASES", "SERIES", "SUITES", "append_series", "compare"]

RELEASES: Final = ("510e5c49", "a3399d6")
"""Version 0.2, and the last commit before its features, which has no gateway."""
SERIES: Final = "\n## Series\n"
_SERIES_TEXT: Final = (
    "Ratios of this version to a commit, with the least and the largest of the rounds. `make bench` appends rows."
)
_GOALS_BESIDE: Final = "a3399d6"
_ROOT: Final = Path(__file__).parents[1]
_ENVIRONMENTS: Final = _ROOT / ".bench"
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


class Row(NamedTuple):
    """A figure of this checkout and of a commit: medians, their ratio, and its least and largest value in a round."""

    what: str
    unit: str
    here: float
    there: float
    least: float
    largest: float
    goal: str

    @property
    def ratio(self) -> str:
        """Show the ratio with its spread."""
        return f"{self.here / self.there:.3f} ({self.least:.3f} to {self.largest:.3f})"


def compare(commits: Sequence[str], suites: Sequence[str], rounds: int) -> dict[str, list[Row]]:
    """Measure all sides `rounds` times in turns, and print a table for each commit.

    Raises:
        subprocess.CalledProcessError: Git does not know a commit, or its packages cannot be installed.
        RuntimeError: A program ended.
    """
    sides = [Side("here", (sys.executable,), (sys.executable,)), *map(_installed, commits)]
    runs: dict[tuple[str, str], list[Measured]] = {}
    for suite in suites:
        # Instructions vary by 3 % under any load, and take minutes.
        for number in range(1 if suite == "instructions" else rounds):
            # The order alternates, so that a machine that warms up or slows down favours no side.
            print(f"{suite}, round {number + 1}", flush=True)
            for side, figure in SUITES[suite](sides[:: -1 if number % 2 else 1]):
                tell(f"{side.name}: {figure.what}: {figure.value:,.3f} {figure.unit}")
                runs.setdefault((side.name, figure.what), []).append(figure)
    tables = {commit: list(_rows(runs, commit)) for commit in commits}
    for commit, rows in tables.items():
        print(f"\nRatio to {commit} (least and largest of {rounds} rounds), medians of both, figure, goal")
        for row in rows:
            change = f"{_shown(row.there)} -> {_shown(row.here)} {row.unit}"
            print(f"{row.ratio:24} {change:30} {row.what}" + (f"; {row.goal}" if row.goal else ""))
    return tables


def _rows(runs: Mapping[tuple[str, str], Sequence[Measured]], commit: str) -> Iterator[Row]:
    for (name, what), ours in runs.items():
        theirs = runs.get((commit, what))
        if name == "here" and theirs:
            ratios = [new.value / old.value for new, old in zip(ours, theirs, strict=True)]
            here, there = (statistics.median(one.value for one in side) for side in (ours, theirs))
            goal = ours[0].goal if commit == _GOALS_BESIDE else None
            verdict = goal.verdict(here / there, here) if goal else ""
            yield Row(what, ours[0].unit, here, there, min(ratios), max(ratios), verdict)


def append_series(path: Path, tables: Mapping[str, Sequence[Row]]) -> None:
    """Append a row for each figure beside the releases to the results; earlier rows stay as they are."""
    text = path.read_text(encoding="utf-8")
    if SERIES not in text:
        columns = ("date", "commit", "figure", "here", *(f"to {name}" for name in RELEASES), "goal")
        text += f"{SERIES}\n{_SERIES_TEXT}\n\n| {' | '.join(columns)} |\n|{' --- |' * len(columns)}\n"
    commit, date = _git("rev-parse", "--short=8", "HEAD").decode().strip(), dt.datetime.now(dt.UTC).date().isoformat()
    figures: dict[str, dict[str, Row]] = {}
    for name, rows in tables.items():
        for row in rows:
            figures.setdefault(row.what, {})[name] = row
    for what, beside in figures.items():
        first, goal = next(iter(beside.values())), "".join(row.goal for row in beside.values())
        ratios = (beside[name].ratio if name in beside else "" for name in RELEASES)
        cells = (date, f"`{commit}`", what, f"{_shown(first.here)} {first.unit}".strip(), *ratios, goal)
        text += f"| {' | '.join(cells)} |\n"
    path.write_text(text, encoding="utf-8")


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"  # noqa: PLR2004 - three digits


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", "-C", str(_ROOT), *arguments], stdout=subprocess.PIPE, check=True).stdout  # noqa: S607


def _installed(commit: str) -> Side:
    """Install a commit with the versions of its constraints, once: the environment is kept."""
    name = _git("rev-parse", f"{commit}^{{commit}}").decode().strip()
    folder = _ENVIRONMENTS / name
    tree, python, ready = folder / "tree", str(folder / "environment" / "bin" / "python"), folder / "ready"
    if not ready.exists():
        print(f"an environment for {commit} in {folder.relative_to(_ROOT)}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        tree.mkdir(parents=True)
        subprocess.run(["tar", "-x"], input=_git("archive", name), cwd=tree, check=True)  # noqa: S607
        subprocess.run([sys.executable, "-m", "venv", str(folder / "environment")], check=True)
        constraints = ["-c", "constraints.txt"] if (tree / "constraints.txt").exists() else []
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *constraints]
        subprocess.run([*pip, "./producers", ".[gateway]"], cwd=tree, check=True)
        ready.touch()
    # Without -I the modules of the current folder would be in the place of the installed ones.
    return Side(commit, (python,), (python, "-I"))


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
