"""Scenes of the alerts, from data/alert_scenes.toml, as promtool plays them; and the texts of the alerts that fire.

The texts are a golden file, `data/alert_texts.md`, to be read by a person.
"""

import os
import re
import subprocess
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from deploy.rules.templates import runbook_url

RUNBOOKS: Final = "http://localhost:3000/public/runbooks"
_DATA: Final = Path(__file__).parent / "data"
_TABLE: Final = tomllib.loads((_DATA / "alert_scenes.toml").read_text(encoding="utf-8"))
_TEXTS: Final = _DATA / "alert_texts.md"
_HEAD: Final = """# What the alerts say

Written by `UPDATE_GOLDEN=1 pytest tests/deploy/test_alerts.py -k scenes`, from what promtool renders. Each text says a
figure, its interval or bound, since when, what it was compared with, and the first command to run.
"""
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ORDER: Final = [f"tracejudge-{name}" for name in ("objectives", "shares", "pipeline", "quality", "watcher")]
# Names of other exporters than ours.
_OTHERS: Final = ("up{", "process_", "tracejudge:")


class Alert(NamedTuple):
    """An alert that fires."""

    name: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]


class Text(NamedTuple):
    """What an alert says."""

    summary: str
    description: str


Texts = dict[tuple[str, str, int], list[Text]]
"""By alert, scene and minute what each of its expected alerts says, in their order."""


class Moment(NamedTuple):
    """The kinds of test that a minute of a scene is, each with its alerts, and all alerts that fire then."""

    minute: int
    kinds: Mapping[str, list[str]]
    firing: list[Alert]


class Scene(NamedTuple):
    part: str
    name: str
    interval: str
    every: str
    series: list[dict[str, str]]
    moments: list[Moment]
    recorded: Mapping[str, Any]
    """The window and the steps of which rules record the share."""


def scenes(*parts: str) -> list[Scene]:
    """Read the scenes of some parts."""
    return [_scene(row) for row in _TABLE["scenes"] if row["part"] in parts]


def _input_series(row: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the series of a scene in promtool's own form."""
    series: dict[tuple[str, frozenset[tuple[str, str]]], dict[str, str]] = {}
    worlds = [{"name": "worker"}] if row.get("worker", True) else []
    worlds += [world if isinstance(world, dict) else {"name": world} for world in row.get("worlds", ())]
    texts = [(_TABLE["worlds"][world["name"]], world) for world in worlds] + [({"series": row.get("series", "")}, {})]
    for world, arguments in texts:
        for line in _filled(world["series"], {**world, **arguments}).replace("\\\n", "").strip().splitlines():
            name, labels, values = line.partition("{")[0], dict(_LABEL.findall(line)), line.rpartition("} ")[2]
            pairs = ", ".join(f'{label}="{value}"' for label, value in labels.items())
            selector = f"{'' if line.startswith(_OTHERS) else 'tracejudge_'}{name}{{{pairs}}}"
            own = {"series": selector, "values": " ".join(map(_expanded, values.split()))}
            series[name, frozenset(labels.items())] = own
    return [each for each in series.values() if each["values"] != "-"]


def _group_names(names: Iterable[str]) -> list[str]:
    """Write out the groups of alerts."""
    return [
        alert
        for name in names
        for alert in (_group_names(_TABLE["groups"][name[1:]]) if name[0] == "$" else [f"TraceJudge{name}"])
    ]


def _scene(row: Mapping[str, Any]) -> Scene:
    moments = [
        Moment(
            moment["minute"],
            {kind: _group_names(moment[kind]) for kind in moment.keys() - {"minute", "firing"}},
            [_alert(_TABLE["firing"][name]) for name in moment.get("firing", ())],
        )
        for moment in row["at"]
    ]
    pace = row.get("interval", "1m"), row.get("every", "1m")
    return Scene(row["part"], row["name"], *pace, _input_series(row), moments, row.get("recorded", {}))


def _alert(row: Mapping[str, str]) -> Alert:
    alert, dashboard = f"TraceJudge{row['alert']}", row.get("dashboard", "pipeline")
    own = dict(_LABEL.findall(_filled(row.get("labels", ""), {})))
    opens = row.get("opens", "service environment judge" if dashboard == "quality" else "")
    variables = "&".join(f"var-{name}={own[name]}" for name in opens.split())
    address = f"http://localhost:3000/d/tracejudge-{dashboard}/tracejudge-{dashboard}"
    addresses = {
        "runbook_url": runbook_url(RUNBOOKS, alert),
        "dashboard_url": f"{address}?{variables}" if variables else address,
    }
    own |= {"severity": row["severity"], "kind": row.get("kind", "watcher"), "component": "tracejudge"}
    return Alert(alert, own | {"alertname": alert}, addresses)


def _filled(text: str, names: Mapping[str, Any]) -> str:
    known = {**_TABLE["text"], **names}
    while "$" in text:
        text = re.sub(r"\$([A-Z_]+)", lambda match: known[match[1]], text)
    return text


def _expanded(part: str) -> str:
    """Convert `1x5` to the notation of promtool, which requires a step: `1+0x4`."""
    value, times, count = part.partition("x")
    if not times or value == "_":
        return part
    return f"{value if '+' in value else f'{value}+0'}x{int(count) - 1}"


# --- playing ---


def every_rule(rules: Iterable[Path]) -> Iterator[dict[str, Any]]:
    for path in rules:
        for group in yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)["groups"]:
            yield from group["rules"]


