"""The Prometheus rules, generated from the tables ``prometheus/objectives.toml`` and ``rules/alerts.toml``."""

from typing import Final

from deploy.generated import yaml_text
from deploy.rules import alerts, recordings
from deploy.rules.promql import TimeScale
from deploy.rules.table import FOLDER as _DEPLOY
from deploy.rules.table import Table, load

FOLDER: Final = _DEPLOY / "prometheus" / "rules"
_NOTE: Final = "# Written by `make generate` from deploy/prometheus/objectives.toml; change that, not this file.\n"


def generate(table: Table | None = None, scale: float = 1.0) -> dict[str, str]:
    """Make all rule files, by name, from the committed table unless one is given.

    The scale divides all durations, so that a test runs through an hour in seconds.
    """
    time, table = TimeScale(scale), table or load()
    files = {
        "shares": recordings.shares(table, time),
        "quality": {"quality": alerts.make(table, time, "quality")},
        "pipeline": {"pipeline": recordings.pipeline(table, time)},
        "watcher": {"watcher": alerts.make(table, time, "watcher")},
    }
    made = {}
    for file, groups in files.items():
        # A table without safety judges has no rules about them: their group is left out.
        named = ((f"tracejudge-{name}", rules) for name, rules in groups.items() if rules)
        document = {
            "groups": [{"name": name, "interval": time(table.interval), "rules": rules} for name, rules in named]
        }
        made[f"{file}.yaml"] = _NOTE + yaml_text(document)
    return made
