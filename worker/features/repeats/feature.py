"""Repeats: a share of traces is judged twice, and failures of safety judges are judged by a second model."""

from typing import Final

from worker.core.features import Feature, Follower, Parts


def _after_verdict(parts: Parts) -> Follower | None:
    if not any(rule.repeat or rule.second_model for rule in parts.settings.rules):
        return None
    from worker.features.repeats.choosing import Repeats

    return Repeats(parts.settings, parts.rules)


FEATURE: Final = Feature(
    name="repeats",
    metrics="worker.features.repeats.flips.RepeatMetrics",
    watch="worker.features.repeats.flips.RepeatsWatch",
    after_verdict=_after_verdict,
)
