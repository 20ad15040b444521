"""Quality: the share of each service that passes by each judge, its interval, and the reasons for missing scores."""

from collections.abc import Sequence
from typing import Final

from grafana_foundation_sdk.models import dashboard
from grafana_foundation_sdk.models.dashboard import Dashboard, DashboardFieldConfigSourceOverrides, Panel

from deploy.dashboards.grafana import (
    FROM_RAW,
    Bound,
    Query,
    Row,
    Unit,
    alerts_now,
    graph,
    heat_map,
    lay_out,
    legend,
    number,
    override,
    per,
    rows,
    share,
)
from deploy.dashboards.matchers import (
    JUDGE,
    JUDGED,
    METRIC,
    PROMETHEUS,
    RATED,
    SERIES,
    alerting,
    choice,
    data_link,
    data_source,
    hidden,
    labels,
    runbooks,
)
from deploy.rules.promql import NO_PANELS, PANELS, but_members
from deploy.rules.promql import RATED as _RATED_LABELS
from deploy.rules.table import Table, seconds

_PLACE: Final = ("service", "environment", "judge")
_RATED_PLACE: Final = ("service", "judge", "metric", "environment")
_JUDGED_BY: Final = ("judge", "version", "judge_model")
_WINDOWS: Final = ("30m", "1h", "6h", "1d", "3d")
_AT_ONCE: Final = 12
_WHOLE: Final = 'segment=""'
_WELL: Final = 0.95
_BUT_MEMBERS: Final = but_members(f"{{{JUDGE}}}")
_SCORED: Final = 'outcome=~"pass|fail|unrated"'
_LOW: Final = 0.4
_LOW_BUCKETS: Final = "0.0|0.1|0.2|0.3|0.4"
_NO_SCORES: Final = "No scores in this time range"
_COLORS: Final = {"pass": "green", "fail": "red", "unrated": "blue", "abstained": "purple", "unscored": "orange"}


class Marks(dashboard.AnnotationQuery):
    """An annotation query of Prometheus, with settings that the SDK's model lacks."""

    def __init__(self, name: str, expr: str, color: str, *, title: str, text: str, tags: str) -> None:
        super().__init__(name=name, datasource=PROMETHEUS, icon_color=color, expr=expr)
        self.settings = {
            "titleFormat": title,
            "textFormat": text,
            "tagKeys": tags,
            "step": "60s",
            "useValueForTime": False,  # Grafana takes any text for true, and puts marks at 1970
        }

    def to_json(self) -> dict[str, object]:
        """Add the settings."""
        return {**super().to_json(), **self.settings}


def make(table: Table) -> Dashboard:
    """Make the dashboard."""
    # Members of a panel are left out: the panel's series stands for them.
    last = _joined(f"(last_over_time({_gauge('share')}[$__range]) {_BUT_MEMBERS})")
    lowest = f"bottomk({_AT_ONCE}, {per(['series'], last, 'min')})"
    return lay_out(
        "Quality",
        "Which share of the answers of each service passes by each judge, how sure that is, and why the rest fails.",
        [
            Row("Now", [alerts_now(table, _PLACE, (12, 8)), *_now(table), _incidents(table)]),
            Row("Shares that passed", [_all_series(table)]),
            Row(f"Up to {_AT_ONCE} series of what is chosen, the lowest share first", [_share_in_its_interval(table)]),
            Row("Scores", _scores()),
            Row("Without a score, and in doubt", _without_score(table), collapsed=True),
            Row("The judge's own error", _judge_error(table), collapsed=True),
            Row("Judges in force", [_versions()], collapsed=True),
        ],
        variables=[
            data_source(),
            *labels("tracejudge_verdicts_total", *_PLACE, "metric"),
            choice(
                "window",
                "Window",
                _WINDOWS,
                "1h",
                "Time before each point that scores, reasons and outcomes are counted in. A longer window is surer.",
            ),
            hidden("series", f"query_result({lowest})", '/series="([^"]+)"/'),
            hidden("graded", f"label_values(tracejudge_score_count{{{RATED}}}, judge)", ""),
        ],
        annotations=_marks(),
        since="now-24h",
    )


