"""Pipeline: the state of the watcher itself, from the service's SDK to the exporters."""

from typing import Final

from grafana_foundation_sdk.models.dashboard import Dashboard, Panel

from deploy.dashboards.grafana import (
    Bound,
    Query,
    Row,
    Unit,
    alerts_now,
    bars,
    graph,
    lay_out,
    legend,
    named,
    number,
    override,
    per,
    rows,
    share,
    states,
)
from deploy.dashboards.matchers import JUDGE, MODEL, SERIES, SERVICE, data_source, labels, runbooks
from deploy.rules.promql import NO_PANELS, RATED
from deploy.rules.promql import SERIES as SERIES_LABELS
from deploy.rules.table import Table

_MODEL: Final = ["judge_model"]
_NO_WORKER: Final = "No worker is seen"
_NO_MODEL: Final = "No judge model is seen"
_NO_REQUESTS: Final = "No requests in this time range"
_NO_READER: Final = "No judge reads whole traces"
_ALERT_LINE: Final = override(
    "alert", color={"mode": "fixed", "fixedColor": "red"}, custom_lineStyle={"fill": "dash", "dash": [10, 10]}
)


def make(table: Table) -> Dashboard:
    """Make the dashboard."""
    bound_by = ("service", "environment", "judge", "judge_model")
    arrived, *arriving = _arriving(table)
    return lay_out(
        "Pipeline",
        "Whether the watcher itself sees all it should: from what services publish to what exporters have sent.",
        [
            Row("Now", [alerts_now(table, bound_by, (14, 8)), *_now(table)]),
            Row("From published to exported", [_funnel(table), arrived]),
            Row("Traces that came, and what they lack", arriving, collapsed=True),
            Row("Stream and batches", _stream_and_batches(table), collapsed=True),
            Row("Judge models", _judge_models(table), collapsed=True),
            Row("Judges that read whole traces", _agents(), collapsed=True),
            Row("Verdicts on their way out", _exporting(table), collapsed=True),
        ],
        variables=[
            data_source(),
            *labels("tracejudge_traces_total", "service"),
            *labels("tracejudge_verdicts_total", "environment", "judge"),
            *labels("tracejudge_judge_in_flight", "judge_model"),
        ],
        since="now-6h",
    )


