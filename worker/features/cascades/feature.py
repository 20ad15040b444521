"""Cascades: a second judge model for verdicts that the first model is unsure of."""

from typing import Final

from worker.core.features import Feature, Follower, Parts


def _after_verdict(parts: Parts) -> Follower | None:
    if not parts.settings.cascades:
        return None
    from worker.features.cascades.choosing import Cascades

    return Cascades(parts.settings, parts.ledger.store.first, parts.sampler)


FEATURE: Final = Feature(
    name="cascades",
    metrics="worker.features.cascades.shares.CascadeMetrics",
    watch="worker.features.cascades.shares.CascadeWatch",
    after_verdict=_after_verdict,
)
