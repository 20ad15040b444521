"""The variables of the dashboards, and what queries say to be bound by them.

``All`` stands for ``.*``, so that a series without a label is found as well. Alerts open dashboards with ``service``,
``environment`` and ``judge``: these names are fixed.
"""

from collections.abc import Iterable
from typing import Final

from grafana_foundation_sdk.builders.dashboard import CustomVariable, DatasourceVariable, QueryVariable
from grafana_foundation_sdk.models.dashboard import (
    DataSourceRef,
    VariableHide,
    VariableModel,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

__all__ = [
    "JUDGE",
    "JUDGED",
    "METRIC",
    "MODEL",
    "PROMETHEUS",
    "RATED",
    "SERIES",
    "SERVICE",
    "SPENT",
    "alerting",
    "choice",
    "data_source",
    "hidden",
    "labels",
]

PROMETHEUS: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")
SERVICE: Final = 'service=~"$service"'
JUDGE: Final = 'judge=~"$judge"'
JUDGED: Final = f"{SERVICE}, {JUDGE}"
SERIES: Final = f'{SERVICE}, environment=~"$environment", {JUDGE}'
METRIC: Final = 'metric=~"$metric"'
RATED: Final = f"{SERIES}, {METRIC}"
MODEL: Final = 'judge_model=~"$judge_model"'
SPENT: Final = f"{JUDGE}, {MODEL}"

_ALL: Final = ".*"
_LABELS: Final = {"judge_model": "Judge model"}


def alerting(names: Iterable[str]) -> str:
    """Bind alerts: those of what is chosen, and those that are about none of it."""
    return ", ".join(f'{name}=~"${name}|"' for name in names)


def data_source() -> VariableModel:
    """Let the person choose the Prometheus; the first that Grafana knows is taken."""
    return (
        DatasourceVariable("datasource")
        .type("prometheus")
        .label("Data source")
        .description("The Prometheus that scrapes the workers.")
        .build()
    )


def labels(metric: str, *names: str) -> list[VariableModel]:
    """Offer the values that some labels of a metric have, each as far as those before it leave any."""
    variables: list[VariableModel] = []
    for place, name in enumerate(names):
        before = ", ".join(f'{other}=~"${other}"' for other in names[:place])
        selected = f"{metric}{{{before}}}" if before else metric
        variables.append(_several(name, f"label_values({selected}, {name})"))
    return variables


def hidden(name: str, query: str, regex: str) -> VariableModel:
    """Make a variable that only panels see: one panel for each value, in the order of the query."""
    variable = (
        QueryVariable(name)
        .query(query)
        .regex(regex)
        .datasource(PROMETHEUS)
        .hide(VariableHide.HIDE_VARIABLE)
        .multi(multi=True)
        .include_all(include_all=True)
        .current(VariableOption(selected=True, text=["All"], value=["$__all"]))
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.DISABLED)
        .build()
    )
    # Its values hang on the others; one that a link carried along would be a panel without data.
    variable.skip_url_sync = True
    return variable


def choice(name: str, label: str, values: Iterable[str], chosen: str, description: str) -> VariableModel:
    """Offer some values, one of which is chosen."""
    listed = list(values)
    options = [VariableOption(selected=value == chosen, text=value, value=value) for value in listed]
    return (
        CustomVariable(name)
        .label(label)
        .description(description)
        .values(",".join(listed))
        .options(options)
        .current(VariableOption(selected=True, text=chosen, value=chosen))
        .build()
    )


def _several(name: str, query: str) -> VariableModel:
    return (
        QueryVariable(name)
        .label(_LABELS.get(name, name.capitalize()))
        .query(query)
        .datasource(PROMETHEUS)
        .multi(multi=True)
        .include_all(include_all=True)
        .all_value(_ALL)
        .current(VariableOption(selected=True, text=["All"], value=["$__all"]))
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .build()
    )
