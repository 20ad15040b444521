"""Run a judge model that reads a trace by tools, and its calls, until it gives a verdict or a limit forces it."""

import asyncio
import contextlib
import itertools
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, TypeVar

from judges.agent.conversation import (
    BROKE,
    BUSY,
    LAST,
    NO_CALL,
    OVERRAN,
    READ_FIRST,
    TOO_MANY,
    Conversation,
    ExplorationStats,
    Result,
    Size,
    notice,
    tool_result,
)
from judges.core.judge import BYTES_PER_TOKEN, End, Exploration, Limits, Toolbox
from judges.core.model import ChatResponse, Price, UnscoredError
from judges.core.prompt import Message, Prompt, ToolCall, render
from judges.core.verdict import FINAL_REASONS, Call
from judges.parsing.answer import AnswerError
from judges.parsing.echo import Copies, find_copies, joined_pages
from judges.requests.request import Deadline, JudgeCall, repair, size_bytes

T = TypeVar("T")
MAX_CALLS: Final = 16  # The number of calls of one answer that are run.
_MAX_TOOL_S: Final = 5.0  # A guard only: tools end by themselves within about a second.
# Time for three of the longest round is reserved: a round, the verdict after it, and a margin.
_ROUNDS_RESERVED: Final = 3


_ATTEMPTS_FACTOR: Final = 2
_EXTRA_CALLS: Final = 10  # An endpoint that fails for a moment must not use up the attempts of a judge with few rounds.


def end_of_attempt(
    end: UnscoredError, limits: Limits, earlier_calls: int, calls: Iterable[Call], deadline: Deadline | None
) -> UnscoredError:
    """Return the error of a failed exploration, or ``over_budget`` if a further attempt would cost too much.

    Limits, calls and deadline are those of this attempt, and ``earlier_calls`` the requests of earlier ones.
    """
    statuses = [call.status for call in calls]
    # Attempts in which nothing was answered cost nothing.
    if end.reason in FINAL_REASONS or "ok" not in statuses:
        return end
    if deadline is not None and deadline.has_passed:
        note = f"the exploration did not end within {deadline.limit_s:g} s"
    elif earlier_calls + len(statuses) >= _ATTEMPTS_FACTOR * limits.max_rounds + _EXTRA_CALLS:
        note = f"all tries together used up the calls that max_rounds allows; the last ended with {end.reason}"
    else:
        return end
    return UnscoredError("over_budget", note)


_LEAST_BYTES_PER_TOKEN: Final = 2  # In listings of a trace, which consist of ids, times and figures.


class RemainingTokens(NamedTuple):
    """The number of input tokens that still fit, and the limit that sets it."""

    tokens: float
    limit: End


