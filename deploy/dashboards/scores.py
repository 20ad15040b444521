"""The row of the scores themselves: their mean, their distribution, and the traces behind low ones."""

from typing import Final

from grafana_foundation_sdk.models.dashboard import Panel

from deploy.dashboards.panels import graph, heat_map
from deploy.dashboards.queries import FROM_RAW, Query, legend, per, share
from deploy.dashboards.variables import RATED
from deploy.generators.promql import NO_PANELS

__all__ = ["scores"]

_LOW: Final = 0.4
_LOW_BUCKETS: Final = "0.0|0.1|0.2|0.3|0.4"
_SPOKEN: Final = ("service", "judge", "metric")
_EACH: Final = f"{RATED}, {NO_PANELS}"


def scores() -> list[Panel]:
    """Make them."""
    return [_mean(), _low(), _distribution()]


def _mean() -> Panel:
    return graph(
        "Mean score",
        "The weighted mean of all scores of the last $window, those without a pass rule as well; a step that is marked "
        "as a changed judge is the judge's.",
        Query(
            f"tracejudge:mean_score:$window{{{RATED}}}",
            legend("service", "environment", "judge", "metric") + " ({{version}} {{judge_model}})",
        ),
        unit="none",
        decimals=2,
        least=0,
        most=1,
        no_data="No scores in this time range",
        size=(12, 9),
    )


def _low() -> Panel:
    """Ask for the low buckets by name, so that the exemplars are of low scores alone."""
    low = f'increase(tracejudge_score_bucket{{{_EACH}, le=~"{_LOW_BUCKETS}"}}[$window])'
    of_all = f"increase(tracejudge_score_count{{{_EACH}}}[$window])"
    highest = per(_SPOKEN, per((*_SPOKEN, "le"), low), "max")
    return graph(
        f"Low scores, {_LOW} and less, with their traces",
        f"Which share of the scores of the last $window is {_LOW} or less, each counted once. A point is such a score: "
        "it opens the trace. Without points Prometheus runs without its exemplar storage.",
        Query(share(highest, per(_SPOKEN, of_all)), legend(*_SPOKEN), exemplars=True),
        unit="percentunit",
        decimals=1,
        least=0,
        no_data="No scores in this time range",
        size=(12, 9),
        interval=FROM_RAW,
    )


def _distribution() -> Panel:
    buckets = f"sum by (le) (increase(tracejudge_score_bucket{{{_EACH}}}[$window]))"
    of_all = f"sum(increase(tracejudge_score_count{{{_EACH}}}[$window]))"
    spread = f"{buckets} / on () group_left () ({of_all} > 0)"
    return heat_map(
        "How the scores of $judge spread",
        "Each column is the last $window at a moment: the darker a field, the greater the share of scores in it, each "
        "counted once. Two dark bands are right for judges that say yes or no. Choose one metric where a judge has "
        "several.",
        Query(spread, "{{le}}", "buckets", exemplars=True),
        unit="percentunit",
        decimals=1,
        no_data="No scores in this time range",
        size=(12, 8),
        repeat="judge",
        interval=FROM_RAW,
    )