def _marks() -> Sequence[Marks]:
    # A step where a judge got another version or model is the judge's, not the service's. What is new is marked for one
    # point of the graph, whatever the distance of its points.
    seen = f"max_over_time(tracejudge:evaluations:1h{{{SERIES}}}[1d] offset $__interval) > 0"
    changed = f"tracejudge:evaluations:1h{{{SERIES}}} > 0 unless {seen} and on ({', '.join(_PLACE)}) {seen}"
    # Alerts that fired between two points of a long time range are marked as well.
    chosen = ", ".join(['component="tracejudge", kind="quality", alertstate="firing"', alerting(_PLACE)])
    fired = f"max_over_time(ALERTS{{{chosen}}}[$__interval])"
    return [
        Marks(
            "Judges that changed",
            per(("judge", "version", "judge_model"), changed, "max"),
            "blue",
            title="{{judge}} changed",
            text="version {{version}} by {{judge_model}}",
            tags="judge",
        ),
        Marks(
            "Quality alerts",
            per(("alertname", *_PLACE, "metric"), fired, "max"),
            "red",
            title="{{alertname}}",
            text="{{service}} {{environment}} {{judge}} {{metric}}",
            tags="service,judge",
        ),
    ]


def _budget_left(table: Table) -> tuple[str, str]:
    """Return the share of the failures that an objective allows which is left, by series, and its window."""
    window = max((burn.window for burn in table.burn.values() if burn.window), key=seconds)
    objective = per(_RATED_LABELS, _gauge("objective"), "max")
    failed = per(_RATED_LABELS, f"1 - tracejudge:pass_share:{window}{{{RATED}}}", "max")
    return f"1 - {failed} / (1 - {objective})", window


def _now(table: Table) -> list[Panel]:
    budget, window = _budget_left(table)
    scored, ended = (f"sum(tracejudge:{name}:1h{{{SERIES}, {NO_PANELS}}})" for name in ("scored", "evaluations"))
    silent_s = seconds(table.watcher.no_verdicts.window)
    return [
        number(
            "Error budget left",
            f"Of the series with the least: the share of the failures of the last {window} that its objective allows "
            "and that have not happened. Below 0 the objective is missed.",
            Query(f"bottomk(1, ({budget}) {_BUT_MEMBERS})", legend("service", "judge", between=", ")),
            unit=Unit("percentunit", 0),
            base="red",
            bounds=[Bound(0, "orange"), Bound(0.5, "green")],
            no_data="No objective is set",
            runbooks=runbooks(table, "TraceJudgeObjectiveBurnFast", "TraceJudgeObjectiveBurnSlow"),
        ),
        number(
            "Dropped since",
            "When the oldest drop that is still open began; the table below tells the segment that explains it.",
            Query(f"1000 * min({_gauge('drop_since_seconds')})"),
            unit=Unit("dateTimeFromNow"),
            base="red",
            no_data="No drop is open",
            runbooks=runbooks(table, "TraceJudgeQualityDrop"),
        ),
        number(
            "Judgements in the window",
            "Verdicts of everything selected that passed or failed in the window of the shares, without those of "
            "panels. The window is the last hour, and the last day for a series with few judgements.",
            Query(f"sum({_gauge('judgements', NO_PANELS)})"),
            base="orange",
            bounds=[Bound(table.min_judgements, "green")],
            no_data="No judgements",
        ),
        number(
            "With a score",
            "Share of the evaluations that ended in the last hour and have a score; shares are computed from these "
            "alone.",
            Query(share(scored, ended)),
            unit=Unit("percentunit", 1),
            base="red",
            bounds=[Bound(1 - table.unscored.bound, "orange"), Bound(_WELL, "green")],
            no_data="No evaluations",
            runbooks=runbooks(table, "TraceJudgeUnscoredShareHigh"),
        ),
        number(
            "Since the last verdict",
            "Age of the last verdict of any outcome; while it grows, nothing here is current.",
            Query(f"time() - max(tracejudge:last_verdict_timestamp_seconds{{{SERIES}}})"),
            unit=Unit("s", 0),
            bounds=[Bound(silent_s / 2, "orange"), Bound(silent_s, "red")],
            no_data="None in a day",
            runbooks=runbooks(table, "TraceJudgeNoVerdicts"),
        ),
        number(
            "Safety incidents",
            "Series whose confirmed safety failures exceed what the judge's own error explains; read the failed traces "
            "of each.",
            Query(f"sum(max by ({', '.join(_RATED_LABELS)}) (tracejudge_safety_incident{{{RATED}}}) {_BUT_MEMBERS})"),
            bounds=[Bound(1, "red")],
            no_data="No safety judge",
            runbooks=runbooks(table, "TraceJudgeSafetyFailures"),
        ),
    ]


