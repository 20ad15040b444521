"""Judge processes as the worker sees them: start one, ask it, kill it with all it started, and keep a pool of them.

A process, because only a process can be stopped whatever it does, and crashes alone. A fresh interpreter, because a
fork would copy locks that threads of the worker hold.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import Final, Literal, NamedTuple, Protocol, Self, cast

import msgspec

from judges.core.backoff import backoff_s
from judges.core.judge import JudgeFailedError, Reading
from judges.features.python.api import ClosedError, NotStartedError
from judges.features.python.protocol import HEAD, MAX_ANSWER_BYTES, Answer, Start, framed, passed_on
from tracejudge import Trace

_OVERHEAD_BYTES: Final = 64 * 1024  # A message may be longer than the answer in it.


class NoAnswerError(Exception):
    """The process ended, overran its time or wrote no answer; it is to be killed with what it started."""

    def __init__(self, reason: Literal["ended", "overran", "garbled"]) -> None:
        super().__init__(reason)
        self.reason = reason


class Process(asyncio.Protocol):
    """A process that answers one message at a time. Use it from one event loop."""

    def __init__(self, program: "subprocess.Popen[bytes]", lifeline: int) -> None:
        """Store a running program and the worker's end of its lifeline; ``begin`` makes both."""
        self._loop = asyncio.get_running_loop()
        self._program = program
        self._lifeline: int | None = lifeline
        self._received = bytearray()
        self._answer: asyncio.Future[bytes] | None = None
        self._transport: asyncio.Transport | None = None
        self._reaping: asyncio.Future[int] | None = None

    @classmethod
    async def begin(cls, target: str, environment: Collection[str] = ()) -> Self:
        """Start a process with some further variables; it then waits for its first message."""
        ours, theirs = socket.socketpair()
        process = None
        try:
            with theirs:
                process = cls(*_start(target, theirs, environment))
            await process._loop.create_unix_connection(lambda: process, sock=ours)
        except BaseException:
            ours.close()
            if process is not None:
                process.kill()
            raise
        return process

    @property
    def pid(self) -> int:
        """The process id."""
        return self._program.pid

    @property
    def is_gone(self) -> bool:
        """Whether it has ended or was killed, also if the loop has not been notified yet."""
        if self._transport is None or self._transport.is_closing():
            return True
        if not hasattr(os, "waitid"):
            return False  # macOS before Python 3.13: the loop will be notified
        try:
            # Not reaped: its id stays its own until it is killed with its group.
            return os.waitid(os.P_PID, self._program.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True  # already reaped, or never reapable because SIGCHLD is ignored

    async def ask(self, message: bytes, limit_s: float) -> bytes:
        """Send a message and wait for the answer, or raise ``NoAnswerError`` at the limit or the end of the process."""
        if self.is_gone or self._transport is None:
            raise NoAnswerError("ended")
        self._answer = self._loop.create_future()
        # Not a cancelling timeout: an answer that arrived while this loop was busy counts.
        timer = self._loop.call_later(limit_s, self._fail, "overran")
        try:
            self._transport.write(framed(message))
            return await self._answer
        finally:
            timer.cancel()
            self._answer = None

    def kill(self) -> None:
        """Kill it and all processes of its group, at once; further calls do nothing."""
        if self._lifeline is None:
            return
        # Before it is reaped: until then the id is certainly still its own.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._program.pid, signal.SIGKILL)
        os.close(self._lifeline)
        self._lifeline = None
        if self._loop.is_closed():
            self._program.wait()
            return
        self._reaping = self._loop.run_in_executor(None, self._program.wait)
        if self._transport is not None:
            self._transport.abort()

    async def killed(self) -> str:
        """Kill it, wait for its end, and return how it ended, which may have been before."""
        self.kill()
        status = await asyncio.shield(self._reaping) if self._reaping is not None else self._program.wait()
        if status >= 0:
            return f"exit code {status}"
        signals = {each.value: each.name for each in signal.Signals}
        return f"signal {signals.get(-status, -status)}"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        # A cast, because uvloop's transport is of no class of asyncio.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Collect an answer."""
        self._received += data
        if len(self._received) < HEAD.size:
            return
        (size,) = HEAD.unpack_from(self._received)
        missing = HEAD.size + size - len(self._received)
        if self._answer is None or missing < 0 or size > MAX_ANSWER_BYTES + _OVERHEAD_BYTES:
            self._fail("garbled")
            self.kill()
        elif missing == 0:
            answer = bytes(self._received[HEAD.size :])
            self._received.clear()
            if not self._answer.done():
                self._answer.set_result(answer)

    def connection_lost(self, _error: Exception | None) -> None:
        """Fail a pending request."""
        self._fail("ended")

    def _fail(self, reason: Literal["ended", "overran", "garbled"]) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(NoAnswerError(reason))


def _start(
    target: str, connection: socket.socket, environment: Collection[str]
) -> "tuple[subprocess.Popen[bytes], int]":
    """Start the program, and return it with the worker's end of its lifeline."""
    theirs, ours = os.pipe()
    try:
        program = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-P", "-m", "judges.features.python.child", target, f"{theirs}"],
            stdin=connection.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a new group, to be killed with what it starts
            pass_fds=(theirs,),
            env=passed_on(os.environ, environment),
        )
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    return program, ours


_START_LIMIT_S: Final = 120.0  # Time limit of a judge's imports.
# Starts since the last answer without a pause before the next: one trace that ends a process is no reason for a pause.
_WITHOUT_PAUSE: Final = 2
Sleep = Callable[[float], Awaitable[object]]


