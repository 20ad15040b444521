"""Run judges in code as the worker does, and look which of their processes are there."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from support.processes import wait_until

from judges.defined.code import make
from judges.evaluate import evaluate
from judges.judge import Judge
from judges.verdict import Assessment
from tracejudge import Trace

FILE = Path(__file__).parent / "judged_code.py"
T = TypeVar("T")


def of_file(name: str, **table: Any) -> Judge:
    """Make one of our judges."""
    return make(name, {"code": f"{FILE}:{name}", **table})


def trace(output: str = "See https://example.org", **fields: Any) -> Trace:
    return Trace(trace_id="0" * 31 + "1", service="bot", output=output, **fields)


def told(**tags: Any) -> Trace:
    """Make a trace that tells the judge what to do."""
    return trace(tags={name: f"{value}" for name, value in tags.items()})


def judged(judge: Judge, *traces: Trace) -> list[Assessment]:
    """Judge traces one after another, and leave no process behind."""

    async def run() -> list[Assessment]:
        return [await evaluate(judge, one, None) for one in traces]

    return running(run, judge)


def running(function: Callable[[], Awaitable[T]], *judges: Judge) -> T:
    """Run a coroutine in a loop of its own and close the judges, as the worker does; no process is left."""

    async def run() -> T:
        try:
            return await function()
        finally:
            for judge in judges:
                assert judge.close is not None
                await judge.close()

    before = processes()
    result = asyncio.run(run())
    assert set(processes()) <= set(before)
    return result


def processes(parent: int | str = "self") -> list[int]:
    """Give the numbers of all child processes, also those that serve other tests of the session."""
    found: list[int] = []
    for task in Path(f"/proc/{parent}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            found += map(int, task.read_text().split())
    return sorted(found)


def is_running(pid: int) -> bool:
    """Tell whether a process is there; one that has ended and is waited for is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for_end(pid: int) -> None:
    wait_until(lambda: not is_running(pid), what=f"process {pid} to end")


def written(file: Path) -> int:
    """Wait until a judge has written a number into a file."""
    return int(wait_until(lambda: file.exists() and file.read_text(), what=f"{file.name}"))
