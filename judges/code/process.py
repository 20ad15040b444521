"""One process with a judge, seen from the worker: begin it, ask it, kill it with all it started.

A process of its own and not a thread: only a process can be stopped whatever it does, and only a process can crash
alone. It is a fresh interpreter, since a fork would copy locks that threads of the worker hold.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Collection
from contextlib import suppress
from typing import Final, NamedTuple, Self, cast

from judges.code.environment import passed_on
from judges.code.frames import HEAD, MAX_ANSWER_BYTES, framed

__all__ = ["EndedError", "GarbledError", "OverranError", "Process"]

_FURTHER_BYTES: Final = 64 * 1024
"""How much longer than an answer a message may be: the rest around it."""


class EndedError(Exception):
    """The process has ended; what it started may still run: it is to be killed."""


class GarbledError(Exception):
    """What came is no answer of ours: code wrote where it must not. The process is to be killed."""


class OverranError(Exception):
    """No answer in time; the process is to be killed."""


class Process(asyncio.Protocol):
    """A process that answers one message at a time. Use it from one event loop."""

    def __init__(self, program: "subprocess.Popen[bytes]", lifeline: int) -> None:
        """Take a program that runs, and our end of its lifeline; ``begin`` makes both."""
        self._loop = asyncio.get_running_loop()
        self._program = program
        self._lifeline: int | None = lifeline
        self._received = bytearray()
        self._answer: asyncio.Future[bytes] | None = None
        self._transport: asyncio.Transport | None = None
        self._reaping: asyncio.Future[int] | None = None

    @classmethod
    async def begin(cls, target: str, environment: Collection[str] = ()) -> Self:
        """Start the process; it waits for its first message.

        Args:
            target: Which judge.
            environment: Variables that it finds besides those that any judge may know.

        Raises:
            OSError: The machine has no room for it.
        """
        ours, theirs = socket.socketpair()
        process = None
        try:
            with theirs:
                process = cls(*_program(target, theirs, environment))
            await process._loop.create_unix_connection(lambda: process, sock=ours)
        except BaseException:
            ours.close()
            if process is not None:
                process.kill()
            raise
        return process

    @property
    def pid(self) -> int:
        """Its number."""
        return self._program.pid

    @property
    def is_gone(self) -> bool:
        """Whether it has ended or was killed; also if the loop has not heard of it yet."""
        return self._transport is None or self._transport.is_closing() or self._has_ended()

    async def ask(self, message: bytes, limit_s: float) -> bytes:
        """Send a message and wait for the answer.

        Raises:
            EndedError: The process has ended.
            GarbledError: What came is no answer.
            OverranError: The limit has passed.
        """
        if self.is_gone or self._transport is None:
            raise EndedError
        self._answer = self._loop.create_future()
        # No cancelling timeout: an answer that has come while this loop was busy counts.
        timer = self._loop.call_later(limit_s, self._fail, OverranError())
        try:
            self._transport.write(framed(message))
            return await self._answer
        finally:
            timer.cancel()
            self._answer = None

    def kill(self) -> None:
        """Kill it and all processes of its group; at once, and as often as one likes."""
        if self._lifeline is None:
            return
        # Before anybody waits for it: until then the number is certainly still its own.
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
        """Kill it, wait for its end, and say how it ended, where it had ended already."""
        self.kill()
        status = await asyncio.shield(self._reaping) if self._reaping is not None else self._program.wait()
        return f"signal {_name(-status)}" if status < 0 else f"exit code {status}"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way to it."""
        self._transport = cast("asyncio.Transport", transport)  # what sockets have; uvloop's is of no class of asyncio

    def data_received(self, data: bytes) -> None:
        """Gather an answer."""
        self._received += data
        if len(self._received) < HEAD.size:
            return
        (size,) = HEAD.unpack_from(self._received)
        missing = HEAD.size + size - len(self._received)
        if self._answer is None or missing < 0 or size > MAX_ANSWER_BYTES + _FURTHER_BYTES:
            self._fail(GarbledError())
            self.kill()
        elif missing == 0:
            answer = bytes(self._received[HEAD.size :])
            self._received.clear()
            if not self._answer.done():
                self._answer.set_result(answer)

    def connection_lost(self, _error: Exception | None) -> None:
        """Tell whoever waits."""
        self._fail(EndedError())

    def _has_ended(self) -> bool:
        if not hasattr(os, "waitid"):
            return False  # macOS before Python 3.13: the loop will hear of it
        try:
            # Looked at and left to be waited for: its number stays its own until it is killed with its group.
            return os.waitid(os.P_PID, self._program.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True  # somebody has waited for it, or nobody is to: SIGCHLD is ignored

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)


class _Begun(NamedTuple):
    program: "subprocess.Popen[bytes]"
    lifeline: int


def _program(target: str, connection: socket.socket, environment: Collection[str]) -> _Begun:
    theirs, ours = os.pipe()
    try:
        program = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-P", "-m", "judges.code.child", target, f"{theirs}"],
            stdin=connection.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a group of its own, to be killed with what it starts
            pass_fds=(theirs,),
            env=passed_on(os.environ, environment),
        )
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    return _Begun(program, ours)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"{number}"
