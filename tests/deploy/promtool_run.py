"""Run promtool's tests of rules: all scenes in one process, which reports each moment that differs."""

import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from worlds import World

_GROUPS = ("objectives", "shares", "pipeline", "quality", "watcher")


class Text(NamedTuple):
    """What an alert says."""

    summary: str
    description: str


Texts = Mapping[tuple[str, str, int], Sequence[Text]]
"""By alert, scene and minute what each of its expected alerts says, in their order."""


@dataclass(frozen=True)
class Fires:
    """An alert that fires: all of its own labels, and the annotations that are addresses."""

    labels: Mapping[str, str]
    addresses: Mapping[str, str]


class Case(NamedTuple):
    """The expected state of one alert at one moment of a scene."""

    alert: str
    kind: str
    scene: "Scene"
    minute: int

    @property
    def name(self) -> str:
        return f"{self.alert}-{self.kind}"


@dataclass
class Scene:
    """A world and its expected alerts by minute; all other alerts must not fire.

    `every` is the evaluation interval of rules: with five minutes a scene runs five times as fast.
    """

    name: str
    world: World
    interval: str = "1m"
    every: str = "1m"
    moments: dict[int, Mapping[str, Sequence[Fires]]] = field(default_factory=dict)
    cases: list[Case] = field(default_factory=list)

    def at(self, minute: int, firing: Mapping[str, Sequence[Fires]] | None = None, **kinds: Iterable[str]) -> "Scene":
        """Add the expected alerts of a minute; `kinds` are the kinds of test with the alerts that they cover."""
        self.moments[minute] = firing or {}
        self.cases += [Case(alert, kind, self, minute) for kind, alerts in kinds.items() for alert in alerts]
        return self

    def group(self, alerts: Iterable[str], texts: Texts) -> dict[str, Any]:
        """Write it as a group of promtool's tests, which expect these texts."""
        tests = [
            {
                "eval_time": f"{minute}m",
                "alertname": alert,
                "exp_alerts": _expected(firing.get(alert, ()), texts.get((alert, self.name, minute), ())),
            }
            for alert in alerts
            for minute, firing in self.moments.items()
        ]
        return {
            "name": self.name,
            "interval": self.interval,
            "input_series": self.world.input_series(),
            "alert_rule_test": tests,
        }


class Moment(NamedTuple):
    """A scene and a minute."""

    scene: str
    minute: int


def alert_names(rules: Iterable[Path]) -> list[str]:
    return sorted({rule["alert"] for rule in every_rule(rules) if "alert" in rule})


def every_rule(rules: Iterable[Path]) -> Iterator[dict[str, Any]]:
    for path in rules:
        for group in yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)["groups"]:
            yield from group["rules"]


def recordings_for(alerts: Path, recordings: Path, folder: Path) -> Path:
    """Write the recordings that the alerts of a file read, directly or not; the others would take half of the time."""
    document = yaml.safe_load(recordings.read_text(encoding="utf-8"))
    (group,), text = document["groups"], alerts.read_text(encoding="utf-8")
    # A recording stands behind those that it reads.
    for rule in reversed(group["rules"]):
        if rule["record"] in text:
            text += rule["expr"]
        else:
            group["rules"].remove(rule)
    path = folder / recordings.name
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def rules_of(part: str, rules: Path, folder: Path) -> list[Path]:
    """Return the files of rules that the scenes of a part need: of quality, the watcher, or the whole."""
    match part:
        case "quality":
            return [rules / name for name in ("shares.yaml", "quality.yaml", "watcher.yaml")]
        case "watcher":
            return [recordings_for(rules / "watcher.yaml", rules / "pipeline.yaml", folder), rules / "watcher.yaml"]
    return sorted(rules.glob("*.yaml"))


def run_scenes(
    promtool: str, rules: Sequence[Path], scenes: Iterable[Scene], folder: Path, texts: Texts
) -> dict[Moment, str]:
    """Run scenes; return the errors of promtool by moment.

    With TRACEJUDGE_ONE_ALERT only alerts whose names begin so, and the scenes that speak of them: for mutants.
    """
    alerts = alert_names(rules)
    if prefix := os.environ.get("TRACEJUDGE_ONE_ALERT"):
        alerts = [alert for alert in alerts if alert.startswith(prefix)]
        scenes = [scene for scene in scenes if any(case.alert in alerts for case in scene.cases)]
        rules = [_only(path, alerts, folder) for path in rules]
    if not alerts:
        return {}
    by_pace: dict[str, list[dict[str, Any]]] = {}
    for scene in scenes:
        by_pace.setdefault(scene.every, []).append(scene.group(alerts, texts))
    output = "".join(run_groups(promtool, rules, groups, folder, every) for every, groups in by_pace.items())
    failures: dict[Moment, str] = {}
    for part in re.split(r"(?=^ *name: )", output, flags=re.MULTILINE)[1:]:
        match = re.search(r"name: (.+?),\s+alertname: \w+, time: ([^,]+),", part)
        assert match, part
        moment = Moment(match[1], _minutes(match[2]))
        failures[moment] = failures.get(moment, "") + part
    assert failures or "FAILED" not in output, output
    return failures


def run_groups(
    promtool: str, rules: Sequence[Path], groups: Sequence[dict[str, Any]], folder: Path, every: str = "1m"
) -> str:
    """Run groups of promtool's tests with an evaluation interval; return its output."""
    document = {
        "rule_files": [str(path) for path in rules],
        "evaluation_interval": every,
        "group_eval_order": [f"tracejudge-{name}" for name in _GROUPS],
        "tests": list(groups),
    }
    path = folder / f"tests-{every}.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False, width=10_000), encoding="utf-8")
    ended = subprocess.run([promtool, "test", "rules", str(path)], capture_output=True, text=True, check=False)
    output = ended.stdout + ended.stderr
    assert ended.returncode == 0 or "FAILED" in output, output
    return output


def _only(path: Path, alerts: Sequence[str], folder: Path) -> Path:
    """Write a file of rules without other alerts."""
    document = yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)
    for group in document["groups"]:
        group["rules"] = [rule for rule in group["rules"] if rule.get("alert", alerts[0]) in alerts]
    document["groups"] = [group for group in document["groups"] if group["rules"]]
    written = folder / f"only-{path.name}"
    written.write_text(yaml.dump(document, Dumper=yaml.CSafeDumper), encoding="utf-8")
    return written


def _expected(firing: Sequence[Fires], texts: Sequence[Text]) -> list[dict[str, Any]]:
    said = [*texts, *[Text("not in alert_texts.md", "")] * (len(firing) - len(texts))]
    return [
        {"exp_labels": dict(alert.labels), "exp_annotations": {**alert.addresses, **text._asdict()}}
        for alert, text in zip(firing, said, strict=True)
    ]


def _minutes(duration: str) -> int:
    amounts = re.findall(r"(\d+)([wdhms])", duration)
    return sum(int(amount) * {"w": 10080, "d": 1440, "h": 60, "m": 1, "s": 0}[unit] for amount, unit in amounts)
