"""The expected alerts by their labels; what they say stands in alert_texts.md."""

from collections.abc import Mapping
from typing import Any

from promtool_run import Fires
from worlds import ENVIRONMENT, MODEL, SERVICE, VERSION

from deploy.rules.templates import runbook_url

BY_DASHBOARD = ("service", "environment", "judge")
RUNBOOKS = "http://localhost:3000/public/runbooks"


def fires(
    alert: str, severity: str, kind: str, *, dashboard: str = "pipeline", opens: tuple[str, ...] = (), **labels: str
) -> dict[str, list[Fires]]:
    """Expect one alert; `opens` are the labels in the address of its dashboard."""
    address = f"http://localhost:3000/d/tracejudge-{dashboard}/tracejudge-{dashboard}"
    variables = "&".join(f"var-{name}={labels[name]}" for name in opens)
    addresses = {
        "runbook_url": runbook_url(RUNBOOKS, alert),
        "dashboard_url": f"{address}?{variables}" if variables else address,
    }
    return {alert: [Fires({"severity": severity, "kind": kind, "component": "tracejudge", **labels}, addresses)]}


def of_series(alert: str, severity: str, kind: str = "quality", **labels: str) -> dict[str, list[Fires]]:
    """Expect one alert about a series."""
    series = {"service": SERVICE, "environment": ENVIRONMENT, "version": VERSION, "judge_model": MODEL}
    series |= {"judge": "groundedness", "metric": "groundedness"} | labels
    return fires(alert, severity, kind, dashboard="quality", opens=BY_DASHBOARD, **series)


def watcher(alert: str, severity: str, **more: Any) -> dict[str, list[Fires]]:
    """Expect one alert about the watcher; further arguments are those of `fires`."""
    return fires(alert, severity, "watcher", **more)


def together(*firing: Mapping[str, list[Fires]]) -> dict[str, list[Fires]]:
    """Expect several alerts."""
    merged: dict[str, list[Fires]] = {}
    for each in firing:
        for alert, ones in each.items():
            merged.setdefault(alert, []).extend(ones)
    return merged