def _now(table: Table) -> list[Panel]:
    # A circuit opens for a moment and closes again: its last value alone would hide most failures.
    is_open = f"max_over_time(tracejudge_judge_circuit_open{{{MODEL}}}[{table.watcher.circuit.window}])"
    roles = number(
        "Roles",
        "Whether a worker makes progress in each role: ingest reads traces, judge sends requests to the models, export "
        "sends verdicts.",
        Query(per(["role"], "tracejudge_ready", "max"), legend("role")),
        unit=Unit("none"),
        base="red",
        bounds=[Bound(1, "green")],
        no_data=_NO_WORKER,
        runbooks=runbooks(table, "TraceJudgeRoleNotReady", "TraceJudgeMetricsAbsent"),
        size=(10, 4),
    )
    models = number(
        "Judge models",
        "Whether requests are sent to each judge model: while the circuit of a failing one is open, its work is "
        "parked.",
        Query(per(_MODEL, is_open, "max"), legend("judge_model")),
        unit=Unit("none"),
        bounds=[Bound(1, "red")],
        no_data=_NO_MODEL,
        runbooks=runbooks(table, "TraceJudgeJudgeCircuitOpen"),
        size=(10, 4),
    )
    roles.field_config.defaults.mappings = [named({1: ("ready", "green"), 0: ("not ready", "red")})]
    models.field_config.defaults.mappings = [named({0: ("available", "green"), 1: ("circuit open", "red")})]
    # `up` is Prometheus' own: the workers' metrics are absent, not 0, when none is reached.
    up = f'up{{job="{table.job}"}}'
    watcher = table.watcher
    late, full, behind = watcher.scores_late, watcher.stream.bound, watcher.exporter.bound
    # Counters without a first value are absent; `vector(0)` keeps one of them from hiding the others.
    losses = ("cut_off", "outbox_cut_off", "export_dropped", "dead_cut_off")
    lost = " + ".join(f"(sum(increase(tracejudge_{name}_total[$__range])) or vector(0))" for name in losses)
    return [
        roles,
        models,
        number(
            "Workers",
            "Workers that Prometheus reaches; without any, all other panels here are empty.",
            Query(f"count({up} == 1) or 0 * count({up})"),
            base="red",
            bounds=[Bound(1, "green")],
            no_data="No target",
            runbooks=runbooks(table, "TraceJudgeMetricsAbsent"),
        ),
        number(
            "Stream is full to",
            "Share of the stream's capacity that unread traces take; when it is full, the oldest are cut off unread.",
            Query("max(tracejudge_stream_lag) / min(tracejudge_stream_capacity > 0)"),
            unit=Unit("percentunit", 0),
            bounds=[Bound(full / 2, "orange"), Bound(full, "red")],
            runbooks=runbooks(table, "TraceJudgeStreamNearlyFull"),
        ),
        number(
            "Oldest unread trace",
            "Age of the oldest trace that no worker has read; it grows while ingest makes no progress.",
            Query("max(tracejudge_stream_oldest_seconds)"),
            unit=Unit("s", 0),
            bounds=[Bound(late.bound / 3, "orange"), Bound(late.bound, "red")],
            runbooks=runbooks(table, "TraceJudgeStreamNearlyFull"),
        ),
        number(
            "Scores are as late as",
            f"The 95th percentile of the age of scores of the last {late.window}, from the end of the judged call; of "
            "the slowest service.",
            Query(f"max(tracejudge:score_age_seconds_p95:{late.window}{{{SERVICE}}})"),
            unit=Unit("s", 0),
            bounds=[Bound(late.bound / 3, "orange"), Bound(late.bound, "red")],
            no_data="No scores",
            runbooks=runbooks(table, "TraceJudgeScoresLate"),
        ),
        number(
            "Verdicts not exported",
            "Verdicts that the exporter that is furthest behind has not sent yet.",
            Query("max(tracejudge_outbox_lag)"),
            bounds=[Bound(behind / 2, "orange"), Bound(behind, "red")],
            no_data="No exporter",
            runbooks=runbooks(table, "TraceJudgeExporterBehind"),
        ),
        number(
            "Lost in the time range",
            "Traces cut off unread, verdicts not delivered and dead letters removed, in the time range; none of them "
            "is recovered automatically.",
            Query(f"({lost}) and on () count(tracejudge_ready)"),
            bounds=[Bound(1, "red")],
            no_data=_NO_WORKER,
            runbooks=runbooks(table, "TraceJudgeTracesCutOff", "TraceJudgeExportDropped"),
        ),
    ]


def _funnel(table: Table) -> Panel:
    def counted(counter: str, matchers: str = SERVICE) -> str:
        return f"sum(increase(tracejudge_{counter}_total{{{matchers}}}[$__range]))"

    def answered(outcomes: str) -> str:
        # By metric first: a verdict counts under every metric of its judge, and the largest count is their number.
        verdicts = f"tracejudge_verdicts_total{{{SERIES}, {MODEL}, {NO_PANELS}, {outcomes}}}"
        return f"sum({per(SERIES_LABELS, per(RATED, f'increase({verdicts}[$__range])'), 'max')})"

    published, with_answer = counted("producer_published"), answered('outcome!="unscored"')
    unscored = counted("unscored", f"{SERIES}, {MODEL}, {NO_PANELS}")
    # A sum with an absent side is absent, so each side stands in for the other with 0.
    ended = f"({with_answer} or 0 * {unscored}) + ({unscored} or 0 * {with_answer})"
    # Each exporter delivers the same verdicts, so losses of several are not added.
    lost = " or ".join(
        per(["exporter"], f"increase(tracejudge_{name}_total[$__range])")
        for name in ("export_dropped", "outbox_cut_off")
    )
    steps = {
        "1 published": published,
        "2 dropped by the SDK": f"{counted('producer_dropped')} or 0 * {published}",
        "3 arrived": counted("traces"),
        "4 sampled": counted("traces", f'{SERVICE}, outcome="sampled"'),
        "5 evaluations ended": ended,
        "6 with a score": answered('outcome=~"pass|fail|unrated"'),
        "7 exported": f"clamp_min(({ended}) - (max({lost}) or vector(0)), 0)",
    }
    return bars(
        "From published to exported",
        "Number of traces of the time range that reached each step. A sampled trace has an evaluation for each judge "
        "of its rule, so there may be more evaluations than traces; those of panels are left out. Exported are the "
        "evaluations that ended, less the losses of the worst exporter.",
        *(Query(expr, name) for name, expr in steps.items()),
        least=0,
        base="blue",
        no_data="No traces in this time range",
        runbooks=runbooks(table, "TraceJudgeNoVerdicts", "TraceJudgeTracesStopped"),
        size=(10, 9),
    )


