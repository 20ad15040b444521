"""The row of the way from published to exported: how many there are of each, and who is left out where."""

from grafana_foundation_sdk.models.dashboard import Panel

from deploy.dashboards.links import runbooks
from deploy.dashboards.panels import bars, graph
from deploy.dashboards.queries import Query, legend, per
from deploy.dashboards.variables import MODEL, SERIES, SERVICE
from deploy.generators.promql import NO_PANELS, RATED
from deploy.generators.promql import SERIES as LABELS
from deploy.generators.table import Table

__all__ = ["arriving"]


def arriving(table: Table) -> list[Panel]:
    """Make them."""
    return [
        _funnel(table),
        _outcomes(table),
        _dropped(table),
        _sampling(),
        _invalid(),
        _late_feedback(),
        _unknown_fields(),
    ]


def _funnel(table: Table) -> Panel:
    published = _counted(f"tracejudge_producer_published_total{{{SERVICE}}}")
    answered = _answered('outcome!="unscored"')
    unscored = _counted(f"tracejudge_unscored_total{{{SERIES}, {MODEL}, {NO_PANELS}}}")
    ended = f"({answered} or 0 * {unscored}) + ({unscored} or 0 * {answered})"
    lost = " or ".join(
        per(["exporter"], f"increase(tracejudge_{name}_total[$__range])")
        for name in ("export_dropped", "outbox_cut_off")
    )
    steps = {
        "1 published": published,
        "2 dropped by the SDK": f"{_counted(f'tracejudge_producer_dropped_total{{{SERVICE}}}')} or 0 * {published}",
        "3 arrived": _counted(f"tracejudge_traces_total{{{SERVICE}}}"),
        "4 sampled": _counted(f'tracejudge_traces_total{{{SERVICE}, outcome="sampled"}}'),
        "5 evaluations ended": ended,
        "6 with a score": _answered('outcome=~"pass|fail|unrated"'),
        "7 exported": f"clamp_min(({ended}) - (max({lost}) or vector(0)), 0)",
    }
    return bars(
        "From published to exported",
        "How many traces of the time range came how far. A sampled trace has an evaluation for each judge of its rule, "
        "so there may be more of them than traces; those of panels are left out. Exported is what ended, less what the "
        "worst exporter lost.",
        *(Query(expr, name, "now") for name, expr in steps.items()),
        unit="short",
        decimals=0,
        least=0,
        base="blue",
        no_data="No traces in this time range",
        runbooks=runbooks(table, "TraceJudgeNoVerdicts", "TraceJudgeTracesStopped"),
        size=(10, 9),
    )


def _outcomes(table: Table) -> Panel:
    return graph(
        "Traces that arrived",
        "Traces a second by what became of them: sampled ones are judged, shed ones would have been while their judge "
        "model is away, no_rule matches no rule of the configuration.",
        Query(per(["outcome"], f"rate(tracejudge_traces_total{{{SERVICE}}}[$__rate_interval])"), legend("outcome")),
        stacked=True,
        unit="cps",
        decimals=2,
        no_data="No traces in this time range",
        runbooks=runbooks(table, "TraceJudgeTracesStopped"),
        size=(14, 9),
    )


def _dropped(table: Table) -> Panel:
    dropped = f"increase(tracejudge_producer_dropped_total{{{SERVICE}}}[5m])"
    return graph(
        "Dropped by the SDK",
        "Traces in five minutes that services gave up before they reached Redis, by reason; no score will ever tell of "
        "them.",
        Query(per(["service", "reason"], dropped), legend("service", "reason", between=": ")),
        stacked=True,
        unit="short",
        decimals=0,
        no_data="No service dropped anything",
        runbooks=runbooks(table, "TraceJudgeProducerDrops"),
        size=(8, 8),
    )


def _sampling() -> Panel:
    return graph(
        "Sampled share",
        "Which share of its matching traces each rule has chosen, since its worker began, and each service's share of "
        "the last hour.",
        Query("avg by (rule) (tracejudge_effective_sampling_ratio)", "rule " + legend("rule")),
        Query(f"tracejudge:sampled_share:1h{{{SERVICE}}}", "service " + legend("service")),
        unit="percentunit",
        decimals=1,
        least=0,
        most=1,
        no_data="No rule has seen a trace",
        size=(8, 8),
    )


def _invalid() -> Panel:
    return graph(
        "Entries that are no trace",
        "Entries of the stream in five minutes that could not be read, by reason: somebody writes another format.",
        Query(per(["reason"], "increase(tracejudge_invalid_traces_total[5m])"), legend("reason")),
        stacked=True,
        unit="short",
        decimals=0,
        least=0,
        no_data="All entries could be read",
        size=(8, 8),
    )


def _late_feedback() -> Panel:
    return graph(
        "Feedback that came late",
        "Complaints in an hour that came after their trace, by what became of them; pulled ones are judged.",
        Query(per(["outcome"], "increase(tracejudge_late_feedback_total[1h])"), legend("outcome")),
        stacked=True,
        unit="short",
        decimals=0,
        least=0,
        no_data="No late feedback",
        size=(12, 7),
    )


def _unknown_fields() -> Panel:
    found = f"increase(tracejudge_unknown_fields_total{{{SERVICE}}}[1h])"
    return graph(
        "Unknown fields",
        "Fields of chosen traces in an hour that the format does not know, by service: most often a misspelt name, "
        "whose value no judge sees.",
        Query(per(["service"], found), legend("service")),
        unit="short",
        decimals=0,
        least=0,
        no_data="No unknown fields",
        size=(12, 7),
    )


def _answered(outcomes: str) -> str:
    """Count evaluations by metric first: each counts under every metric of its judge, and the fullest one tells."""
    counted = per(RATED, f"increase(tracejudge_verdicts_total{{{SERIES}, {MODEL}, {NO_PANELS}, {outcomes}}}[$__range])")
    return f"sum({per(LABELS, counted, 'max')})"


def _counted(counter: str) -> str:
    return f"sum(increase({counter}[$__range]))"
