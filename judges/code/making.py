"""Make the ``Judge`` that runs a judge in code.

The worker imports the code, to know what the judge needs and gives, as programs do with their plug-ins. It never runs
it: that is for processes of their own.
"""

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, NoReturn

from msgspec import Struct

from judges.code.errors import ChangedError, NotStartedError
from judges.code.frames import Answer, Start
from judges.code.loading import Loaded
from judges.code.pool import Observer, Pool, Program
from judges.judge import Answered, Judge, JudgeFailedError, Reading
from judges.prompt import Prompt
from tracejudge import Trace

__all__ = ["Limits", "Settings", "make", "observe", "settings_of"]

log = logging.getLogger("judges.code")

_TOLD_AGAIN_S: Final = 600.0
_MIB: Final = 1 << 20


class Limits(NamedTuple):
    """What a judge may take.

    Attributes:
        time_s: How long one trace may take; else what the judge says itself.
        processes: How many traces may be judged at the same time.
        memory_mib: How much address space each process may take, in MiB; any unless given.
        environment: Names of variables that it finds besides those that any judge may know.
    """

    time_s: float | None = None
    processes: int = 1
    memory_mib: int | None = None
    environment: tuple[str, ...] = ()


class Settings(Struct, frozen=True):
    """What is in force for a judge in code, for display; none of it makes another version."""

    kind: str
    code: str
    time_limit_s: float
    processes: int


class _Bounded(Settings, frozen=True):
    memory_mib: int | None
    environment: tuple[str, ...]


def settings_of(judge: Judge) -> Settings | None:
    """Say what is in force for a judge in code; nothing for another judge."""
    return judge.run.settings if isinstance(judge.run, _Runner) else None


def observe(judge: Judge, observer: Observer) -> None:
    """Have somebody told how traces fare with a judge in code; nothing happens with another judge.

    It is for processes that begin later.
    """
    if isinstance(judge.run, _Runner):
        judge.run.observer = observer


def make(name: str, target: str, loaded: Loaded, *, asks: str, limits: Limits = Limits()) -> Judge:  # noqa: B008
    """Make a judge.

    Args:
        name: Under which rules know it.
        target: Where processes find it: `package.module:name` or `file.py:name`.
        loaded: What is found there.
        asks: One sentence for lists.
        limits: What it may take.

    Raises:
        CodeError: It has no version.
    """
    written = loaded.judge
    runner = _Runner(
        name, Program(target, _start(name, loaded, limits), written.fingerprint, limits.environment), limits
    )
    return Judge(
        name=name,
        asks=asks,
        metrics=written.metrics_of(name),
        needs=written.needs,
        fixed_parts=(),
        schema={},
        prompts=_no_prompts,
        read=_unasked,
        score=_unasked,
        heuristic=_unasked,
        scoring=f"code {written.fingerprint}",
        run=runner,
        close=runner.aclose,
    )


def _start(name: str, loaded: Loaded, limits: Limits) -> Start:
    path = [*map(str, sys.path), *([loaded.folder] if loaded.folder is not None else [])]
    time_s = loaded.judge.time_limit_s if limits.time_s is None else limits.time_s
    memory_bytes = None if limits.memory_mib is None else limits.memory_mib * _MIB
    return Start(name, path, time_s, loaded.text, memory_bytes)


class _Runner:
    """Lets processes judge, those of one pool in each event loop."""

    def __init__(
        self, name: str, program: Program, limits: Limits, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.observer: Observer | None = None
        self._name = name
        self._program = program
        self._limits = limits
        self._clock = clock
        self._told: dict[str, float] = {}
        self._pools: dict[asyncio.AbstractEventLoop, Pool] = {}

    @property
    def settings(self) -> Settings:
        """What was declared, by the table or else by the judge itself."""
        limits = self._limits
        declared = ("code", self._program.target, self._program.start.time_limit_s, limits.processes)
        if limits.memory_mib is None and not limits.environment:
            return Settings(*declared)
        return _Bounded(*declared, limits.memory_mib, limits.environment)

    async def __call__(self, trace: Trace) -> Reading:
        """Judge one trace.

        Raises:
            JudgeFailedError: There is no verdict.
            PassingError: It had no chance; nothing is wrong with the trace.
        """
        answer = await self._asked(trace)
        if answer.failed is not None:
            raise JudgeFailedError(answer.failed)
        return Reading(answer.scores, answer.rationale)

    async def _asked(self, trace: Trace) -> Answer:
        try:
            return await self._pool().ask(trace)
        except (ChangedError, NotStartedError) as error:
            self._tell(f"{error}")
            raise

    def _tell(self, said: str) -> None:
        """Tell what keeps it from judging: once, and not for each trace that waits for it."""
        now = self._clock()
        if now >= self._told.get(said, now):
            self._told[said] = now + _TOLD_AGAIN_S
            log.error("the judge %s cannot judge: %s", self._name, said)

    async def aclose(self) -> None:
        """End the processes of this event loop; a later trace begins others."""
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        if pool is not None:
            await pool.aclose()

    def _pool(self) -> Pool:
        loop = asyncio.get_running_loop()
        if loop not in self._pools:
            for ended in [other for other in list(self._pools) if other.is_closed()]:
                self._pools.pop(ended).abandon()
            self._pools[loop] = Pool(self._program, self._limits.processes, observer=self.observer)
        return self._pools[loop]


def _no_prompts(_trace: Trace) -> tuple[Prompt, ...]:
    return ()


def _unasked(*_: str | Trace | Prompt | Sequence[Answered]) -> NoReturn:
    raise TypeError("a judge in code asks no model")
