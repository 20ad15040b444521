"""The alerting rules, built from the table ``alerts.toml`` and the settings of ``prometheus/objectives.toml``.

Figures in annotations are queried when the alert is written. A query without a result shows a question mark.
"""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from deploy.rules.promql import RATED, SERIES, Rule, TimeScale, but_members, by, full_increase
from deploy.rules.table import Burn, Table, seconds

PATH: Final = Path(__file__).with_name("alerts.toml")
_FORMS: Final[Mapping[str, tuple[float, str]]] = {
    "percent": (0.001, "humanizePercentage"),
    "count": (1, 'printf "%.0f"'),
    "points": (0.1, 'printf "%.1f"'),
    "rate": (0.1, 'printf "%.1f"'),
}
_GAUGES: Final = ("share", "upper", "judgements")
_DURATIONS: Final = ("window", "baseline", "for", "keep_firing_for")
_INNERMOST: Final = re.compile(r"<<((?:(?!<<|>>).)*)>>", re.DOTALL)
_PLACEHOLDER: Final = re.compile(r"(\w+)(?:\(([^)]*)\))?(?: (.*))?", re.DOTALL)


class Alert(Struct, frozen=True, forbid_unknown_fields=True):
    """A row of the table; its texts hold placeholders, as the head of ``alerts.toml`` says.

    Severity and ``keep_firing_for`` are those of its settings unless set here.
    """

    name: str
    # Rows of objectives.toml: one rule is made for each.
    settings: tuple[str, ...]
    expr: str
    summary: str
    description: str
    severity: Literal["page", "ticket", "info"] | None = None
    # Alertmanager inhibits alerts by this label.
    kind: Literal["quality", "watcher", "info"] = "watcher"
    dashboard: Literal["quality", "pipeline", "cost"] = "pipeline"
    # Labels that the dashboard is opened with.
    opens: tuple[str, ...] = ()
    keep_firing_for: str | None = None


class _AlertTable(Struct, frozen=True, forbid_unknown_fields=True):
    texts: dict[str, str]
    alerts: tuple[Alert, ...]


def make(table: Table, time: TimeScale, group: Literal["quality", "watcher"]) -> list[Rule]:
    """Make the alerting rules of one group: about quality, or about the watcher itself."""
    known = msgspec.convert(tomllib.loads(PATH.read_text(encoding="utf-8")), _AlertTable)
    texts = {name: _one_line(text) for name, text in known.texts.items()}
    rules = []
    for alert in (one for one in known.alerts if (one.kind == "quality") == (group == "quality")):
        opens = "&".join(f"var-{label}={{{{ $labels.{label} | urlquery }}}}" for label in alert.opens)
        address = f"{table.grafana_base}/d/tracejudge-{alert.dashboard}/tracejudge-{alert.dashboard}"
        for template in (_Template(table, time, path, texts) for path in alert.settings):
            name = template(alert.name)
            keep = template.values.get("keep_firing_for", "")
            if alert.keep_firing_for is not None:
                keep = template(alert.keep_firing_for)
            rule: Rule = {
                "alert": name,
                "expr": template(alert.expr.strip()),
                "for": template.values.get("for", "0s"),
                **({"keep_firing_for": keep} if keep else {}),
                # The labels that Alertmanager routes and inhibits by.
                "labels": {
                    "severity": alert.severity or template.values["severity"],
                    "kind": alert.kind,
                    "component": "tracejudge",
                },
                "annotations": {
                    "summary": template(_one_line(alert.summary), name),
                    "description": template(_one_line(alert.description), name),
                    "runbook_url": f"{table.runbook_base}/{name}.md",
                    "dashboard_url": f"{address}?{opens}" if opens else address,
                },
            }
            rules.append(rule)
    return rules