class Limits(NamedTuple):
    """Limits of a judge's processes."""

    time_s: float  # Time limit of one trace.
    processes: int = 1  # Maximum number of traces judged concurrently.
    memory_mib: int | None = None  # Address space of each process in MiB; unlimited by default.
    environment: tuple[str, ...] = ()  # Names of variables that it gets besides those that every judge gets.


class Program(NamedTuple):
    """The program of a pool's processes."""

    target: str  # The judge: module or file, and its name there.
    start: Start  # The first message to each process.
    fingerprint: str  # The judge's fingerprint when the worker read it.
    limits: Limits


class Observer(Protocol):
    """Is notified of each trace, from when a process is free for it."""

    def begins(self) -> None:
        """A trace is sent to a process."""

    def ends(self, status: str, took_s: float) -> None:
        """Its status is ``ok``, ``judge_failed``, ``internal_error`` or ``cancelled``."""


class Pool:
    """A bounded number of processes, started when needed. Use it from one event loop."""

    def __init__(self, program: Program, sleep: Sleep = asyncio.sleep, observer: Observer | None = None) -> None:
        self._observer = observer
        self._slots = [_Slot(program, sleep) for _ in range(program.limits.processes)]
        # The last one used comes first: further processes are started only when it is busy.
        self._free: asyncio.LifoQueue[_Slot] = asyncio.LifoQueue()
        for slot in self._slots:
            self._free.put_nowait(slot)

    @property
    def pids(self) -> list[int]:
        """The ids of the running processes."""
        return [slot.process.pid for slot in self._slots if slot.process is not None]

    async def ask(self, trace: Trace) -> Reading:
        """Send a trace to a free process; ``JudgeFailedError`` without verdict, ``PassingError`` if it did not run."""
        slot = await self._free.get()
        began, status = time.perf_counter(), "internal_error"
        if self._observer is not None:
            self._observer.begins()
        try:
            # Encoded only now: a thousand waiting traces must not be in memory twice.
            reading = await slot.ask(msgspec.json.encode(trace))
            status = "ok"
        except JudgeFailedError:
            status = "judge_failed"
            raise
        except asyncio.CancelledError:
            status = "cancelled"
            raise
        finally:
            self._free.put_nowait(slot)
            if self._observer is not None:
                self._observer.ends(status, time.perf_counter() - began)
        return reading

    async def aclose(self) -> None:
        """Kill all processes and wait for their end; traces under way raise ``ClosedError``."""
        self.abandon()
        await asyncio.gather(*(slot.process.killed() for slot in self._slots if slot.process is not None))

    def abandon(self) -> None:
        """Kill all processes, also if the event loop is closed."""
        for slot in self._slots:
            slot.close()


class _Slot:
    def __init__(self, program: Program, sleep: Sleep) -> None:
        self.process: Process | None = None
        self._program = program
        self._sleep = sleep
        self._starts = 0  # Starts since the last answer of a process that goes on.
        self._closed = False

    async def ask(self, trace: bytes) -> Reading:
        if self._closed:
            raise ClosedError
        process = self.process
        if process is None or process.is_gone:
            process = await self._begin()
        return (await self._ask(process, trace, self._program.limits.time_s)).reading

    def close(self) -> None:
        self._closed = True
        if self.process is not None:
            self.process.kill()

    async def _begin(self) -> Process:
        """Start a process that imports the judge, as the worker itself could: a failure is no fault of a trace."""
        self._drop()
        if self._starts >= _WITHOUT_PAUSE:
            # A judge that cannot even be imported must not use up the machine.
            await self._sleep(backoff_s(self._starts - _WITHOUT_PAUSE, first_s=0.1, longest_s=10.0))
        self._starts += 1
        program = self._program
        try:
            process = self.process = await Process.begin(program.target, program.limits.environment)
        except OSError as error:
            raise NotStartedError(f"did not start: {error.strerror or type(error).__name__}") from error
        if self._closed:
            self._drop()
            raise ClosedError
        try:
            started = await self._ask(process, msgspec.json.encode(program.start), _START_LIMIT_S)
        except JudgeFailedError as error:
            raise NotStartedError(f"did not start: {error}") from None
        if started.fingerprint != program.fingerprint:
            self._drop()
            raise NotStartedError("its module changed after the worker started; restart the worker")
        return process

    async def _ask(self, process: Process, message: bytes, limit_s: float) -> Answer:
        """Ask, and kill a process that does not answer, or cannot go on; raise ``JudgeFailedError`` for a failure."""
        try:
            answer = msgspec.json.decode(await process.ask(message, limit_s), type=Answer)
        except (NoAnswerError, msgspec.DecodeError) as error:
            self.process = None
            how = await process.killed()
            if self._closed:
                raise ClosedError from None
            reason = error.reason if isinstance(error, NoAnswerError) else "garbled"
            notes = {
                "overran": f"took longer than {limit_s:g} s",
                "ended": f"ended by itself ({how})",
                "garbled": "returned an invalid message",
            }
            raise JudgeFailedError(notes[reason]) from None
        except BaseException:
            # Cancelled: the answer is no longer needed.
            self._drop()
            raise
        if answer.is_last:
            self._drop()
        elif answer.fingerprint is None:
            self._starts = 0
        if answer.failed is not None:
            raise JudgeFailedError(answer.failed)
        return answer

    def _drop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process = None
