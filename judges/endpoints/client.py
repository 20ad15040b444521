"""A chat model behind its endpoint's limiter, with retries; an observer receives what is to be counted."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from typing import Final

from msgspec import structs

from judges.core.backoff import Draw, backoff_s
from judges.core.model import (
    BadModelRequestError,
    CallObserver,
    ChatModel,
    ChatRequest,
    ChatResponse,
    ModelError,
    ModelTimeoutError,
    ModelUnavailableError,
    RateLimitedError,
)
from judges.core.verdict import Call, with_message
from judges.endpoints.availability import LimiterEvents
from judges.endpoints.limiter import EndpointLimiter

# A request that is refused so often while others are answered is at fault itself, and not the endpoint.
_MAX_REFUSALS: Final = 3
_FIRST_BACKOFF_S: Final = 0.5
_MAX_BACKOFF_S: Final = 8.0
OFFLINE_PATIENCE_S: Final = 600.0
"""Offline, longer delays that an endpoint asks for, as at the end of a day's quota, are not waited for."""
OFFLINE_TRIES: Final = 5


def is_transient(error: ModelError) -> bool:
    """Return whether the same request may succeed a little later."""
    return isinstance(error, (RateLimitedError, ModelTimeoutError, ModelUnavailableError))


class RetryBudget:
    """A token bucket that keeps retries a share of all calls, so that they do not multiply the load of an outage."""

    def __init__(self, earned: float = 0.25, reserve: float = 20.0, cap: float = 100.0) -> None:
        """Start with ``reserve`` tokens; each first attempt adds ``earned``, up to ``cap``."""
        self._earned = earned
        self._cap = cap
        self._tokens = min(reserve, cap)

    def earn(self) -> None:
        """Add the share of one first attempt."""
        self._tokens = min(self._cap, self._tokens + self._earned)

    def spend(self) -> bool:
        """Pay for one retry; False when the budget is used up."""
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class Retries:
    """The retry policy of one endpoint; all its calls share the budget."""

    def __init__(self, attempts: int = 4, budget: RetryBudget | None = None, draw: Draw | None = None) -> None:
        """Allow ``attempts`` requests for one answer at most."""
        self._attempts = attempts
        self._budget = budget or RetryBudget()
        self._draw = draw

    def record_first_attempt(self) -> None:
        """Count a request that is sent for the first time."""
        self._budget.earn()

    def pause_s(
        self, error: ModelError, failed: int, *, is_blocked: bool = False, refused_alone: bool = False
    ) -> float | None:
        """Return the pause before the next attempt, or None when there must be none.

        ``is_blocked``: the limiter holds back all calls, which is pause enough. ``refused_alone``: the endpoint rejects
        this request while it answers others.
        """
        if failed >= self._attempts or not (is_transient(error) or refused_alone):
            return None
        pause_s = backoff_s(failed - 1, _FIRST_BACKOFF_S, _MAX_BACKOFF_S, 0.0, self._draw)
        if isinstance(error, RateLimitedError):
            # No token: the endpoint itself bounds how many of these there are.
            return 0.0 if is_blocked else max(error.retry_after_s or 0.0, pause_s)
        return pause_s if self._budget.spend() else None