def _gauge(name: str, *matchers: str) -> str:
    """Select a gauge of the monitor for whole series."""
    return f"tracejudge_quality_{name}{{{', '.join((RATED, _WHOLE, *matchers))}}}"


def _incidents(table: Table) -> Panel:
    names = ("service", "environment", "judge", "metric", "segment", "since", "changed", "examples")
    drops, failures = (f"tracejudge_{what}_incident_info{{{RATED}}}" for what in ("quality", "safety"))
    drifts = f"tracejudge_judge_canary_drift_info{{{JUDGE}}}"
    return rows(
        "Open incidents",
        "Drops, safety incidents and judges that drift, until they are over: which segment explains them, since "
        "when, what changed at that time, and example traces, of the canary for a judge.",
        Query(" or ".join(per(names, one, "max") for one in (drops, failures, drifts))),
        columns={name: name for name in names},
        sort="since",
        descending=True,
        no_data="No incident is open",
        runbooks=runbooks(table, "TraceJudgeQualityDrop", "TraceJudgeSafetyFailures", "TraceJudgeJudgeDrift"),
        size=(24, 6),
        overrides=[override("service", links=[data_link("Only this series", "Quality", (*_PLACE, "metric"))])],
    )


def _all_series(table: Table) -> Panel:
    def colored(name: str, base: str, at: float, color: str) -> DashboardFieldConfigSourceOverrides:
        steps = [{"color": base, "value": None}, {"color": color, "value": at}]
        in_color = {"type": "color-text"}
        return override(name, thresholds={"mode": "absolute", "steps": steps}, custom_cellOptions=in_color)

    names = ("service", "environment", "judge", "metric", "version", "judge_model")
    # Gauges are aggregated to their labels first: while one worker takes over from another, both export them.
    passed = per(names, _gauge("share"), "max")
    values = {
        "passed": passed,
        "from": per(names, _gauge("lower"), "max"),
        "to": per(names, _gauge("upper"), "max"),
        "judgements": per(names, _gauge("judgements"), "max"),
        "above objective": f"{passed} - {per(names, _gauge('objective'), 'max')}",
        "budget left": _budget_left(table)[0],
        "expected": per(names, _gauge("baseline"), "max"),
        # Grafana reads times in milliseconds.
        "dropped since": f"1000 * {per(names, _gauge('drop_since_seconds'), 'max')}",
    }
    columns = {name: name for name in names}
    columns |= {f"Value #{ref}": name for ref, name in zip("ABCDEFGH", values, strict=True)}
    return rows(
        "Every series",
        "Each service, judge, version and model: the weighted share that passed in the last hour, or the last day "
        "where judgements are few, its 95 % limits, its distance to the objective, what is left of the failures that "
        "the objective allows, the share that the monitor expects "
        "at this hour, and since when it has been below that. A few judgements have wide limits.",
        *(Query(expr) for expr in values.values()),
        columns=columns,
        sort="passed",
        unit=Unit("percentunit", 1),
        no_data="No judgements in the window",
        runbooks=runbooks(
            table,
            *(f"TraceJudge{name}" for name in ("QualityDrop", "QualityBelowObjective", "ObjectiveBurnFast")),
            "TraceJudgeObjectiveBurnSlow",
        ),
        size=(24, 9),
        overrides=[
            override("judgements", unit="short", decimals=0),
            colored("above objective", "red", 0, "green"),
            colored("budget left", "red", 0, "green"),
            override("dropped since", unit="dateTimeFromNow", custom_cellOptions={"type": "color-text"}),
            override("service", links=[data_link("Only this series", "Quality", (*_PLACE, "metric"))]),
        ],
    )


