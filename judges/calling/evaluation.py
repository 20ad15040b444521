"""Run one judge on one trace: check the inputs, truncate, ask, parse, score. Live and offline use the same code.

One request shows everything, or the model reads by tools. Every outcome is an ``Assessment``; only cancellation and
programming errors are raised, and the caller turns the latter into ``internal_error``.
"""

import asyncio
import math
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cache, partial
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Final, NamedTuple

from judges.core.decision import Decision, Problem
from judges.core.judge import RESULT, Answer, AnsweredPrompt, Judge, JudgeFailedError, PassingError, Reading, has_text
from judges.core.model import ChatModel, ModelError, UnscoredError
from judges.core.prompt import Prompt, render, texts_of
from judges.core.verdict import Assessment, Call, Outcome, Refusals
from judges.parsing.answer import (
    AnswerError,
    CopiedAnswerError,
    DoubtfulAnswerError,
    IncompleteAnswerError,
    InvalidAnswerError,
    OffMenuError,
    OutOfRangeError,
    without_thinking,
)
from judges.parsing.echo import MIN_ECHO_CHARS, Copies, find_copies, has_sign
from judges.parsing.refusal import is_refusal, is_refusal_as_reason
from judges.parsing.retrievals import with_context
from judges.requests.request import (
    LARGE_CHARS,
    Clock,
    Deadline,
    JudgeCall,
    count_left_out,
    offload_if_large,
    repair,
    truncate_to_context,
)
from tracejudge import Trace

if TYPE_CHECKING:
    from judges.agent.conversation import ExplorationStats
    from judges.agent.loop import AgentLoop

_CHARS_PER_ITEM: Final = 30
_ITEMS_PER_SPAN: Final = 100
# Maximum number of concurrent requests for one trace: a trace of a hundred documents must not block all others.
_CONCURRENT: Final = 16
# Failures that concern one request, whatever the others do.
_OWN_REASONS: Final = frozenset({"invalid_answer", "out_of_range", "content_filter", "refusal", "truncated"})
_PROBLEMS: Final[Mapping[Problem, str]] = {
    "refusal": "the model declined to answer",
    "incomplete": "the endpoint left the answer out",
    "invalid_answer": "the answer cannot be read",
    "out_of_range": "its probabilities lie outside 0..1 or do not add up to 1",
}


@cache
def agent() -> ModuleType:
    """Import the loop in which a model reads a trace by tools; most configurations have no judge that needs it."""
    return import_module("judges.agent.loop")