def _arriving(table: Table) -> list[Panel]:
    arrived = f"rate(tracejudge_traces_total{{{SERVICE}}}[$__rate_interval])"
    dropped = f"increase(tracejudge_producer_dropped_total{{{SERVICE}}}[5m])"
    unknown, unusable = (
        f"increase(tracejudge_{name}_total{{{SERVICE}}}[1h])" for name in ("unknown_fields", "fields_left_out")
    )
    return [
        graph(
            "Traces that arrived",
            "Traces a second by outcome: sampled ones are judged, shed ones would have been but their judge model is "
            "down, no_rule matches no rule of the configuration.",
            Query(per(["outcome"], arrived), legend("outcome")),
            stacked=True,
            unit=Unit("cps", 2),
            no_data="No traces in this time range",
            runbooks=runbooks(table, "TraceJudgeTracesStopped"),
            size=(14, 9),
        ),
        graph(
            "Dropped by the SDK",
            "Traces in five minutes that services gave up before they reached Redis, by reason; they will never have a "
            "score.",
            Query(per(["service", "reason"], dropped), legend("service", "reason", between=": ")),
            stacked=True,
            no_data="No service dropped anything",
            runbooks=runbooks(table, "TraceJudgeProducerDrops"),
            size=(8, 8),
        ),
        graph(
            "Sampled share",
            "Share of its matching traces that each rule has chosen since its worker started, and each service's share "
            "of the last hour.",
            Query("avg by (rule) (tracejudge_effective_sampling_ratio)", "rule " + legend("rule")),
            Query(f"tracejudge:sampled_share:1h{{{SERVICE}}}", "service " + legend("service")),
            unit=Unit("percentunit", 1),
            most=1,
            no_data="No rule has seen a trace",
            size=(8, 8),
        ),
        graph(
            "Entries that are no trace",
            "Entries of the stream in five minutes that could not be read, by reason: a producer writes another "
            "format.",
            Query(per(["reason"], "increase(tracejudge_invalid_traces_total[5m])"), legend("reason")),
            stacked=True,
            least=0,
            no_data="All entries could be read",
            size=(8, 8),
        ),
        graph(
            "Feedback that came late",
            "Complaints in an hour that came after their trace, by outcome; pulled ones are judged.",
            Query(per(["outcome"], "increase(tracejudge_late_feedback_total[1h])"), legend("outcome")),
            stacked=True,
            least=0,
            no_data="No late feedback",
            size=(8, 7),
        ),
        graph(
            "Conversations",
            "Gathered conversations in an hour that were judged for the first time, judged again, or dropped unjudged.",
            Query(per(["outcome"], "increase(tracejudge_sessions_total[1h])"), legend("outcome")),
            stacked=True,
            least=0,
            no_data="No rule judges sessions",
            size=(8, 7),
        ),
        graph(
            "Unknown fields",
            "Fields of chosen traces in an hour that the format does not know, most often a misspelt name, and fields "
            "with an unusable value, by service: no judge sees them.",
            Query(per(["service"], unknown), legend("service")),
            Query(per(["service", "field"], unusable), legend("service", "field", between=": unusable ")),
            no_data="No unknown fields",
            size=(8, 7),
        ),
    ]