class _Template:
    """Fills in the placeholders of an alert for one row of settings."""

    def __init__(self, table: Table, time: TimeScale, path: str, texts: Mapping[str, str]) -> None:
        settings: Any = table
        for name in path.split("."):
            settings = settings[name] if isinstance(settings, dict) else getattr(settings, name)
        self._time = time
        self._window = getattr(settings, "window", "")
        self._texts = texts
        self.values = {
            "job": table.job,
            "min_judgements": str(table.min_judgements),
            "but_members": but_members(),
            "rated": ", ".join(RATED),
            "judged": ", ".join(SERIES),
        }
        for key, value in msgspec.to_builtins(settings).items():
            if key in _DURATIONS:
                self.values |= {key: time(value), f"{key}_name": value} if value else {}
            else:
                self.values[key] = f"{value:g}" if isinstance(value, float) else str(value)
            if key == "bound":
                self.values["bound_percent"] = f"{value:.0%}"
        if self._window:
            self.values["half_window_s"] = f"{time.seconds(self._window) / 2:g}"
            self.values["quarter_window"] = time(f"{seconds(self._window) / 4:.0f}s")
        if isinstance(settings, Burn):
            # The share below which a budget burns this fast.
            objective = by(RATED, 'tracejudge_quality_objective{segment=""}', "max")
            budget = f"(1 - {objective})"
            share = f"1 - {settings.factor:g} * {budget}"
            if any(name in row.factors for row in table.objectives):
                own = f"1 - {budget} * on (judge, metric) group_left () tracejudge:burn_factor_{name}"
                share = f"{own} or {share}"
            self.values |= {"speed": name.title(), "least_share": share}
            window = settings.window
            recorded = f"tracejudge:{{}}:{window}" if window else "<<now {}>>"
            names = ("pass_share", "pass_share_upper", "effective_judgements") if window else _GAUGES
            figure = f"max(tracejudge:pass_share:{window}{{}})" if window else "max(tracejudge_quality_share{})"
            length = f"the last {time(window)}" if window else "the last <<gauge_window>>"
            self.values |= {
                **{f"burn_{gauge}": recorded.format(name) for gauge, name in zip(_GAUGES, names, strict=True)},
                "burn_figure": figure,
                "burn_window": length,
                "burn_text": f"In {length} <<figure(percent) {figure}>> passed; now " if window else "",
            }

    def __call__(self, text: str, alert: str = "") -> str:
        """Replace all placeholders, the innermost first."""
        values = self.values | {"alert": alert}
        while found := _INNERMOST.search(text):
            text = text[: found.start()] + self._filled(found[1], values) + text[found.end() :]
        return text

    def _filled(self, placeholder: str, values: Mapping[str, str]) -> str:
        match = _PLACEHOLDER.fullmatch(placeholder)
        if match is None:
            raise ValueError(f"{PATH.name}: <<{placeholder}>> is no placeholder")
        name, argument, body = match[1], match[2] or "", match[3] or ""
        if name in values:
            return values[name]
        if name in self._texts:
            return self._texts[name].replace("<<argument>>", body)
        match name:
            case "time":
                filled = self._time(argument)
            case "sum" | "max":
                filled = by(argument.split(", "), body, name)
            case "increase":
                filled = full_increase(body, self._window, self._time)
                filled = by(argument.split(", "), filled) if argument else filled
            case "total":
                filled = _figure(f"`round({body}", argument)
            case "figure":
                # Recorded series have no segment, and an empty matcher accepts that.
                matched = body.replace("{}", '{` $series `,segment=""}')
                filled = _figure(f"print `round({matched}", argument)
            case _:
                raise ValueError(f"{PATH.name}: there is no placeholder {name!r}; the head of the file lists them all")
        return filled


def _figure(query: str, form: str) -> str:
    step, shown = _FORMS[form]
    return f"{{{{ range query ({query}, {step})`) }}}}{{{{ .Value | {shown} }}}}{{{{ else }}}}?{{{{ end }}}}"


def _one_line(text: str) -> str:
    return " ".join(text.strip().split("\n"))