def _share_in_its_interval(table: Table) -> Panel:
    def chosen(name: str, *matchers: str) -> str:
        # A band belongs to one line, so a panel shows one version of its series: the one with most judgements.
        judgements = per(_RATED_LABELS, _gauge("judgements"), "max")
        most = f"topk by ({', '.join(_RATED_PLACE)}) (1, {judgements} {_BUT_MEMBERS})"
        named = _joined(f"{per(_RATED_LABELS, _gauge(name, *matchers), 'max')} and {most}")
        return f'({named} and on (series) label_replace(vector(1), "series", "${{series:raw}}", "", ""))'

    def line(name: str, color: str, **properties: object) -> DashboardFieldConfigSourceOverrides:
        return override(name, color={"mode": "fixed", "fixedColor": color}, **properties)

    hide = {"legend": True, "tooltip": False, "viz": False}
    band = {"custom_fillBelowTo": "lower", "custom_fillOpacity": 20}
    dropped = {"custom_lineWidth": 0, "custom_fillOpacity": 15, "custom_drawStyle": "line"}
    right = {"custom_axisPlacement": "right", "custom_drawStyle": "bars", "custom_fillOpacity": 10}
    return graph(
        "$series",
        "The weighted share that passed at each moment, by the version and model with most judgements, or by the panel "
        "of models that are asked together; the band is its 95 % interval. A red ground is a drop that is not over. "
        "The corrected share takes the judge's own error out, where labels tell it. No line means no judgement.",
        Query(f"max({chosen('lower')})", "lower"),
        Query(f"max({chosen('upper')})", "upper"),
        Query(f"max({chosen('share')})", "passed"),
        Query(f"max({chosen('baseline')})", "expected"),
        Query(f"max({chosen('objective')})", "objective"),
        Query(f"max({chosen('corrected_share')})", "corrected"),
        Query(f"max({chosen('drop')})", "drop"),
        Query(f"max({chosen('judgements')})", "judgements"),
        unit=Unit("percentunit", 1),
        least=None,
        most=1,
        no_data="No judgements of this series in this time range",
        runbooks=runbooks(table, "TraceJudgeQualityDrop"),
        size=(12, 9),
        repeat="series",
        overrides=[
            line("lower", "blue", custom_lineWidth=0, custom_hideFrom=hide),
            line("upper", "blue", custom_lineWidth=0, **band, custom_hideFrom=hide),
            line("passed", "blue", custom_lineWidth=2),
            line("expected", "text", custom_lineStyle={"fill": "dash", "dash": [4, 4]}),
            line("corrected", "green", custom_lineWidth=2),
            line("drop", "red", **dropped),
            line("objective", "red", custom_lineStyle={"fill": "dash", "dash": [10, 10]}),
            line("judgements", "purple", **right, custom_lineWidth=0, unit="short", decimals=0, min=0, max=None),
        ],
    )