def _stream_and_batches(table: Table) -> list[Panel]:
    # Every worker reports the same Redis. The smallest capacity counts: a limit of 0 means that there is none.
    capacity, most = "min(tracejudge_stream_capacity > 0)", "max(tracejudge_redis_max_bytes > 0)"
    names = ["judge", "judge_model"]
    ended = f"rate(tracejudge_verdicts_total{{{SERIES}, {MODEL}}}[$__rate_interval])"
    return [
        graph(
            "Unread traces",
            "Traces in the stream that no worker has read, and its capacity; an alert fires at the dashed line.",
            Query("max(tracejudge_stream_lag)", "unread"),
            Query(capacity, "room"),
            Query(f"{table.watcher.stream.bound:g} * {capacity}", "alert"),
            runbooks=runbooks(table, "TraceJudgeStreamNearlyFull"),
            overrides=[_ALERT_LINE],
        ),
        graph(
            "Age of the oldest unread trace",
            "A sawtooth is normal; a straight line upwards means that ingest makes no progress.",
            Query("max(tracejudge_stream_oldest_seconds)", "oldest"),
            unit=Unit("s", 0),
            runbooks=runbooks(table, "TraceJudgeStreamNearlyFull", "TraceJudgeRoleNotReady"),
        ),
        graph(
            "Cut off unread",
            "Traces in five minutes that the stream's caps removed before a worker read them, and those that Redis had "
            "confirmed and lost with its last writes.",
            Query("sum(increase(tracejudge_cut_off_total[5m]))", "cut off"),
            Query("sum(increase(tracejudge_lost_by_redis_total[5m]))", "lost by Redis"),
            as_bars=True,
            base="green",
            bounds=[Bound(1, "red")],
            runbooks=runbooks(table, "TraceJudgeTracesCutOff"),
        ),
        graph(
            "Batches",
            "Batches that wait for a worker or are being judged, and batches that are parked until their judge model "
            "or its rate limit allows requests again.",
            Query("max(tracejudge_batches_waiting)", "waiting or under way"),
            Query("max(tracejudge_batches_parked)", "parked"),
            stacked=True,
            least=0,
        ),
        graph(
            "Evaluations that ended",
            "Evaluations a second, by judge and judge model; zero while traces are sampled means that nothing is "
            "judged.",
            # By metric first, since a verdict counts under every metric of its judge.
            Query(per(names, per([*names, "metric"], ended), "max"), legend(*names, between=" by ")),
            unit=Unit("cps", 2),
            no_data="No evaluations in this time range",
            runbooks=runbooks(table, "TraceJudgeNoVerdicts"),
        ),
        graph(
            "Shed",
            "Evaluations in five minutes that were not started, because their judge model is down and too much work "
            "waits for it; `tracejudge replay` recovers them while the stream keeps their traces.",
            Query(per(_MODEL, f"increase(tracejudge_shed_total{{{MODEL}}}[5m])"), legend("judge_model")),
            as_bars=True,
            no_data="Nothing was shed",
        ),
        states(
            "Redis servers",
            "When each Redis server answered the workers, by its number in `shards`; the only one has the number 0.",
            Query(per(["shard"], "tracejudge_shard_up", "min"), legend("shard")),
            {1: ("answers", "green"), 0: ("away", "red")},
            unit=Unit("none"),
            no_data=_NO_WORKER,
            runbooks=runbooks(table, "TraceJudgeShardAway"),
        ),
        graph(
            "Memory of Redis",
            "Memory that Redis uses, and its `maxmemory`, at which it refuses writes; no second line where it is not "
            "set. An alert fires at the dashed line.",
            Query("max(tracejudge_redis_used_bytes)", "used"),
            Query(most, "maxmemory"),
            Query(f"{table.watcher.memory.bound:g} * {most}", "alert"),
            unit=Unit("bytes"),
            runbooks=runbooks(table, "TraceJudgeRedisNearlyFull"),
            overrides=[_ALERT_LINE],
        ),
        graph(
            "What takes memory",
            "Bytes of traces, outbox, unfinished batches and dead letters, and the limit of each by the settings; "
            "batches for each judge model. The record of evaluations is not included.",
            Query(per(["what"], "tracejudge_stored_bytes", "max"), legend("what")),
            Query(per(["what"], "tracejudge_stored_max_bytes", "max"), "{{what}}, allowed"),
            unit=Unit("bytes"),
        ),
    ]


