"""Safety: alerts on single failing verdicts of safety judges."""

from typing import Final

from worker.core.features import Feature

FEATURE: Final = Feature(
    name="safety",
    metrics="worker.features.safety.watch.SafetyMetrics",
    watch="worker.features.safety.watch.SafetyWatch",
)
