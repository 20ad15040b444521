"""A judge model whose calls keep to the limits of its endpoint, are tried again where that may help, and measured."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Literal

from msgspec import structs
from prometheus_client import Counter, Histogram

from judges.models.model import ChatModel, ChatRequest, ChatResponse, ModelError
from judges.verdict import Call
from worker.limits.gate import Gate
from worker.limits.outcomes import Pass
from worker.limits.retries import Retries
from worker.metrics import Metrics

__all__ = ["LimitedModel"]

Direction = Literal["input", "output"]


class LimitedModel:
    """A chat model behind a gate. Its calls, tokens and cost are measured; waiting is no part of a call."""

    def __init__(
        self,
        model: ChatModel,
        metrics: Metrics,
        gate: Gate | None = None,
        retries: Retries | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """Take a model.

        Args:
            gate: The way to its endpoint, shared by all models of the same name; one of its own by its settings
                unless given.
            retries: What is tried again; as a worker does unless given.
            sleep: How to wait between attempts.
        """
        self.settings = model.settings
        self.judge_model = name = model.settings.judge_model
        self.gate = gate or Gate(name, model.settings.max_in_flight)
        self._retries = retries or Retries()
        self._sleep = sleep
        self._model = model
        self._metrics = metrics
        self._in_flight = metrics.in_flight.labels(name)
        self._durations: dict[str, Histogram] = {}
        self._spent: dict[tuple[str, Direction], tuple[Counter, Counter | None]] = {}
        limit, circuit = metrics.concurrency_limit.labels(name), metrics.circuit_open.labels(name)

        def show(calls: int, is_open: bool) -> None:  # noqa: FBT001 - the gate's signature
            limit.set(calls)
            circuit.set(is_open)

        self.gate.watch(show)

    async def complete(self, request: ChatRequest) -> ChatResponse:
        """Wait for the endpoint, then ask the model, again where that may help.

        Raises:
            ModelError: The model has no answer, or is left alone for a while.
        """
        failed: tuple[Call, ...] = ()
        self._retries.first()
        while True:
            try:
                return await self._attempt(request, failed)
            except ModelError as error:
                again = error.was_asked and not self.gate.is_shut
                pause_s = self._retries.pause_s(error, len(failed) + 1) if again else None
                if pause_s is None:
                    error.failed = failed
                    raise
                failed = (*failed, _noted(error))
                if pause_s:
                    self.gate.witness.waits(error, pause_s)
            if pause_s:
                await self._sleep(pause_s)

    async def aclose(self) -> None:
        """Close the model's connections."""
        await self._model.aclose()

    async def _attempt(self, request: ChatRequest, failed: tuple[Call, ...]) -> ChatResponse:
        taken = await self.gate.enter()
        if request.begins is not None:
            request.begins(failed)
        self._in_flight.inc()
        start = time.perf_counter()
        result: ChatResponse | ModelError | None = None
        status = "internal_error"
        try:
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
            self._end(request, taken, result, status, took_s)
        return structs.replace(response, took_s=took_s, failed=failed)

    def _end(
        self, request: ChatRequest, taken: Pass, result: ChatResponse | ModelError | None, status: str, took_s: float
    ) -> None:
        self._in_flight.dec()
        duration = self._durations.get(status)
        if duration is None:
            duration = self._durations[status] = self._metrics.request_duration.labels(self.judge_model, status)
        duration.observe(took_s)
        if result is not None:
            self._spend(request.schema_name, "input", result.input_tokens)
            self._spend(request.schema_name, "output", result.output_tokens)
        if isinstance(result, ModelError):
            result.took_s = took_s
        self.gate.leave(taken, result)

    def _spend(self, judge: str, direction: Direction, tokens: int) -> None:
        """Count what was really paid for, also where the evaluation has no verdict in the end."""
        if not tokens:
            return
        counters = self._spent.get((judge, direction))
        if counters is None:
            counters = self._spent[judge, direction] = self._counters(judge, direction)
        counted, cost = counters
        counted.inc(tokens)
        price = self.settings.price
        if cost is not None and price is not None:
            cost.inc(price.cost_usd(tokens, 0) if direction == "input" else price.cost_usd(0, tokens))

    def _counters(self, judge: str, direction: Direction) -> tuple[Counter, Counter | None]:
        labels = (self.judge_model, judge, direction)
        cost = None if self.settings.price is None else self._metrics.cost.labels(*labels)
        return self._metrics.tokens.labels(*labels), cost


def _noted(error: ModelError) -> Call:
    took_s = error.took_s or 0.0
    return Call(time.time() - took_s, took_s, error.reason, error.input_tokens, error.output_tokens)
