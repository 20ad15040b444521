"""Safety: alerts on single failing verdicts of safety judges."""

from typing import Final

from worker.core.features import Feature
from worker.core.storage.keys import KeySpace


class SafetyKeys(KeySpace):
    def quality_safety(self, series: str) -> str:
        """String, the state of the safety pages of one series; TTL of 90 days."""
        return f"{self.prefix}:quality:{series}:safety"


FEATURE: Final = Feature(
    name="safety",
    keys=SafetyKeys,
    metrics="worker.features.safety.watch.SafetyMetrics",
    watch="worker.features.safety.watch.SafetyWatch",
)