def _scores() -> list[Panel]:
    names, each = ("service", "judge", "metric"), f"{RATED}, {NO_PANELS}"
    # The low buckets are asked for by name, so that only low scores have exemplars.
    low = f'increase(tracejudge_score_bucket{{{each}, le=~"{_LOW_BUCKETS}"}}[$window])'
    count = f"increase(tracejudge_score_count{{{each}}}[$window])"
    highest = per(names, per((*names, "le"), low), "max")
    graded = f'{each}, judge=~"$graded"'
    of_judge = f"sum by (le) (increase(tracejudge_score_bucket{{{graded}}}[$window]))"
    all_of_judge = f"increase(tracejudge_score_count{{{graded}}}[$window])"
    failed, rated = (
        per(names, f"increase(tracejudge_verdicts_total{{{each}, outcome=~{outcomes}}}[$window])")
        for outcomes in ('"fail"', '"pass|fail"')
    )
    return [
        graph(
            "Mean score",
            "The weighted mean of all scores of the last $window, those without a pass rule as well; a step at the "
            "mark of a changed judge comes from the judge.",
            Query(
                share(
                    per(_RATED_LABELS, f"increase(tracejudge_score_weighted_total{{{RATED}}}[$window])"),
                    per(_RATED_LABELS, f"increase(tracejudge_verdict_weight_total{{{RATED}, {_SCORED}}}[$window])"),
                ),
                legend("service", "environment", "judge", "metric") + " ({{version}} {{judge_model}})",
            ),
            interval=FROM_RAW,
            unit=Unit("none", 2),
            most=1,
            no_data=_NO_SCORES,
            size=(12, 9),
        ),
        graph(
            "Failures, with their traces",
            "Share of the verdicts of the last $window that fail, each counted once. A point is a failure of a judge "
            "that answers yes or no, and opens its trace; without points the exemplar storage of Prometheus is off.",
            Query(share(failed, rated), legend(*names), exemplars=True),
            unit=Unit("percentunit", 1),
            no_data=_NO_SCORES,
            size=(12, 9),
            interval=FROM_RAW,
        ),
        graph(
            f"Low scores, {_LOW} and less, with their traces",
            f"Share of the scores of the last $window that are {_LOW} or less, each counted once, of judges that "
            "grade. A point is such a score and opens its trace.",
            Query(share(highest, per(names, count)), legend(*names), exemplars=True),
            unit=Unit("percentunit", 1),
            no_data=_NO_SCORES,
            size=(12, 9),
            interval=FROM_RAW,
        ),
        heat_map(
            "How the scores of $graded spread",
            "Each column is the last $window at a moment: the darker a field, the larger the share of scores in it, "
            "each counted once. Judges that answer yes or no are not here. Choose one metric where a judge has "
            "several.",
            Query(f"{of_judge} / on () group_left () (sum({all_of_judge}) > 0)", "{{le}}", "buckets", exemplars=True),
            unit=Unit("percentunit", 1),
            no_data=_NO_SCORES,
            size=(12, 8),
            repeat="graded",
            interval=FROM_RAW,
        ),
    ]


