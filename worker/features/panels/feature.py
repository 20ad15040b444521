"""Panels: several judge models on one question, and a verdict that combines theirs."""

from typing import Final

from worker.core.features import Assessor, Feature, Parts


def _assess(parts: Parts) -> Assessor | None:
    # A panel of an earlier configuration is handed back, as is every judge that this worker does not have.
    if not parts.rules.graders.panels:
        return None
    from worker.features.panels.panels import Panels

    return Panels(parts.ledger, parts.settings, parts.rules.graders.panels)


FEATURE: Final = Feature(name="panels", assess=_assess)
