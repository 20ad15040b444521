"""Run one judge on one trace: check the input, make it fit, ask, read, score. The same code live and offline.

Whatever happens ends as an ``Assessment``; the only exceptions that leave are cancellation and programming
errors, which the caller turns into ``internal_error``.
"""

import asyncio
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, ParamSpec, TypeVar

from judges.answer import InvalidAnswerError, OutOfRangeError, without_thinking
from judges.fit import fit
from judges.judge import Answer, Answered, Judge, JudgeFailedError, Reading
from judges.models.model import ChatModel, ChatRequest, ChatResponse, ModelError
from judges.prompt import Message, Prompt, render, texts_of
from judges.verdict import Assessment, Call, Outcome, Reason
from tracejudge import Trace

__all__ = ["Clock", "evaluate"]

P = ParamSpec("P")
Result = TypeVar("Result")

_LARGE_CHARS: Final = 200_000
_CHARS_AN_ITEM: Final = 30
_AT_ONCE: Final = 16
"""Requests about one trace under way together: a trace of a hundred documents must not take all places."""
_CHARS_A_SPAN: Final = 100
_FENCE: Final = re.compile(r"^[ \t]*```\w*[ \t]*$", re.MULTILINE)
_MIN_COPIED_CHARS: Final = 120
"""Shorter answers, as three bare grades, can be foretold: a planted one must not keep the same honest one away."""
_MAX_SHOWN_CHARS: Final = 20_000
"""How much of an unreadable answer is shown back; a model that ran on must not fill the context with it."""
_REPAIR: Final = """\
Your answer could not be read: {error}. Send the same assessment once more, unchanged in what it says, in exactly the \
form that was asked and with nothing around it."""


class Clock(NamedTuple):
    """Where times come from: seconds since the epoch, and a steady count of seconds."""

    now: Callable[[], float] = time.time
    steady: Callable[[], float] = time.perf_counter


