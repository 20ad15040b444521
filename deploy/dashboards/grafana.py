"""Queries, the kinds of panels, and the layout of a dashboard.

Each panel has a title, a description, a unit and a text for the case without data.
"""

from collections.abc import Iterable, Mapping, Sequence
from string import ascii_uppercase
from typing import Final, Literal, NamedTuple, TypedDict, Unpack

from grafana_foundation_sdk.builders import bargauge, common, heatmap, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.variants import Dataquery as AnyQuery
from grafana_foundation_sdk.models import common as kinds
from grafana_foundation_sdk.models import dashboard
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat, QueryEditorMode

from deploy.dashboards.matchers import PROMETHEUS, UIDS, alerting, data_link, others
from deploy.rules.table import Table

# Least distance of points that look back over a window of raw samples: each reads thousands of them.
FROM_RAW: Final = "5m"
_WIDTH: Final = 24
_IDS_PER_ROW: Final = 100


class Query(NamedTuple):
    """A query of a panel; with ``exemplars`` Grafana asks for the traces behind the buckets as well."""

    expr: str
    legend: str = ""
    form: Literal["over_time", "now", "rows", "buckets"] = "over_time"
    exemplars: bool = False

    def target(self, ref: str) -> Builder[AnyQuery]:
        """Build the query for Grafana."""
        formats = {"rows": PromQueryFormat.TABLE, "buckets": PromQueryFormat.HEATMAP}
        target = Dataquery().ref_id(ref).datasource(PROMETHEUS).editor_mode(QueryEditorMode.CODE).expr(self.expr)
        target = target.legend_format(self.legend or "__auto")
        target = target.format(formats.get(self.form, PromQueryFormat.TIME_SERIES))
        target = target.instant() if self.form in {"now", "rows"} else target.range()
        return target.exemplar(self.exemplars)


def legend(*labels: str, between: str = " / ", after: str = "") -> str:
    """Name series by their labels."""
    return between.join(f"{{{{{label}}}}}" for label in labels) + after


def per(labels: Iterable[str], expression: str, how: str = "sum") -> str:
    """Aggregate to some labels, on one line."""
    return f"{how} by ({', '.join(labels)}) ({expression})"


def share(part: str, whole: str) -> str:
    """Divide, only where the divisor is above 0: no data is not zero."""
    return f"{part} / ({whole} > 0)"


class Bound(NamedTuple):
    """The colour of values from here on."""

    at: float
    color: str


class Unit(NamedTuple):
    """A unit of Grafana, and the decimals that are shown."""

    name: str
    decimals: int | None = None


COUNT: Final = Unit("short", 0)


class Frame(TypedDict, total=False):
    """Properties that panels of every kind have. Without them: counts, green, and "Nothing measured" without data.

    A graph begins at 0, unless it is stacked. The runbooks are those of the alerts that a panel explains; the size is
    width, of 24, and height.
    """

    unit: Unit
    least: float | None
    most: float
    bounds: Sequence[Bound]
    base: str
    no_data: str
    runbooks: Mapping[str, str]
    size: tuple[int, int]
    repeat: str
    interval: str
    overrides: Sequence[dashboard.DashboardFieldConfigSourceOverrides]