def _judge_models(table: Table) -> list[Panel]:
    slow = table.watcher.judge_slow
    duration = f"tracejudge:judge_request_seconds_p{{}}:{slow.window}{{{{{MODEL}}}}}"
    requests = "tracejudge_judge_request_duration_seconds_count"
    ended = f"rate({requests}{{{MODEL}}}[$__rate_interval])"
    invalid = f"rate(tracejudge_judge_reply_invalid_total{{{MODEL}}}[$__rate_interval])"
    # Cancelled requests are repeated after a shutdown, and would count twice.
    sent = per(_MODEL, f'increase({requests}{{{MODEL}, status!="cancelled"}}[1h])')
    evaluations = per(_MODEL, f"tracejudge:evaluations:1h{{{MODEL}}}")
    return [
        graph(
            "Requests under way, and their limit",
            "Concurrent requests to each judge model, of all workers together. The limit adapts: it falls when the "
            "endpoint asks for fewer, so one that stays low is a rate limit.",
            Query(per(_MODEL, f"tracejudge_judge_in_flight{{{MODEL}}}"), legend("judge_model", after=" under way")),
            Query(per(_MODEL, f"tracejudge_judge_concurrency_limit{{{MODEL}}}"), legend("judge_model", after=" limit")),
            no_data=_NO_MODEL,
            size=(12, 8),
        ),
        states(
            "Circuits",
            "When requests were sent to each judge model, and when its circuit was open.",
            Query(per(_MODEL, f"tracejudge_judge_circuit_open{{{MODEL}}}", "max"), legend("judge_model")),
            {0: ("available", "green"), 1: ("circuit open", "red")},
            unit=Unit("none"),
            no_data=_NO_MODEL,
            runbooks=runbooks(table, "TraceJudgeJudgeCircuitOpen"),
            size=(12, 8),
        ),
        graph(
            "How long requests take",
            f"Median (p50) and 95th percentile (p95) of the requests of the last {slow.window}; an alert fires where "
            "p95 passes the dashed line.",
            Query(duration.format(95), legend("judge_model", after=" p95")),
            Query(duration.format(50), legend("judge_model", after=" p50")),
            unit=Unit("s", 1),
            bounds=[Bound(slow.bound, "red")],
            no_data=_NO_REQUESTS,
            runbooks=runbooks(table, "TraceJudgeJudgeSlow"),
        ),
        graph(
            "How requests ended",
            "Requests a second by judge model and status: ok, or the reason for the missing answer, as in "
            "docs/reference/verdicts.md. Answers with unusable ids or token counts are ok, and counted separately.",
            Query(per([*_MODEL, "status"], ended), legend("judge_model", "status", between=": ")),
            Query(per([*_MODEL, "field"], invalid), legend("judge_model", "field", between=": unusable ")),
            stacked=True,
            unit=Unit("reqps", 2),
            no_data=_NO_REQUESTS,
        ),
        graph(
            "Requests for one evaluation",
            "Requests of the last hour for each evaluation that ended in it. Judges with one question are at 1; above "
            "that are retries, or a judge with several questions.",
            Query(share(sent, evaluations), legend("judge_model")),
            unit=Unit("none", 2),
            no_data="No evaluations in this time range",
        ),
    ]


def _agents() -> list[Panel]:
    ended = f"rate(tracejudge_explorations_total{{{JUDGE}}}[$__rate_interval])"
    rounds, readings = (
        per(["judge"], f"increase(tracejudge_exploration_rounds_{part}{{{JUDGE}}}[1h])") for part in ("sum", "count")
    )
    buckets = per(["judge", "le"], f"rate(tracejudge_exploration_rounds_bucket{{{JUDGE}}}[1h])")
    errors = per(["judge"], f"increase(tracejudge_exploration_tool_errors_total{{{JUDGE}}}[1h])")
    return [
        graph(
            "What asked for the verdict",
            "Verdicts a second of judges that read by tools, by what ended the reading: the model itself, or a limit. "
            "If limits end most of them, raise the limits or ask for less.",
            Query(per(["judge", "ended_by"], ended), legend("judge", "ended_by", between=": ")),
            stacked=True,
            unit=Unit("cps", 3),
            no_data=_NO_READER,
        ),
        graph(
            "Rounds of one reading",
            "Answers with tool calls before the verdict, over the last hour: mean and 95th percentile. Each round is a "
            "request with everything that was read before.",
            Query(share(rounds, readings), legend("judge", after=" mean")),
            Query(f"histogram_quantile(0.95, {buckets})", legend("judge", after=" p95")),
            unit=Unit("none", 1),
            no_data=_NO_READER,
        ),
        graph(
            "Calls of tools that gave nothing",
            "For each reading of the last hour: unknown tools, invalid arguments, patterns that take too long. A model "
            "with many of them is too weak for tools.",
            Query(share(errors, readings), legend("judge")),
            unit=Unit("none", 2),
            no_data=_NO_READER,
        ),
    ]


