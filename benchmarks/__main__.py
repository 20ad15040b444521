"""Run all benchmarks and write `benchmarks/RESULTS.md`; `make bench` takes about two minutes."""

import datetime as dt
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Final

from benchmarks.figures import Figure
from benchmarks.judging import judging
from benchmarks.publishing import publishing
from benchmarks.reading import reading
from worker.embedded import EmbeddedRedis

_RESULTS: Final = Path(__file__).parent / "RESULTS.md"
_LIBRARIES: Final = ("celery", "redis", "httpx", "httpx-aiohttp", "msgspec")


def main() -> int:
    """Measure, show, write."""
    with EmbeddedRedis() as server:
        suites: Mapping[str, Callable[[], Iterator[Figure]]] = {
            "Publishing": lambda: publishing(server.url),
            "Rendering and reading": reading,
            "Judging": lambda: judging(server.url),
        }
        lines = [*_head(server.version)]
        for title, suite in suites.items():
            lines += ["", f"## {title}", "", "| figure | measured | ratio |", "| --- | --- | --- |"]
            for figure in suite():
                print(f"{figure.what}: {figure.value} {figure.against}", flush=True)
                lines.append(f"| {figure.what} | {figure.value} | {figure.against} |")
    _RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


def _head(redis_version: str) -> Iterator[str]:
    yield "# Speed"
    yield ""
    yield "Written by `make bench`: everything in one run on one machine, on loopback. Ratios hold better than figures."
    yield ""
    today = dt.datetime.now(dt.UTC).date().isoformat()
    machine = f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}, Python {platform.python_version()}"
    libraries = ", ".join(f"{name} {version(name)}" for name in _LIBRARIES)
    yield f"{today} · {machine} · Redis {redis_version} · {libraries}"


if __name__ == "__main__":
    sys.exit(main())
