"""What a worker does about judges in code: it measures them as judge models are, and keeps its secrets from them."""

from collections.abc import Iterable

from prometheus_client import Histogram

from judges.code.environment import withhold
from judges.code.making import observe
from judges.judge import Judge
from worker.metrics import Metrics
from worker.seats import CODE
from worker.settings import Settings

__all__ = ["keep_secrets", "measure"]


def keep_secrets(settings: Settings) -> None:
    """Keep the variables that hold a key, token or password of ours from judges in code, whatever they are called."""
    keys = (model.api_key_env for model in settings.models.values())
    named = (*keys, settings.metrics_token_env, settings.metrics_password_env)
    withhold(*(name for name in named if name is not None))


def measure(judges: Iterable[Judge], metrics: Metrics) -> None:
    """Have the traces of judges in code measured; others are let be."""
    observer = _Measured(metrics)
    for judge in judges:
        observe(judge, observer)


class _Measured:
    """Is told of each trace; waiting for a process is no part of it."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._durations: dict[str, Histogram] = {}

    def begins(self) -> None:
        self._metrics.in_flight.labels(CODE.judge_model).inc()

    def ends(self, status: str, took_s: float) -> None:
        self._metrics.in_flight.labels(CODE.judge_model).dec()
        duration = self._durations.get(status)
        if duration is None:
            duration = self._durations[status] = self._metrics.request_duration.labels(CODE.judge_model, status)
        duration.observe(took_s)
