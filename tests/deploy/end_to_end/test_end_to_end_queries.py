"""On motley traffic a real worker has every metric on its page, those that rules and dashboards ask for among them.

That each query finds something in such metrics, and each rule records, is tested in test_queries.
"""

from typing import Final

import pytest
from queries import asked, fill, named_metrics, opened_values, recorded, rule_expressions
from scraped import FINDING_S
from support.endpoint import ChatEndpoint
from support.pipeline import Pipeline
from support.processes import wait_until
from traffic import SERVICE, motley, reads

from worker.core.config.settings import Settings
from worker.core.telemetry.metrics import Metrics

_LATER: Final = """
budget_ cascade_ export_parked judge_canary judge_flip judge_kappa quality_baseline quality_below quality_corrected
quality_drop quality_highest quality_incident quality_least_drop quality_lowest quality_objective quality_silent
quality_slope safety_incident
"""
LATER: Final = tuple(f"tracejudge_{name}" for name in _LATER.split())
"""How gauges begin that need days of verdicts, objectives, labels, a canary, a second model, a cascade or a budget.

Their queries are asked of served gauges in test_queries.
"""


@pytest.mark.slow("a worker on all kinds of traffic until all has happened")
def test_every_metric_and_all_that_is_asked_for_is_on_the_page_of_the_worker_or_recorded(pipeline: Pipeline) -> None:
    """All that are declared; that those of the contract are among them is tested where they are declared."""
    declared = {family.name for family in Metrics(Settings()).registry.collect()}
    series = f"{SERVICE} / safety / safety / prod"
    panels = [fill(query.expr, opened_values(query.dashboard, series, "2s")) for query in asked()]
    names = {name for expr in (*panels, *rule_expressions().values()) for name in named_metrics(expr)}
    needed = {name for name in declared | names - recorded() if not name.startswith(LATER)}
    with ChatEndpoint(reads) as endpoint, motley(pipeline, endpoint) as worker:

        def has_all() -> bool:
            page = worker.scrape()
            missing[:] = [name for name in sorted(needed) if not page.samples(name)]
            return not missing

        missing: list[str] = []
        try:
            wait_until(has_all, FINDING_S)
        except AssertionError:
            assert missing == []
