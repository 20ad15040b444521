"""Quality: which share of each service passes by each judge, how sure that is, and why the rest fails."""

from typing import Final

from grafana_foundation_sdk.models.dashboard import (
    Dashboard,
    DashboardFieldConfigSourceOverrides,
    Panel,
    VariableModel,
)

from deploy.dashboards.firing import alerts_marked, alerts_now, judges_marked
from deploy.dashboards.glance import glance
from deploy.dashboards.layout import Row, lay_out
from deploy.dashboards.links import data_link, runbooks
from deploy.dashboards.panels import graph, override, rows
from deploy.dashboards.queries import Query, per
from deploy.dashboards.scores import scores
from deploy.dashboards.unscored import without_score
from deploy.dashboards.variables import JUDGE, RATED, choice, data_source, hidden, labels
from deploy.generators.promql import but_members
from deploy.generators.shares import windows
from deploy.generators.table import Table, seconds

__all__ = ["make"]

_PLACE: Final = ("service", "environment", "judge")
_RATED_PLACE: Final = ("service", "judge", "metric", "environment")
_AT_ONCE: Final = 12
_BUT_MEMBERS: Final = but_members(f"{{{JUDGE}}}")
_UNSEEN: Final = {"legend": True, "tooltip": False, "viz": False}


def make(table: Table) -> Dashboard:
    """Make the dashboard."""
    return lay_out(
        "Quality",
        "Which share of the answers of each service passes by each judge, how sure that is, and why the rest fails.",
        [
            Row("Now", [alerts_now(table, _PLACE, (14, 8)), *glance(table)]),
            Row("Shares that passed", [_all_series(table)]),
            Row(f"Up to {_AT_ONCE} series of what is chosen, the lowest share first", [_share_in_its_interval(table)]),
            Row("Scores", scores()),
            Row("Without a score, and in doubt", without_score(table)),
            Row("Judges in force", [_versions()]),
        ],
        variables=_variables(table),
        annotations=[judges_marked(), alerts_marked(_PLACE)],
        since="now-24h",
    )


def _variables(table: Table) -> list[VariableModel]:
    last = _joined(f"(last_over_time(tracejudge:pass_share:$window{{{RATED}}}[$__range]) {_BUT_MEMBERS})")
    lowest = f"bottomk({_AT_ONCE}, {per(['series'], last, 'min')})"
    return [
        data_source(),
        *labels("tracejudge_verdicts_total", *_PLACE, "metric"),
        choice(
            "window",
            "Window",
            (window for window in windows(table) if seconds(window) >= seconds(table.burn["medium"].short)),
            table.drop.window,
            "Each point of a share tells of so much time before it. A longer one is surer and slower.",
        ),
        hidden("series", f"query_result({lowest})", '/series="([^"]+)"/'),
    ]


def _all_series(table: Table) -> Panel:
    names = ("service", "environment", "judge", "metric", "version", "judge_model")
    recorded = f"tracejudge:{{}}:$window{{{{{RATED}}}}}"
    values = {
        "passed": recorded.format("pass_share"),
        "from": recorded.format("pass_share_lower"),
        "to": recorded.format("pass_share_upper"),
        "judgements": recorded.format("judgements"),
        "above objective": f"{recorded.format('pass_share')} - on (judge, metric) group_left () tracejudge:objective",
        "fell by": f"tracejudge:pass_share_fall:{table.drop.window}{{{RATED}}}",
    }
    columns = {name: name for name in names}
    columns |= {f"Value #{ref}": name for ref, name in zip("ABCDEF", values, strict=True)}
    margin = table.drop.margin
    return rows(
        "Every series",
        "Each service, judge, version and model: the weighted share that passed in the last $window, between which "
        f"bounds it lies ({table.confidence:.0%}), its distance to the objective, and how far it fell in the last "
        f"{table.drop.window} against the {table.drop.baseline} before. A few judgements have wide bounds.",
        *(Query(per(names, expr, "max")) for expr in values.values()),
        columns=columns,
        sort="passed",
        unit="percentunit",
        decimals=1,
        no_data="No judgements in the window",
        runbooks=runbooks(table, "TraceJudgeQualityDrop", "TraceJudgeObjectiveBurnFast", "TraceJudgeObjectiveBurnSlow"),
        size=(24, 9),
        overrides=[
            override("judgements", unit="short", decimals=0),
            _colored("above objective", "red", (0, "green")),
            _colored("fell by", "green", (margin, "red")),
            override("service", links=[data_link("Only this series", "Quality", (*_PLACE, "metric"))]),
        ],
    )


