"""Run the benchmarks: without a name all of them, which takes about an hour, most of it for the guard at the end.

They write `benchmarks/RESULTS.md`, and the figures of docs/reference/measured/capacity.md with its first table.
With names only those run, and only print: what stands in a file is all of one run on one machine. `guard` measures this
checkout beside version 0.2 and a commit before it, and adds a row for each figure to the series in `RESULTS.md`;
`--against COMMIT` measures some figures of the guard, or all, beside another commit, and only prints.
`statistics` simulates what the documentation claims of intervals and alarms; `statistics --help` says more.
"""

import argparse
import datetime as dt
import os
import platform
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final

from benchmarks import statistics
from benchmarks.board import board
from benchmarks.capacity import capacity, write_sizing
from benchmarks.cluster import cluster
from benchmarks.figures import Figure
from benchmarks.gateway import gateway
from benchmarks.guard import RELEASES, SERIES, append_series, compare
from benchmarks.guard_figures import SUITES as GUARDED
from benchmarks.ingest import ingest
from benchmarks.judging import decisions, judging
from benchmarks.monitor import monitor
from benchmarks.publishing import publishing
from benchmarks.reading import reading
from benchmarks.sampling import sampling
from worker.base.embedded import EmbeddedRedis

_RESULTS: Final = Path(__file__).parent / "RESULTS.md"
_LIBRARIES: Final = ("celery", "redis", "httptools", "uvloop", "httpx", "msgspec")
_STOPPED: Final = 130


def _publishing() -> Iterator[Figure]:
    with EmbeddedRedis() as server:
        yield from publishing(server.url)


_SUITES: Final[Mapping[str, Callable[[], Iterator[Figure]]]] = {
    "publishing": _publishing,
    "reading": reading,
    "sampling": sampling,
    "judging": judging,
    "decisions": decisions,
    "ingest": ingest,
    "gateway": gateway,
    "monitor": monitor,
    "board": board,
    "capacity": capacity,
    "cluster": cluster,
}
_GUARD: Final = "guard"
_TITLES: Final = {"reading": "Rendering and reading", "sampling": "Sampling and budgets"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, show, write; 130 when it was stopped."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["statistics"]:
        from benchmarks.claims import TABLES  # noqa: PLC0415 - its simulations need numpy

        return statistics.main(TABLES, given[1:])
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    with_commit = f"with --against one or more of {', '.join(GUARDED)}"
    parser.add_argument("suites", metavar="SUITE", nargs="*", help=f"of {', '.join(_SUITES)}, {_GUARD}; {with_commit}")
    parser.add_argument("--against", metavar="COMMIT", help="measure another commit in turns, and compare")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each side of a comparison")
    parsed = parser.parse_args(given)
    chosen, suites = parsed.suites, list(GUARDED if parsed.against else (*_SUITES, _GUARD))
    if unknown := set(chosen) - set(suites):
        parser.error(f"no such suite: {', '.join(sorted(unknown))}; there are {', '.join(suites)}")
    # As Ctrl-C, so that whatever was started is ended.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if parsed.against:
            compare([parsed.against], chosen or suites, parsed.rounds)
            return 0
        sections = {name: _measured(name) for name in chosen or _SUITES if name != _GUARD}
        if not chosen:
            lines = [*_head(), *(line for name, figures in sections.items() for line in _section(name, figures))]
            _, heading, rows = _RESULTS.read_text(encoding="utf-8").partition(SERIES)
            _RESULTS.write_text("\n".join(lines) + "\n" + heading + rows, encoding="utf-8")
            write_sizing()
        if not chosen or _GUARD in chosen:
            append_series(_RESULTS, compare(RELEASES, list(GUARDED), parsed.rounds))
    except KeyboardInterrupt:
        return _STOPPED
    return 0


def _measured(name: str) -> list[Figure]:
    print(f"{_title(name)}; load of the machine before: {os.getloadavg()[0]:.1f}", flush=True)
    figures = []
    for figure in _SUITES[name]():
        beside = "; ".join(filter(None, (figure.ratio, figure.bar and f"bar {figure.bar}")))
        print(f"{figure.what}: {figure.value}" + (f" ({beside})" if beside else ""), flush=True)
        figures.append(figure)
    return figures


def _title(name: str) -> str:
    return _TITLES.get(name, name.capitalize())


def _section(name: str, figures: Sequence[Figure]) -> Iterator[str]:
    """Show ratios first: they hold on other machines."""
    yield from ("", f"## {_title(name)}", "", "| figure | measured | ratio | bar |", "| --- | --- | --- | --- |")
    for figure in sorted(figures, key=lambda one: not one.ratio):
        yield f"| {figure.what} | {figure.value} | {figure.ratio} | {figure.bar} |"


def _head() -> Iterator[str]:
    yield "# Speed"
    yield ""
    yield "Written by `make bench`: everything in one run on one machine, on loopback. Ratios hold better than figures."
    yield ""
    today = dt.datetime.now(dt.UTC).date().isoformat()
    machine = f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}, Python {platform.python_version()}"
    libraries = ", ".join(f"{name} {version(name)}" for name in _LIBRARIES)
    with EmbeddedRedis() as server:
        yield f"{today} · {machine} · Redis {server.version} · {libraries}"


if __name__ == "__main__":
    sys.exit(main())
