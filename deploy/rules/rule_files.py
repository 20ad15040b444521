"""The Prometheus rule files, generated from ``alerts.toml`` and ``prometheus/objectives.toml``.

Figures in annotations are queried when the alert is written. A query without a result shows a question mark.
"""

import tomllib
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import yaml
from msgspec import Struct

from deploy.rules import recordings
from deploy.rules.promql import Rule, TimeScale
from deploy.rules.table import FOLDER as _DEPLOY
from deploy.rules.table import Table, load
from deploy.rules.templates import Template, one_line, runbook_url
from worker.base.monitor.incidents import CAUSES

FOLDER: Final = _DEPLOY / "prometheus" / "rules"
_NOTE: Final = "# Written by `make generate` from deploy/prometheus/objectives.toml; change that, not this file.\n"


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as a literal block, and repeats a value instead of referring to it."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the library's signature
        return True


_Dumper.add_representer(
    str,
    lambda dumper, value: dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None),
)


def generate(table: Table | None = None, scale: float = 1.0) -> dict[str, str]:
    """Make all rule files, by name, from the committed table unless one is passed.

    The scale divides all durations, so that a test runs through an hour in seconds.
    """
    time, table = TimeScale(scale), table or load()
    files = {
        "shares": recordings.shares(table, time),
        "quality": {"quality": make_alerts(table, time, "quality")},
        "pipeline": {"pipeline": recordings.pipeline(table, time)},
        "watcher": {"watcher": make_alerts(table, time, "watcher")},
    }
    made = {}
    for file, groups in files.items():
        # A table without safety judges has no rules about them: their group is left out.
        named = ((f"tracejudge-{name}", rules) for name, rules in groups.items() if rules)
        document = {
            "groups": [{"name": name, "interval": time(table.interval), "rules": rules} for name, rules in named]
        }
        text = yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=10_000, allow_unicode=True)
        made[f"{file}.yaml"] = _NOTE + text
    return made


class Alert(Struct, frozen=True, forbid_unknown_fields=True):
    """A row of the table; its texts hold placeholders, as the head of ``alerts.toml`` says.

    Severity and ``keep_firing_for`` come from its settings unless set here.
    """

    name: str
    # Rows of objectives.toml: one rule is made for each.
    settings: tuple[str, ...]
    expr: str
    summary: str
    description: str
    first: str  # The first command to run.
    severity: Literal["page", "ticket", "info"] | None = None
    kind: Literal["quality", "watcher", "info"] = "watcher"  # Alertmanager inhibits alerts by this label.
    dashboard: Literal["quality", "pipeline", "cost"] = "pipeline"
    opens: tuple[str, ...] = ()  # Labels that the dashboard is opened with.
    keep_firing_for: str | None = None


class AlertTable(Struct, frozen=True, forbid_unknown_fields=True):
    """The whole table: fragments that several texts share, and the alerts."""

    texts: dict[str, str]
    alerts: tuple[Alert, ...]


@cache
def read_alerts() -> AlertTable:
    """Read the table."""
    return msgspec.convert(
        tomllib.loads(Path(__file__).with_name("alerts.toml").read_text(encoding="utf-8")), AlertTable
    )


def make_alerts(table: Table, time: TimeScale, group: Literal["quality", "watcher"]) -> list[Rule]:
    """Make the alerting rules of one group: about quality, or about the watcher itself."""
    texts = {name: one_line(text) for name, text in read_alerts().texts.items()}
    texts |= {f"cause_{name}": text.format(segment="{{ .Labels.segment }}") for name, text in CAUSES.items()}
    rules = []
    for alert in (row for row in read_alerts().alerts if (row.kind == "quality") == (group == "quality")):
        opens = "&".join(f"var-{label}={{{{ $labels.{label} | urlquery }}}}" for label in alert.opens)
        address = f"{table.grafana_base}/d/tracejudge-{alert.dashboard}/tracejudge-{alert.dashboard}"
        for template in (Template(table, time, path, texts) for path in alert.settings):
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
                    "summary": template(one_line(alert.summary), name),
                    "description": template(f"{one_line(alert.description)} First run `{alert.first}`.", name),
                    "runbook_url": runbook_url(table.runbook_base, name),
                    "dashboard_url": f"{address}?{opens}" if opens else address,
                },
            }
            rules.append(rule)
    return rules