class _UnscoredError(Exception):
    """Leave the evaluation with a reason."""

    def __init__(self, reason: Reason, note: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.note = note
        self.retry_after_s = retry_after_s


async def evaluate(
    judge: Judge,
    trace: Trace,
    model: ChatModel | None,
    clock: Clock = Clock(),  # noqa: B008 - frozen
    deadline_s: float | None = None,
) -> Assessment:
    """Judge one trace.

    Args:
        judge: What to ask.
        trace: What to ask about.
        model: Whom to ask; it raises ``ModelError`` when it has no answer. A judge in code asks nobody.
        clock: Where times come from.
        deadline_s: How long the asking may take, from the moment when the model says that the first request no
            longer waits (``ChatRequest.begins``). What comes later is ``timeout``.
    """
    is_large = _weight(trace) > _LARGE_CHARS
    trace = await _apart(is_large, judge.prepare, trace)
    missing = await _apart(is_large, judge.missing, trace)
    if missing is not None:
        return Assessment("unscored", "missing_input", note=missing)
    if judge.run is not None:
        return await _run(judge.run, trace)
    if model is None:
        raise TypeError(f"{judge.name} needs a judge model")
    fitted = await _apart(is_large, fit, judge, trace, model.settings.max_input_tokens)
    if fitted is None:
        return Assessment("unscored", "input_too_long", note="the trace is longer than the model takes")
    calls: list[Call] = []
    asking = _Asking(judge, fitted.trace, model, clock, calls)
    try:
        answered = await _in_time(asking, fitted.prompts, deadline_s)
    except _UnscoredError as end:
        return Assessment("unscored", end.reason, calls=tuple(calls), note=end.note, retry_after_s=end.retry_after_s)
    reading = await _apart(is_large, judge.score, fitted.trace, answered)
    if fitted.left_out:
        reading = reading._replace(details={**reading.details, "left_out": dict(fitted.left_out)})
    return _assessment(reading, tuple(calls))


async def _run(code: Callable[[Trace], Awaitable[Reading]], trace: Trace) -> Assessment:
    """Let a judge in code score a trace."""
    try:
        return _assessment(await code(trace))
    except JudgeFailedError as error:
        return Assessment("unscored", "judge_failed", note=str(error))


def _assessment(reading: Reading, calls: tuple[Call, ...] = ()) -> Assessment:
    outcome: Outcome = "scored" if reading.scores else "abstained"
    return Assessment(outcome, None, *reading, calls)


async def _in_time(asking: "_Asking", prompts: Sequence[Prompt], deadline_s: float | None) -> list[Answered]:
    """Ask, and break off at the deadline."""
    if deadline_s is None:
        return await asking.all(prompts)
    loop = asyncio.get_running_loop()

    def begin() -> None:
        if deadline.when() is None:
            deadline.reschedule(loop.time() + deadline_s)

    try:
        async with asyncio.timeout(None) as deadline:
            return await asking._replace(begins=begin).all(prompts)
    except TimeoutError as error:
        if not deadline.expired():
            raise
        raise _UnscoredError("timeout", f"no verdict within {deadline_s:g} s") from error


async def _apart(
    is_large: bool,  # noqa: FBT001 - stands before the call it decides about
    function: Callable[P, Result],
    *arguments: P.args,
    **keywords: P.kwargs,
) -> Result:
    """Call a function, in a thread where it may take long: seconds of counting must not stop the event loop."""
    if is_large:
        return await asyncio.to_thread(function, *arguments, **keywords)
    return function(*arguments, **keywords)


def _refuse_copy(text: str, messages: Sequence[Message]) -> None:
    """Refuse an answer that stands in the material word for word, also in a fence: a verdict somebody planted."""
    copied = _FENCE.sub("", text).strip()
    if len(copied) >= _MIN_COPIED_CHARS and copied in messages[-1].content:
        raise InvalidAnswerError("the answer is a copy from the material")


def _weight(trace: Trace) -> int:
    """Say how much there is to work on, in characters; each item of a list takes its time too, however short."""
    lists = (trace.context, trace.messages, trace.expected_facts, trace.guidelines, trace.tool_calls)
    items = sum(len(found) for found in lists if found) + _CHARS_A_SPAN * len(trace.spans or ())
    texts = (trace.output, trace.input, trace.expected_response, *(trace.expected_facts or ()))
    messages = sum(len(message.content or "") for message in trace.messages or ())
    return (
        sum(len(text) for text in texts if text)
        + sum(map(len, texts_of(trace.context)))
        + sum(map(len, trace.guidelines or ()))
        + messages
        + _CHARS_AN_ITEM * items
    )


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


class _Asking(NamedTuple):
    """The asking of one judge about one trace; every call to the model is noted in ``calls``."""

    judge: Judge
    trace: Trace
    model: ChatModel
    clock: Clock
    calls: list[Call]
    begins: Callable[[], None] | None = None

    async def all(self, prompts: Sequence[Prompt]) -> list[Answered]:
        """Answer all requests, some at the same time; after a failure no further one is begun.

        Those under way are waited for: they are paid for, and belong into the books of calls.
        """
        if len(prompts) == 1:
            return [Answered(prompts[0], await self._answer(prompts[0]))]
        waiting, answers, failures = deque(enumerate(prompts)), dict[int, Answer](), list[_UnscoredError]()

        async def work() -> None:
            while waiting and not failures:
                place, prompt = waiting.popleft()
                try:
                    answers[place] = await self._answer(prompt)
                except _UnscoredError as end:
                    failures.append(end)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(_AT_ONCE, len(prompts))):
                group.create_task(work())
        if failures:
            raise failures[0]
        return [Answered(prompt, answers[place]) for place, prompt in enumerate(prompts)]

    async def _answer(self, prompt: Prompt) -> Answer:
        """Get one answer that can be read, after at most one repair request."""
        messages = render(prompt)
        text = await self._text(prompt, messages)
        try:
            _refuse_copy(text, messages)
            return await self._read(text)
        except InvalidAnswerError as error:
            if not text.strip():
                raise _UnscoredError("invalid_answer", "the answer is empty") from error
            repair = Message("user", _REPAIR.format(error=error))
            shown = Message("assistant", text[:_MAX_SHOWN_CHARS])
            text = await self._text(prompt, (*messages, shown, repair))
        try:
            _refuse_copy(text, messages)
            return await self._read(text)
        except InvalidAnswerError as error:
            raise _UnscoredError("invalid_answer", str(error)) from error

    async def _read(self, text: str) -> Answer:
        try:
            return await _apart(len(text) > _LARGE_CHARS // 10, self.judge.read, without_thinking(text))
        except OutOfRangeError as error:
            raise _UnscoredError("out_of_range", str(error)) from error

    async def _text(self, prompt: Prompt, messages: tuple[Message, ...]) -> str:
        response = await self._ask(prompt, messages)
        if response.finish_reason == "content_filter":
            raise _UnscoredError("content_filter", "the endpoint's filter withheld the answer")
        if response.refusal:
            raise _UnscoredError("refusal", "the model declined to answer")
        if response.finish_reason == "length":
            raise _UnscoredError("truncated", "the answer was cut off at the token limit")
        return response.text

    async def _ask(self, prompt: Prompt, messages: tuple[Message, ...]) -> ChatResponse:
        judge = self.judge
        heuristic = lambda: judge.heuristic(self.trace, prompt)  # noqa: E731 - a name for one expression
        under_way = None if self.begins is None else _UnderWay(self.clock, self.begins)
        begins = None if under_way is None else under_way.begin
        request = ChatRequest(messages, judge.name, judge.schema, heuristic, begins)
        started_at, start = self.clock.now(), self.clock.steady()
        try:
            response = await self.model.complete(request)
        except ModelError as error:
            self.calls.extend(error.failed)
            if error.was_asked:
                times = self._times(error.took_s, started_at, start)
                self.calls.append(Call(*times, error.reason, error.input_tokens, error.output_tokens))
            raise _UnscoredError(error.reason, str(error), error.retry_after_s) from error
        except asyncio.CancelledError:
            if under_way is not None:
                self.calls.extend(under_way.calls())
            raise
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
        return response

    def _times(self, took_s: float | None, started_at: float, start: float) -> _Times:
        """Say when the last request was sent and how long it took: not from where it began to wait, if it did."""
        if took_s is None:
            return _Times(started_at, self.clock.steady() - start)
        return _Times(self.clock.now() - took_s, took_s)
