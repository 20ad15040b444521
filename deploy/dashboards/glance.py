"""The figures that Quality begins with: how much all else on it rests on."""

from grafana_foundation_sdk.models.dashboard import Panel

from deploy.dashboards.links import runbooks
from deploy.dashboards.panels import Bound, number
from deploy.dashboards.queries import Query, share
from deploy.dashboards.variables import JUDGE, RATED, SERIES
from deploy.generators.promql import NO_PANELS, but_members
from deploy.generators.table import Table, seconds

__all__ = ["glance"]

_SIZE = (5, 4)
_WELL = 0.95


def glance(table: Table) -> list[Panel]:
    """Make them."""
    return [_judgements(table), _scored(table), _last_verdict(table), _safety(table)]


def _judgements(table: Table) -> Panel:
    least = table.min_judgements
    return number(
        "Judgements in the window",
        f"How many verdicts of all that is chosen passed or failed in the last $window, those of panels aside. A "
        f"series with fewer than {least} raises no alert about its share.",
        Query(f"sum(tracejudge:judgements:$window{{{RATED}, {NO_PANELS}}})", form="now"),
        unit="short",
        decimals=0,
        base="orange",
        bounds=[Bound(least, "green")],
        no_data="No judgements",
        size=_SIZE,
    )


def _scored(table: Table) -> Panel:
    scored, ended = (f"sum(tracejudge:{name}:1h{{{SERIES}, {NO_PANELS}}})" for name in ("scored", "evaluations"))
    return number(
        "With a score",
        "Which share of the evaluations that ended in the last hour has a score; shares rest on these alone.",
        Query(share(scored, ended), form="now"),
        unit="percentunit",
        decimals=1,
        base="red",
        bounds=[Bound(1 - table.watcher.unscored.bound, "orange"), Bound(_WELL, "green")],
        no_data="No evaluations",
        runbooks=runbooks(table, "TraceJudgeUnscoredShareHigh"),
        size=_SIZE,
    )


def _last_verdict(table: Table) -> Panel:
    silent = seconds(table.watcher.no_verdicts.window)
    return number(
        "Since the last verdict",
        "How long ago the last verdict came, whatever it said; when this grows, nothing here is of now.",
        Query(f"time() - max(tracejudge:last_verdict_timestamp_seconds{{{SERIES}}})", form="now"),
        unit="s",
        decimals=0,
        bounds=[Bound(silent / 2, "orange"), Bound(silent, "red")],
        no_data="None in a day",
        runbooks=runbooks(table, "TraceJudgeNoVerdicts"),
        size=_SIZE,
    )


def _safety(table: Table) -> Panel:
    window = table.safety.window
    return number(
        f"Safety failures, {window}",
        "How many verdicts of safety judges failed; each is worth reading, however few they are. Of models that are "
        "asked together only their common verdict counts.",
        Query(f"sum(tracejudge:safety_failures:{window}{{{RATED}}} {but_members(f'{{{JUDGE}}}')})", form="now"),
        unit="short",
        decimals=0,
        bounds=[Bound(1, "orange"), Bound(table.safety.page_from, "red")],
        no_data="No safety judge",
        runbooks=runbooks(table, "TraceJudgeSafetyFailures"),
        size=_SIZE,
    )
