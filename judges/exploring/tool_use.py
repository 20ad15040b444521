"""Carry out the calls of one answer. Whatever a call does, the model gets a text and the loop goes on."""

import asyncio
import itertools
from collections.abc import Sequence
from functools import partial
from typing import Final

from judges.exploration import Toolbox
from judges.exploring.course import Course
from judges.exploring.results import Result, returned, said
from judges.exploring.texts import BROKE, BUSY, NO_CALL, OVERRAN, TOO_MANY
from judges.exploring.threads import in_thread
from judges.prompt import ToolCall

__all__ = ["MAX_CALLS", "ToolUse"]

MAX_CALLS: Final = 16
"""Calls of one answer that are carried out."""
_MAX_TOOL_S: Final = 5.0
"""A guard only: tools end by themselves within about a second."""


class ToolUse:
    """The use of one toolbox in one exploration."""

    def __init__(self, toolbox: Toolbox, course: Course) -> None:
        """Take the tools, and where to count their calls."""
        self.tools = tuple(toolbox.tools)
        self._toolbox = toolbox
        self._names = frozenset(tool.name for tool in self.tools)
        self._course = course
        self._ids: set[str] = set()
        self._left_behind: asyncio.Future[Result] | None = None

    def numbered(self, calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
        """Give each call an id of its own: some servers repeat theirs, and endpoints take no id twice."""
        return tuple(call._replace(id=self._id(call.id)) for call in calls)

    async def results(self, calls: Sequence[ToolCall]) -> tuple[Result, ...]:
        """Carry out calls one after another: they share a trace, and one processor."""
        done = [self._counted(call, await self._result(call)) for call in calls[:MAX_CALLS]]
        return (*done, *self._refused(calls[MAX_CALLS:], TOO_MANY.format(most=MAX_CALLS)))

    def refusals(self, calls: Sequence[ToolCall]) -> tuple[Result, ...]:
        """Answer calls that come when none may come any more."""
        return self._refused(calls, NO_CALL)

    async def _result(self, call: ToolCall) -> Result:
        if self._left_behind is not None and not self._left_behind.done():
            # A toolbox is used by one thread at a time.
            return said(call.id, BUSY)
        work = in_thread(partial(self._call, call))
        done, _ = await asyncio.wait({work}, timeout=_MAX_TOOL_S)
        if not done:
            self._left_behind = work
            return said(call.id, OVERRAN.format(seconds=_MAX_TOOL_S))
        return work.result()

    def _call(self, call: ToolCall) -> Result:
        try:
            return returned(call.id, self._toolbox.call(call.name, call.arguments))
        except Exception as error:  # noqa: BLE001 - a tool that breaks must not take the evaluation along
            # Only the type: the text of an unforeseen error may quote the trace outside of all marks.
            return said(call.id, BROKE.format(kind=type(error).__name__))

    def _refused(self, calls: Sequence[ToolCall], text: str) -> tuple[Result, ...]:
        return tuple(self._counted(call, said(call.id, text)) for call in calls)

    def _counted(self, call: ToolCall, result: Result) -> Result:
        self._course.tool_calls[call.name if call.name in self._names else "unknown"] += 1
        self._course.tool_errors += not result.reads
        return result

    def _id(self, written: str) -> str:
        fresh = (f"call{number:05d}" for number in itertools.count(len(self._ids)))
        found = next(one for one in itertools.chain([written], fresh) if one and one not in self._ids)
        self._ids.add(found)
        return found
