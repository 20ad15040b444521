"""One request to a judge model on behalf of an evaluation: every call is noted, every failure has a reason."""

import asyncio
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from judges.answer import InvalidAnswerError
from judges.deadline import Deadline
from judges.judge import Judge
from judges.models.model import ChatModel, ChatRequest, ChatResponse, ModelError, Tool
from judges.prompt import Message, Prompt
from judges.verdict import Call, Reason
from tracejudge import Trace

__all__ = ["Asking", "Clock", "UnscoredError", "repair"]

_MAX_SHOWN_CHARS: Final = 20_000
"""How much of an unreadable answer is shown back; a model that ran on must not fill the context with it."""
_REPAIR: Final = """\
Your answer could not be read: {error}. Send the same assessment once more, unchanged in what it says, in exactly the \
form that was asked and with nothing around it."""


class Clock(NamedTuple):
    """Where times come from: seconds since the epoch, and a steady count of seconds."""

    now: Callable[[], float] = time.time
    steady: Callable[[], float] = time.perf_counter


class UnscoredError(Exception):
    """Leave the evaluation with a reason."""

    def __init__(self, reason: Reason, note: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.note = note
        self.retry_after_s = retry_after_s


def repair(text: str, error: InvalidAnswerError) -> tuple[Message, Message]:
    """Write what is said after an answer that cannot be read: the answer, and what is wrong with it.

    Raises:
        UnscoredError: There is nothing to repair.
    """
    if not text.strip():
        raise UnscoredError("invalid_answer", "the answer is empty") from error
    return Message("assistant", text[:_MAX_SHOWN_CHARS]), Message("user", _REPAIR.format(error=error))


class _Times(NamedTuple):
    started_at: float
    duration_s: float


class _UnderWay:
    """One request of an evaluation with a deadline: what was sent for it so far."""

    def __init__(self, clock: Clock, begins: Callable[[], None]) -> None:
        self._clock = clock
        self._begins = begins
        self._began: _Times | None = None
        self._failed: tuple[Call, ...] = ()

    def begin(self, failed: tuple[Call, ...]) -> None:
        self._began, self._failed = _Times(self._clock.now(), self._clock.steady()), failed
        self._begins()

    def calls(self) -> tuple[Call, ...]:
        """Give what was sent, the last as cut off."""
        if self._began is None:
            return ()
        started_at, start = self._began
        return (*self._failed, Call(started_at, self._clock.steady() - start, "timeout"))


class Asking(NamedTuple):
    """The asking of one judge about one trace; every call to the model is noted in ``calls``.

    ``deadline`` runs from when a request no longer waits; nothing where the evaluation has none.
    """

    judge: Judge
    trace: Trace
    model: ChatModel
    clock: Clock
    calls: list[Call]
    deadline: Deadline | None = None

    async def ask(
        self, prompt: Prompt, messages: tuple[Message, ...], tools: tuple[Tool, ...] = (), *, may_call: bool = True
    ) -> ChatResponse:
        """Get one whole answer, which the model meant to give.

        Raises:
            UnscoredError: There is none.
        """
        response = await self._complete(prompt, messages, tools, may_call=may_call)
        if response.finish_reason == "content_filter":
            raise UnscoredError("content_filter", "the endpoint's filter withheld the answer")
        if response.refusal:
            raise UnscoredError("refusal", "the model declined to answer")
        if response.finish_reason == "length":
            raise UnscoredError("truncated", "the answer was cut off at the token limit")
        return response

    async def _complete(
        self, prompt: Prompt, messages: tuple[Message, ...], tools: tuple[Tool, ...], *, may_call: bool
    ) -> ChatResponse:
        judge = self.judge
        heuristic = lambda: judge.heuristic(self.trace, prompt)  # noqa: E731 - a name for one expression
        under_way = None if self.deadline is None else _UnderWay(self.clock, self.deadline.begin)
        begins = None if under_way is None else under_way.begin
        request = ChatRequest(messages, judge.name, judge.schema, heuristic, begins, tools, may_call)
        started_at, start = self.clock.now(), self.clock.steady()
        try:
            response = await self.model.complete(request)
        except ModelError as error:
            self._note_failure(error, started_at, start)
            raise UnscoredError(error.reason, str(error), error.retry_after_s) from error
        except asyncio.CancelledError:
            if under_way is not None:
                self.calls.extend(under_way.calls())
            raise
        self._note(response, started_at, start)
        return response

    def _note(self, response: ChatResponse, started_at: float, start: float) -> None:
        self.calls.extend(response.failed)
        self.calls.append(
            Call(
                *self._times(response.took_s, started_at, start),
                "ok",
                response.input_tokens,
                response.output_tokens,
                response.response_id,
                response.model,
                response.finish_reason,
            )
        )

    def _note_failure(self, error: ModelError, started_at: float, start: float) -> None:
        self.calls.extend(error.failed)
        if error.was_asked:
            times = self._times(error.took_s, started_at, start)
            self.calls.append(Call(*times, error.reason, error.input_tokens, error.output_tokens))

    def _times(self, took_s: float | None, started_at: float, start: float) -> _Times:
        """Say when the last request was sent and how long it took: not from where it began to wait, if it did."""
        if took_s is None:
            return _Times(started_at, self.clock.steady() - start)
        return _Times(self.clock.now() - took_s, took_s)
