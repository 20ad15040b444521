"""The row of judges that read whole traces by tools: how they end, how much they read, what went wrong."""

from grafana_foundation_sdk.models.dashboard import Panel

from deploy.dashboards.panels import graph
from deploy.dashboards.queries import Query, legend, per, share
from deploy.dashboards.variables import JUDGE

__all__ = ["exploring"]

_NO_DATA = "No judge reads whole traces"


def exploring() -> list[Panel]:
    """Make them."""
    return [_ends(), _rounds(), _errors()]


def _ends() -> Panel:
    ended = f"rate(tracejudge_explorations_total{{{JUDGE}}}[$__rate_interval])"
    return graph(
        "What asked for the verdict",
        "Verdicts a second of judges that read by tools, by what ended the reading: the model itself, or a limit. "
        "Where limits end most of them, raise these or ask for less.",
        Query(per(["judge", "ended_by"], ended), legend("judge", "ended_by", between=": ")),
        stacked=True,
        unit="cps",
        decimals=3,
        no_data=_NO_DATA,
    )


def _rounds() -> Panel:
    taken, counted = (f"tracejudge_exploration_rounds_{part}{{{JUDGE}}}" for part in ("sum", "count"))
    buckets = f"rate(tracejudge_exploration_rounds_bucket{{{JUDGE}}}[1h])"
    mean = share(per(["judge"], f"increase({taken}[1h])"), per(["judge"], f"increase({counted}[1h])"))
    return graph(
        "Rounds of one reading",
        "Answers with calls of tools before the verdict, over the last hour: their mean, and what one reading in "
        "twenty passes. Each round is a request with all that was read before.",
        Query(mean, legend("judge", after=" mean")),
        Query(f"histogram_quantile(0.95, {per(['judge', 'le'], buckets)})", legend("judge", after=" p95")),
        unit="none",
        decimals=1,
        least=0,
        no_data=_NO_DATA,
    )


def _errors() -> Panel:
    errors = f"increase(tracejudge_exploration_tool_errors_total{{{JUDGE}}}[1h])"
    counted = f"increase(tracejudge_exploration_rounds_count{{{JUDGE}}}[1h])"
    return graph(
        "Calls of tools that gave nothing",
        "For each reading of the last hour: unknown tools, broken arguments, patterns that take too long. A model that "
        "makes many is too weak for tools.",
        Query(share(per(["judge"], errors), per(["judge"], counted)), legend("judge")),
        unit="none",
        decimals=2,
        least=0,
        no_data=_NO_DATA,
    )
