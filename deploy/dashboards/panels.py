"""The kinds of panels. Each comes with a title, a description, a unit and what it says without data."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypedDict, Unpack

from grafana_foundation_sdk.builders import bargauge, common, heatmap, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.models import common as kinds
from grafana_foundation_sdk.models import dashboard
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode

from deploy.dashboards.layout import WIDTH
from deploy.dashboards.links import Runbooks
from deploy.dashboards.queries import Query, targets
from deploy.dashboards.variables import PROMETHEUS

__all__ = ["Bound", "Frame", "Repeated", "bars", "graph", "heat_map", "named", "number", "override", "rows", "states"]


class Bound(NamedTuple):
    """From which value on a panel has another colour."""

    at: float
    color: str


class Frame(TypedDict, total=False):
    """What panels of every kind have.

    Attributes:
        unit: As Grafana names it.
        bounds: Colours from some values on; below them it is ``base``, green unless set.
        no_data: What stands there when nothing was found.
        runbooks: Those of the alerts that this panel explains.
        size: Width, of 24, and height.
        repeat: The variable for each of whose values there is such a panel.
        interval: How far at least the points of a graph lie apart.
    """

    unit: str
    decimals: int
    least: float
    most: float
    bounds: Sequence[Bound]
    base: str
    no_data: str
    runbooks: Runbooks
    size: tuple[int, int]
    repeat: str
    interval: str
    overrides: Sequence[dashboard.DashboardFieldConfigSourceOverrides]


class Repeated(dashboard.Panel):
    """A panel for each value of a variable; the SDK's model leaves out how many of them stand beside each other."""

    def to_json(self) -> dict[str, object]:
        """Write it with as many as have room: unless told, Grafana presses four into a row, whatever their width."""
        width = self.grid_pos.w if self.grid_pos else WIDTH
        return {**super().to_json(), "maxPerRow": WIDTH // width}


def graph(
    title: str,
    description: str,
    *queries: Query,
    stacked: bool | str = False,
    as_bars: bool = False,
    **frame: Unpack[Frame],
) -> dashboard.Panel:
    """Draw lines, or areas upon each other; ``stacked="percent"`` makes them shares of the whole."""
    filled = 60 if stacked else 0
    panel = (
        timeseries.Panel()
        .targets(targets(queries))
        .legend(_legend())
        .tooltip(common.VizTooltipOptions().mode(kinds.TooltipDisplayMode.MULTI).sort(kinds.SortOrder.DESCENDING))
        .draw_style(kinds.GraphDrawStyle.BARS if as_bars else kinds.GraphDrawStyle.LINE)
        .fill_opacity(80 if as_bars else filled)
        .line_width(1)
        .show_points(kinds.VisibilityMode.AUTO)
        .color_scheme(_colors(dashboard.FieldColorModeId.PALETTE_CLASSIC))
    )
    if stacked:
        mode = kinds.StackingMode.PERCENT if stacked == "percent" else kinds.StackingMode.NORMAL
        panel = panel.stacking(common.StackingConfig().mode(mode).group("A"))
    if frame.get("bounds"):
        panel = panel.thresholds_style(common.GraphThresholdsStyleConfig().mode(kinds.GraphTresholdsStyleMode.DASHED))
    return _framed(panel.build(), title, description, frame)


def number(title: str, description: str, *queries: Query, **frame: Unpack[Frame]) -> dashboard.Panel:
    """Show figures of this moment, on a ground that tells whether they are well."""
    panel = (
        stat.Panel()
        .targets(targets(queries))
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(values=False))
        .color_mode(kinds.BigValueColorMode.BACKGROUND if frame.get("bounds") else kinds.BigValueColorMode.NONE)
        .graph_mode(kinds.BigValueGraphMode.NONE)
        .text_mode(kinds.BigValueTextMode.AUTO)
        .color_scheme(_colors(dashboard.FieldColorModeId.THRESHOLDS))
    )
    return _framed(panel.build(), title, description, frame)


def states(
    title: str, description: str, query: Query, names: Mapping[float, tuple[str, str]], **frame: Unpack[Frame]
) -> dashboard.Panel:
    """Show which state each series was in; a state is a value with its name and colour."""
    panel = (
        statetimeline.Panel()
        .targets(targets([query]))
        .show_value(kinds.VisibilityMode.NEVER)
        .row_height(0.8)
        .line_width(0)
        .fill_opacity(70)
        .mappings([named(names)])
        .legend(_legend())
        .color_scheme(_colors(dashboard.FieldColorModeId.THRESHOLDS))
    )
    return _framed(panel.build(), title, description, frame)