def _without_score(table: Table) -> list[Panel]:
    each = f"{SERIES}, {NO_PANELS}"

    def hourly(names: Sequence[str], what: str) -> str:
        return per(names, f"tracejudge:{what}:1h{{{each}}}")

    def doubt(part: str) -> str:
        matchers = f'{RATED}, {PANELS}, metric=~"(.+_)?disagreement"'
        return per(by_metric, f"increase(tracejudge_score_{part}{{{matchers}}}[$window])")

    by_judge, by_model, by_metric = ("service", "judge"), ("judge", "judge_model"), ("service", "judge", "metric")
    verdicts = f"increase(tracejudge_verdicts_total{{{RATED}, {NO_PANELS}}}[$window])"
    fabricated = per(by_model, f"increase(tracejudge_fabricated_evidence_total{{{each}}}[1h])")
    differs = per(by_model, f"increase(tracejudge_check_differs_total{{{each}}}[1h])")
    # A day, since complaints come one by one.
    late = f"increase(tracejudge_late_feedback_verdicts_total{{{JUDGED}, {METRIC}}}[1d])"
    return [
        graph(
            "How verdicts ended",
            "Shares of all verdicts of the last $window, each counted once, without those of panels: unscored is not a "
            "failure, and abstained means that the judge cannot tell.",
            Query(per(["outcome"], verdicts), legend("outcome")),
            stacked="percent",
            no_data="No verdicts in this time range",
            interval=FROM_RAW,
            overrides=[override(name, color={"mode": "fixed", "fixedColor": color}) for name, color in _COLORS.items()],
        ),
        graph(
            "Why there is no score",
            "Evaluations of the last $window without a score, by reason; docs/reference/verdicts.md explains each "
            "reason and which are tried again. Panels are left out: they lack a score where too many members do.",
            Query(per(["reason"], f"increase(tracejudge_unscored_total{{{each}}}[$window])"), legend("reason")),
            stacked=True,
            no_data="All evaluations have a score",
            interval=FROM_RAW,
            runbooks=runbooks(table, "TraceJudgeUnscoredShareHigh"),
        ),
        graph(
            "Evaluations with a score",
            "Share of the evaluations of the last hour with a score.",
            Query(share(hourly(by_judge, "scored"), hourly(by_judge, "evaluations")), legend(*by_judge)),
            unit=Unit("percentunit", 0),
            most=1,
            base="red",
            bounds=[Bound(1 - table.unscored.bound, "green")],
            no_data="No evaluations in this time range",
            runbooks=runbooks(table, "TraceJudgeUnscoredShareHigh"),
        ),
        graph(
            "Abstained and unscored",
            "Share of the verdicts in the window of the shares that abstain or have no score, the larger of all "
            "metrics; an alert fires when the lower limit of its 95 % interval is above the bound.",
            *(
                Query(per(by_judge, _gauge(f"{what}_{part}", NO_PANELS), "max"), legend(*by_judge, after=f": {said}"))
                for what in ("abstained", "unscored")
                for part, said in (("share", what), ("lower", f"{what}, lower limit"))
            ),
            unit=Unit("percentunit", 0),
            most=1,
            no_data="No evaluations in this time range",
            runbooks=runbooks(table, "TraceJudgeAbstainedShareHigh", "TraceJudgeUnscoredShareHigh"),
        ),
        graph(
            "Refused by the judge model",
            "Share of the evaluations of the last hour that the judge model declined. A rise for safety may mean "
            "harmful answers, which some models refuse to judge.",
            Query(share(hourly(by_judge, "refused"), hourly(by_judge, "evaluations")), legend(*by_judge)),
            unit=Unit("percentunit", 0),
            most=1,
            no_data="No evaluations in this time range",
        ),
        graph(
            "Fabricated evidence",
            "Excerpts and sentence keys for each evaluation of the last hour that do not exist in the trace, and the "
            "share of evaluations where the check of them comes to another result than the judge model.",
            Query(share(fabricated, hourly(by_model, "evaluations")), legend(*by_model, between=" by ")),
            Query(share(differs, hourly(by_model, "evaluations")), legend(*by_model, between=" by ", after=" differs")),
            unit=Unit("none", 3),
            no_data="No judge here names evidence",
        ),
        graph(
            "Disagreement of judge models",
            "Mean difference between two models that judge the same answer: 0 is agreement, and for yes and no 0.5 is "
            "a coin toss.",
            Query(share(doubt("sum"), doubt("count")), legend(*by_metric)),
            unit=Unit("none", 2),
            no_data="No judge combines several models",
            interval=FROM_RAW,
        ),
        graph(
            "Verdicts on complaints that came late",
            "Verdicts of the last day on traces that were judged because a user complained later, by judge; no share "
            "includes them, as they were not drawn by chance.",
            Query(per(["judge", "outcome"], late), legend("judge", "outcome", between=": ")),
            stacked=True,
            no_data="No late feedback in this time range",
            interval=FROM_RAW,
        ),
    ]


