"""Let a judge model read a trace by tools until it gives its verdict, or a limit asks for it."""

import math

from judges.answer import InvalidAnswerError
from judges.asking import Asking, UnscoredError, repair
from judges.copies import joined_pages, stands_in
from judges.exploration import Exploration, Toolbox
from judges.exploring.budget import Budget
from judges.exploring.conversation import Conversation, Size, size_bytes
from judges.exploring.course import Course, End
from judges.exploring.pace import Pace
from judges.exploring.results import Result
from judges.exploring.texts import LAST, READ_FIRST
from judges.exploring.threads import in_thread
from judges.exploring.tool_use import MAX_CALLS, ToolUse
from judges.models.model import ChatResponse
from judges.prompt import Message, Prompt, render

__all__ = ["Explorer"]


class Explorer:
    """One exploration: ``answer`` is called once, then ``repaired`` at most once."""

    def __init__(
        self, asking: Asking, prompt: Prompt, toolbox: Toolbox, exploration: Exploration, course: Course
    ) -> None:
        """Take whom to ask, what opens the conversation, the tools, the limits, and where to count."""
        settings, self._limits = asking.model.settings, exploration.limits
        self._asking = asking
        self._prompt = prompt
        self._course = course
        self._use = ToolUse(toolbox, course)
        self._conversation = Conversation(render(prompt), self._use.tools, course)
        self._budget = Budget(self._limits, settings.price)
        self._pace = Pace(asking.deadline)
        self._max_input_tokens = settings.max_input_tokens
        self._max_bytes = math.inf
        self._was_full = False
        self._was_told = False
        self._last: ChatResponse | None = None
        course.is_unpriced = self._limits.max_usd is not None and settings.price is None

    @classmethod
    async def open(cls, asking: Asking, prompt: Prompt, exploration: Exploration, course: Course) -> "Explorer":
        """Open the tools over the trace; in a thread, for a large one takes its time."""
        toolbox = await in_thread(lambda: exploration.open(asking.trace))
        return cls(asking, prompt, toolbox, exploration, course)

    async def answer(self) -> str:
        """Get the text of the verdict.

        Raises:
            UnscoredError: There is none.
        """
        while (end := self._limit()) is None:
            response = await self._ask(may_call=True)
            if response.tool_calls:
                await self._exchange(response)
            elif self._conversation.shows_trace:
                return self._ended("answer", response)
            else:
                self._send_back(response)
        if not self._conversation.shows_trace:
            raise self._read_nothing(end)
        self._conversation.demand(LAST)
        return self._ended(end, await self._ask(may_call=False))

    async def repaired(self, text: str, error: InvalidAnswerError) -> str:
        """Ask once more, without tools, after an answer that cannot be read.

        Raises:
            UnscoredError: There is nothing to repair, or no further answer.
        """
        calls = self._use.numbered(self._last.tool_calls[:MAX_CALLS]) if self._last else ()
        opaque = self._last.opaque if self._last else None
        if calls and not text.strip():
            *refusals, last = (result.message for result in self._use.refusals(calls))
            last = last._replace(content=f"{last.content}\n\n{LAST}")
            self._conversation.close(Message("assistant", text, calls, opaque=opaque), *refusals, last)
        else:
            answer, demand = repair(text, error)
            self._conversation.close(answer._replace(opaque=opaque), demand)
        return (await self._ask(may_call=False)).text

    async def shows(self, text: str) -> bool:
        """Tell whether a text stands in what the model saw of the trace; in a thread, for that may be megabytes."""
        opening, results = self._conversation.opening, self._conversation.results
        return await in_thread(lambda: stands_in(text, (opening, *results, *joined_pages(results))))

    def _limit(self) -> End | None:
        """Say which limit asks for the verdict now: a round is begun only if the verdict still fits after it."""
        if self._course.rounds >= self._limits.max_rounds:
            return "max_rounds"
        if self._pace.is_late():
            return "max_time"
        self._fit()
        room = self._budget.room_for_round()
        if self._budget.cost_tokens(self._conversation.size) <= room.tokens:
            return None
        if not self._course.rounds:
            # A verdict on a trace of which nothing was read would be a guess.
            raise _over_budget(room.limit)
        return room.limit

    async def _ask(self, *, may_call: bool) -> ChatResponse:
        """Ask with what fits; where the endpoint finds it too long all the same, with less."""
        while True:
            self._fit()
            if not may_call and not self._conversation.shows_trace:
                raise _too_long("nothing that the tools returned fits into the last request")
            try:
                return await self._send(may_call=may_call)
            except UnscoredError as end:
                if end.reason != "input_too_long":
                    raise
                self._max_bytes = self._conversation.size.total - 1

    async def _send(self, *, may_call: bool) -> ChatResponse:
        calls, size = self._asking.calls, self._conversation.size
        begun = len(calls)
        try:
            response = await self._asking.ask(
                self._prompt, self._conversation.messages, self._use.tools, may_call=may_call
            )
        finally:
            self._budget.spend(calls[begun:])
        self._conversation.sent()
        self._budget.learn(size, size_bytes([_message(response)]), response)
        return response

    async def _exchange(self, response: ChatResponse) -> None:
        self._course.rounds += 1
        calls = self._use.numbered(response.tool_calls)
        asked = _message(response)._replace(tool_calls=calls)
        self._conversation.add(asked, await self._use.results(calls))

    def _send_back(self, response: ChatResponse) -> None:
        """Ask once to read the trace first: an answer on a trace of which nothing was read is a guess."""
        if self._was_told:
            raise UnscoredError("invalid_answer", "the model answers without reading anything of the trace")
        if not response.text.strip():
            raise UnscoredError("invalid_answer", "the answer is empty")
        self._was_told = True
        self._conversation.add(_message(response), [Result(Message("user", READ_FIRST))])

    def _read_nothing(self, end: End) -> UnscoredError:
        if self._was_full:
            return _too_long("nothing that the tools returned fits into the context of the model")
        return UnscoredError("over_budget", f"nothing of the trace was read before {end}")

    def _fit(self) -> None:
        """Leave out what the context does not hold, or what the verdict could not be asked for with."""
        room = self._budget.room()
        self._was_full = self._was_full or not self._fits_context(self._conversation.size)
        if not self._conversation.shorten(self._fits_context):
            raise _too_long("the request is longer than the model takes")
        if not self._conversation.shorten(lambda size: self._budget.cost_tokens(size) <= room.tokens):
            raise _over_budget(room.limit)

    def _fits_context(self, size: Size) -> bool:
        return size.total <= self._max_bytes and self._budget.tokens(size) <= self._max_input_tokens

    def _ended(self, end: End, response: ChatResponse) -> str:
        self._course.ended_by, self._last = end, response
        return response.text


def _too_long(note: str) -> UnscoredError:
    return UnscoredError("input_too_long", note)


def _over_budget(limit: End) -> UnscoredError:
    return UnscoredError("over_budget", f"what is left of {limit} does not hold the next requests")


def _message(response: ChatResponse) -> Message:
    # As it stands, with what the model thought aloud: some endpoints want that back.
    return Message("assistant", response.text, response.tool_calls, opaque=response.opaque)