def bars(title: str, description: str, *queries: Query, **frame: Unpack[Frame]) -> dashboard.Panel:
    """Lay figures below each other as bars."""
    panel = (
        bargauge.Panel()
        .targets(targets(queries))
        .orientation(kinds.VizOrientation.HORIZONTAL)
        .display_mode(kinds.BarGaugeDisplayMode.BASIC)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(values=False))
        .color_scheme(_colors(dashboard.FieldColorModeId.THRESHOLDS))
    )
    return _framed(panel.build(), title, description, frame)


def heat_map(title: str, description: str, query: Query, **frame: Unpack[Frame]) -> dashboard.Panel:
    """Show how values spread over buckets; a point upon it is a trace."""
    panel = (
        heatmap.Panel()
        .targets(targets([query]))
        .calculate(calculate=False)
        .color(heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Blues").steps(32))
        .cell_values(heatmap.CellValues().unit(frame["unit"]).decimals(frame.get("decimals", 0)))
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
    """Join what queries found into a table.

    Args:
        columns: The labels and values to show, in this order, with their names; of one query the value is ``Value``,
            of several ``Value #A`` and so on. Queries must be aggregated to these labels: rows that differ in anything
            else, be it the metric's name, are not joined.
        sort: The name of the column to sort by.
    """
    panel = (
        table.Panel()
        .targets(targets(query._replace(form="rows") for query in queries))
        .transformations([dashboard.DataTransformerConfig("merge", options={}), _arranged(columns)])
        .sort_by([common.TableSortByFieldState().display_name(sort).desc(desc=descending)])
        .color_scheme(_colors(dashboard.FieldColorModeId.THRESHOLDS))
    )
    return _framed(panel.build(), title, description, frame)


def override(name: str, **properties: object) -> dashboard.DashboardFieldConfigSourceOverrides:
    """Set properties of one series or column apart; ``custom_lineWidth`` is Grafana's ``custom.lineWidth``."""
    values = [dashboard.DynamicConfigValue(key.replace("_", "."), value) for key, value in properties.items()]
    return dashboard.DashboardFieldConfigSourceOverrides(dashboard.MatcherConfig("byName", name), values)


def named(names: Mapping[float, tuple[str, str]]) -> dashboard.ValueMap:
    """Give values names and colours."""
    return dashboard.ValueMap(
        {
            f"{value:g}": dashboard.ValueMappingResult(text=text, color=color, index=place)
            for place, (value, (text, color)) in enumerate(names.items())
        }
    )


def _arranged(columns: Mapping[str, str]) -> dashboard.DataTransformerConfig:
    """Put columns in their order, under their names; what is left out is only the time, for older Grafanas' sake."""
    return dashboard.DataTransformerConfig(
        "organize",
        options={
            "excludeByName": {"Time": True},
            "indexByName": {name: place for place, name in enumerate(columns)},
            "renameByName": {name: shown for name, shown in columns.items() if name != shown},
        },
    )


def _framed(panel: dashboard.Panel, title: str, description: str, frame: Frame) -> dashboard.Panel:
    """Set what panels of every kind have."""
    runbooks = frame.get("runbooks", Runbooks({}))
    width, height = frame.get("size", (8, 8))
    panel.title, panel.description = title, description + runbooks.text
    panel.links = runbooks.links or None
    panel.datasource = PROMETHEUS
    panel.grid_pos = dashboard.GridPos(h=height, w=width)
    panel.interval, panel.repeat = frame.get("interval"), frame.get("repeat")
    panel.field_config.overrides = list(frame.get("overrides", ()))
    defaults = panel.field_config.defaults
    defaults.unit, defaults.decimals = frame["unit"], frame.get("decimals")
    defaults.min_val, defaults.max_val = frame.get("least"), frame.get("most")
    defaults.no_value = frame.get("no_data", "Nothing in this time range")
    defaults.thresholds = _steps(frame.get("bounds", ()), frame.get("base", "green"))
    return Repeated(**vars(panel)) if panel.repeat else panel


def _steps(bounds: Iterable[Bound], base: str) -> dashboard.ThresholdsConfig:
    found = [dashboard.Threshold(None, base), *(dashboard.Threshold(bound.at, bound.color) for bound in bounds)]
    return dashboard.ThresholdsConfig(dashboard.ThresholdsMode.ABSOLUTE, found)


def _legend() -> common.VizLegendOptions:
    return (
        common.VizLegendOptions()
        .show_legend(show_legend=True)
        .display_mode(kinds.LegendDisplayMode.LIST)
        .placement(kinds.LegendPlacement.BOTTOM)
    )


def _colors(mode: dashboard.FieldColorModeId) -> builders.FieldColor:
    return builders.FieldColor().mode(mode)
