"""Runs the tool calls of one answer. Each call gives a text for the model, also when it fails or hangs."""

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from judges.agent.conversation import ExplorationStats, Result, notice, tool_result
from judges.agent.texts import BROKE, BUSY, NO_CALL, OVERRAN, TOO_MANY
from judges.core.exploration import Toolbox
from judges.core.prompt import ToolCall

T = TypeVar("T")
MAX_CALLS: Final = 16  # The number of calls of one answer that are run.
_MAX_TOOL_S: Final = 5.0  # A guard only: tools end by themselves within about a second.


def in_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    """Run a function in a new thread, which is abandoned when the future is cancelled."""
    # Not in the loop's executor: its few threads serve all evaluations, and the process ends only after them. Work that
    # hangs would keep one of them forever, and a worker from stopping.
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def tell(settle: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(lambda: None if future.done() else settle())

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - raised where the future is awaited
            failure = error
            tell(lambda: future.set_exception(failure))
        else:
            tell(lambda: future.set_result(result))

    threading.Thread(target=run, name="tracejudge-tool", daemon=True).start()
    return future


class ToolUse:
    """The use of one toolbox in one exploration."""

    def __init__(self, toolbox: Toolbox, stats: ExplorationStats) -> None:
        self.tools = tuple(toolbox.tools)
        self._toolbox = toolbox
        self._names = frozenset(tool.name for tool in self.tools)
        self._stats = stats
        self._ids: set[str] = set()
        self._overrun: asyncio.Future[Result] | None = None

    def with_unique_ids(self, calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
        """Replace repeated and missing ids: some servers repeat theirs, and endpoints accept no id twice."""
        unique = []
        for call in calls:
            fresh = (f"call{number:05d}" for number in itertools.count(len(self._ids)))
            call_id = next(new for new in itertools.chain([call.id], fresh) if new and new not in self._ids)
            self._ids.add(call_id)
            unique.append(call._replace(id=call_id))
        return tuple(unique)

    async def run(self, calls: Sequence[ToolCall]) -> tuple[Result, ...]:
        """Run calls one after another: they share a trace, and one processor."""
        done = [self._count(call, await self._result(call)) for call in calls[:MAX_CALLS]]
        return (*done, *self._answer_all(calls[MAX_CALLS:], TOO_MANY.format(most=MAX_CALLS)))

    def refuse(self, calls: Sequence[ToolCall]) -> tuple[Result, ...]:
        """Answer calls that come when none is allowed any more."""
        return self._answer_all(calls, NO_CALL)

    async def _result(self, call: ToolCall) -> Result:
        if self._overrun is not None and not self._overrun.done():
            # A toolbox is used by one thread at a time.
            return notice(call.id, BUSY)

        def work() -> Result:
            try:
                return tool_result(call.id, self._toolbox.call(call.name, call.arguments))
            except Exception as error:  # noqa: BLE001 - a tool that breaks must not end the evaluation
                # Only the type: the text of an unexpected error may quote the trace outside of all marks.
                return notice(call.id, BROKE.format(kind=type(error).__name__))

        running = in_thread(work)
        done, _ = await asyncio.wait({running}, timeout=_MAX_TOOL_S)
        if not done:
            self._overrun = running
            return notice(call.id, OVERRAN.format(seconds=_MAX_TOOL_S))
        return running.result()

    def _answer_all(self, calls: Sequence[ToolCall], text: str) -> tuple[Result, ...]:
        return tuple(self._count(call, notice(call.id, text)) for call in calls)

    def _count(self, call: ToolCall, result: Result) -> Result:
        self._stats.tool_calls[call.name if call.name in self._names else "unknown"] += 1
        self._stats.tool_errors += not result.reads
        return result
