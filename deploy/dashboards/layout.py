"""Put panels and rows onto a dashboard: where each stands, its number, and what all dashboards share."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.models import dashboard

from deploy.dashboards.links import UIDS, others

__all__ = ["WIDTH", "Row", "lay_out"]

WIDTH: Final = 24
_IDS_OF_A_ROW: Final = 100


class Row(NamedTuple):
    """Panels below a heading."""

    title: str
    panels: Sequence[dashboard.Panel]


def lay_out(
    name: str,
    description: str,
    rows: Sequence[Row],
    *,
    variables: Sequence[dashboard.VariableModel],
    annotations: Sequence[dashboard.AnnotationQuery] = (),
    since: str,
) -> dashboard.Dashboard:
    """Make a dashboard.

    Args:
        name: One of ``links.UIDS``.
        since: The time range it opens with, up to now.
    """
    made = (
        Dashboard(f"TraceJudge / {name}")
        .uid(UIDS[name])
        .description(description)
        .tags(["tracejudge"])
        .time(since, "now")
        .refresh("1m")
        .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
        .readonly()
        .build()
    )
    made.panels = _placed(rows)
    made.links = others(name)
    made.templating = dashboard.DashboardDashboardTemplating(list(variables))
    made.annotations = dashboard.AnnotationContainer(list(annotations))
    return made


def _placed(rows: Sequence[Row]) -> list[dashboard.Panel | dashboard.RowPanel]:
    """Place rows below each other. A panel's number hangs on its row alone, so that links to it last."""
    found: list[dashboard.Panel | dashboard.RowPanel] = []
    top = 0
    for number, row in enumerate(rows, start=1):
        heading = dashboard.GridPos(h=1, w=WIDTH, x=0, y=top)
        first = number * _IDS_OF_A_ROW
        found.append(dashboard.RowPanel(title=row.title, id_val=first, grid_pos=heading))
        top = _fill(row.panels, top + 1)
        for place, panel in enumerate(row.panels, start=1):
            panel.id_val = first + place
            found.append(panel)
    return found


def _fill(panels: Sequence[dashboard.Panel], top: int) -> int:
    """Put each panel where it fits highest, then leftmost; tell where the next row begins."""
    floor = [top] * WIDTH
    for panel in panels:
        position = panel.grid_pos or dashboard.GridPos()
        places = range(WIDTH - position.w + 1)
        x = min(places, key=lambda place: (max(floor[place : place + position.w]), place))
        y = max(floor[x : x + position.w])
        floor[x : x + position.w] = [y + position.h] * position.w
        position.x, position.y = x, y
        panel.grid_pos = position
    return max(floor)
