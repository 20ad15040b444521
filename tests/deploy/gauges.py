"""The gauges of the monitor, as a test serves them in the place of a worker."""

from collections.abc import Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Gauge

from worker.telemetry.metrics import METRICS

__all__ = ["LABELS", "Gauges"]

_JUDGE: Final = ("judge", "version", "judge_model")
_SERIES: Final = ("service", "environment", *_JUDGE)
_RATED: Final = ("metric", "segment", *_SERIES)
_LIMITS: Final = ("", "_lower", "_upper")
_ANNOUNCED: Final[Mapping[str, tuple[str, ...]]] = {
    "quality_objective": _RATED,
    "quality_below_objective": (*_RATED, "reference"),
    "quality_abstained_lower": _RATED,
    "quality_unscored_lower": _RATED,
    "quality_incident_info": (*_RATED, "since", "since_low", "since_high", "changed", "examples"),
    "quality_silent": ("service", "environment"),
    "safety_incident": (*_SERIES, "metric"),
    "safety_incident_info": (*_SERIES, "metric", "since", "examples"),
    "judge_canary_drift": _JUDGE,
    **{f"judge_canary_agreement{limit}": _JUDGE for limit in _LIMITS},
    **{f"judge_{name}{limit}": (*_JUDGE, "second_model") for name in ("flip_ratio", "kappa") for limit in _LIMITS},
    **{f"quality_corrected_{part}": (*_RATED, "method") for part in ("share", "lower", "upper")},
}
LABELS: Final[Mapping[str, tuple[str, ...]]] = {
    **{f"tracejudge_{name}": labels for name, labels in _ANNOUNCED.items()},
    **{metric.full_name: metric.labels for metric in METRICS.values()},
}
"""The labels of every metric: of the worker's own, and of gauges that it is to export."""


class Gauges:
    """Sets gauges of a registry by their names; what a worker does not declare is added to it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def set(self, name: str, value: float, **labels: str) -> None:
        """Set one; labels that are not given are empty."""
        full = f"tracejudge_{name}"
        known: object = self._registry._names_to_collectors.get(full)
        gauge = known if isinstance(known, Gauge) else Gauge(full, name, LABELS[full], registry=self._registry)
        gauge.labels(*(labels.get(label, "") for label in LABELS[full])).set(value)