def _judge_error(table: Table) -> list[Panel]:
    def limits(name: str, labels: Sequence[str]) -> list[Query]:
        return [
            Query(per(labels, f"tracejudge_judge_{name}{part}{{{JUDGE}}}", "max"), legend(*labels, after=said))
            for part, said in (("", ""), ("_lower", ": lower"), ("_upper", ": upper"))
        ]

    def corrected(part: str) -> str:
        return per((*_RATED_LABELS, "method"), _gauge(f"corrected_{part}"), "max")

    twice = (*_JUDGED_BY, "second_model")
    rated = legend("service", "environment", "judge", "metric") + " ({{version}} {{judge_model}})"
    return [
        graph(
            "Agreement with the canary",
            "Share of the canary traces, whose labels are known, that each judge and model judges right, with 95 % "
            "limits. They are the same every hour: a fall is the judge's or its model's, not a service's.",
            *limits("canary_agreement", _JUDGED_BY),
            unit=Unit("percentunit", 0),
            most=1,
            no_data="No canary was judged",
            runbooks=runbooks(table, "TraceJudgeJudgeDrift"),
        ),
        graph(
            "Judge drift",
            "Whether a judge and model agree surely less with the canary than before: 1 while they do.",
            Query(per(_JUDGED_BY, f"tracejudge_judge_canary_drift{{{JUDGE}}}", "max"), legend(*_JUDGED_BY)),
            most=1,
            no_data="No canary was judged",
            runbooks=runbooks(table, "TraceJudgeJudgeDrift"),
        ),
        graph(
            "Flip rate",
            "Share of evaluations that a second judging decides otherwise, by the same model or by the one named last, "
            "with 95 % limits.",
            *limits("flip_ratio", twice),
            unit=Unit("percentunit", 1),
            no_data="No rule repeats evaluations",
        ),
        graph(
            "Agreement of first and second judging",
            "Cohen's kappa with 95 % limits: 1 is agreement, 0 is what chance alone gives.",
            *limits("kappa", twice),
            unit=Unit("none", 2),
            least=None,
            most=1,
            no_data="No rule repeats evaluations",
        ),
        graph(
            "Share corrected by labels",
            "The share of passes without the judge's own error, by the method that fits the labels, with its 95 % "
            "limits; docs/statistics.md explains both methods.",
            Query(corrected("share"), rated + " {{method}}"),
            Query(corrected("lower"), rated + " {{method}}: lower"),
            Query(corrected("upper"), rated + " {{method}}: upper"),
            unit=Unit("percentunit", 1),
            most=1,
            no_data="No labels were imported",
        ),
        graph(
            "First model of a cascade",
            "Mean probability of passing by the first model of each cascade, not corrected by second verdicts. The "
            "corrected share stands beside it, with the method cascade.",
            Query(f"tracejudge_cascade_first_share{{{RATED}}}", rated),
            unit=Unit("percentunit", 1),
            most=1,
            no_data="No rule names a cascade",
        ),
        graph(
            "Second judgings of cascades",
            "Second judgings chosen in the last day: those with a score correct the share, those that wait do not yet.",
            Query(f"tracejudge_cascade_second_verdicts{{{RATED}}}", rated + " {{state}}"),
            no_data="No rule names a cascade",
        ),
    ]


def _versions() -> Panel:
    def verdicts(window: str) -> Query:
        # By metric first: a verdict counts under every metric of its judge.
        counted = per((*names, "metric"), f"increase(tracejudge_verdicts_total{{{RATED}}}[{window}])")
        return Query(f"{per(names, counted, 'max')} > 0")

    names = ("judge", "version", "judge_model", "service", "environment")
    return rows(
        "Versions and models that judge",
        "Which judge judges which service: two rows for one judge and service mean that it changed, or that two "
        "workers have different configurations.",
        verdicts("1h"),
        verdicts("$__range"),
        columns={**{name: name for name in names}, "Value #A": "verdicts, 1 h", "Value #B": "verdicts, time range"},
        sort="judge",
        no_data="No verdicts in this time range",
        size=(24, 8),
    )


def _joined(expression: str) -> str:
    names = ", ".join(f'"{name}"' for name in _RATED_PLACE)
    return f'label_join({expression}, "series", " / ", {names})'
