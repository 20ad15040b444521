"""The process of a judge in Python: `python -P -m judges.features.python.child package.module:name LIFELINE`.

It reads traces from the socket that is its standard input, one at a time, and answers each. Output of the judge is
discarded, because it may contain texts of traces.
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
from typing import Any

import msgspec

from judges.core.judge import JudgeFailedError, Metric
from judges.core.verdict import class_name, declared_errors
from judges.features.python.api import CodeError, CodeJudge
from judges.features.python.importing import load
from judges.features.python.protocol import MAX_ANSWER_BYTES, Answer, Start, framed, read_frame, where
from judges.features.python.runner import reading_of
from tracejudge import Trace


def main(target: str, lifeline: int) -> None:
    """Serve until the worker closes the connection, then end with all processes of the group."""
    _end_with_worker(lifeline)
    with suppress(OSError):
        # When memory runs out the kernel shall kill this process, which is replaced, and not the worker.
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    connection = _connection()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # Supervisors send these to every process, and the worker still waits for its traces. Handled and not ignored,
        # because programs that a judge starts would inherit that.
        signal.signal(number, lambda _number, _frame: None)
    _serve(target, connection)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _serve(target: str, connection: socket.socket) -> None:
    source = connection.makefile("rb")
    first = read_frame(source)
    if first is None:
        return
    start = msgspec.json.decode(first, type=Start)
    sys.path[:] = start.path
    if start.memory_bytes is not None:
        with suppress(ValueError):  # the operator's own limit is lower
            resource.setrlimit(resource.RLIMIT_AS, (start.memory_bytes, start.memory_bytes))
    try:
        judge = load(target, start.text).judge
        answer = Answer(fingerprint=judge.fingerprint)
    except CodeError as error:
        connection.sendall(framed(msgspec.json.encode(Answer(failed=f"{error}", is_last=True))))
        return
    connection.sendall(framed(msgspec.json.encode(answer)))
    served = _Served(judge, judge.metrics_of(start.name))
    while (payload := read_frame(source)) is not None:
        connection.sendall(framed(served.answer(payload)))


class _Served:
    """A judge with its event loop, which serves one trace after another."""

    def __init__(self, judge: CodeJudge[Any], metrics: Sequence[Metric]) -> None:
        self._judge = judge
        self._metrics = metrics
        module = sys.modules.get(judge.function.__module__)
        self._file = getattr(module, "__file__", None) or ""
        self._declared = declared_errors(module)
        self._decoder = msgspec.json.Decoder(Trace)
        self._runner = asyncio.Runner()
        self._pid = os.getpid()

    def answer(self, payload: bytes) -> bytes:
        """Judge one trace; whatever the judge does, short of ending the process, becomes an answer."""
        try:
            answer = self._judged(payload)
        except JudgeFailedError as error:
            answer = msgspec.json.encode(Answer(failed=f"{error}"))
        except BaseException as error:  # noqa: BLE001 - also SystemExit: a judge cannot end its process
            # Out of memory, what a judge keeps between traces stays, and all further traces would fail as this one.
            is_last = isinstance(error, MemoryError)
            answer = msgspec.json.encode(Answer(failed=self._raised(error), is_last=is_last))
        if os.getpid() != self._pid:
            # The judge forked, and this is the copy: only one of the two may answer.
            os._exit(0)
        return answer

    def _judged(self, payload: bytes) -> bytes:
        trace = self._decoder.decode(payload)
        try:
            result = self._judge(trace)
            if inspect.isawaitable(result):
                result = self._runner.run(_awaited(result))
        except JudgeFailedError as error:
            # Raised by the judge, so its text may be the trace's.
            raise JudgeFailedError(self._raised(error)) from error
        reading = reading_of(result, self._metrics, self._judge.labels)
        try:
            encoded = msgspec.json.encode(Answer(reading=reading))
        except UnicodeEncodeError as error:
            raise JudgeFailedError("gave a text that is no UTF-8") from error
        if len(encoded) > MAX_ANSWER_BYTES:
            raise JudgeFailedError(f"gave more than {MAX_ANSWER_BYTES // 1024} KiB")
        return encoded

    def _raised(self, error: BaseException) -> str:
        """Describe an error by its class and the line in the judge's file; its text may be the trace's."""
        place = where(error, self._file)
        return f"raised {class_name(error, self._declared)}{f' in {place}' if place else ''}"


async def _awaited(result: Any) -> object:
    return await result


def _end_with_worker(lifeline: int) -> None:
    """Kill the whole process group when the worker's end of the lifeline closes, however the worker ends."""
    watched = select.poll()
    watched.register(lifeline, 0)  # no event but the closing of the other end, which is always reported

    def kill_at_end(timeout_ms: int | None = None) -> None:
        if watched.poll(timeout_ms):
            os.killpg(os.getpgrp(), signal.SIGKILL)

    if not hasattr(fcntl, "F_SETSIG"):
        threading.Thread(target=kill_at_end, name="lifeline", daemon=True).start()
        return
    # By the kernel and not by a thread: code may hold the interpreter's lock for as long as it likes.
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    kill_at_end(0)  # it may have closed before


def _connection() -> socket.socket:
    """Move the socket out of the judge's reach: standard input is empty then."""
    connection = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.close(nothing)

    def close() -> None:
        # Not `close`, which waits for readers.
        if connection.fileno() >= 0:
            os.close(connection.detach())

    # A forked copy would keep it open, and only the time limit would tell that this process has ended.
    os.register_at_fork(after_in_child=close)
    return connection


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