async def evaluate(  # noqa: PLR0911 - each is a way in which it ends
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
    if judge.samples > 1:
        from judges.calling.samples import ask_repeatedly  # noqa: PLC0415 - few judges are asked several times

        earlier_calls, evaluation = earlier_calls // judge.samples, evaluation or secrets.token_hex(8)
        ask = partial(evaluate, trace=trace, model=model, clock=clock, deadline_s=deadline_s, refusals=refusals)
        ask = partial(ask, evaluation=evaluation, earlier_calls=earlier_calls, context_tools=context_tools)
        return await ask_repeatedly(judge, ask)
    # Results of tools and outputs of spans are of any size.
    is_large = judge.by_tools is not None or _size(trace) > LARGE_CHARS
    trace = await offload_if_large(is_large, prepared, judge, trace, context_tools)
    missing = await offload_if_large(is_large, judge.missing, trace)
    if missing is not None:
        return Assessment("unscored", "missing_input", note=missing)
    if judge.run is not None:
        return await _run(judge.run, trace)
    if model is None:
        raise TypeError(f"{judge.name} needs a judge model")
    truncated = await offload_if_large(is_large, truncate_to_context, judge, trace, model.settings.max_input_tokens)
    if truncated is None and judge.by_tools is not None:
        return await evaluate(
            *(judge.by_tools(judge), trace, model, clock, deadline_s),
            evaluation=evaluation,
            earlier_calls=earlier_calls,
            refusals=refusals,
        )
    # Of documents left out: only answers that rest on those shown could pass, which would bias the share.
    if truncated is None or ("context" in truncated.left_out and not judge.scores_cut):
        fix = "documents do not fit the model's context; raise max_input_tokens, or set score_cut = true"
        note, details = (
            ("the trace is longer than the model takes", {}) if truncated is None else (fix, truncated.left_out)
        )
        return Assessment("unscored", "input_too_long", details=_details(None, details), note=note)
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
            error = agent().end_of_attempt(error, judge.exploration.limits, earlier_calls, calls, deadline)
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
    passes = model.settings.images == "url" and "images_refused" not in noted
    if images := count_left_out(truncated.trace, truncated.prompts, passes=passes):
        noted["images_left_out"] = images
    return _assessment(reading, tuple(calls), {**_details(stats, truncated.left_out), **noted})


def prepared(judge: Judge, trace: Trace, context_tools: Sequence[str] = ()) -> Trace:
    """Complete a trace for a judge: first a missing context, from spans or tools, then what the judge itself adds."""
    if "context" in (*judge.needs, *judge.cuts) and not has_text(trace.context):
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


async def _in_time(loop: "AnswerLoop", prompts: Sequence[Prompt], deadline: Deadline | None) -> list[AnsweredPrompt]:
    try:
        async with nullcontext() if deadline is None else deadline.block:
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


class _SingleRequest:
    """The dialogue with a judge model that is shown everything at once."""

    def __init__(self, call: JudgeCall, prompt: Prompt) -> None:
        self._call = call
        self._prompt = prompt
        self._messages = render(prompt)

    async def answer(self) -> str:
        return (await self._call.ask(self._prompt, self._messages)).text

    async def repaired(self, text: str, error: AnswerError) -> str:
        return (await self._call.ask(self._prompt, (*self._messages, *repair(text, error)))).text

    async def find_copies(self, text: str, is_verdict: Callable[[str], bool]) -> Copies | None:
        trace, prompt = self._call.trace, self._prompt
        # The words of a template are no material, and often contain an example of the answer.
        material = [block.value for block in prompt.blocks] if prompt.messages else [self._messages[-1].content]
        shown = "\n".join(material)
        # Blocks whose invisible characters were replaced are not shown as they are.
        blocks = frozenset(material if has_sign(shown) else [*material, *(block.value for block in prompt.blocks)])

        def find() -> Copies | None:
            # A judge that shows sentences with keys divides the objects that are planted in them. Among thousands of
            # documents this takes a second: it belongs into the thread as well.
            texts = (trace.output, *texts_of(trace.context))
            divided = [each for each in texts if (each not in blocks or "\r" in each) and each not in shown]
            return find_copies(text, (*material, *divided), is_verdict)

        return await offload_if_large(len(shown) > LARGE_CHARS or len(text) > LARGE_CHARS // 10, find)


class AnswerLoop(NamedTuple):
    """Requests the answers of one judge for one trace; ``stats`` only for a judge with an exploration."""

    call: JudgeCall
    stats: "ExplorationStats | None"

    async def all(self, prompts: Sequence[Prompt]) -> list[AnsweredPrompt]:
        """Answer all requests, some concurrently; after a failure no further one is sent.

        As many as the judge's ``max_missing`` allows may stay without an answer, unless all of them do. Requests in
        flight are awaited: they are paid for, and their calls must be recorded.
        """
        if len(prompts) == 1:
            return [AnsweredPrompt(prompts[0], await self._answer(prompts[0]))]
        waiting, answers, failures = deque(enumerate(prompts)), dict[int, Answer](), list[UnscoredError]()
        # The share is a decimal fraction, so that the product may lie just below a whole number.
        may_miss, missing = math.floor(self.call.judge.max_missing * len(prompts) + 1e-9), list[UnscoredError]()

        async def work() -> None:
            while waiting and not failures:
                place, prompt = waiting.popleft()
                try:
                    answers[place] = await self._answer(prompt)
                except UnscoredError as error:
                    is_own = error.reason in _OWN_REASONS and len(missing) < may_miss
                    (missing if is_own else failures).append(error)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(_CONCURRENT, len(prompts))):
                group.create_task(work())
        if failures or (missing and not answers):
            raise (failures or missing)[0]
        return [AnsweredPrompt(prompt, answers[place]) for place, prompt in enumerate(prompts) if place in answers]

    async def _answer(self, prompt: Prompt) -> Answer:
        """Return one parsed answer, after at most one repair request."""
        if prompt.questions:
            return await self._decide(prompt)
        dialogue: _SingleRequest | AgentLoop
        exploration = self.call.judge.exploration
        if exploration is None or self.stats is None:
            dialogue = _SingleRequest(self.call, prompt)
        else:
            dialogue = await agent().AgentLoop.open(self.call, prompt, exploration, self.stats)
        text = await dialogue.answer()
        try:
            return await self._read(dialogue, prompt, text)
        except (InvalidAnswerError, OffMenuError) as error:
            text = await dialogue.repaired(text, error)
        try:
            return await self._read(dialogue, prompt, text, is_repaired=True)
        except IncompleteAnswerError as error:
            raise UnscoredError("incomplete", str(error)) from error
        except DoubtfulAnswerError as error:
            return error.answer
        except InvalidAnswerError as error:
            raise UnscoredError("invalid_answer", str(error)) from error
        except OffMenuError as error:
            raise UnscoredError("out_of_range", str(error)) from error

    async def _decide(self, prompt: Prompt) -> tuple[Decision, ...]:
        """Return one usable answer to each question; a repair request would only bring the same probabilities."""
        questions, settings = prompt.questions, self.call.model.settings
        if any(len(question.options) > settings.option_limit for question in questions):
            raise UnscoredError("bad_request", f"a question has more than {settings.option_limit} options, max_options")
        messages, limit, decisions = render(prompt), settings.question_limit, list[Decision]()
        for first in range(0, len(questions), limit):
            # The endpoint's limits and the costs apply to each request, so that each is a separate call.
            some = prompt if len(questions) <= limit else prompt._replace(questions=questions[first : first + limit])
            decisions += (await self.call.ask(some, messages)).decisions
        if len(decisions) != len(questions):
            raise UnscoredError("incomplete", f"{len(decisions)} of {len(questions)} questions are answered")
        for number, decision in enumerate(decisions, 1):
            if decision.problem is not None:
                problem = _PROBLEMS[decision.problem]
                raise UnscoredError(decision.problem, f"question {number} of {len(questions)}: {problem}")
        return tuple(decisions)

    async def _read(
        self, dialogue: "_SingleRequest | AgentLoop", prompt: Prompt, text: str, *, is_repaired: bool = False
    ) -> Answer:
        """Parse an answer without the verdicts that it copies from the material: they were planted there.

        If no other verdict is left, the answer is requested again. A short copy is accepted then: the model's own
        answer may happen to be the same.
        """
        copies = await dialogue.find_copies(text, self._is_verdict)
        if copies is None:
            return await self._parsed(prompt, text)
        try:
            return await self._parsed(prompt, copies.rest)
        except InvalidAnswerError as error:
            if isinstance(error, IncompleteAnswerError | DoubtfulAnswerError):
                raise
            if "{" in copies.rest:  # The model's own answer cannot be read.
                raise CopiedAnswerError(str(error)) from error
            if copies.chars >= MIN_ECHO_CHARS or not is_repaired:
                raise CopiedAnswerError("the answer is a copy from the material") from error
        return await self._parsed(prompt, text)

    def _is_verdict(self, text: str) -> bool:
        try:
            self.call.judge.read(without_thinking(text))
        except AnswerError:
            return False
        return True

    async def _parsed(self, prompt: Prompt, text: str) -> Answer:
        judge, is_large = self.call.judge, len(text) > LARGE_CHARS // 10
        try:
            answer = without_thinking(text)
            bare = answer.strip()
            # Before the reader, which may take the "no" of "No, I can't help with that." for a verdict.
            if bare[:1] not in {"{", "["} and is_refusal(bare):
                raise UnscoredError("refusal", "the model declined to answer, in words")
            read = await offload_if_large(is_large, judge.read, answer)
            # A model may refuse within the asked form if its endpoint allows no other answer.
            fields = read if isinstance(read, Mapping) else {"rationale": getattr(read, "rationale", None)}
            reasons = str(next((fields[key] for key in ("rationale", "justification") if fields.get(key)), ""))
            if is_refusal_as_reason(reasons):
                raise UnscoredError("refusal", "the model declined to answer, in its reasons")
        except OffMenuError:
            raise
        except OutOfRangeError as error:
            raise UnscoredError("out_of_range", str(error)) from error
        if judge.check is not None:
            await offload_if_large(is_large, judge.check, self.call.trace, prompt, read)
        return read