class Repeated(dashboard.Panel):
    """A panel that is repeated for each value of a variable."""

    def to_json(self) -> dict[str, object]:
        """Add ``maxPerRow``, which the SDK's model lacks: by default Grafana puts four in a row."""
        width = self.grid_pos.w if self.grid_pos else _WIDTH
        return {**super().to_json(), "maxPerRow": _WIDTH // width}


def graph(
    title: str,
    description: str,
    *queries: Query,
    stacked: bool | str = False,
    as_bars: bool = False,
    **frame: Unpack[Frame],
) -> dashboard.Panel:
    """Draw lines, or stacked areas; ``stacked="percent"`` stacks shares of the whole."""
    filled = 60 if stacked else 0
    # Grafana begins stacks at 0 itself; a line of small changes far above 0 would look like a cliff.
    frame = {"least": None if stacked else 0, **frame}
    panel = (
        timeseries.Panel()
        .targets(_targets(queries))
        .legend(_legend())
        .tooltip(common.VizTooltipOptions().mode(kinds.TooltipDisplayMode.MULTI).sort(kinds.SortOrder.DESCENDING))
        .draw_style(kinds.GraphDrawStyle.BARS if as_bars else kinds.GraphDrawStyle.LINE)
        .fill_opacity(80 if as_bars else filled)
        .line_width(1)
        .show_points(kinds.VisibilityMode.AUTO)
        .color_scheme(builders.FieldColor().mode(dashboard.FieldColorModeId.PALETTE_CLASSIC))
    )
    if stacked:
        mode = kinds.StackingMode.PERCENT if stacked == "percent" else kinds.StackingMode.NORMAL
        panel = panel.stacking(common.StackingConfig().mode(mode).group("A"))
    if frame.get("bounds"):
        panel = panel.thresholds_style(common.GraphThresholdsStyleConfig().mode(kinds.GraphTresholdsStyleMode.DASHED))
    return _framed(panel.build(), title, description, frame)


def number(title: str, description: str, *queries: Query, **frame: Unpack[Frame]) -> dashboard.Panel:
    """Show current values; the background colour follows the bounds."""
    frame = {"size": (4, 4), **frame}
    panel = (
        stat.Panel()
        .targets(_targets(query._replace(form="now") for query in queries))
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(values=False))
        .color_mode(kinds.BigValueColorMode.BACKGROUND if frame.get("bounds") else kinds.BigValueColorMode.NONE)
        .graph_mode(kinds.BigValueGraphMode.NONE)
        .text_mode(kinds.BigValueTextMode.AUTO)
        .color_scheme(_by_threshold())
    )
    return _framed(panel.build(), title, description, frame)


def states(
    title: str, description: str, query: Query, names: Mapping[float, tuple[str, str]], **frame: Unpack[Frame]
) -> dashboard.Panel:
    """Show the state of each series over time; ``names`` maps a value to its name and colour."""
    panel = (
        statetimeline.Panel()
        .targets(_targets([query]))
        .show_value(kinds.VisibilityMode.NEVER)
        .row_height(0.8)
        .line_width(0)
        .fill_opacity(70)
        .mappings([named(names)])
        .legend(_legend())
        .color_scheme(_by_threshold())
    )
    return _framed(panel.build(), title, description, frame)


def bars(title: str, description: str, *queries: Query, **frame: Unpack[Frame]) -> dashboard.Panel:
    """Show current values as horizontal bars."""
    panel = (
        bargauge.Panel()
        .targets(_targets(query._replace(form="now") for query in queries))
        .orientation(kinds.VizOrientation.HORIZONTAL)
        .display_mode(kinds.BarGaugeDisplayMode.BASIC)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(values=False))
        .color_scheme(_by_threshold())
    )
    return _framed(panel.build(), title, description, frame)


