"""The processes of one judge: begun when there is work, kept, and begun anew when one was lost.

A trace waits for a free process before its time begins to count. Whatever loses a process costs the trace that it had,
and no other.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeVar

import msgspec

from judges.code.errors import ChangedError, ClosedError
from judges.code.frames import Answer, Start, Started
from judges.code.process import EndedError, GarbledError, OverranError, Process
from judges.judge import JudgeFailedError
from tracejudge import Trace

__all__ = ["Pool", "Program", "Sleep"]

_START_LIMIT_S: Final = 120.0
"""How long the imports of a judge may take."""
_WITHOUT_PAUSE: Final = 2
"""Processes begun since the last answer, before the next one waits: one trace that ends a process is no reason."""
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 10.0

Sleep = Callable[[float], Awaitable[object]]
T = TypeVar("T")


class Program(NamedTuple):
    """What the processes of a pool run.

    Attributes:
        target: Which judge: module or file, and its name there.
        start: What each process is told first.
        fingerprint: What the judge was when the worker read it.
    """

    target: str
    start: Start
    fingerprint: str


class Pool:
    """Up to so many processes. Use it from one event loop."""

    def __init__(self, program: Program, processes: int, sleep: Sleep = asyncio.sleep) -> None:
        """Begin without any process.

        Args:
            processes: How many may run at the same time.
            sleep: Waits that many seconds.
        """
        self._places = [_Place(program, sleep) for _ in range(processes)]
        # The last one used comes first: further processes are begun only when it is busy.
        self._free: asyncio.LifoQueue[_Place] = asyncio.LifoQueue()
        for place in self._places:
            self._free.put_nowait(place)

    @property
    def pids(self) -> list[int]:
        """The numbers of the processes that run."""
        return [place.process.pid for place in self._places if place.process is not None]

    async def ask(self, trace: Trace) -> Answer:
        """Let a process judge a trace.

        Raises:
            JudgeFailedError: The judge has no verdict.
            PassingError: It had no chance; nothing is wrong with the trace.
            OSError: The machine has no room for a process.
        """
        place = await self._free.get()
        try:
            # Encoded only now: a thousand that wait are not in memory twice.
            return await place.ask(msgspec.json.encode(trace))
        finally:
            self._free.put_nowait(place)

    async def aclose(self) -> None:
        """Kill all processes and wait for their end; the traces that they had get a ``ClosedError``."""
        self.abandon()
        await asyncio.gather(*(place.process.killed() for place in self._places if place.process is not None))

    def abandon(self) -> None:
        """Kill all processes, also where the event loop is no longer there."""
        for place in self._places:
            place.close()


class _Place:
    """One process, or none yet."""

    def __init__(self, program: Program, sleep: Sleep) -> None:
        self.process: Process | None = None
        self._program = program
        self._sleep = sleep
        self._begun = 0
        """Processes since the last answer."""
        self._closed = False

    async def ask(self, trace: bytes) -> Answer:
        if self._closed:
            raise ClosedError
        process = self.process
        if process is None or process.is_gone:
            process = await self._begin()
        answer = await self._asked(process, trace, self._program.start.time_limit_s, Answer)
        self._begun = 0
        return answer

    def close(self) -> None:
        self._closed = True
        if self.process is not None:
            self.process.kill()

    async def _begin(self) -> Process:
        self._drop()
        if self._begun >= _WITHOUT_PAUSE:
            # A judge that cannot even be imported must not take the machine.
            await self._sleep(min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** (self._begun - _WITHOUT_PAUSE)))
        self._begun += 1
        process = self.process = await Process.begin(self._program.target)
        if self._closed:
            self._drop()
            raise ClosedError
        await self._start(process)
        return process

    async def _start(self, process: Process) -> None:
        message = msgspec.json.encode(self._program.start)
        started = await self._asked(process, message, _START_LIMIT_S, Started, "did not start: ")
        if started.failed is not None:
            self._drop()
            raise JudgeFailedError(f"did not start: {started.failed}")
        if started.fingerprint != self._program.fingerprint:
            self._drop()
            raise ChangedError("its file has changed since the worker began: start the worker anew")

    async def _asked(self, process: Process, message: bytes, limit_s: float, kind: type[T], when: str = "") -> T:
        """Ask, and do away with a process that does not answer."""
        try:
            return msgspec.json.decode(await process.ask(message, limit_s), type=kind)
        except OverranError:
            await self._lost(process)
            raise JudgeFailedError(f"{when}took longer than {limit_s:g} s") from None
        except EndedError:
            how = await self._lost(process)
            raise JudgeFailedError(f"{when}ended by itself ({how})") from None
        except (GarbledError, msgspec.DecodeError):
            await self._lost(process)
            raise JudgeFailedError(f"{when}gave what is no answer") from None
        except BaseException:
            # Cancelled: nobody wants what it computes.
            self._drop()
            raise

    async def _lost(self, process: Process) -> str:
        """Do away with a process, and say how it ended."""
        self.process = None
        how = await process.killed()
        if self._closed:
            raise ClosedError
        return how

    def _drop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process = None
