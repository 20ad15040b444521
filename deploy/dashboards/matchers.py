"""Variables of the dashboards, the matchers that bind queries to them, and links between dashboards and to runbooks.

``All`` stands for ``.*``, so that a series without the label matches as well. Alerts open dashboards with ``service``,
``environment`` and ``judge``: these names are fixed.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from grafana_foundation_sdk.builders.dashboard import CustomVariable, DatasourceVariable, QueryVariable
from grafana_foundation_sdk.models.dashboard import (
    DashboardLink,
    DashboardLinkType,
    DataSourceRef,
    VariableHide,
    VariableModel,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from deploy.rules.table import Table

PROMETHEUS: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")
SERVICE: Final = 'service=~"$service"'
JUDGE: Final = 'judge=~"$judge"'
JUDGED: Final = f"{SERVICE}, {JUDGE}"
SERIES: Final = f'{SERVICE}, environment=~"$environment", {JUDGE}'
METRIC: Final = 'metric=~"$metric"'
RATED: Final = f"{SERIES}, {METRIC}"
MODEL: Final = 'judge_model=~"$judge_model"'
SPENT: Final = f"{JUDGE}, {MODEL}"
UIDS: Final[Mapping[str, str]] = {
    "Quality": "tracejudge-quality",
    "Pipeline": "tracejudge-pipeline",
    "Cost": "tracejudge-cost",
}
_LABELS: Final = {"judge_model": "Judge model"}
_ALL: Final = VariableOption(selected=True, text=["All"], value=["$__all"])


def alerting(names: Iterable[str]) -> str:
    """Match alerts with the chosen labels, and alerts without these labels."""
    return ", ".join(f'{name}=~"${name}|"' for name in names)


def data_source() -> VariableModel:
    """Make the variable that selects the Prometheus; by default the first that Grafana knows."""
    variable = DatasourceVariable("datasource").type("prometheus").label("Data source")
    return variable.description("The Prometheus that scrapes the workers.").build()


def labels(metric: str, *names: str) -> list[VariableModel]:
    """Make variables for labels of a metric; each offers the values that the choices before it leave."""
    variables: list[VariableModel] = []
    for place, name in enumerate(names):
        before = ", ".join(f'{other}=~"${other}"' for other in names[:place])
        selected = f"{metric}{{{before}}}" if before else metric
        variable = _several(name, f"label_values({selected}, {name})", VariableSort.ALPHABETICAL_ASC)
        variables.append(variable.label(_LABELS.get(name, name.capitalize())).all_value(".*").build())
    return variables


def hidden(name: str, query: str, regex: str) -> VariableModel:
    """Make a hidden variable that repeats a panel for each value, in the order of the query."""
    variable = _several(name, query, VariableSort.DISABLED).regex(regex).hide(VariableHide.HIDE_VARIABLE).build()
    # Its values depend on the other variables: a value taken over from a link would be a panel without data.
    variable.skip_url_sync = True
    return variable


def _several(name: str, query: str, sort: VariableSort) -> QueryVariable:
    variable = QueryVariable(name).query(query).datasource(PROMETHEUS).sort(sort).current(_ALL)
    return variable.multi(multi=True).include_all(include_all=True).refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)


def choice(name: str, label: str, values: Iterable[str], chosen: str, description: str) -> VariableModel:
    """Make a variable with fixed values."""
    listed = list(values)
    options = [VariableOption(selected=value == chosen, text=value, value=value) for value in listed]
    variable = CustomVariable(name).label(label).description(description).values(",".join(listed)).options(options)
    return variable.current(VariableOption(selected=True, text=chosen, value=chosen)).build()


def runbooks(table: Table, *alerts: str) -> Mapping[str, str]:
    """Return the addresses of the runbooks of alerts, by alert."""
    return {alert: f"{table.runbook_base}/{alert}.md" for alert in alerts}


def _address(name: str) -> str:
    return f"/d/{UIDS[name]}/{UIDS[name]}"


def others(name: str) -> list[DashboardLink]:
    """Link to the other dashboards, with the same time range and variables."""
    return [
        DashboardLink(
            title=other,
            type_val=DashboardLinkType.LINK,
            icon="dashboard",
            tooltip=f"TraceJudge / {other}",
            url=_address(other),
            include_vars=True,
            keep_time=True,
        )
        for other in UIDS
        if other != name
    ]


def data_link(title: str, name: str, variables: Sequence[str]) -> dict[str, object]:
    """Link from a row of a table to a dashboard, with the variables of that row."""
    filled = "".join(f"&var-{variable}=${{__data.fields.{variable}}}" for variable in variables)
    return {"title": title, "url": f"{_address(name)}?${{__url_time_range}}&${{datasource:queryparam}}{filled}"}
