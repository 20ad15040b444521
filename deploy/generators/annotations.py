"""What an alert says: its labels, and templates that Prometheus fills in.

Figures are asked for when the alert is written. A query that finds nothing leaves a question mark; none fails on NaN.
"""

from collections.abc import Iterable, Mapping
from typing import Final, Literal

from deploy.generators.table import Table

__all__ = ["Kind", "Severity", "about", "annotations", "figure", "labels", "since", "total"]

Severity = Literal["page", "ticket", "info"]
Kind = Literal["quality", "watcher", "info"]
Form = Literal["percent", "count", "points", "rate", "moment", "duration"]

_DASHBOARDS: Final = ("quality", "pipeline", "cost")
_VARIABLES: Final = ("service", "environment", "judge")
_FORMS: Final[Mapping[Form, tuple[float, str]]] = {
    "percent": (0.001, "humanizePercentage"),
    "count": (1, 'printf "%.0f"'),
    "points": (0.1, 'printf "%.1f"'),
    "rate": (0.1, 'printf "%.1f"'),
    "moment": (1, "humanizeTimestamp"),
    "duration": (1, "humanizeDuration"),
}


def labels(severity: Severity, kind: Kind) -> dict[str, str]:
    """Name the labels that routes and inhibitions go by."""
    return {"severity": severity, "kind": kind, "component": "tracejudge"}


def annotations(
    alert: str, dashboard: str, table: Table, *, summary: str, description: str, labels: Iterable[str] = ()
) -> dict[str, str]:
    """Put the four annotations together.

    Args:
        labels: What the alert bears of the dashboard's variables, which it is opened with.
    """
    if dashboard not in _DASHBOARDS:
        raise ValueError(f"no dashboard {dashboard}")
    filled = "&".join(f"var-{name}={{{{ $labels.{name} | urlquery }}}}" for name in _VARIABLES if name in labels)
    address = f"{table.grafana_base}/d/tracejudge-{dashboard}/tracejudge-{dashboard}"
    return {
        "summary": summary,
        "description": description,
        "runbook_url": f"{table.runbook_base}/{alert}.md",
        "dashboard_url": f"{address}?{filled}" if filled else address,
    }


def about(names: Iterable[str]) -> str:
    """Begin a template that asks for figures of the series that the alert is about."""
    listed = tuple(names)
    matchers = ",".join(f"{name}=%q" for name in listed)
    return f"{{{{ $series := printf `{matchers}` {' '.join(f'$labels.{name}' for name in listed)} }}}}"


def figure(metric: str, form: Form, shape: str = "{}") -> str:
    """Write the figure of a recorded series, after ``about``.

    Args:
        metric: Its name.
        form: How it reads.
        shape: What is done to it in PromQL.
    """
    before, after = shape.split("{}")
    return total(f"{before}{metric}{{", form, f"}}{after}", series=True)


def total(query: str, form: Form, rest: str = "", *, series: bool = False) -> str:
    """Write the figure that a query finds."""
    step, shown = _FORMS[form]
    asked = f"print `round({query}` $series `{rest}, {step})`" if series else f"`round({query}, {step})`"
    return f"{{{{ range query ({asked}) }}}}{{{{ .Value | {shown} }}}}{{{{ else }}}}?{{{{ end }}}}"


def since(alert: str) -> str:
    """Write since when the alert's condition has held, after ``about``; nothing while that is unknown."""
    query = f'print `ALERTS_FOR_STATE{{alertname="{alert}",` $series `}}`'
    return f"{{{{ range query ({query}) }}}} Since {{{{ .Value | humanizeTimestamp }}}}.{{{{ end }}}}"
