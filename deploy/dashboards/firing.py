"""What fires now, as every dashboard begins with; and what graphs are marked with."""

from collections.abc import Sequence
from typing import Final

from grafana_foundation_sdk.models import dashboard

from deploy.dashboards.links import data_link
from deploy.dashboards.panels import override, rows
from deploy.dashboards.queries import Query, per
from deploy.dashboards.variables import PROMETHEUS, SERIES, alerting
from deploy.generators.table import Table

__all__ = ["Marks", "alerts_marked", "alerts_now", "judges_marked"]

_SHOWN: Final = (
    "severity",
    "alertname",
    "service",
    "environment",
    "judge",
    "metric",
    "judge_model",
    "role",
    "exporter",
)
_PLACE: Final = ("service", "environment", "judge")
_SEVERITIES: Final = {"page": "red", "ticket": "orange", "info": "blue"}


class Marks(dashboard.AnnotationQuery):
    """An annotation of Prometheus, with those of its settings that the SDK's model leaves out."""

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
        """Write it as Grafana names its parts."""
        return {**super().to_json(), **self.settings}


def alerts_now(table: Table, bound_by: Sequence[str], size: tuple[int, int]) -> dashboard.Panel:
    """List what fires: the latest first, since when, with the way to its runbook.

    Args:
        bound_by: The variables that alerts with such labels are chosen by.
    """
    chosen = ", ".join(filter(None, ['component="tracejudge"', alerting(bound_by)]))
    since = f'ALERTS_FOR_STATE{{{chosen}}} and ignoring (alertstate) ALERTS{{alertstate="firing", {chosen}}}'
    with_runbook = f'label_replace(1000 * ({since}), "runbook", "{table.runbook_base}/$1.md", "alertname", "(.+)")'
    return rows(
        "What fires now",
        "Each alert that fires and since when; its runbook says what to look at first. An empty list is good news only "
        "while the watcher itself is well: see the figures beside it.",
        Query(per((*_SHOWN, "runbook"), with_runbook, "min")),
        columns={**{name: name for name in _SHOWN}, "Value": "since", "runbook": "runbook"},
        sort="since",
        descending=True,
        unit="dateTimeFromNow",
        no_data="Nothing fires",
        size=size,
        overrides=[_severity(), *_linked(table)],
    )


def alerts_marked(bound_by: Sequence[str]) -> Marks:
    """Mark the times in which alerts about quality fired, those between two points of a long time range as well."""
    chosen = ", ".join(['component="tracejudge", kind="quality", alertstate="firing"', alerting(bound_by)])
    names = ("alertname", "service", "environment", "judge", "metric")
    return Marks(
        "Quality alerts",
        per(names, f"max_over_time(ALERTS{{{chosen}}}[$__interval])", "max"),
        "red",
        title="{{alertname}}",
        text="{{service}} {{environment}} {{judge}} {{metric}}",
        tags="service,judge",
    )


def judges_marked() -> Marks:
    """Mark where a judge of a service got another version or model: a step there is the judge, not the service.

    What is new is so for one point of the graph, however far its points lie apart.
    """
    seen = f"max_over_time(tracejudge:evaluations:1h{{{SERIES}}}[1d] offset $__interval) > 0"
    changed = f"tracejudge:evaluations:1h{{{SERIES}}} > 0 unless {seen} and on ({', '.join(_PLACE)}) {seen}"
    return Marks(
        "Judges that changed",
        per(("judge", "version", "judge_model"), changed, "max"),
        "blue",
        title="{{judge}} changed",
        text="version {{version}} by {{judge_model}}",
        tags="judge",
    )


def _severity() -> dashboard.DashboardFieldConfigSourceOverrides:
    results = {
        name: dashboard.ValueMappingResult(color=color, index=place)
        for place, (name, color) in enumerate(_SEVERITIES.items())
    }
    return override(
        "severity",
        mappings=[dashboard.ValueMap(results)],
        custom_cellOptions={"type": "color-text"},
        custom_width=80,
    )


def _linked(table: Table) -> list[dashboard.DashboardFieldConfigSourceOverrides]:
    quality = override("service", links=[data_link("Quality of this service", "Quality", ("service",))])
    if not table.runbook_base.startswith("http"):
        return [quality]
    link = {"title": "Open the runbook", "url": "${__data.fields.runbook}", "targetBlank": True}
    return [quality, override("runbook", links=[link])]
