"""The row of what has no score, and of scores in doubt."""

from typing import Final

from grafana_foundation_sdk.models.dashboard import DashboardFieldConfigSourceOverrides, Panel

from deploy.dashboards.links import runbooks
from deploy.dashboards.panels import Bound, graph, override
from deploy.dashboards.queries import FROM_RAW, Query, legend, per, share
from deploy.dashboards.variables import JUDGED, METRIC, RATED, SERIES
from deploy.generators.promql import NO_PANELS, PANELS
from deploy.generators.table import Table

__all__ = ["OUTCOME_COLORS", "without_score"]

_EACH: Final = f"{SERIES}, {NO_PANELS}"
OUTCOME_COLORS: Final = {
    "pass": "green",
    "fail": "red",
    "unrated": "blue",
    "abstained": "purple",
    "unscored": "orange",
}


def without_score(table: Table) -> list[Panel]:
    """Make the panels."""
    return [_outcomes(), _reasons(table), _coverage(table), _fabricated(), _disagreement(), _late_feedback()]


def _outcomes() -> Panel:
    return graph(
        "How verdicts ended",
        "Shares of all verdicts of the last $window, each counted once, those of panels aside: unscored is no failure, "
        "and abstained is a judge that cannot tell.",
        Query(
            per(["outcome"], f"increase(tracejudge_verdicts_total{{{RATED}, {NO_PANELS}}}[$window])"), legend("outcome")
        ),
        stacked="percent",
        unit="short",
        decimals=0,
        no_data="No verdicts in this time range",
        interval=FROM_RAW,
        overrides=_outcome_colors(),
    )


def _reasons(table: Table) -> Panel:
    unscored = f"increase(tracejudge_unscored_total{{{_EACH}}}[$window])"
    return graph(
        "Why there is no score",
        "Evaluations of the last $window without a score, by reason; docs/reference/verdicts.md tells what each means "
        "and which are tried again. Panels are left out: they lack a score where too many of their members do.",
        Query(per(["reason"], unscored), legend("reason")),
        stacked=True,
        unit="short",
        decimals=0,
        no_data="All evaluations have a score",
        interval=FROM_RAW,
        runbooks=runbooks(table, "TraceJudgeUnscoredShareHigh"),
    )


def _coverage(table: Table) -> Panel:
    names = ("service", "judge")
    scored, ended = (per(names, f"tracejudge:{name}:1h{{{_EACH}}}") for name in ("scored", "evaluations"))
    return graph(
        "Evaluations with a score",
        "Which share of the evaluations of the last hour has a score; the line is where an alert fires.",
        Query(share(scored, ended), legend(*names)),
        unit="percentunit",
        decimals=0,
        least=0,
        most=1,
        base="red",
        bounds=[Bound(1 - table.watcher.unscored.bound, "green")],
        no_data="No evaluations in this time range",
        runbooks=runbooks(table, "TraceJudgeUnscoredShareHigh"),
    )


def _fabricated() -> Panel:
    names = ("judge", "judge_model")
    found = per(names, f"increase(tracejudge_fabricated_evidence_total{{{_EACH}}}[1h])")
    ended = per(names, f"tracejudge:evaluations:1h{{{_EACH}}}")
    return graph(
        "Fabricated evidence",
        "How many excerpts and sentence keys an evaluation of the last hour named that do not exist: a judge model "
        "that makes them up is not to be trusted.",
        Query(share(found, ended), legend(*names, between=" by ")),
        unit="none",
        decimals=3,
        least=0,
        no_data="No judge here names evidence",
    )


def _disagreement() -> Panel:
    names = ("service", "judge", "metric")
    doubt = f'{RATED}, {PANELS}, metric=~"(.+_)?disagreement"'
    total, count = (per(names, f"increase(tracejudge_score_{part}{{{doubt}}}[$window])") for part in ("sum", "count"))
    return graph(
        "Disagreement of judge models",
        "How far models differ that judge the same answer, as the mean difference between two of them: 0 is agreement, "
        "and for yes and no 0.5 is a coin.",
        Query(share(total, count), legend(*names)),
        unit="none",
        decimals=2,
        least=0,
        no_data="No judge combines several models",
        interval=FROM_RAW,
    )


def _late_feedback() -> Panel:
    counted = f"increase(tracejudge_late_feedback_verdicts_total{{{JUDGED}, {METRIC}}}[1d])"
    return graph(
        "Verdicts on complaints that came late",
        "Verdicts of the last day on traces that were judged since somebody complained afterwards, by judge; they are "
        "in no share, as they were not drawn by chance.",
        Query(per(["judge", "outcome"], counted), legend("judge", "outcome", between=": ")),
        stacked=True,
        unit="short",
        decimals=0,
        no_data="No late feedback in this time range",
        interval=FROM_RAW,
    )


def _outcome_colors() -> list[DashboardFieldConfigSourceOverrides]:
    return [override(name, color={"mode": "fixed", "fixedColor": color}) for name, color in OUTCOME_COLORS.items()]
