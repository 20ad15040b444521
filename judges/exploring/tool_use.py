"""Carry out the calls of one answer. Whatever a call does, the model gets a text and the loop goes on."""

import asyncio
import itertools
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from judges.exploration import Toolbox
from judges.exploring.course import Course
from judges.exploring.threads import in_thread
from judges.prompt import Message, ToolCall, marked

__all__ = ["MAX_CALLS", "ToolUse"]

MAX_CALLS: Final = 16
"""Calls of one answer that are carried out."""
_MAX_TOOL_S: Final = 5.0
"""A guard only: tools end by themselves within about a second."""
_TOO_MANY: Final = f"Not carried out: one answer may ask for {MAX_CALLS} calls at most. Ask again for what you need."
_OVERRAN: Final = "The tool did not end within {seconds:g} s. Ask for less, or in another way."
_BUSY: Final = (
    "Not carried out: the tools are still at work on a call that did not end. Answer with what you have read."
)
_ERROR: Final = '{"error"'
"""How a toolbox opens what it says of a call that is wrong."""
_LAST: Final = "Not carried out: no tool can be called any more."
_BROKE: Final = "The tool broke ({kind}). Ask in another way, or go on without it."


class _Result(NamedTuple):
    text: str
    is_fault: bool


class ToolUse:
    """The use of one toolbox in one exploration."""

    def __init__(self, toolbox: Toolbox, course: Course) -> None:
        """Take the tools, and where to count their calls."""
        self.tools = tuple(toolbox.tools)
        self._toolbox = toolbox
        self._names = frozenset(tool.name for tool in self.tools)
        self._course = course
        self._ids: set[str] = set()
        self._left_behind: asyncio.Future[_Result] | None = None

    def numbered(self, calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
        """Give each call an id of its own: some servers repeat theirs, and endpoints take no id twice."""
        return tuple(call._replace(id=self._id(call.id)) for call in calls)

    async def results(self, calls: Sequence[ToolCall]) -> tuple[Message, ...]:
        """Carry out calls one after another: they share a trace, and one processor."""
        texts = [await self._text(call) for call in calls[:MAX_CALLS]]
        texts += [self._fault(call, _TOO_MANY) for call in calls[MAX_CALLS:]]
        return _answers(calls, texts)

    def refusals(self, calls: Sequence[ToolCall]) -> tuple[Message, ...]:
        """Answer calls that come when none may come any more."""
        return _answers(calls, [self._fault(call, _LAST) for call in calls])

    async def _text(self, call: ToolCall) -> str:
        if self._left_behind is not None and not self._left_behind.done():
            # A toolbox is used by one thread at a time.
            return self._fault(call, _BUSY)
        work = in_thread(partial(self._call, call))
        done, _ = await asyncio.wait({work}, timeout=_MAX_TOOL_S)
        if not done:
            self._left_behind = work
            return self._fault(call, _OVERRAN.format(seconds=_MAX_TOOL_S))
        result = work.result()
        return self._fault(call, result.text) if result.is_fault else self._counted(call, result.text)

    def _call(self, call: ToolCall) -> _Result:
        try:
            found = self._toolbox.call(call.name, call.arguments)
            return _Result(marked("tool result", found), is_fault=found.startswith(_ERROR))
        except Exception as error:  # noqa: BLE001 - a tool that breaks must not take the evaluation along
            # Only the type: the text of an unforeseen error may quote the trace outside of all marks.
            return _Result(_BROKE.format(kind=type(error).__name__), is_fault=True)

    def _fault(self, call: ToolCall, text: str) -> str:
        self._course.tool_errors += 1
        return self._counted(call, text)

    def _counted(self, call: ToolCall, text: str) -> str:
        self._course.tool_calls[call.name if call.name in self._names else "unknown"] += 1
        return text

    def _id(self, written: str) -> str:
        fresh = (f"call{number:05d}" for number in itertools.count(len(self._ids)))
        found = next(one for one in itertools.chain([written], fresh) if one and one not in self._ids)
        self._ids.add(found)
        return found


def _answers(calls: Sequence[ToolCall], texts: Sequence[str]) -> tuple[Message, ...]:
    return tuple(Message("tool", text, tool_call_id=call.id) for call, text in zip(calls, texts, strict=True))
