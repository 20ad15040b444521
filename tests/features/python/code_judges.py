"""Run judges in code as the worker does, and look which of their processes are there."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest
from support.processes import PATIENCE_S, wait_until

from judges.calling.evaluation import evaluate
from judges.core.judge import Judge
from judges.core.verdict import Assessment
from judges.features.python.installed import make
from judges.features.python.process import Process
from tracejudge import Trace

FILE = Path(__file__).parent / "judged_code.py"
PATIENT: dict[str, Any] = {"time_limit_s": PATIENCE_S}
"""For tables: a process that the machine lets wait has not overrun."""
T = TypeVar("T")


def of_file(name: str, **table: Any) -> Judge:
    """Make one of our judges."""
    return make(name, {"code": f"{FILE}:{name}", **PATIENT, **table})


def trace(output: str = "See https://example.org", **fields: Any) -> Trace:
    return Trace(trace_id="0" * 31 + "1", service="bot", output=output, **fields)


def told(**tags: Any) -> Trace:
    """Make a trace that tells the judge what to do."""
    return trace(tags={name: f"{value}" for name, value in tags.items()})


def judged(judge: Judge, *traces: Trace) -> list[Assessment]:
    """Judge traces one after another, and leave no process behind."""

    async def run() -> list[Assessment]:
        return [await evaluate(judge, sample, None) for sample in traces]

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
    returned = asyncio.run(run())
    assert set(processes()) <= set(before)
    return returned


def pass_time(seconds: float) -> None:
    """Advance the time of the running loop only."""
    loop = asyncio.get_running_loop()
    now = loop.time
    loop.time = lambda: now() + seconds  # type: ignore[method-assign]


def let_hanging_pass_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """End the time limit of a trace that asks for it at once, and that of no other."""
    ask = Process.ask

    async def asked(self: Process, message: bytes, limit_s: float) -> bytes:
        if b'"do":"hang"' in message:
            asyncio.get_running_loop().call_soon(pass_time, limit_s)  # when it runs
        return await ask(self, message, limit_s)

    monkeypatch.setattr(Process, "ask", asked)


def processes(parent: int | str = "self") -> list[int]:
    """Return the ids of all child processes, also of those that serve other tests of the session."""
    rows: list[int] = []
    for task in Path(f"/proc/{parent}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            rows += map(int, task.read_text().split())
    return sorted(rows)


def is_running(pid: int) -> bool:
    """Return whether a process exists; one that has ended and was waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for_end(pid: int) -> None:
    wait_until(lambda: not is_running(pid), what=f"process {pid} to end")


def written(file: Path) -> int:
    """Wait until a judge has written a number into a file."""
    return int(wait_until(lambda: file.exists() and file.read_text(), what=f"{file.name}"))