def heat_map(title: str, description: str, query: Query, **frame: Unpack[Frame]) -> dashboard.Panel:
    """Show the distribution of values over buckets; a point is the exemplar of a trace."""
    unit = frame["unit"]
    panel = (
        heatmap.Panel()
        .targets(_targets([query]))
        .calculate(calculate=False)
        .color(heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Blues").steps(32))
        .cell_values(heatmap.CellValues().unit(unit.name).decimals(unit.decimals or 0))
        .y_axis(heatmap.YAxisConfig().unit("none").decimals(1).axis_placement(kinds.AxisPlacement.LEFT))
        .cell_gap(1)
        .hide_from(common.HideSeriesConfig().legend(legend=False).tooltip(tooltip=False).viz(viz=False))
        .exemplars_color("rgba(255,0,255,0.7)")
        .show_legend()
        .show_tooltip()
    )
    return _framed(panel.build(), title, description, frame)


def rows(
    title: str,
    description: str,
    *queries: Query,
    columns: Mapping[str, str],
    sort: str,
    descending: bool = False,
    **frame: Unpack[Frame],
) -> dashboard.Panel:
    """Join the results of queries into a table.

    The columns are labels and values in the order shown, with their titles; the value of a single query is ``Value``,
    of several ``Value #A`` and so on. Queries must be aggregated to these labels: rows that differ in anything else,
    the metric's name included, are not joined.
    """
    # Only the time is excluded by name: older Grafanas drop more than that.
    arranged = {
        "excludeByName": {"Time": True},
        "indexByName": {name: place for place, name in enumerate(columns)},
        "renameByName": {name: shown for name, shown in columns.items() if name != shown},
    }
    transformer = dashboard.DataTransformerConfig
    panel = (
        table.Panel()
        .targets(_targets(query._replace(form="rows") for query in queries))
        .transformations([transformer("merge", options={}), transformer("organize", options=arranged)])
        .sort_by([common.TableSortByFieldState().display_name(sort).desc(desc=descending)])
        .color_scheme(_by_threshold())
    )
    return _framed(panel.build(), title, description, frame)


def alerts_now(objectives: Table, bound_by: Sequence[str], size: tuple[int, int]) -> dashboard.Panel:
    """List the firing alerts that the variables ``bound_by`` select, the latest first, each with its runbook."""
    chosen = ", ".join(filter(None, ['component="tracejudge"', alerting(bound_by)]))
    since = f'ALERTS_FOR_STATE{{{chosen}}} and ignoring (alertstate) ALERTS{{alertstate="firing", {chosen}}}'
    runbook = f'label_replace(1000 * ({since}), "runbook", "{objectives.runbook_base}/$1.md", "alertname", "(.+)")'
    shown = ("severity", "alertname", "service", "environment", "judge", "metric", "judge_model", "role", "exporter")
    colors = {
        name: dashboard.ValueMappingResult(color=color, index=place)
        for place, (name, color) in enumerate((("page", "red"), ("ticket", "orange"), ("info", "blue")))
    }
    in_color = {"mappings": [dashboard.ValueMap(colors)], "custom_cellOptions": {"type": "color-text"}}
    overrides = [
        override("severity", **in_color, custom_width=80),
        override("service", links=[data_link("Quality of this service", "Quality", ("service",))]),
    ]
    if objectives.runbook_base.startswith("http"):
        link = {"title": "Open the runbook", "url": "${__data.fields.runbook}", "targetBlank": True}
        overrides.append(override("runbook", links=[link]))
    return rows(
        "What fires now",
        "Firing alerts, and since when. The runbook names the first steps. An empty list is good news only while the "
        "watcher itself works: see the figures beside it.",
        Query(per((*shown, "runbook"), runbook, "min")),
        columns={**{name: name for name in shown}, "Value": "since", "runbook": "runbook"},
        sort="since",
        descending=True,
        unit=Unit("dateTimeFromNow"),
        no_data="Nothing fires",
        size=size,
        overrides=overrides,
    )


def override(name: str, **properties: object) -> dashboard.DashboardFieldConfigSourceOverrides:
    """Set properties of one series or column; ``custom_lineWidth`` is Grafana's ``custom.lineWidth``."""
    values = [dashboard.DynamicConfigValue(key.replace("_", "."), value) for key, value in properties.items()]
    return dashboard.DashboardFieldConfigSourceOverrides(dashboard.MatcherConfig("byName", name), values)


def named(names: Mapping[float, tuple[str, str]]) -> dashboard.ValueMap:
    """Map values to names and colours."""
    return dashboard.ValueMap(
        {
            f"{value:g}": dashboard.ValueMappingResult(text=text, color=color, index=place)
            for place, (value, (text, color)) in enumerate(names.items())
        }
    )


def _targets(queries: Iterable[Query]) -> list[Builder[AnyQuery]]:
    return [query.target(ref) for query, ref in zip(queries, ascii_uppercase, strict=False)]


def _framed(panel: dashboard.Panel, title: str, description: str, frame: Frame) -> dashboard.Panel:
    """Set what panels of every kind have."""
    runbooks = frame.get("runbooks", {})
    width, height = frame.get("size", (8, 8))
    panel.title = title
    panel.description = f"{description}\n\nRunbooks: {', '.join(runbooks.values())}" if runbooks else description
    panel.links = [
        dashboard.DashboardLink(
            title=f"Runbook: {alert}", type_val=dashboard.DashboardLinkType.LINK, icon="doc", url=url, target_blank=True
        )
        for alert, url in runbooks.items()
        # Grafana cannot open a path in the repository.
        if url.startswith("http")
    ] or None
    panel.datasource = PROMETHEUS
    panel.grid_pos = dashboard.GridPos(h=height, w=width)
    panel.interval, panel.repeat = frame.get("interval"), frame.get("repeat")
    panel.field_config.overrides = list(frame.get("overrides", ()))
    defaults = panel.field_config.defaults
    defaults.unit, defaults.decimals = frame.get("unit", COUNT)
    defaults.min_val, defaults.max_val = frame.get("least"), frame.get("most")
    defaults.no_value = frame.get("no_data", "Nothing measured")
    steps = [dashboard.Threshold(None, frame.get("base", "green"))]
    steps += [dashboard.Threshold(bound.at, bound.color) for bound in frame.get("bounds", ())]
    defaults.thresholds = dashboard.ThresholdsConfig(dashboard.ThresholdsMode.ABSOLUTE, steps)
    return Repeated(**vars(panel)) if panel.repeat else panel


def _legend() -> common.VizLegendOptions:
    options = common.VizLegendOptions().show_legend(show_legend=True).display_mode(kinds.LegendDisplayMode.LIST)
    return options.placement(kinds.LegendPlacement.BOTTOM)


def _by_threshold() -> builders.FieldColor:
    return builders.FieldColor().mode(dashboard.FieldColorModeId.THRESHOLDS)


class Row(NamedTuple):
    """Panels below a heading; those of a collapsed row are asked for when it is opened."""

    title: str
    panels: Sequence[dashboard.Panel]
    collapsed: bool = False


def lay_out(
    name: str,
    description: str,
    rows: Sequence[Row],
    *,
    variables: Sequence[dashboard.VariableModel],
    annotations: Sequence[dashboard.AnnotationQuery] = (),
    since: str,
) -> dashboard.Dashboard:
    """Make a dashboard; it opens with the time range from ``since`` to now."""
    made = (
        builders.Dashboard(f"TraceJudge / {name}")
        .uid(UIDS[name])
        .description(description)
        .tags(["tracejudge"])
        .time(since, "now")
        .refresh("1m")
        .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
        .readonly()
        .build()
    )
    made.panels = []
    top = 0
    for place, row in enumerate(rows, start=1):
        # The id of a panel depends on its row alone, so that links to it stay valid when other rows grow.
        first = place * _IDS_PER_ROW
        heading = dashboard.GridPos(h=1, w=_WIDTH, x=0, y=top)
        shown = dashboard.RowPanel(row.collapsed, row.title, id_val=first, grid_pos=heading)
        made.panels.append(shown)
        bottom = _place(row.panels, top + 1)
        for number_in_row, panel in enumerate(row.panels, start=1):
            panel.id_val = first + number_in_row
        if row.collapsed:
            # Grafana keeps the panels within the row, and moves what follows when it is opened.
            shown.panels = list(row.panels)
            top += 1
        else:
            made.panels += row.panels
            top = bottom
    made.links = others(name)
    made.templating = dashboard.DashboardDashboardTemplating(list(variables))
    made.annotations = dashboard.AnnotationContainer(list(annotations))
    return made


def _place(panels: Sequence[dashboard.Panel], top: int) -> int:
    """Place each panel as high, then as far left as it fits; return where the next row begins."""
    floor = [top] * _WIDTH
    for panel in panels:
        position = panel.grid_pos or dashboard.GridPos()
        places = range(_WIDTH - position.w + 1)
        x = min(places, key=lambda place: (max(floor[place : place + position.w]), place))
        y = max(floor[x : x + position.w])
        floor[x : x + position.w] = [y + position.h] * position.w
        position.x, position.y = x, y
        panel.grid_pos = position
    return max(floor)
