"""What one trace executes in a worker with all roles: files, lines, functions. Run ``python -m benchmarks.one_trace``.

A worker with a plain configuration (one rule, groundedness, the provider openai at a loopback endpoint) judges some
traces, so that nothing of a start is left; then it is idle for a while, and then one trace with context is published.
A profiler hook in all threads records the functions that were called from the publication until every consumer group
has acknowledged the verdict. Functions that the idle worker calls too are left out.
"""

import contextlib
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from importlib import import_module
from itertools import cycle
from pathlib import Path
from types import CodeType, FrameType
from typing import Final, NamedTuple

from benchmarks.programs import Program, program, until
from benchmarks.traces import make

__all__ = ["Executed", "loaded", "measure"]

ROOT: Final = Path(__file__).resolve().parent.parent
_PRODUCT: Final = ("judges/", "worker/")
_LOADED: Final = (*_PRODUCT, "producers/")
_WARM_UP: Final = 20
_IDLE_S: Final = 5.0  # Longer than any period of the worker's threads but those of a minute.
_SETTLED_S: Final = 2.0  # After the acknowledgement: what follows it, as the gauges of the sums.
_PREFIX: Final = "profile"


class Executed(NamedTuple):
    """Functions by file, without those of an idle worker."""

    functions: dict[str, list[str]]

    @property
    def lines(self) -> int:
        """Sum the lengths of the files."""
        return sum(_length(ROOT / path) for path in self.functions)


def measure() -> Executed:
    """Start everything, publish one trace, and return what it executed.

    Raises:
        RuntimeError: A program ended.
        TimeoutError: A program did not answer, or the trace was not judged in time.
    """
    # The SDK and Redis are needed here only; a profiled worker imports them by itself.
    from benchmarks.workers import endpoint  # noqa: PLC0415
    from worker.base.embedded import EmbeddedRedis, free_port  # noqa: PLC0415

    with contextlib.ExitStack() as parts:
        server = parts.enter_context(EmbeddedRedis())
        served = parts.enter_context(endpoint(0.0))
        folder = Path(parts.enter_context(tempfile.TemporaryDirectory()))
        model = {"provider": "openai", "base_url": f"{served.url}/v1", "model": "bench"}
        worker = parts.enter_context(
            program(
                "worker",
                "-m",
                "benchmarks.one_trace",
                str(folder),
                TRACEJUDGE_REDIS_URL=server.url,
                TRACEJUDGE_PREFIX=_PREFIX,
                TRACEJUDGE_METRICS_PORT=str(free_port()),
                TRACEJUDGE_MODELS=json.dumps({"default": model}),
                TRACEJUDGE_RULES=json.dumps([{"name": "all", "judges": ["groundedness"]}]),
            )
        )
        published = _Published(server.url, worker)
        published.publish(_WARM_UP)
        idle = _recorded(worker, folder, lambda: time.sleep(_IDLE_S))
        active = _recorded(worker, folder, published.publish_one)
        functions: dict[str, list[str]] = {}
        for path, name in sorted(active - idle):
            functions.setdefault(path, []).append(name)
        return Executed(functions)


class _Published:
    """Traces that are published and awaited."""

    def __init__(self, url: str, worker: Program) -> None:
        from worker.core.storage.client import Store  # noqa: PLC0415
        from worker.core.storage.keys import Keys  # noqa: PLC0415

        self._url, self._worker, self._count = url, worker, 0
        self._store = Store(url, Keys(_PREFIX))

    def publish(self, count: int) -> None:
        """Publish traces, and wait until all groups have acknowledged all verdicts."""
        import tracejudge  # noqa: PLC0415

        tracejudge.init(service="bench", redis_url=self._url, prefix=_PREFIX)
        for trace in make(count):
            tracejudge.publish(trace)
        tracejudge.shutdown(10)
        self._count += count
        until(self._is_acknowledged, self._worker, what="the acknowledgement of every verdict")

    def publish_one(self) -> None:
        """Publish one trace, and wait for what follows its acknowledgement."""
        self.publish(1)
        time.sleep(_SETTLED_S)

    def _is_acknowledged(self) -> bool:
        keys = self._store.keys
        if self._store.call(lambda client: client.xlen(keys.verdicts)) < self._count:
            return False
        groups = self._store.call(lambda client: client.xinfo_groups(keys.verdicts))
        last = self._store.call(lambda client: client.xinfo_stream(keys.verdicts))["last-generated-id"]
        # Redis 6.2 knows no lag of a group.
        return bool(groups) and all(not group["pending"] and group["last-delivered-id"] == last for group in groups)


