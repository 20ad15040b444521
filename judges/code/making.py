"""Make the ``Judge`` that runs a judge in code.

The worker imports the code, to know what the judge needs and gives, as programs do with their plug-ins. It never runs
it: that is for processes of their own. They have the environment of the worker with all its variables: the code is the
operator's, and was imported where they stand already.
"""

import asyncio
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from msgspec import Struct

from judges.code.api import CodeJudge
from judges.code.frames import Start
from judges.code.pool import Pool, Program
from judges.judge import Answered, Judge, JudgeFailedError, Reading
from judges.prompt import Prompt
from tracejudge import Trace

__all__ = ["Settings", "make", "settings_of"]


class Settings(Struct, frozen=True):
    """What is in force for a judge in code, for display; none of it makes another version."""

    kind: str
    code: str
    time_limit_s: float
    processes: int


def settings_of(judge: Judge) -> Settings | None:
    """Say what is in force for a judge in code; nothing for another judge."""
    return judge.run.settings if isinstance(judge.run, _Runner) else None


def make(
    name: str,
    target: str,
    written: CodeJudge[Any],
    *,
    asks: str,
    time_limit_s: float | None = None,
    processes: int = 1,
) -> Judge:
    """Make a judge.

    Args:
        name: Under which rules know it.
        target: Where processes find it: `package.module:name` or `file.py:name`.
        written: What is found there.
        asks: One sentence for lists.
        time_limit_s: How long one trace may take; else what it says itself.
        processes: How many traces may be judged at the same time.

    Raises:
        CodeError: It has no version.
    """
    start = Start(name, [*map(str, sys.path)], written.time_limit_s if time_limit_s is None else time_limit_s)
    runner = _Runner(Program(target, start, written.fingerprint), processes)
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


class _Runner:
    """Lets processes judge, those of one pool in each event loop."""

    def __init__(self, program: Program, processes: int) -> None:
        self._program = program
        self._processes = processes
        self._pools: dict[asyncio.AbstractEventLoop, Pool] = {}

    @property
    def settings(self) -> Settings:
        """What was declared, by the table or else by the judge itself."""
        return Settings("code", self._program.target, self._program.start.time_limit_s, self._processes)

    async def __call__(self, trace: Trace) -> Reading:
        """Judge one trace.

        Raises:
            JudgeFailedError: There is no verdict.
        """
        answer = await self._pool().ask(trace)
        if answer.failed is not None:
            raise JudgeFailedError(answer.failed)
        return Reading(answer.scores, answer.rationale)

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
            self._pools[loop] = Pool(self._program, self._processes)
        return self._pools[loop]


def _no_prompts(_trace: Trace) -> tuple[Prompt, ...]:
    return ()


def _unasked(*_: str | Trace | Prompt | Sequence[Answered]) -> NoReturn:
    raise TypeError("a judge in code asks no model")
