"""The processes of one judge: begun when there is work, kept, and begun anew when one was lost.

A trace waits for a free process before its time begins to count. Whatever loses a process costs the trace that it had,
and no other.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, Protocol, TypeVar

import msgspec

from judges.code.errors import ChangedError, ClosedError, NotStartedError
from judges.code.frames import Answer, Start, Started
from judges.code.process import EndedError, GarbledError, OverranError, Process
from judges.judge import JudgeFailedError
from tracejudge import Trace

__all__ = ["Observer", "Pool", "Program", "Sleep"]

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
        environment: Names of variables that it finds besides those that any judge may know.
    """

    target: str
    start: Start
    fingerprint: str
    environment: tuple[str, ...] = ()


class Observer(Protocol):
    """Is told how traces fare, from when a process is free for them."""

    def begins(self) -> None:
        """A trace goes to a process."""

    def ends(self, status: str, took_s: float) -> None:
        """It was judged: ``ok``; or not: ``judge_failed``, ``internal_error``, ``cancelled``."""


class Pool:
    """Up to so many processes. Use it from one event loop."""

    def __init__(
        self, program: Program, processes: int, sleep: Sleep = asyncio.sleep, observer: Observer | None = None
    ) -> None:
        """Begin without any process.

        Args:
            processes: How many may run at the same time.
            sleep: Waits that many seconds.
            observer: Is told of each trace.
        """
        self._observer = observer
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
        """
        place = await self._free.get()
        try:
            # Encoded only now: a thousand that wait are not in memory twice.
            return await self._observed(place, msgspec.json.encode(trace))
        finally:
            self._free.put_nowait(place)

    async def _observed(self, place: "_Place", trace: bytes) -> Answer:
        if self._observer is None:
            return await place.ask(trace)
        self._observer.begins()
        began, status = time.perf_counter(), "internal_error"
        try:
            answer = await place.ask(trace)
            status = "ok" if answer.failed is None else "judge_failed"
        except JudgeFailedError:
            status = "judge_failed"
            raise
        except asyncio.CancelledError:
            status = "cancelled"
            raise
        finally:
            self._observer.ends(status, time.perf_counter() - began)
        return answer

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
        """Processes since the last answer of one that goes on."""
        self._closed = False

    async def ask(self, trace: bytes) -> Answer:
        if self._closed:
            raise ClosedError
        process = self.process
        if process is None or process.is_gone:
            process = await self._begin()
        answer = await self._asked(process, trace, self._program.start.time_limit_s, Answer)
        if answer.is_spent:
            self._drop()
        else:
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
        try:
            process = self.process = await Process.begin(self._program.target, self._program.environment)
        except OSError as error:
            raise NotStartedError(f"did not start: {error.strerror or type(error).__name__}") from error
        if self._closed:
            self._drop()
            raise ClosedError
        await self._start(process)
        return process

    async def _start(self, process: Process) -> None:
        """Let it import the judge. That it cannot is no fault of a trace: the worker itself could."""
        message = msgspec.json.encode(self._program.start)
        try:
            started = await self._asked(process, message, _START_LIMIT_S, Started)
        except JudgeFailedError as error:
            raise NotStartedError(f"did not start: {error}") from None
        if started.failed is not None:
            self._drop()
            raise NotStartedError(f"did not start: {started.failed}")
        if started.fingerprint != self._program.fingerprint:
            self._drop()
            raise ChangedError("its module has changed since the worker began: start the worker anew")

    async def _asked(self, process: Process, message: bytes, limit_s: float, kind: type[T]) -> T:
        """Ask, and do away with a process that does not answer."""
        try:
            return msgspec.json.decode(await process.ask(message, limit_s), type=kind)
        except OverranError:
            await self._lost(process)
            raise JudgeFailedError(f"took longer than {limit_s:g} s") from None
        except EndedError:
            how = await self._lost(process)
            raise JudgeFailedError(f"ended by itself ({how})") from None
        except (GarbledError, msgspec.DecodeError):
            await self._lost(process)
            raise JudgeFailedError("gave what is no answer") from None
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