def alert_names(rules: Iterable[Path]) -> list[str]:
    return sorted({rule["alert"] for rule in every_rule(rules) if "alert" in rule})


def rules_of(part: str, rules: Path) -> list[Path]:
    """Return the files of rules that the scenes of a part need: of quality, the watcher, or the whole."""
    names = {"quality": ("shares", "quality", "watcher"), "watcher": ("pipeline", "watcher")}.get(part)
    return [rules / f"{name}.yaml" for name in names] if names else sorted(rules.glob("*.yaml"))


def play(
    promtool: str, rules: Sequence[Path], played: Sequence[Scene], folder: Path, *, all_rules: bool
) -> Iterator[tuple[Scene, Moment, list[Alert]]]:
    """Yield the alerts that fire at each moment.

    Without ``all_rules`` those of the alerts that a scene names, which takes a third of the time. With
    TRACEJUDGE_ONE_ALERT only alerts whose names begin so, and the scenes that speak of them: for mutants.
    """
    runs: dict[tuple[str, tuple[str, ...]], list[Scene]] = defaultdict(list)
    prefix = os.environ.get("TRACEJUDGE_ONE_ALERT", "")
    known = alert_names(rules)
    for scene in played:
        named = {name for moment in scene.moments for names in moment.kinds.values() for name in names}
        named |= {alert.name for moment in scene.moments for alert in moment.firing}
        alerts = [name for name in known if name.startswith(prefix) and (all_rules or name in named)]
        if not prefix or named & {*alerts}:
            runs[scene.every, tuple(alerts)].append(scene)
    for (every, alerts), some in runs.items():
        chosen = list(rules) if all_rules and not prefix else _only(rules, alerts, folder)
        output = run_groups(promtool, chosen, [_group(scene, alerts) for scene in some], folder, every)
        firing: dict[tuple[str, int], list[Alert]] = defaultdict(list)
        parts = re.split(r"(?=^ *name: )", output, flags=re.MULTILINE)[1:]
        assert parts or "FAILED" not in output, output
        for part in parts:
            match = re.search(r"name: (.+?),\s+alertname: (\w+), time: ([^,]+),", part)
            assert match, part
            firing[match[1], _minutes(match[3])] += _rendered(match[2], part)
        for scene in some:
            for moment in scene.moments:
                expected = [alert for alert in moment.firing if alert.name in alerts]
                yield scene, moment._replace(firing=expected), firing[scene.name, moment.minute]


