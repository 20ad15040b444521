"""Run one judge on one trace: check the input, make it fit, ask, read, score. The same code live and offline.

Whatever happens ends as an ``Assessment``; the only exceptions that leave are cancellation and programming
errors, which the caller turns into ``internal_error``.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from judges.answering import Answering
from judges.apart import LARGE_CHARS, apart
from judges.asking import Asking, Clock, UnscoredError
from judges.code.errors import PassingError
from judges.deadline import Deadline
from judges.exploring.course import Course
from judges.exploring.tries import Tries
from judges.fit import fit
from judges.judge import Answered, Judge, JudgeFailedError, Reading
from judges.models.model import ChatModel
from judges.prompt import Prompt, texts_of
from judges.verdict import Assessment, Call, Outcome
from tracejudge import Trace

__all__ = ["Clock", "evaluate"]

_CHARS_AN_ITEM: Final = 30
_CHARS_A_SPAN: Final = 100


async def evaluate(
    judge: Judge,
    trace: Trace,
    model: ChatModel | None,
    clock: Clock = Clock(),  # noqa: B008 - frozen
    deadline_s: float | None = None,
    *,
    earlier_calls: int = 0,
) -> Assessment:
    """Judge one trace.

    Args:
        judge: What to ask.
        trace: What to ask about.
        model: Whom to ask; it raises ``ModelError`` when it has no answer. A judge in code asks nobody.
        clock: Where times come from.
        deadline_s: How long the asking may take, from the moment when the model says that the first request no
            longer waits (``ChatRequest.begins``). What comes later is ``timeout``.
        earlier_calls: Calls of earlier tries of the same evaluation, which an exploration may not repeat without end.
    """
    is_large = _weight(trace) > LARGE_CHARS
    trace = await apart(is_large, judge.prepare, trace)
    missing = await apart(is_large, judge.missing, trace)
    if missing is not None:
        return Assessment("unscored", "missing_input", note=missing)
    if judge.run is not None:
        return await _run(judge.run, trace)
    if model is None:
        raise TypeError(f"{judge.name} needs a judge model")
    fitted = await apart(is_large, fit, judge, trace, model.settings.max_input_tokens)
    if fitted is None:
        return Assessment("unscored", "input_too_long", note="the trace is longer than the model takes")
    calls: list[Call] = []
    deadline = None if deadline_s is None else Deadline(deadline_s)
    asking = Asking(judge, fitted.trace, model, clock, calls, deadline)
    course = None if judge.exploration is None else Course()
    try:
        answered = await _in_time(Answering(asking, course), fitted.prompts, deadline)
    except UnscoredError as error:
        exploration = judge.exploration
        end = error if exploration is None else Tries(exploration.limits, earlier_calls, calls, deadline).end(error)
        return _unscored(end, _details(course, {}), tuple(calls))
    reading = await apart(is_large, judge.score, fitted.trace, answered)
    return _assessment(reading, tuple(calls), _details(course, fitted.left_out))


async def _run(code: Callable[[Trace], Awaitable[Reading]], trace: Trace) -> Assessment:
    """Let a judge in code score a trace."""
    try:
        return _assessment(await code(trace))
    except JudgeFailedError as error:
        return Assessment("unscored", "judge_failed", note=str(error))
    except PassingError as error:
        return Assessment("unscored", "internal_error", note=f"{error}" or "the worker ends")


def _assessment(reading: Reading, calls: tuple[Call, ...] = (), asked: Mapping[str, object] = {}) -> Assessment:
    scores, rationale, details = reading
    outcome: Outcome = "scored" if scores else "abstained"
    return Assessment(outcome, None, scores, rationale, {**details, **asked} if asked else details, calls)


def _unscored(end: UnscoredError, details: Mapping[str, object], calls: tuple[Call, ...]) -> Assessment:
    return Assessment(
        "unscored", end.reason, details=details, calls=calls, note=end.note, retry_after_s=end.retry_after_s
    )


def _details(course: Course | None, left_out: Mapping[str, int]) -> dict[str, object]:
    """Give what is said of how the model was asked."""
    details: dict[str, object] = {"left_out": dict(left_out)} if left_out else {}
    if course is not None:
        details["exploration"] = course.details()
    return details


async def _in_time(answering: Answering, prompts: Sequence[Prompt], deadline: Deadline | None) -> list[Answered]:
    """Ask, and break off at the deadline."""
    if deadline is None:
        return await answering.all(prompts)
    try:
        async with deadline:
            return await answering.all(prompts)
    except TimeoutError as error:
        if not deadline.has_passed:
            raise
        raise UnscoredError("timeout", f"no verdict within {deadline.limit_s:g} s") from error


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
