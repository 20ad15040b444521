"""Metrics of the calls to judge models."""

from functools import cache, partial

from judges.core.model import REPLY_FIELDS
from judges.endpoints.client import CallObserver, Direction
from judges.endpoints.limiter import EndpointLimiter
from worker.core.telemetry.metrics import Metrics


class CallMetrics(CallObserver):
    """The metrics of one judge model: its calls, tokens and cost, and the state of its limiter."""

    def __init__(self, metrics: Metrics, judge_model: str, limiter: EndpointLimiter) -> None:
        self._metrics = metrics
        self._judge_model = judge_model
        # Label lookups take a lock and a hash of all values: each child is looked up once.
        self._durations = cache(partial(metrics.request_duration.labels, judge_model))
        self._tokens = cache(partial(metrics.tokens.labels, judge_model))
        self._cost = cache(partial(metrics.cost.labels, judge_model))
        # Read at each scrape, which costs the calls nothing.
        metrics.in_flight.labels(judge_model).set_function(lambda: limiter.in_flight)
        metrics.concurrency_limit.labels(judge_model).set_function(lambda: limiter.limit)
        metrics.circuit_open.labels(judge_model).set_function(lambda: limiter.circuit_open)
        for field in REPLY_FIELDS:
            metrics.reply_invalid.labels(judge_model, field)

    def ended(self, status: str, took_s: float) -> None:
        """Observe the duration of a call by its status."""
        self._durations(status).observe(took_s)

    def spent(self, judge: str, direction: Direction, tokens: int, cost_usd: float | None) -> None:
        """Count tokens and their cost."""
        self._tokens(judge, direction).inc(tokens)
        if cost_usd is not None:
            self._cost(judge, direction).inc(cost_usd)

    def dropped(self, field: str) -> None:
        """Count a field of a reply that was out of bounds."""
        self._metrics.reply_invalid.labels(self._judge_model, field).inc()