def run_groups(
    promtool: str, rules: Sequence[Path], groups: Sequence[dict[str, Any]], folder: Path, every: str = "1m"
) -> str:
    """Run groups of promtool's tests with an evaluation interval; return its output."""
    document = {"rule_files": [str(path) for path in rules], "evaluation_interval": every, "group_eval_order": _ORDER}
    path = folder / f"tests-{every}.yaml"
    path.write_text(yaml.safe_dump({**document, "tests": list(groups)}, width=10_000), encoding="utf-8")
    command, environment = [promtool, "test", "rules", str(path)], os.environ | {"GOGC": "800"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    output = ended.stdout + ended.stderr
    assert ended.returncode == 0 or "FAILED" in output, output
    return output


def _group(scene: Scene, alerts: Sequence[str]) -> dict[str, Any]:
    """Write a scene as a group of tests that expect no alert: promtool prints those that fire."""
    tests = [
        {"eval_time": f"{moment.minute}m", "alertname": alert, "exp_alerts": []}
        for alert in alerts
        for moment in scene.moments
    ]
    return {"name": scene.name, "interval": scene.interval, "input_series": scene.series, "alert_rule_test": tests}


def _only(rules: Sequence[Path], alerts: Sequence[str], folder: Path) -> list[Path]:
    """Write the rules of some alerts, and the recordings that they read, directly or not."""
    documents = [(path.name, yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)) for path in rules]
    text, written = "", []
    groups = [group for _, document in documents for group in document["groups"]]
    # A recording stands behind those that it reads.
    for group in sorted(groups, key=lambda group: _ORDER.index(group["name"]), reverse=True):
        for rule in reversed(group["rules"][:]):
            if rule["alert"] in alerts if "alert" in rule else rule["record"] in text:
                text += yaml.dump(rule, width=10_000)
            else:
                group["rules"].remove(rule)
    for name, document in documents:
        document["groups"] = [group for group in document["groups"] if group["rules"]]
        written.append(folder / f"only-{name}")
        written[-1].write_text(yaml.dump(document, Dumper=yaml.CSafeDumper), encoding="utf-8")
    return written


def _rendered(name: str, output: str) -> Iterator[Alert]:
    for got in re.findall(r"got:\[(.*?)\n {8,12}\]", output, re.DOTALL):
        for labels, annotations in re.findall(r"Labels:\{(.*?)\}\s+Annotations:\{(.*?)\}(?=,?\n|$)", got, re.DOTALL):
            yield Alert(name, _pairs(labels), _pairs(annotations))


def _pairs(text: str) -> dict[str, str]:
    return {name: re.sub(r"\\(.)", r"\1", value) for name, value in _LABEL.findall(text)}


def _minutes(duration: str) -> int:
    amounts = re.findall(r"(\d+)([wdhms])", duration)
    return sum(int(amount) * {"w": 10080, "d": 1440, "h": 60, "m": 1, "s": 0}[unit] for amount, unit in amounts)


# --- texts ---


def read_texts() -> Texts:
    """Read the golden file."""
    texts: Texts = defaultdict(list)
    for block in _TEXTS.read_text(encoding="utf-8").split("\n## ")[1:]:
        alert, *parts = block.split("\n### ")
        for part in parts:
            title, summary, description = part.strip().split("\n\n")
            for moment in title.split("; "):
                scene, minute = moment.rsplit(", minute ", 1)
                texts[alert.strip(), scene, int(minute)].append(Text(summary.strip("*"), description))
    return texts


def write_texts(texts: Texts) -> None:
    """Write the golden file; moments with the same text share it."""
    alerts: dict[str, dict[Text, list[str]]] = defaultdict(lambda: defaultdict(list))
    for (alert, scene, minute), some in sorted(texts.items()):
        for text in some:
            alerts[alert][text].append(f"{scene}, minute {minute}")
    parts = [_HEAD]
    for alert, of_alert in alerts.items():
        parts.append(f"## {alert}\n")
        parts += [
            f"### {'; '.join(moments)}\n\n**{text.summary}**\n\n{text.description}\n"
            for text, moments in of_alert.items()
        ]
    _TEXTS.write_text("\n".join(parts), encoding="utf-8")
