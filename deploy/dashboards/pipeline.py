"""Pipeline: whether the watcher itself sees all it should, from the service's SDK to the exporters."""

from typing import Final

from grafana_foundation_sdk.models.dashboard import Dashboard, Panel

from deploy.dashboards.arriving import arriving
from deploy.dashboards.endpoints import endpoints
from deploy.dashboards.exploring import exploring
from deploy.dashboards.exporting import exporting
from deploy.dashboards.firing import alerts_now
from deploy.dashboards.layout import Row, lay_out
from deploy.dashboards.links import runbooks
from deploy.dashboards.panels import Bound, named, number
from deploy.dashboards.queries import Query, legend, per
from deploy.dashboards.variables import MODEL, SERVICE, data_source, labels
from deploy.dashboards.waiting import waiting
from deploy.generators.table import Table

__all__ = ["make"]

_BOUND_BY: Final = ("service", "environment", "judge", "judge_model")


def make(table: Table) -> Dashboard:
    """Make the dashboard."""
    return lay_out(
        "Pipeline",
        "Whether the watcher itself sees all it should: from what services publish to what exporters have sent.",
        [
            Row("Now", [alerts_now(table, _BOUND_BY, (14, 8)), _roles(table), _models(table), *_figures(table)]),
            Row("From published to exported", arriving(table)),
            Row("Stream and batches", waiting(table)),
            Row("Judge models", endpoints(table)),
            Row("Judges that read whole traces", exploring()),
            Row("Verdicts on their way out", exporting(table)),
        ],
        variables=[
            data_source(),
            *labels("tracejudge_traces_total", "service"),
            *labels("tracejudge_verdicts_total", "environment", "judge"),
            *labels("tracejudge_judge_in_flight", "judge_model"),
        ],
        since="now-6h",
    )


def _roles(table: Table) -> Panel:
    panel = number(
        "Roles",
        "Whether some worker makes progress in each role: ingest reads traces, judge asks the models, export sends "
        "verdicts on.",
        Query(per(["role"], "tracejudge_ready", "max"), legend("role"), "now"),
        unit="none",
        base="red",
        bounds=[Bound(1, "green")],
        no_data="No worker is seen",
        runbooks=runbooks(table, "TraceJudgeRoleNotReady", "TraceJudgeMetricsAbsent"),
        size=(10, 4),
    )
    panel.field_config.defaults.mappings = [named({1: ("ready", "green"), 0: ("not ready", "red")})]
    return panel


def _models(table: Table) -> Panel:
    is_open = f"max_over_time(tracejudge_judge_circuit_open{{{MODEL}}}[{table.watcher.circuit.window}])"
    panel = number(
        "Judge models",
        "Whether each judge model is asked: one whose circuit is open fails and is left alone, and its work is parked.",
        Query(per(["judge_model"], is_open, "max"), legend("judge_model"), "now"),
        unit="none",
        bounds=[Bound(1, "red")],
        no_data="No judge model is seen",
        runbooks=runbooks(table, "TraceJudgeJudgeCircuitOpen"),
        size=(10, 4),
    )
    panel.field_config.defaults.mappings = [named({0: ("asked", "green"), 1: ("left alone", "red")})]
    return panel


def _figures(table: Table) -> list[Panel]:
    return [_workers(table), _fill(table), _oldest(table), _age(table), _behind(table), _lost(table)]


def _workers(table: Table) -> Panel:
    up = f'up{{job="{table.job}"}}'
    return number(
        "Workers",
        "How many workers Prometheus reaches; at none every other panel here is blind.",
        Query(f"count({up} == 1) or 0 * count({up})", form="now"),
        unit="short",
        decimals=0,
        base="red",
        bounds=[Bound(1, "green")],
        no_data="No target",
        runbooks=runbooks(table, "TraceJudgeMetricsAbsent"),
        size=(4, 4),
    )


def _fill(table: Table) -> Panel:
    return number(
        "Stream is full to",
        "How much of the stream's room unread traces take; when it is full, the oldest are cut off unread.",
        Query("max(tracejudge_stream_lag) / min(tracejudge_stream_capacity > 0)", form="now"),
        unit="percentunit",
        decimals=0,
        bounds=[Bound(table.watcher.stream.bound / 2, "orange"), Bound(table.watcher.stream.bound, "red")],
        no_data="Nothing measured",
        runbooks=runbooks(table, "TraceJudgeStreamNearlyFull"),
        size=(4, 4),
    )


def _oldest(table: Table) -> Panel:
    late = table.watcher.scores_late.bound
    return number(
        "Oldest unread trace",
        "How old the oldest trace is that no worker has read; it grows when ingest stands still.",
        Query("max(tracejudge_stream_oldest_seconds)", form="now"),
        unit="s",
        decimals=0,
        bounds=[Bound(late / 3, "orange"), Bound(late, "red")],
        no_data="Nothing measured",
        runbooks=runbooks(table, "TraceJudgeStreamNearlyFull"),
        size=(4, 4),
    )


def _age(table: Table) -> Panel:
    watch = table.watcher.scores_late
    return number(
        "Scores are as late as",
        f"How old one in twenty scores of the last {watch.window} was or older when it came, from the end of the "
        "judged call on; of the slowest service.",
        Query(f"max(tracejudge:score_age_seconds_p95:{watch.window}{{{SERVICE}}})", form="now"),
        unit="s",
        decimals=0,
        bounds=[Bound(watch.bound / 3, "orange"), Bound(watch.bound, "red")],
        no_data="No scores",
        runbooks=runbooks(table, "TraceJudgeScoresLate"),
        size=(4, 4),
    )


def _behind(table: Table) -> Panel:
    bound = table.watcher.exporter.bound
    return number(
        "Verdicts not exported",
        "How many verdicts the exporter that is furthest behind has not sent yet.",
        Query("max(tracejudge_outbox_lag)", form="now"),
        unit="short",
        decimals=0,
        bounds=[Bound(bound / 2, "orange"), Bound(bound, "red")],
        no_data="No exporter",
        runbooks=runbooks(table, "TraceJudgeExporterBehind"),
        size=(4, 4),
    )


def _lost(table: Table) -> Panel:
    lost = ("cut_off", "outbox_cut_off", "export_dropped", "dead_cut_off")
    grown = [f"(sum(increase(tracejudge_{name}_total[$__range])) or vector(0))" for name in lost]
    return number(
        "Lost in the time range",
        "Traces cut off unread, verdicts not delivered and dead letters removed, in the time range; none of them comes "
        "back by itself.",
        Query(f"({' + '.join(grown)}) and on () count(tracejudge_ready)", form="now"),
        unit="short",
        decimals=0,
        bounds=[Bound(1, "red")],
        no_data="No worker is seen",
        runbooks=runbooks(table, "TraceJudgeTracesCutOff", "TraceJudgeExportDropped"),
        size=(4, 4),
    )
