"""Panels: several judge models on one question, and a verdict that combines theirs."""

from typing import Final

from worker.core.features import Feature, Parts
from worker.features.panels.panels import Panels


def _assess(parts: Parts) -> Panels:
    # Whatever the rules say now: panels of an earlier configuration may be under way.
    return Panels(parts.ledger, parts.settings, parts.sampler.graders.panels)


FEATURE: Final = Feature(name="panels", assess=_assess)
