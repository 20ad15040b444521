"""A chat model behind its endpoint's limiter, with retries and metrics."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import cache, partial
from typing import Final, Literal

from msgspec import structs

from judges.core.judge import Judge
from judges.core.model import REPLY_FIELDS, BadModelRequestError, ChatModel, ChatRequest, ChatResponse, ModelError
from judges.core.verdict import Call
from judges.python.protocol import withhold
from judges.python.runner import observe
from worker.config.graders import CODE
from worker.config.settings import Settings
from worker.endpoints.limiter import EndpointLimiter
from worker.endpoints.retries import Retries
from worker.telemetry.metrics import Metrics

Direction = Literal["input", "output"]
# A request that is refused so often while others are answered is at fault itself, and not the endpoint.
_MAX_REFUSALS: Final = 3


class LimitedModel:
    """A chat model whose calls keep to the limits of its endpoint. Waiting is no part of a measured call."""

    def __init__(
        self,
        model: ChatModel,
        metrics: Metrics,
        limiter: EndpointLimiter | None = None,
        retries: Retries | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """Wrap a model; limiter and retries are shared by all models of one endpoint, by default they are its own."""
        self.settings = model.settings
        self.judge_model = name = model.settings.judge_model
        self.limiter = limiter or EndpointLimiter(name, model.settings.max_in_flight)
        self._retries = retries or Retries()
        self._sleep = sleep
        self._model = model
        self._metrics = metrics
        # Label lookups take a lock and a hash of all values: each child is looked up once.
        self._durations = cache(partial(metrics.request_duration.labels, name))
        self._tokens = cache(partial(metrics.tokens.labels, name))
        self._cost = cache(partial(metrics.cost.labels, name))
        # Read at each scrape, which costs the calls nothing.
        endpoint = self.limiter
        metrics.in_flight.labels(name).set_function(lambda: endpoint.in_flight)
        metrics.concurrency_limit.labels(name).set_function(lambda: endpoint.limit)
        metrics.circuit_open.labels(name).set_function(lambda: endpoint.circuit_open)
        for field in REPLY_FIELDS:
            metrics.reply_invalid.labels(name, field)

    async def complete(self, request: ChatRequest) -> ChatResponse:
        """Wait for a permit, then send the request, again after failures that a retry may overcome.

        Raises:
            ModelError: The model has no answer, or its endpoint is unavailable.
        """
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
                tokens = error.input_tokens, error.output_tokens
                request.failed.append(Call(time.time() - took_s, took_s, error.reason, *tokens))
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
        start = time.perf_counter()
        result: ChatResponse | ModelError | None = None
        status = "internal_error"
        # Whatever is raised from here on releases the permit.
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
            self._durations(status).observe(took_s)
            if result is not None:
                self._record_result(request, result, took_s)
            self.limiter.release(permit, result)
        return structs.replace(response, took_s=took_s)

    def _record_result(self, request: ChatRequest, result: ChatResponse | ModelError, took_s: float) -> None:
        self._record_tokens(request.schema_name, "input", result.input_tokens)
        self._record_tokens(request.schema_name, "output", result.output_tokens)
        if isinstance(result, ChatResponse):
            for field in result.invalid:
                self._metrics.reply_invalid.labels(self.judge_model, field).inc()
            return
        result.took_s = took_s
        result.refusals = self.limiter.count_refusal(result, request.refusals)
        if result.said:
            self.limiter.events.endpoint_error(result)

    def _record_tokens(self, judge: str, direction: Direction, tokens: int) -> None:
        """Count what was paid for, also where the evaluation ends without a verdict."""
        if tokens:
            self._tokens(judge, direction).inc(tokens)
            if (price := self.settings.price) is not None:
                cost_usd = price.cost_usd(tokens, 0) if direction == "input" else price.cost_usd(0, tokens)
                self._cost(judge, direction).inc(cost_usd)


def keep_secrets(settings: Settings) -> None:
    """Withhold the environment variables that hold our keys, tokens and passwords from judges in Python."""
    keys = (model.api_key_env for model in settings.models.values())
    named = (*keys, settings.metrics_token_env, settings.metrics_password_env)
    withhold(*(name for name in named if name is not None))


def measure(judges: Iterable[Judge], metrics: Metrics) -> None:
    """Measure the evaluations of judges in Python as calls of the judge model ``code``."""
    for judge in judges:
        if judge.run is not None:
            observe(judge, _PythonCalls(metrics))


class _PythonCalls:
    """Observes a judge in Python; waiting for a process is no part of a call."""

    def __init__(self, metrics: Metrics) -> None:
        self._in_flight = metrics.in_flight.labels(CODE.judge_model)
        self._durations = cache(partial(metrics.request_duration.labels, CODE.judge_model))

    def begins(self) -> None:
        self._in_flight.inc()

    def ends(self, status: str, took_s: float) -> None:
        self._in_flight.dec()
        self._durations(status).observe(took_s)
