"""The row of what waits: in the stream, and in batches."""

from grafana_foundation_sdk.models.dashboard import Panel

from deploy.dashboards.links import runbooks
from deploy.dashboards.panels import Bound, graph, override
from deploy.dashboards.queries import Query, legend, per
from deploy.dashboards.variables import MODEL, SERIES
from deploy.generators.table import Table

__all__ = ["waiting"]


def waiting(table: Table) -> list[Panel]:
    """Make them."""
    return [_stream(table), _oldest(table), _cut_off(table), _batches(), _throughput(table), _shed()]


def _stream(table: Table) -> Panel:
    capacity, bound = "min(tracejudge_stream_capacity > 0)", table.watcher.stream.bound
    return graph(
        "Unread traces",
        "Traces in the stream that no worker has read, and how many have room; an alert fires at the dashed line.",
        Query("max(tracejudge_stream_lag)", "unread"),
        Query(capacity, "room"),
        Query(f"{bound:g} * {capacity}", "alert"),
        unit="short",
        decimals=0,
        least=0,
        no_data="Nothing measured",
        runbooks=runbooks(table, "TraceJudgeStreamNearlyFull"),
        overrides=[
            override(
                "alert",
                color={"mode": "fixed", "fixedColor": "red"},
                custom_lineStyle={"fill": "dash", "dash": [10, 10]},
            )
        ],
    )


def _oldest(table: Table) -> Panel:
    return graph(
        "Age of the oldest unread trace",
        "Up and down like a saw is well; a straight line upwards is an ingest that stands still.",
        Query("max(tracejudge_stream_oldest_seconds)", "oldest"),
        unit="s",
        decimals=0,
        least=0,
        no_data="Nothing measured",
        runbooks=runbooks(table, "TraceJudgeStreamNearlyFull", "TraceJudgeRoleNotReady"),
    )


def _cut_off(table: Table) -> Panel:
    return graph(
        "Cut off unread",
        "Traces in five minutes that the stream's caps removed before a worker read them; they are lost.",
        Query("sum(increase(tracejudge_cut_off_total[5m]))", "cut off"),
        as_bars=True,
        unit="short",
        decimals=0,
        least=0,
        base="green",
        bounds=[Bound(1, "red")],
        no_data="Nothing measured",
        runbooks=runbooks(table, "TraceJudgeTracesCutOff"),
    )


def _batches() -> Panel:
    return graph(
        "Batches",
        "Batches that wait for a worker or are under way, and those parked until a judge model is back or its rate "
        "limit lets them.",
        Query("max(tracejudge_batches_waiting)", "waiting or under way"),
        Query("max(tracejudge_batches_parked)", "parked"),
        stacked=True,
        unit="short",
        decimals=0,
        least=0,
        no_data="Nothing measured",
    )


def _throughput(table: Table) -> Panel:
    ended = f"rate(tracejudge_verdicts_total{{{SERIES}, {MODEL}}}[$__rate_interval])"
    names = ["judge", "judge_model"]
    return graph(
        "Evaluations that ended",
        "Evaluations a second, by judge and judge model; a flat zero while traces are sampled is a blind watcher.",
        Query(per(names, per([*names, "metric"], ended), "max"), legend(*names, between=" by ")),
        unit="cps",
        decimals=2,
        least=0,
        no_data="No evaluations in this time range",
        runbooks=runbooks(table, "TraceJudgeNoVerdicts"),
    )


def _shed() -> Panel:
    return graph(
        "Shed",
        "Evaluations in five minutes that were not begun, since their judge model is away and too much waits for it; "
        "`tracejudge replay` brings them back while the stream keeps them.",
        Query(per(["judge_model"], f"increase(tracejudge_shed_total{{{MODEL}}}[5m])"), legend("judge_model")),
        as_bars=True,
        unit="short",
        decimals=0,
        least=0,
        no_data="Nothing was shed",
    )
