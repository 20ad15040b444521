"""Cascades: a second judge model for verdicts that the first model is unsure of."""

from typing import Final

from worker.core.features import Feature, Follower, Parts
from worker.core.storage.keys import Key, KeySpace
from worker.features.cascades.settings import CASCADES, cascade_faults, cascade_models


class CascadeKeys(KeySpace):
    cascades = Key("cascades", "Hash of cascade, judge and version to the factor of its second judgings; TTL of a day.")


def _after_verdict(parts: Parts) -> Follower | None:
    if not CASCADES.of(parts.settings):
        return None
    from worker.features.cascades.choosing import Cascades

    return Cascades(parts.settings, parts.ledger.store.first, parts.rules)


FEATURE: Final = Feature(
    name="cascades",
    tables=(CASCADES,),
    aliases=cascade_models,
    rule_faults=cascade_faults,
    keys=CascadeKeys,
    metrics="worker.features.cascades.shares.CascadeMetrics",
    watch="worker.features.cascades.shares.CascadeWatch",
    after_verdict=_after_verdict,
)
