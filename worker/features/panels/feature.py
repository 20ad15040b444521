"""Panels: several judge models on one question, and a verdict that combines theirs."""

from typing import Final

from worker.core.features import Assessor, Feature, Parts


def _assess(parts: Parts) -> Assessor | None:
    # A panel of an earlier configuration is handed back, as is every judge that this worker does not have.
    graders = parts.rules.graders
    if not graders.panels:
        return None
    from worker.features.panels.panels import PanelMetrics, Panels

    if parts.metrics is not None:
        for labels in graders.outvoted:
            parts.metrics.of(PanelMetrics).panel_member.labels(*labels).set(1)
    return Panels(parts.ledger, parts.settings, graders.panels)


FEATURE: Final = Feature(name="panels", metrics="worker.features.panels.panels.PanelMetrics", assess=_assess)
