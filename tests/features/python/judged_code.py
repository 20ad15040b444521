"""Judges in code that behave, and that misbehave in every way; the tests run them in processes of their own."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from judges.code import Metric, Score, judge
from judges.core.judge import JudgeFailedError
from tracejudge import Trace

SECRET = "the text of a trace"  # noqa: S105 - what must never come out


def said(trace: Trace, key: str) -> str:
    """Read what a test tells a judge."""
    return (trace.tags or {})[key]


@judge
def has_link(trace: Trace) -> bool:
    """Does the answer hold a link?"""
    return "https://" in trace.output


@judge(pass_at=0.5)
async def measured(trace: Trace) -> Score | None:
    """Return what the trace asks for, after a pause."""
    await asyncio.sleep(0)
    if "value" not in (trace.tags or {}):
        return None
    return Score(float(said(trace, "value")), label="measured", rationale="As it says.")


@judge(
    metrics=(Metric("length", "0..1", None, descriptive=True), Metric("polite", "0 or 1", "true")),
    needs=("output", ("expected_response", "expected_facts")),
    version="3",
    time_limit_s=2.5,
)
def several(trace: Trace) -> list[Score]:
    """Return two metrics."""
    return [Score(min(1.0, len(trace.output) / 100), metric="length"), Score("please" in trace.output, metric="polite")]


@judge
def same_process(trace: Trace) -> Score:
    """Return the process this runs in, and what it received."""
    names = ("trace_id", "context", "tool_calls", "tags")
    return Score(1.0, label=f"{os.getpid()}", rationale=repr([getattr(trace, name) for name in names]))


@judge
def holds(trace: Trace) -> Score:
    """Wait until two of us are there."""
    mine = Path(said(trace, "folder"), f"{os.getpid()}")
    mine.touch()
    while len([*mine.parent.iterdir()]) < 2:
        time.sleep(0.01)
    return Score(1.0, label=f"{os.getpid()}")


class DeclaredError(Exception):
    """One that this file declares."""


@judge
def by_the_trace(trace: Trace) -> bool:  # noqa: C901, PLR0912 - one case a misbehaviour
    """Hang, crash, raise or do whatever the trace says."""
    match said(trace, "do"):
        case "hang":
            time.sleep(600)
        case "crash":
            os._exit(3)
        case "raise":
            raise ValueError(SECRET)
        case "finds_no_memory":
            raise MemoryError
        case "raises_ours":
            raise JudgeFailedError(SECRET)
        case "raises_its_own":
            raise DeclaredError(SECRET, trace)
        case "raises_a_class_named_by_the_trace":
            # A class whose name is a text of the trace, as a factory of errors makes it.
            made = type(SECRET, (ValueError,), {"__module__": __name__})
            raise made(trace)
        case "renames_its_own":
            DeclaredError.__name__ = DeclaredError.__qualname__ = SECRET
            raise DeclaredError(trace)
        case "leaves":
            raise SystemExit(SECRET)
        case "interrupts":
            raise KeyboardInterrupt
        case "exits_and_leaves_a_copy":
            if os.fork() == 0:
                time.sleep(600)
            os._exit(7)
        case "is_killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "closes_files":
            os.closerange(0, 256)
        case "writes_everywhere":
            for number in range(3, 32):
                with suppress(OSError):
                    os.write(number, b"\0\0\0\2{}\0\0\0\2{}")
        case "prints":
            for _ in range(1000):
                print(SECRET * 100)  # noqa: T201 - what judges do
                print(SECRET * 100, file=sys.stderr)  # noqa: T201 - the same
            os.write(0, b"to standard input")
            os.write(1, b"{}" * 10_000)
            os.write(2, b"{}" * 10_000)
            return sys.stdin.read() == ""
        case "is_told_to_stop":
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                os.kill(os.getpid(), number)
        case "forks":
            os.fork()
    return True


@judge
def holds_the_lock_of_the_interpreter(_trace: Trace) -> bool:
    return re.match(r"(a+)+$", "a" * 64 + "b") is None


@judge
def waits_for_a_program(trace: Trace) -> bool:
    program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(said(trace, "file")).write_text(f"{program.pid}")
    return program.wait() == 0


@judge
def ignores_signals(_trace: Trace) -> bool:
    for number in (signal.SIGTERM, signal.SIGALRM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    time.sleep(600)
    return True


@judge
def recurses(trace: Trace) -> bool:
    return bool(recurses.function(trace))


@judge
async def raises_later(_trace: Trace) -> bool:
    raise KeyError(SECRET)


def _numbers() -> Iterator[bool]:
    yield True


GIVEN: dict[str, Any] = {
    "a_dictionary": {"value": 1},
    "a_generator": _numbers,
    "too_much": 2,
    "too_little": -0.001,
    "no_raw_number": Score(1, raw=float("nan")),
    "no_number": float("nan"),
    "a_text_as_value": Score(SECRET),  # type: ignore[arg-type]
    "a_list_of_numbers": [1, 0],
    "another_metric": Score(1, metric="other"),
    "a_metric_twice": [Score(1), Score(0)],
    "a_number_as_label": Score(1, label=3),  # type: ignore[arg-type]
    "no_utf8": Score(1, rationale="\ud800"),
    "much": Score(1, rationale="x" * 300_000),
}


@judge
def gives(trace: Trace) -> bool:
    """Return the result that the trace names, of any type."""
    result = GIVEN[said(trace, "do")]
    return result() if callable(result) else result