class TokenBudget:
    """Tokens and USD of one exploration.

    Future tokens are estimated from bytes, at the rate that the endpoint counted for earlier requests, and at least at
    the rate assumed for any text. Costs of fresh bytes are estimated higher: traces contain many ids and figures, whose
    tokens are short, and a limit once exceeded stays exceeded.
    """

    def __init__(self, limits: Limits, price: Price | None) -> None:
        self._limits = limits
        self._price = price or Price(input=0.0, output=0.0)
        # Without a price only tokens can be limited.
        self._max_usd = math.inf if limits.max_usd is None or price is None else limits.max_usd
        self._input_tokens = 0
        self._output_tokens = 0
        self._cached = 0, 0
        self._longest_answer = 1_000  # Reserved for an answer; its length can only be predicted from earlier ones.
        self._tokens_per_byte = 1 / BYTES_PER_TOKEN

    def tokens(self, size: Size) -> int:
        """Estimate the tokens of a request."""
        return math.ceil(size.total * self._tokens_per_byte)

    def cost_tokens(self, size: Size) -> int:
        """Estimate the tokens of a request, on the safe side."""
        per_fresh_byte = max(self._tokens_per_byte, 1 / _LEAST_BYTES_PER_TOKEN)
        return math.ceil(size.sent * self._tokens_per_byte + size.fresh * per_fresh_byte)

    def spend(self, calls: Iterable[Call]) -> None:
        """Subtract the tokens of requests, failed ones included."""
        for call in calls:
            self._input_tokens += call.input_tokens
            self._output_tokens += call.output_tokens
            self._cached = self._cached[0] + call.cached_tokens, self._cached[1] + call.written_tokens

    def learn(self, size: Size, answer_bytes: int, response: ChatResponse) -> None:
        """Update the estimates by an answer. Tokens that the endpoint did not count are estimated and subtracted."""
        measured = response.input_tokens / size.total
        # No tokenizer makes more tokens than bytes; an endpoint that reports more counted several attempts as one.
        self._tokens_per_byte = min(1.0, max(1 / BYTES_PER_TOKEN, measured))
        answer_tokens = response.output_tokens or math.ceil(answer_bytes * self._tokens_per_byte)
        self._longest_answer = max(self._longest_answer, answer_tokens)
        if not response.input_tokens:
            self._input_tokens += self.cost_tokens(size)
        if not response.output_tokens:
            self._output_tokens += answer_tokens

    def remaining(self, answers: int = 1) -> RemainingTokens:
        """Return how many input tokens may be sent until so many further answers are in; negative when none."""
        output_tokens = self._output_tokens + answers * self._longest_answer
        in_tokens = RemainingTokens(self._limits.max_tokens - self._input_tokens - output_tokens, "max_tokens")
        left_usd = self._max_usd - self._price.cost_usd(self._input_tokens, output_tokens, *self._cached)
        if self._price.input:
            for_usd = left_usd / self._price.cost_usd(1, 0)
        else:
            for_usd = math.inf if left_usd >= 0 else -math.inf
        return min(in_tokens, RemainingTokens(for_usd, "max_usd"))

    def remaining_for_round(self) -> RemainingTokens:
        """Return how long a request may be so that the verdict can still be requested after it and its answer."""
        # The second request contains the first and its answer. Results of tools are not predicted: they are shortened.
        remaining = self.remaining(answers=2)
        return remaining._replace(tokens=(remaining.tokens - self._longest_answer) / 2)


