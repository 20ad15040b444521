"""The process in which a judge in code runs: `python -P -m judges.code.child package.module:name LIFELINE`.

It reads traces from the socket that it finds as its standard input, one at a time, and answers each. What the judge
prints goes nowhere: it may hold texts of traces.
"""

import asyncio
import fcntl
import inspect
import os
import resource
import select
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final

import msgspec

from judges.code.api import CodeJudge
from judges.code.errors import CodeError
from judges.code.faults import where
from judges.code.frames import MAX_ANSWER_BYTES, Answer, Start, Started, framed, read_frame
from judges.code.loading import load
from judges.code.reading import reading_of
from judges.judge import JudgeFailedError, Metric
from tracejudge import Trace

__all__ = ["main"]

_ALONE_S: Final = 2.0
"""How much longer than the time limit a trace may take where no worker is left to kill this process."""


def main(target: str, lifeline: int) -> None:
    """Serve until the worker is gone.

    Args:
        target: Which judge.
        lifeline: A pipe whose other end only the worker has.
    """
    _be_killed_with(lifeline)
    _go_first()
    connection = _connection()
    _stay()
    _follow(connection)
    source = connection.makefile("rb")
    first = read_frame(source)
    if first is None:
        return
    start = msgspec.json.decode(first, type=Start)
    sys.path[:] = start.path
    _bound(start.memory_bytes)
    try:
        judge = load(target, start.text).judge
        started = Started(fingerprint=judge.fingerprint)
    except CodeError as error:
        connection.sendall(framed(msgspec.json.encode(Started(failed=f"{error}"))))
        return
    connection.sendall(framed(msgspec.json.encode(started)))
    served = _Served(judge, judge.metrics_of(start.name), start.time_limit_s)
    while (payload := read_frame(source)) is not None:
        connection.sendall(framed(served.answer(payload)))


class _Served:
    """A judge that is asked about one trace after another."""

    def __init__(self, judge: CodeJudge[Any], metrics: Sequence[Metric], time_limit_s: float) -> None:
        self._judge = judge
        self._metrics = metrics
        self._time_limit_s = time_limit_s
        self._file = getattr(sys.modules.get(judge.function.__module__), "__file__", None) or ""
        self._decoder = msgspec.json.Decoder(Trace)
        self._runner = asyncio.Runner()
        self._pid = os.getpid()

    def answer(self, payload: bytes) -> bytes:
        """Judge one trace; whatever the judge does, short of ending the process, is an answer."""
        signal.setitimer(signal.ITIMER_REAL, self._time_limit_s + _ALONE_S)
        try:
            answer = _encoded(self._judged(payload))
        except JudgeFailedError as error:
            answer = _failed(f"{error}")
        except BaseException as error:  # noqa: BLE001 - also SystemExit: the judge has no say in whether we go on
            # What a judge keeps from trace to trace stays: all further ones would fail as this one did.
            answer = _failed(self._raised(error), is_spent=isinstance(error, MemoryError))
        if os.getpid() != self._pid:
            # The judge forked, and this is the copy: only one of the two may answer.
            os._exit(0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        return answer

    def _judged(self, payload: bytes) -> Answer:
        trace = self._decoder.decode(payload)
        try:
            result = self._judge(trace)
            if inspect.isawaitable(result):
                result = self._runner.run(_awaited(result))
        except JudgeFailedError as error:
            # Its text is not ours: the judge raised it.
            raise JudgeFailedError(self._raised(error)) from error
        reading = reading_of(result, self._metrics)
        return Answer(reading.scores, reading.rationale)

    def _raised(self, error: BaseException) -> str:
        """Name the error and the line of the judge's own file; its text may be the trace's."""
        place = where(error, self._file)
        return f"raised {type(error).__name__}{f' in {place}' if place else ''}"


async def _awaited(result: Any) -> object:
    return await result


def _encoded(answer: Answer) -> bytes:
    try:
        encoded = msgspec.json.encode(answer)
    except UnicodeEncodeError as error:
        raise JudgeFailedError("gave a text that is no UTF-8") from error
    if len(encoded) > MAX_ANSWER_BYTES:
        raise JudgeFailedError(f"gave more than {MAX_ANSWER_BYTES // 1024} KiB")
    return encoded


def _failed(note: str, *, is_spent: bool = False) -> bytes:
    return msgspec.json.encode(Answer(failed=note, is_spent=is_spent))


def _be_killed_with(lifeline: int) -> None:
    """Let the kernel kill the whole group as soon as the worker's end of a pipe is closed, by whatever death.

    No thread of ours need run for that: code may hold the interpreter's lock for as long as it likes.
    """
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    watched = select.poll()
    watched.register(lifeline, 0)
    if watched.poll(0):
        # It closed before we asked.
        os.killpg(os.getpgrp(), signal.SIGKILL)


def _go_first() -> None:
    """Be what the kernel takes when memory runs out: a process that is begun anew, and not the worker."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def _bound(memory_bytes: int | None) -> None:
    """Bound the memory of this process, and of each that it begins."""
    if memory_bytes is not None:
        with suppress(ValueError):  # an operator's own bound is lower
            resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))


def _connection() -> socket.socket:
    """Take the socket out of the judge's reach: its standard input is empty."""
    connection = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.close(nothing)
    # A copy that lives on would hold it open: that this process has ended would only be told by the time limit.
    os.register_at_fork(after_in_child=lambda: _close(connection))
    return connection


def _close(connection: socket.socket) -> None:
    """Close it now, also where somebody reads from it."""
    if connection.fileno() >= 0:
        os.close(connection.detach())


def _stay() -> None:
    """Outlive signals that end the worker: it still waits for what is being judged, and takes us along at its end.

    Supervisors send them to every process. With handlers, not ignored: programs that a judge starts would inherit that.
    """

    def stay(_number: int, _frame: FrameType | None) -> None:
        pass

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stay)


def _follow(connection: socket.socket) -> None:
    """End with the worker, also while the judge is busy and where the kernel has no lifelines.

    Take along what it started.
    """
    watched = select.poll()
    watched.register(connection, 0)  # no event but the other end's closing, which is always told

    def wait() -> None:
        watched.poll()
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=wait, name="follow", daemon=True).start()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
