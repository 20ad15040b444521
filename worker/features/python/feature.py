"""Judges in Python run without our secrets, and their evaluations are measured as calls of the judge model ``code``."""

from collections.abc import Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Final

from worker.core.features import Feature

if TYPE_CHECKING:
    from judges.core.judge import Judge
    from worker.core.config.settings import Settings
    from worker.core.telemetry.metrics import Metrics


class _PythonCalls:
    """Observes a judge in Python; waiting for a process is no part of a call."""

    def __init__(self, metrics: "Metrics", judge_model: str) -> None:
        self._in_flight = metrics.in_flight.labels(judge_model)
        self._durations = cache(partial(metrics.request_duration.labels, judge_model))

    def begins(self) -> None:
        self._in_flight.inc()

    def ends(self, status: str, took_s: float) -> None:
        self._in_flight.dec()
        self._durations(status).observe(took_s)


def _prepare(settings: "Settings", judges: "Mapping[str, Judge]", metrics: "Metrics") -> None:
    # Built-in judges in code run in the worker itself.
    runs = ((judge, getattr(judge.run, "__module__", "")) for judge in judges.values())
    in_python = [judge for judge, module in runs if module.startswith("judges.features.python")]
    if not in_python:
        return
    from judges.features.python.protocol import withhold
    from judges.features.python.runner import observe
    from worker.core.config.graders import CODE
    from worker.core.config.reading import named_variables

    withhold(*named_variables(settings))
    for judge in in_python:
        observe(judge, _PythonCalls(metrics, CODE.judge_model))


FEATURE: Final = Feature(name="python", prepare=_prepare)