class LimitedModel:
    """A chat model whose calls keep to the limits of its endpoint. Waiting is no part of a measured call."""

    def __init__(
        self,
        model: ChatModel,
        limiter: EndpointLimiter | None = None,
        retries: Retries | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        *,
        observer: CallObserver | None = None,
    ) -> None:
        """Wrap a model; limiter and retries are shared by all models of one endpoint, by default they are its own."""
        self.settings = model.settings
        self.judge_model = model.settings.judge_model
        self.limiter = limiter or EndpointLimiter(model.settings.max_in_flight)
        self._retries = retries or Retries()
        self._sleep = sleep
        self._model = model
        self._observer = observer or CallObserver()

    async def complete(self, request: ChatRequest) -> ChatResponse:
        """Wait for a permit and send the request, again if a retry may help, or raise ``ModelError``."""
        self._retries.record_first_attempt()
        attempts = 0
        while True:
            attempts += 1
            try:
                return await self._attempt(request)
            except ModelError as error:
                if not error.was_asked:
                    error.refusals = request.refusals
                if error.refusals.times >= _MAX_REFUSALS:
                    times = error.refusals.times
                    final = BadModelRequestError(f"refused {times} times while other requests were answered: {error}")
                    final.__dict__.update(error.__dict__)
                    raise final from error
                refused_alone = error.refusals != request.refusals
                pause_s = self._pause_s(error, attempts, refused_alone=refused_alone)
                if pause_s is None:
                    raise
                if pause_s:
                    self.limiter.events.calls_delayed(error, pause_s)
                    self.limiter.backing_off += 1
                    try:
                        await self._sleep(pause_s)
                    finally:
                        self.limiter.backing_off -= 1
                if refused_alone and self.limiter.answered_at <= error.refusals.last_at:
                    # A further refusal would not count: a later round asks again when others were answered.
                    raise
                took_s = error.took_s or 0.0
                request.failed.append(Call(time.time() - took_s, took_s, error.reason))
                request = structs.replace(request, refusals=error.refusals)

    async def aclose(self) -> None:
        """Close the model's connections."""
        await self._model.aclose()

    def _pause_s(self, error: ModelError, attempts: int, *, refused_alone: bool) -> float | None:
        """Return the pause before the next attempt; None when the evaluation should rather be parked."""
        limiter = self.limiter
        if not error.was_asked or limiter.is_closed:
            return None
        is_blocked = limiter.blocked_for_s > 0
        if not is_blocked and (error.retry_after_s or 0.0) > limiter.patience_s:
            return None
        return self._retries.pause_s(error, attempts, is_blocked=is_blocked, refused_alone=refused_alone)

    async def _attempt(self, request: ChatRequest) -> ChatResponse:
        permit = await self.limiter.acquire(request.evaluation)
        settle = None
        if request.admit is not None:
            # After the permit: a request that still waits for one reserves no money.
            try:
                settle = await request.admit(request)
            except BaseException:
                self.limiter.release(permit, None)
                raise
        start = time.perf_counter()
        result: ChatResponse | ModelError | None = None
        status = "internal_error"
        # Any error from here on releases the permit.
        try:
            if request.begins is not None:
                request.begins()
            response = result = await self._model.complete(request)
            status = "ok"
        except ModelError as error:
            result, status = error, error.reason
            raise
        except asyncio.CancelledError:
            status = "cancelled"
            raise
        finally:
            took_s = time.perf_counter() - start
            self._observer.ended(status, took_s)
            if result is not None:
                self._record_result(request, result, took_s)
                answer = result if isinstance(result, ChatResponse) else ChatResponse("")
                # The cost of an answer without counts or with an odd one, and of a call that timed out, is unknown.
                has_cost = isinstance(result, ChatResponse | ModelTimeoutError)
                is_counted = (answer.input_tokens or answer.output_tokens) and "usage" not in answer.invalid
                if settle is not None and (is_counted or not has_cost):
                    settle(answer)
            self.limiter.release(permit, result)
        return structs.replace(response, took_s=took_s)

    def _record_result(self, request: ChatRequest, result: ChatResponse | ModelError, took_s: float) -> None:
        if isinstance(result, ChatResponse):
            # Reported also if the evaluation ends without a verdict.
            price, judge = self.settings.price, request.schema_name
            price = price if price is not None and price.is_known(result) else None
            outputs = None if price is None else price.cost_usd(0, result.output_tokens)
            inputs = None if price is None or outputs is None else price.cost_of(result) - outputs
            if result.input_tokens:
                self._observer.spent(judge, "input", result.input_tokens, inputs)
            if result.output_tokens:
                self._observer.spent(judge, "output", result.output_tokens, outputs)
            for field in result.invalid:
                self._observer.dropped(field)
            return
        result.took_s = took_s
        result.refusals = self.limiter.count_refusal(result, request.refusals)
        if result.status is not None:
            self.limiter.events.endpoint_error(result)


class DelayNotes(LimiterEvents):
    """Reports why calls are delayed: the first delay and the first message of the endpoint for each reason."""

    def __init__(
        self,
        longest_s: float,
        report: Callable[[str, float | None], object] = lambda _note, _seconds: None,
        where: str = "the endpoint",
    ) -> None:
        """Report delays up to ``longest_s`` through ``report``, which gets the cause and the seconds."""
        self._longest_s = longest_s
        self._report = report
        self._where = where
        self._reported_delays: set[str] = set()
        self._reported_errors: set[str] = set()

    def bind(self, where: str) -> "DelayNotes":
        """Make one for the endpoint at an address."""
        return DelayNotes(self._longest_s, self._report, where)

    def circuit_opened(self, error: ModelError, seconds: float) -> None:
        """Report an open circuit, unless the error is permanent."""
        self.calls_delayed(error, seconds)

    def calls_delayed(self, error: ModelError, seconds: float) -> None:
        """Report a delay, once for each reason."""
        if error.reason not in self._reported_delays and is_transient(error) and seconds <= self._longest_s:
            self._reported_delays.add(error.reason)
            self._report(str(error), seconds)

    def endpoint_error(self, error: ModelError) -> None:
        """Report the endpoint's message, once for each reason."""
        if error.message and error.reason not in self._reported_errors:
            self._reported_errors.add(error.reason)
            self._report(f"{self._where}: {with_message(str(error), error.message)}", None)


def offline_model(model: ChatModel, events: LimiterEvents | None = None, tries: int = OFFLINE_TRIES) -> LimitedModel:
    """Put a model under the limits of the worker, for callers who wait for the result and have chosen ``tries``."""
    # They pay for the requests of an outage themselves, so there is no retry budget, and longer delays are waited for.
    limiter = EndpointLimiter(model.settings.max_in_flight, patience_s=OFFLINE_PATIENCE_S, events=events)
    return LimitedModel(model, limiter, Retries(tries, RetryBudget(reserve=math.inf, cap=math.inf)))