class AgentLoop:
    """One exploration: ``answer`` is called once, then ``repaired`` at most once."""

    def __init__(
        self, call: JudgeCall, prompt: Prompt, toolbox: Toolbox, exploration: Exploration, stats: ExplorationStats
    ) -> None:
        settings, self._limits = call.model.settings, exploration.limits
        self._call = call
        self._prompt = prompt
        self._stats = stats
        self._tools = ToolUse(toolbox, stats)
        self._conversation = Conversation(render(prompt), self._tools.tools, stats)
        self._budget = TokenBudget(self._limits, settings.price)
        self._left_s = 0.0 if call.deadline is None else call.deadline.left_s
        self._longest_round_s = 0.0
        self._max_input_tokens = settings.max_input_tokens
        self._max_bytes = math.inf
        self._was_full = False
        self._was_sent_back = False
        self._last: ChatResponse | None = None
        stats.is_unpriced = self._limits.max_usd is not None and settings.price is None

    @classmethod
    async def open(
        cls, call: JudgeCall, prompt: Prompt, exploration: Exploration, stats: ExplorationStats
    ) -> "AgentLoop":
        """Open the tools over the trace, in a thread, because a large trace takes long."""
        toolbox = await in_thread(lambda: exploration.open(call.trace))
        return cls(call, prompt, toolbox, exploration, stats)

    async def answer(self) -> str:
        """Run rounds until there is a verdict, and return its text, or raise ``UnscoredError``."""
        while (end := self._reached_limit()) is None:
            response = await self._ask(may_call=True)
            if response.tool_calls:
                self._stats.rounds += 1
                calls = self._tools.with_unique_ids(response.tool_calls)
                self._conversation.add(_message(response)._replace(tool_calls=calls), await self._tools.run(calls))
            elif self._conversation.shows_trace:
                return self._ended("answer", response)
            elif self._was_sent_back:
                raise UnscoredError("invalid_answer", "the model answers without reading anything of the trace")
            elif not response.text.strip():
                raise UnscoredError("invalid_answer", "the answer is empty")
            else:
                # An answer without reading the trace is a guess: ask once to read it first.
                self._was_sent_back = True
                self._conversation.add(_message(response), [Result(Message("user", READ_FIRST))])
        if not self._conversation.shows_trace:
            if self._was_full:
                raise _too_long("nothing that the tools returned fits into the context of the model")
            raise UnscoredError("over_budget", f"nothing of the trace was read before {end}")
        self._conversation.demand(LAST)
        return self._ended(end, await self._ask(may_call=False))

    async def repaired(self, text: str, error: AnswerError) -> str:
        """Ask once more, without tools, after an answer that cannot be read, or raise ``UnscoredError``."""
        calls = self._tools.with_unique_ids(self._last.tool_calls[:MAX_CALLS]) if self._last else ()
        state = self._last.provider_state if self._last else None
        if calls and not text.strip():
            *refusals, last = (result.message for result in self._tools.refuse(calls))
            last = last._replace(content=f"{last.content}\n\n{LAST}")
            self._conversation.append(Message("assistant", text, calls, provider_state=state), *refusals, last)
        else:
            answer, demand = repair(text, error)
            self._conversation.append(answer._replace(provider_state=state), demand)
        return (await self._ask(may_call=False)).text

    async def find_copies(self, text: str, is_verdict: Callable[[str], bool]) -> Copies | None:
        """Find verdicts copied from the material that the model saw; in a thread, for it may be megabytes."""
        opening, results = self._conversation.opening, self._conversation.results
        return await in_thread(lambda: find_copies(text, (opening, *results, *joined_pages(results)), is_verdict))

    def _reached_limit(self) -> End | None:
        """Return the limit that forces the verdict now; a round is begun only if the verdict still fits after it."""
        if self._stats.rounds >= self._limits.max_rounds:
            return "max_rounds"
        if (deadline := self._call.deadline) is not None:
            left_s = deadline.left_s
            self._longest_round_s = max(self._longest_round_s, self._left_s - left_s)
            self._left_s = left_s
            if left_s < _ROUNDS_RESERVED * self._longest_round_s:
                return "max_time"
        self._shorten()
        remaining = self._budget.remaining_for_round()
        if self._budget.cost_tokens(self._conversation.size) <= remaining.tokens:
            return None
        if not self._stats.rounds:
            # A verdict on a trace of which nothing was read would be a guess.
            raise _over_budget(remaining.limit)
        return remaining.limit

    async def _ask(self, *, may_call: bool) -> ChatResponse:
        """Send what fits; if the endpoint still finds it too long, send less."""
        calls = self._call.calls
        while True:
            self._shorten()
            if not may_call and not self._conversation.shows_trace:
                raise _too_long("nothing that the tools returned fits into the last request")
            size, begun = self._conversation.size, len(calls)
            try:
                response = await self._call.ask(
                    self._prompt, self._conversation.messages, self._tools.tools, may_call=may_call
                )
            except UnscoredError as end:
                if end.reason != "input_too_long":
                    raise
                self._max_bytes = size.total - 1
                continue
            finally:
                self._budget.spend(calls[begun:])
            self._conversation.mark_sent()
            self._budget.learn(size, size_bytes([_message(response)]), response)
            return response

    def _shorten(self) -> None:
        """Reduce the conversation to the context, and to what leaves budget for the verdict."""
        remaining = self._budget.remaining()
        self._was_full = self._was_full or not self._fits_context(self._conversation.size)
        if not self._conversation.shorten(self._fits_context):
            raise _too_long("the request is longer than the model takes")
        if not self._conversation.shorten(lambda size: self._budget.cost_tokens(size) <= remaining.tokens):
            raise _over_budget(remaining.limit)

    def _fits_context(self, size: Size) -> bool:
        return size.total <= self._max_bytes and self._budget.tokens(size) <= self._max_input_tokens

    def _ended(self, end: End, response: ChatResponse) -> str:
        self._stats.ended_by, self._last = end, response
        return response.text


def _too_long(note: str) -> UnscoredError:
    return UnscoredError("input_too_long", note)


def _over_budget(limit: End) -> UnscoredError:
    return UnscoredError("over_budget", f"what is left of {limit} does not hold the next requests")


def _message(response: ChatResponse) -> Message:
    # With the reasoning that the endpoint added: some endpoints require it back.
    return Message("assistant", response.text, response.tool_calls, provider_state=response.provider_state)


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