def _share_in_its_interval(table: Table) -> Panel:
    """Draw one series a panel: a band belongs to one line. Of its versions the one that judged most is drawn."""
    objective = f"max(tracejudge:objective and on (judge, metric) {_chosen('pass_share')})"
    return graph(
        "$series",
        "The weighted share that passed in the last $window at each moment, by the version and model that judged most, "
        "and of models that are asked together by their panel; the band is where it lies with "
        f"{table.confidence:.0%} confidence. No line means no judgement.",
        Query(f"max({_chosen('pass_share_lower')})", "lower"),
        Query(f"max({_chosen('pass_share_upper')})", "upper"),
        Query(f"max({_chosen('pass_share')})", "passed"),
        Query(f"max({_chosen('pass_share', 'baseline')})", f"{table.drop.baseline} before"),
        Query(objective, "objective"),
        Query(f"max({_chosen('judgements')})", "judgements"),
        unit="percentunit",
        decimals=1,
        most=1,
        no_data="No judgements of this series in this time range",
        runbooks=runbooks(table, "TraceJudgeQualityDrop"),
        size=(12, 9),
        repeat="series",
        overrides=[
            _line("lower", "blue", custom_lineWidth=0, custom_hideFrom=_UNSEEN),
            _line(
                "upper",
                "blue",
                custom_lineWidth=0,
                custom_fillBelowTo="lower",
                custom_fillOpacity=20,
                custom_hideFrom=_UNSEEN,
            ),
            _line("passed", "blue", custom_lineWidth=2),
            _line(f"{table.drop.baseline} before", "text", custom_lineStyle={"fill": "dash", "dash": [4, 4]}),
            _line("objective", "red", custom_lineStyle={"fill": "dash", "dash": [10, 10]}),
            _line(
                "judgements",
                "purple",
                custom_axisPlacement="right",
                custom_drawStyle="bars",
                custom_fillOpacity=10,
                custom_lineWidth=0,
                unit="short",
                decimals=0,
                min=0,
                max=None,
            ),
        ],
    )


def _versions() -> Panel:
    names = ("judge", "version", "judge_model", "service", "environment")
    return rows(
        "Versions and models that judge",
        "Who judges which service: two rows for one judge and service mean that it changed, or that two workers have "
        "different configurations.",
        Query(f"{per(names, _verdicts(names, '1h'), 'max')} > 0"),
        Query(f"{per(names, _verdicts(names, '$__range'), 'max')} > 0"),
        columns={**{name: name for name in names}, "Value #A": "verdicts, 1 h", "Value #B": "verdicts, time range"},
        sort="judge",
        unit="short",
        decimals=0,
        no_data="No verdicts in this time range",
        size=(24, 8),
    )


def _verdicts(names: tuple[str, ...], window: str) -> str:
    """Count verdicts by metric first: each counts under every metric of its judge."""
    return per((*names, "metric"), f"increase(tracejudge_verdicts_total{{{RATED}}}[{window}])")


def _chosen(name: str, window: str = "$window") -> str:
    """Pick the series of a repeated panel, of all its versions the one with most judgements."""
    judgements = f"tracejudge:judgements:$window{{{RATED}}} {_BUT_MEMBERS}"
    most = f"topk by ({', '.join(_RATED_PLACE)}) (1, {judgements})"
    named = _joined(f"tracejudge:{name}:{window}{{{RATED}}} and {most}")
    return f'({named} and on (series) label_replace(vector(1), "series", "${{series:raw}}", "", ""))'


def _joined(expression: str) -> str:
    names = ", ".join(f'"{name}"' for name in _RATED_PLACE)
    return f'label_join({expression}, "series", " / ", {names})'


def _line(name: str, color: str, **properties: object) -> DashboardFieldConfigSourceOverrides:
    return override(name, color={"mode": "fixed", "fixedColor": color}, **properties)


def _colored(name: str, base: str, *bounds: tuple[float, str]) -> DashboardFieldConfigSourceOverrides:
    """Colour the figures of a column from some values on."""
    steps = [{"color": base, "value": None}, *({"color": color, "value": at} for at, color in bounds)]
    return override(name, thresholds={"mode": "absolute", "steps": steps}, custom_cellOptions={"type": "color-text"})
