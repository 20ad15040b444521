"""The row of verdicts on their way out: exporters, dead letters, how late scores are, and roles over time."""

from grafana_foundation_sdk.models.dashboard import Panel

from deploy.dashboards.links import runbooks
from deploy.dashboards.panels import Bound, graph, states
from deploy.dashboards.queries import Query, legend, per
from deploy.dashboards.variables import SERVICE
from deploy.generators.table import Table

__all__ = ["exporting"]


def exporting(table: Table) -> list[Panel]:
    """Make them."""
    return [_lag(table), _lost(table), _dead(table), _age(table), _roles(table)]


def _lag(table: Table) -> Panel:
    return graph(
        "Verdicts not exported yet",
        "How many verdicts each exporter has still to send; an alert fires where it stays above the dashed line.",
        Query(per(["exporter"], "tracejudge_outbox_lag", "max"), legend("exporter")),
        unit="short",
        decimals=0,
        least=0,
        bounds=[Bound(table.watcher.exporter.bound, "red")],
        no_data="No exporter",
        runbooks=runbooks(table, "TraceJudgeExporterBehind"),
    )


def _lost(table: Table) -> Panel:
    dropped = per(["exporter", "reason"], "increase(tracejudge_export_dropped_total[5m])")
    cut = per(["exporter"], "increase(tracejudge_outbox_cut_off_total[5m])")
    return graph(
        "Verdicts not delivered",
        "Verdicts in five minutes that an exporter gave up, by reason, and those that the outbox cut off before they "
        "were sent.",
        Query(dropped, legend("exporter", "reason", between=": ")),
        Query(cut, legend("exporter", after=": cut off")),
        as_bars=True,
        unit="short",
        decimals=0,
        least=0,
        no_data="Everything was delivered",
        runbooks=runbooks(table, "TraceJudgeExportDropped"),
    )


def _dead(table: Table) -> Panel:
    return graph(
        "Dead letters",
        "Evaluations that were given up, and those of them that the caps have removed since; `tracejudge dead list` "
        "tells why, `tracejudge dead retry` begins again.",
        Query("max(tracejudge_dead_letters)", "dead letters"),
        Query("sum(increase(tracejudge_dead_cut_off_total[1h]))", "removed in an hour"),
        unit="short",
        decimals=0,
        least=0,
        no_data="Nothing measured",
        runbooks=runbooks(table, "TraceJudgeDeadLettersGrowing"),
    )


def _age(table: Table) -> Panel:
    watch = table.watcher.scores_late
    recorded = f"tracejudge:score_age_seconds_p{{}}:{watch.window}{{{{{SERVICE}}}}}"
    return graph(
        "How late scores are",
        f"From the end of the judged call to its score: half of those of the last {watch.window} took less than p50, "
        "one in twenty longer than p95. An alert fires where p95 passes the dashed line.",
        Query(recorded.format(95), legend("service", after=" p95")),
        Query(recorded.format(50), legend("service", after=" p50")),
        unit="s",
        decimals=0,
        least=0,
        bounds=[Bound(watch.bound, "red")],
        no_data="No scores in this time range",
        runbooks=runbooks(table, "TraceJudgeScoresLate"),
        size=(12, 8),
    )


def _roles(table: Table) -> Panel:
    return states(
        "Roles of each worker",
        "When each worker made progress in each of its roles; `/readyz` of a worker says what a role waits for.",
        Query(per(["role", "instance"], "tracejudge_ready", "max"), legend("role", "instance", between=" of ")),
        {1: ("ready", "green"), 0: ("not ready", "red")},
        unit="none",
        no_data="No worker is seen",
        runbooks=runbooks(table, "TraceJudgeRoleNotReady"),
        size=(12, 8),
    )