def _recorded(worker: Program, folder: Path, act: Callable[[], object]) -> set[tuple[str, str]]:
    """Record what the worker executes meanwhile: pairs of file and function."""
    order, written = folder / "record", folder / "functions.json"
    order.touch()
    until(lambda: not order.exists(), worker, what="the profiler to begin")
    act()
    order.touch()
    until(written.exists, worker, what="the record of the profiler")
    found = {(path, name) for path, name in json.loads(written.read_text(encoding="utf-8"))}
    written.unlink()
    return found


def loaded(module: str) -> tuple[int, int]:
    """Count the product's files, and their lines, that the import of a module loads into a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder, "files.json")
        with program(module, "-m", "benchmarks.one_trace", "--import", module, str(written)) as running:
            until(written.exists, running, what=f"the import of {module}")
        files = json.loads(written.read_text(encoding="utf-8"))
    return len(files), sum(_length(ROOT / path) for path in files)


def _length(path: Path) -> int:
    return path.read_text(encoding="utf-8").count("\n")


def _write(path: Path, value: object) -> None:
    """Write the whole file at once: its reader waits until it exists."""
    path.with_suffix(".new").write_text(json.dumps(value), encoding="utf-8")
    path.with_suffix(".new").rename(path)


def _import(module: str, written: Path) -> None:
    import_module(module)
    files = {Path(file) for one in list(sys.modules.values()) if (file := getattr(one, "__file__", None))}
    names = sorted(str(file.relative_to(ROOT)) for file in files if file.is_relative_to(ROOT))
    _write(written, [name for name in names if name.startswith(_LOADED)])


def _run_worker(folder: Path) -> None:
    """Run a worker whose calls are recorded from one file `record` to the next; signals are Celery's."""
    codes = set[CodeType]()

    def record(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            codes.add(frame.f_code)

    def write() -> None:
        places = ((Path(code.co_filename), code.co_qualname) for code in list(codes))
        inside = [(str(path.relative_to(ROOT)), name) for path, name in places if path.is_relative_to(ROOT)]
        _write(folder / "functions.json", [pair for pair in inside if pair[0].startswith(_PRODUCT)])

    def obey() -> None:
        order = folder / "record"
        for act in cycle((codes.clear, write)):
            while not order.exists():
                time.sleep(0.02)
            act()
            order.unlink()

    threading.Thread(target=obey, daemon=True).start()
    threading.setprofile(record)
    sys.setprofile(record)
    os.chdir(folder)
    sys.argv = ["tracejudge", "worker"]
    import_module("worker.cli").main()


def main(arguments: list[str]) -> None:
    """Measure and print; with arguments be one of the processes that are measured."""
    match arguments:
        case ["--import", module, written]:
            _import(module, Path(written))
            signal.pause()
        case [folder]:
            _run_worker(Path(folder))
        case _:
            executed = measure()
            for path, names in executed.functions.items():
                print(f"{_length(ROOT / path):6} {path}: {', '.join(names)}")
            count = sum(map(len, executed.functions.values()))
            print(f"{len(executed.functions)} files, {executed.lines:,} lines, {count} functions")


if __name__ == "__main__":
    main(sys.argv[1:])
