"""Run one judge on one trace: check the input, make it fit, ask, read, score. The same code live and offline.

Whatever happens ends as an ``Assessment``; the only exceptions that leave are cancellation and programming
errors, which the caller turns into ``internal_error``.
"""

import asyncio
import re
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple, ParamSpec, Protocol, TypeVar

from judges.answer import InvalidAnswerError, OutOfRangeError, without_thinking
from judges.asking import Asking, Clock, UnscoredError, repair
from judges.copies import stands_in
from judges.exploring.course import Course
from judges.exploring.explorer import Explorer
from judges.fit import fit
from judges.judge import Answer, Answered, Judge, JudgeFailedError, Reading
from judges.models.model import ChatModel
from judges.prompt import Prompt, render, texts_of
from judges.verdict import Assessment, Call, Outcome
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
    course = None if judge.exploration is None else Course()
    answering = _Answering(Asking(judge, fitted.trace, model, clock, calls), course)
    try:
        answered = await _in_time(answering, fitted.prompts, deadline_s)
    except UnscoredError as end:
        return Assessment(
            "unscored",
            end.reason,
            details=_details(course, {}),
            calls=tuple(calls),
            note=end.note,
            retry_after_s=end.retry_after_s,
        )
    reading = await _apart(is_large, judge.score, fitted.trace, answered)
    details = {**reading.details, **_details(course, fitted.left_out)}
    return _assessment(reading._replace(details=details), tuple(calls))


async def _run(code: Callable[[Trace], Awaitable[Reading]], trace: Trace) -> Assessment:
    """Let a judge in code score a trace."""
    try:
        return _assessment(await code(trace))
    except JudgeFailedError as error:
        return Assessment("unscored", "judge_failed", note=str(error))


def _assessment(reading: Reading, calls: tuple[Call, ...] = ()) -> Assessment:
    outcome: Outcome = "scored" if reading.scores else "abstained"
    return Assessment(outcome, None, *reading, calls)


def _details(course: Course | None, left_out: Mapping[str, int]) -> dict[str, object]:
    """Give what is said of how the model was asked."""
    cut: dict[str, object] = {"left_out": dict(left_out)} if left_out else {}
    return cut if course is None else {**cut, "exploration": course.details()}


async def _in_time(answering: "_Answering", prompts: Sequence[Prompt], deadline_s: float | None) -> list[Answered]:
    """Ask, and break off at the deadline."""
    if deadline_s is None:
        return await answering.all(prompts)
    loop = asyncio.get_running_loop()

    def begin() -> None:
        if deadline.when() is None:
            deadline.reschedule(loop.time() + deadline_s)

    try:
        async with asyncio.timeout(None) as deadline:
            return await answering.beginning(begin).all(prompts)
    except TimeoutError as error:
        if not deadline.expired():
            raise
        raise UnscoredError("timeout", f"no verdict within {deadline_s:g} s") from error


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


class _Dialogue(Protocol):
    """One request and what follows on it, until there is an answer."""

    async def answer(self) -> str:
        """Get the text of the answer."""
        ...

    async def repaired(self, text: str, error: InvalidAnswerError) -> str:
        """Get the text of another one, after one that cannot be read."""
        ...

    async def shows(self, text: str) -> bool:
        """Tell whether a text stands in the material that the model saw."""
        ...


class _OneRequest:
    """The dialogue of a judge whose requests show all there is."""

    def __init__(self, asking: Asking, prompt: Prompt) -> None:
        self._asking = asking
        self._prompt = prompt
        self._messages = render(prompt)

    async def answer(self) -> str:
        return (await self._asking.ask(self._prompt, self._messages)).text

    async def repaired(self, text: str, error: InvalidAnswerError) -> str:
        return (await self._asking.ask(self._prompt, (*self._messages, *repair(text, error)))).text

    async def shows(self, text: str) -> bool:
        shown = self._messages[-1].content
        return text in shown or await _apart(len(shown) > _LARGE_CHARS, stands_in, text, (shown,))


class _Answering(NamedTuple):
    """The answers of one judge about one trace."""

    asking: Asking
    course: Course | None

    def beginning(self, begins: Callable[[], None]) -> "_Answering":
        """Call this whenever a request no longer waits."""
        return self._replace(asking=self.asking._replace(begins=begins))

    async def all(self, prompts: Sequence[Prompt]) -> list[Answered]:
        """Answer all requests, some at the same time; after a failure no further one is begun.

        Those under way are waited for: they are paid for, and belong into the books of calls.
        """
        if len(prompts) == 1:
            return [Answered(prompts[0], await self._answer(prompts[0]))]
        waiting, answers, failures = deque(enumerate(prompts)), dict[int, Answer](), list[UnscoredError]()

        async def work() -> None:
            while waiting and not failures:
                place, prompt = waiting.popleft()
                try:
                    answers[place] = await self._answer(prompt)
                except UnscoredError as end:
                    failures.append(end)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(_AT_ONCE, len(prompts))):
                group.create_task(work())
        if failures:
            raise failures[0]
        return [Answered(prompt, answers[place]) for place, prompt in enumerate(prompts)]

    async def _answer(self, prompt: Prompt) -> Answer:
        """Get one answer that can be read, after at most one repair request."""
        dialogue = await self._dialogue(prompt)
        text = await dialogue.answer()
        try:
            return await self._read(dialogue, text)
        except InvalidAnswerError as error:
            text = await dialogue.repaired(text, error)
        try:
            return await self._read(dialogue, text)
        except InvalidAnswerError as error:
            raise UnscoredError("invalid_answer", str(error)) from error

    async def _dialogue(self, prompt: Prompt) -> _Dialogue:
        exploration = self.asking.judge.exploration
        if exploration is None or self.course is None:
            return _OneRequest(self.asking, prompt)
        return await Explorer.open(self.asking, prompt, exploration, self.course)

    async def _read(self, dialogue: _Dialogue, text: str) -> Answer:
        """Read an answer, unless it stands in the material word for word, also in a fence: somebody planted that."""
        copied = _FENCE.sub("", text).strip()
        if len(copied) >= _MIN_COPIED_CHARS and await dialogue.shows(copied):
            raise InvalidAnswerError("the answer is a copy from the material")
        try:
            return await _apart(len(text) > _LARGE_CHARS // 10, self.asking.judge.read, without_thinking(text))
        except OutOfRangeError as error:
            raise UnscoredError("out_of_range", str(error)) from error
