"""Links between the dashboards, and to the runbooks of the alerts that a panel explains."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from grafana_foundation_sdk.models.dashboard import DashboardLink, DashboardLinkType

from deploy.generators.table import Table

__all__ = ["UIDS", "Runbooks", "address", "data_link", "others", "runbooks"]

UIDS: Final[Mapping[str, str]] = {
    "Quality": "tracejudge-quality",
    "Pipeline": "tracejudge-pipeline",
    "Cost": "tracejudge-cost",
}


class Runbooks(NamedTuple):
    """Where the runbooks of some alerts are, by alert."""

    addresses: Mapping[str, str]

    @property
    def links(self) -> list[DashboardLink]:
        """Link to those that have an address of the web; a path in the repository leads nowhere from Grafana."""
        return [
            DashboardLink(
                title=f"Runbook: {alert}",
                type_val=DashboardLinkType.LINK,
                icon="doc",
                url=where,
                target_blank=True,
            )
            for alert, where in self.addresses.items()
            if where.startswith("http")
        ]

    @property
    def text(self) -> str:
        """Name them below a description; empty without any."""
        return f"\n\nRunbooks: {', '.join(self.addresses.values())}" if self.addresses else ""


def runbooks(table: Table, *alerts: str) -> Runbooks:
    """Tell where the runbooks of alerts are."""
    return Runbooks({alert: f"{table.runbook_base}/{alert}.md" for alert in alerts})


def address(name: str) -> str:
    """Write where a dashboard is, from the root of Grafana."""
    return f"/d/{UIDS[name]}/{UIDS[name]}"


def others(name: str) -> list[DashboardLink]:
    """Link to the other dashboards; time and variables come along."""
    return [
        DashboardLink(
            title=other,
            type_val=DashboardLinkType.LINK,
            icon="dashboard",
            tooltip=f"TraceJudge / {other}",
            url=address(other),
            include_vars=True,
            keep_time=True,
        )
        for other in UIDS
        if other != name
    ]


def data_link(title: str, name: str, variables: Sequence[str]) -> dict[str, object]:
    """Link from a row of a table to a dashboard, with the variables of that row."""
    filled = "".join(f"&var-{variable}=${{__data.fields.{variable}}}" for variable in variables)
    return {"title": title, "url": f"{address(name)}?${{__url_time_range}}&${{datasource:queryparam}}{filled}"}
