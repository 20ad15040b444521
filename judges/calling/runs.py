"""Run judges on many traces: each under the limits and retries of its model, a bounded number at once, in order.

`tracejudge evaluate`, `judges test` and ``judges.features.lab.api`` run judges by this module. Use it from one event
loop.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from judges.calling.evaluation import evaluate
from judges.core.judge import Judge
from judges.core.model import ChatModel, ModelSettings, Price
from judges.core.verdict import Assessment, class_name
from judges.models.registry import is_heuristic, judge_for
from tracejudge import Trace

T = TypeVar("T")
Result = TypeVar("Result")

_CODE_IN_FLIGHT: Final = 64  # Traces that judges in Python hold at once: none of them runs in more processes.


class TimedAssessment(NamedTuple):
    """The assessment of a judge, with its start and duration."""

    assessment: Assessment
    started_at: float
    duration_s: float


class JudgeRunner:
    """Runs any judge with one model, or judges in Python without one.

    The number of evaluations begun is bounded: each that waits holds its whole prompt in memory.
    """

    def __init__(
        self,
        model: ChatModel | None,
        form: Callable[[Judge, ModelSettings], Judge] = judge_for,
        *,
        prepare: Callable[[Trace], Trace] | None = None,
        context_tools: Sequence[str] = (),
    ) -> None:
        """Set the model, which limits and retries its calls itself; None for judges in Python.

        ``form`` chooses the form of a judge for the model, ``prepare`` changes each trace, in a thread, before a judge
        sees it, and ``context_tools`` are the tools whose results are the context of a trace without one.
        """
        self._model = model
        self._form = form
        self._prepare = prepare
        self._context_tools = context_tools
        self._forms: dict[int, tuple[Judge, Judge]] = {}
        self.max_in_flight = _CODE_IN_FLIGHT if model is None else model.settings.max_in_flight
        self._places = asyncio.Semaphore(2 * self.max_in_flight)  # Evaluations begun, per call in flight.

    @property
    def judge_model(self) -> str:
        """The judge model of its verdicts."""
        return "code" if self._model is None else self._model.settings.judge_model

    @property
    def price(self) -> Price | None:
        """The price of tokens; None without a configured price or without a model."""
        return None if self._model is None else self._model.settings.price

    @property
    def is_free(self) -> bool:
        """Whether judging costs nothing: in Python, and with the built-in model, which calls no endpoint."""
        return self._model is None or is_heuristic(self._model.settings)

    async def aclose(self) -> None:
        """Close the connections of the model."""
        if self._model is not None:
            await self._model.aclose()

    def form_of(self, judge: Judge) -> Judge:
        """Return the judge in the form that the model is asked in, or raise ``ValueError`` without one."""
        if self._model is None:
            return judge
        # By identity, as judges are not hashable: the form is asked for with every trace, and its version is a hash.
        cached = self._forms.get(id(judge))
        if cached is None:
            cached = self._forms[id(judge)] = judge, self._form(judge, self._model.settings)
        return cached[1]

    async def ask(self, judge: Judge, trace: Trace) -> TimedAssessment:
        """Judge a trace; any failure is returned as an assessment."""
        async with self._places:
            started_at, start = time.time(), time.perf_counter()
            try:
                shown = trace if self._prepare is None else await asyncio.to_thread(self._prepare, trace)
                assessment = await evaluate(self.form_of(judge), shown, self._model, context_tools=self._context_tools)
            except Exception as error:  # noqa: BLE001 - one evaluation must not end the others
                assessment = internal_error(error)
            return TimedAssessment(assessment, started_at, time.perf_counter() - start)


def internal_error(error: Exception) -> Assessment:
    """Return the assessment of an evaluation that ended by an unexpected error."""
    # Only the type: the text of an unexpected error may quote a trace.
    return Assessment("unscored", "internal_error", note=f"unexpected error {class_name(error)}")


async def in_order(
    jobs: AsyncIterator[T], work: Callable[[T], Awaitable[Result]], keep: Callable[[T, Result], None], *, window: int
) -> None:
    """Work on ``window`` jobs at once, and keep each result as soon as it and all before it are ready."""
    places = asyncio.Semaphore(window)
    begun: asyncio.Queue[tuple[T, asyncio.Future[Result]] | None] = asyncio.Queue()

    async def begin() -> None:
        try:
            await places.acquire()
            async for job in jobs:
                begun.put_nowait((job, asyncio.ensure_future(work(job))))
                await places.acquire()
        finally:
            begun.put_nowait(None)

    beginning, unkept = asyncio.create_task(begin()), list[tuple[T, asyncio.Future[Result]]]()
    try:
        while (task := await begun.get()) is not None:
            unkept = [task]
            result = await task[1]
            unkept = []
            keep(task[0], result)
            places.release()
        await beginning
    except asyncio.CancelledError:
        beginning.cancel()
        unkept += _drained(begun)
        # Results that are ready were paid for. The awaited one may have become ready at the same moment.
        for job, running in unkept:
            if running.done() and not running.cancelled() and running.exception() is None:
                keep(job, running.result())
        raise
    finally:
        ending: list[asyncio.Future[Any]] = [beginning, *(running for _, running in (*unkept, *_drained(begun)))]
        for running in ending:
            running.cancel()
        await asyncio.gather(*ending, return_exceptions=True)


def _drained(queue: "asyncio.Queue[T | None]") -> Iterator[T]:
    while not queue.empty():
        if (item := queue.get_nowait()) is not None:
            yield item
