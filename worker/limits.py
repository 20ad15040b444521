"""Calls in flight: all evaluations of a process share the slots of each judge model's endpoint."""

import asyncio
import time

from judges.models.model import ChatModel, ChatRequest, ChatResponse, ModelError
from worker.metrics import Metrics

__all__ = ["LimitedModel"]


class LimitedModel:
    """A chat model with a bound on calls in flight, whose calls, tokens and cost are measured."""

    def __init__(self, model: ChatModel, metrics: Metrics) -> None:
        """Take the bound from the model's settings."""
        self.settings = model.settings
        self._model = model
        self._metrics = metrics
        self._slots = asyncio.Semaphore(model.settings.max_in_flight)
        name = model.settings.judge_model
        self._in_flight = metrics.in_flight.labels(name)
        metrics.concurrency_limit.labels(name).set(model.settings.max_in_flight)

    async def complete(self, request: ChatRequest) -> ChatResponse:
        """Wait for a slot, then ask the model.

        Raises:
            ModelError: The model has no answer.
        """
        async with self._slots:
            self._in_flight.inc()
            start = time.perf_counter()
            status = "internal_error"
            try:
                response = await self._model.complete(request)
                status = "ok"
            except ModelError as error:
                status = error.reason
                self._spend(request, error)
                raise
            except asyncio.CancelledError:
                status = "cancelled"
                raise
            finally:
                self._in_flight.dec()
                duration = self._metrics.request_duration.labels(self.settings.judge_model, status)
                duration.observe(time.perf_counter() - start)
        self._spend(request, response)
        return response

    async def aclose(self) -> None:
        """Close the model's connections."""
        await self._model.aclose()

    def _spend(self, request: ChatRequest, response: ChatResponse | ModelError) -> None:
        """Count what was really paid for, also where the evaluation has no verdict in the end."""
        price = self.settings.price
        used = {"input": (response.input_tokens, 0), "output": (0, response.output_tokens)}
        for direction, amounts in used.items():
            labels = (self.settings.judge_model, request.schema_name, direction)
            if any(amounts):
                self._metrics.tokens.labels(*labels).inc(sum(amounts))
            if price is not None and any(amounts):
                self._metrics.cost.labels(*labels).inc(price.cost_usd(*amounts))
