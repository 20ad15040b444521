"""Run one judge on one trace: check the inputs, truncate, ask, parse, score. Live and offline use the same code.

Every outcome is an ``Assessment``; only cancellation and programming errors are raised, and the caller turns the latter
into ``internal_error``.
"""

import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final

from judges.calling.answering import AnswerLoop, agent
from judges.core.judge import RESULT, Answered, Judge, JudgeFailedError, PassingError, Reading
from judges.core.model import ChatModel, ModelError
from judges.core.prompt import Prompt, texts_of
from judges.core.verdict import Assessment, Call, Outcome, Refusals
from judges.parsing.retrievals import with_context
from judges.requests.request import (
    LARGE_CHARS,
    Clock,
    Deadline,
    JudgeCall,
    UnscoredError,
    offload_if_large,
    truncate_to_context,
)
from tracejudge import Trace

if TYPE_CHECKING:
    from judges.agent.conversation import ExplorationStats

_CHARS_PER_ITEM: Final = 30
_ITEMS_PER_SPAN: Final = 100


async def evaluate(
    judge: Judge,
    trace: Trace,
    model: ChatModel | None,
    clock: Clock = Clock(),  # noqa: B008 - frozen
    deadline_s: float | None = None,
    *,
    evaluation: str = "",
    earlier_calls: int = 0,
    refusals: Refusals = Refusals(),  # noqa: B008 - frozen
    context_tools: Sequence[str] = (),
) -> Assessment:
    """Judge one trace.

    Args:
        model: None only for a judge in Python.
        deadline_s: Time limit of all requests, from when the first one leaves the model's queue
            (``ChatRequest.begins``); then the result is ``timeout``.
        evaluation: Id of the evaluation, sent with all its requests; generated unless given.
        earlier_calls: Calls of earlier attempts, which limit the retries of an exploration.
        refusals: Refusals of the endpoint in earlier attempts.
        context_tools: Tools whose results are the context of a trace without context and retrieval spans.
    """
    is_large = _size(trace) > LARGE_CHARS
    trace = await offload_if_large(is_large, prepared, judge, trace, context_tools)
    missing = await offload_if_large(is_large, judge.missing, trace)
    if missing is not None:
        return Assessment("unscored", "missing_input", note=missing)
    if judge.run is not None:
        return await _run(judge.run, trace)
    if model is None:
        raise TypeError(f"{judge.name} needs a judge model")
    truncated = await offload_if_large(is_large, truncate_to_context, judge, trace, model.settings.max_input_tokens)
    if truncated is None:
        return Assessment("unscored", "input_too_long", note="the trace is longer than the model takes")
    if "context" in truncated.left_out and not judge.scores_cut:
        # Only answers that rest on the documents shown could pass, which would bias the share.
        note = "documents do not fit the model's context; raise max_input_tokens, or set score_cut = true"
        return Assessment("unscored", "input_too_long", details=_details(None, truncated.left_out), note=note)
    calls: list[Call] = []
    deadline = None if deadline_s is None else Deadline(deadline_s)
    evaluation = evaluation or secrets.token_hex(8)
    noted = dict[str, object]()
    call = JudgeCall(judge, truncated.trace, model, clock, calls, noted, deadline, evaluation, refusals)
    stats = None if judge.exploration is None else agent().ExplorationStats()
    try:
        answered = await _in_time(AnswerLoop(call, stats), truncated.prompts, deadline)
    except UnscoredError as error:
        if judge.exploration is not None:
            error = agent().RetryGuard(judge.exploration.limits, earlier_calls, calls, deadline).end(error)
        cause = error.error or ModelError("")
        return Assessment(
            "unscored",
            error.reason,
            details=_details(stats, {}),
            calls=tuple(calls),
            note=error.note,
            retry_after_s=cause.retry_after_s,
            message=cause.message,
            refusals=cause.refusals,
        )
    reading = await offload_if_large(is_large, judge.score, truncated.trace, answered)
    return _assessment(reading, tuple(calls), {**_details(stats, truncated.left_out), **noted})


def prepared(judge: Judge, trace: Trace, context_tools: Sequence[str] = ()) -> Trace:
    """Complete a trace for a judge: first the context, from spans or tools, then what the judge itself adds."""
    if "context" in (*judge.needs, *judge.cuts):
        trace = with_context(trace, context_tools)
    return judge.prepare(trace)


async def _run(code: Callable[[Trace], Awaitable[Reading]], trace: Trace) -> Assessment:
    try:
        return _assessment(await code(trace))
    except JudgeFailedError as error:
        return Assessment("unscored", "judge_failed", note=str(error))
    except PassingError as error:
        return Assessment("unscored", "internal_error", note=f"{error}" or "the worker ends")


def _assessment(reading: Reading, calls: tuple[Call, ...] = (), asked: Mapping[str, object] = {}) -> Assessment:
    scores, rationale, details = reading
    outcome: Outcome = "scored" if scores or RESULT in details else "abstained"
    return Assessment(outcome, None, scores, rationale, {**details, **asked} if asked else details, calls)


def _details(stats: "ExplorationStats | None", left_out: Mapping[str, int]) -> dict[str, object]:
    """Return the details of a verdict that do not come from the judge's scoring."""
    details: dict[str, object] = {"left_out": dict(left_out)} if left_out else {}
    if stats is not None:
        details["exploration"] = stats.details()
    return details


async def _in_time(loop: AnswerLoop, prompts: Sequence[Prompt], deadline: Deadline | None) -> list[Answered]:
    try:
        async with deadline or nullcontext():
            return await loop.all(prompts)
    except TimeoutError as error:
        if deadline is None or not deadline.has_passed:
            raise
        raise UnscoredError("timeout", f"no verdict within {deadline.limit_s:g} s") from error


def _size(trace: Trace) -> int:
    """Estimate the work for a trace in characters; each item of a list takes time too, however short."""
    lists = (trace.context, trace.messages, trace.expected_facts, trace.guidelines, trace.tool_calls)
    items = sum(len(items_of_field) for items_of_field in lists if items_of_field)
    texts = (
        *(trace.output, trace.input or "", trace.expected_response or "", *texts_of(trace.context)),
        *(*(trace.expected_facts or ()), *(trace.guidelines or ())),
        *(message.content or "" for message in trace.messages or ()),
    )
    return sum(map(len, texts)) + _CHARS_PER_ITEM * (items + _ITEMS_PER_SPAN * len(trace.spans or ()))