def _exporting(table: Table) -> list[Panel]:
    def five_minutes(names: list[str], counter: str) -> str:
        return per(names, f"increase(tracejudge_{counter}_total[5m])")

    late = table.watcher.scores_late
    age = f"tracejudge:score_age_seconds_p{{}}:{late.window}{{{{{SERVICE}}}}}"
    ready = per(["role", "instance"], "tracejudge_ready", "max")
    configured = ("version", "config_hash")
    dropped = Query(five_minutes(["exporter", "reason"], "export_dropped"), legend("exporter", "reason", between=": "))
    return [
        graph(
            "Verdicts not exported yet",
            "Verdicts that each exporter has still to send; an alert fires where it stays above the dashed line.",
            Query(per(["exporter"], "tracejudge_outbox_lag", "max"), legend("exporter")),
            bounds=[Bound(table.watcher.exporter.bound, "red")],
            no_data="No exporter",
            runbooks=runbooks(table, "TraceJudgeExporterBehind"),
        ),
        graph(
            "Verdicts not delivered",
            "Verdicts in five minutes that an exporter gave up, by reason, and those that the outbox cut off before "
            "they were sent; also log lines that were lost, and invalid answers of a receiver.",
            dropped,
            Query(five_minutes(["exporter"], "outbox_cut_off"), legend("exporter", after=": cut off")),
            Query("sum(increase(tracejudge_log_records_dropped_total[5m]))", "log lines lost"),
            Query(five_minutes(["exporter"], "export_answers_ignored"), legend("exporter", after=": answers ignored")),
            Query("sum by (exporter) (tracejudge_export_parked)", legend("exporter", after=": traces not known yet")),
            as_bars=True,
            no_data="Everything was delivered",
            runbooks=runbooks(table, "TraceJudgeExportDropped"),
        ),
        graph(
            "Dead letters",
            "Evaluations that were given up, and those of them that the caps have removed since; `tracejudge dead "
            "list` shows why, `tracejudge dead retry` starts them again.",
            Query("max(tracejudge_dead_letters)", "dead letters"),
            Query("sum(increase(tracejudge_dead_cut_off_total[1h]))", "removed in an hour"),
            runbooks=runbooks(table, "TraceJudgeDeadLettersGrowing"),
        ),
        graph(
            "How late scores are",
            "Time from the end of the judged call to its score: median (p50) and 95th percentile (p95) of the last "
            f"{late.window}. An alert fires where p95 passes the dashed line.",
            Query(age.format(95), legend("service", after=" p95")),
            Query(age.format(50), legend("service", after=" p50")),
            unit=Unit("s", 0),
            bounds=[Bound(late.bound, "red")],
            no_data="No scores in this time range",
            runbooks=runbooks(table, "TraceJudgeScoresLate"),
            size=(12, 8),
        ),
        states(
            "Roles of each worker",
            "When each worker made progress in each of its roles; `/readyz` of a worker shows what a role waits for.",
            Query(ready, legend("role", "instance", between=" of ")),
            {1: ("ready", "green"), 0: ("not ready", "red")},
            unit=Unit("none"),
            no_data=_NO_WORKER,
            runbooks=runbooks(table, "TraceJudgeRoleNotReady"),
            size=(12, 8),
        ),
        rows(
            "Versions and configurations",
            "How many workers and gateways run each version with each configuration: two hashes for long mean that "
            "some have another file or other variables. Addresses, secrets, roles and ports are not in the hash.",
            Query(per(configured, "tracejudge_build_info", "count")),
            columns={**{name: name for name in configured}, "Value": "processes"},
            sort="processes",
            descending=True,
            no_data=_NO_WORKER,
        ),
    ]
