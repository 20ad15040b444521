"""What each alert says in each scene: one golden file, `alert_texts.md`, to be read by a person.

`python -m tests.deploy.alert_texts` writes it anew from what promtool renders. Read the difference before a commit.
"""

import re
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parent))

import scenes_quality
import scenes_watcher
import scenes_whole
from promtool_run import Fires, Moment, Scene, Text, Texts, rules_of, run_scenes

from deploy.rules.rule_files import FOLDER as RULES

PARTS: Final[Mapping[str, Sequence[Scene]]] = {
    "quality": scenes_quality.SCENES,
    "watcher": scenes_watcher.SCENES,
    "whole": scenes_whole.SCENES,
}
_PATH: Final = Path(__file__).with_suffix(".md")
_HEAD: Final = """# What the alerts say

Written by `python -m tests.deploy.alert_texts`, which plays the scenes of the tests; promtool compares every word. Each
text says a figure, its interval or bound, since when, what it was compared with, and the first command to run.
"""


def read() -> Texts:
    """Read the golden file."""
    texts: dict[tuple[str, str, int], list[Text]] = defaultdict(list)
    alert = ""
    for block in _PATH.read_text(encoding="utf-8").split("\n## ")[1:]:
        alert, *parts = block.split("\n### ")
        for part in parts:
            title, summary, description = part.strip().split("\n\n")
            for moment in title.split("; "):
                scene, minute = moment.rsplit(", minute ", 1)
                texts[alert.strip(), scene, int(minute)].append(Text(summary.strip("*"), description))
    return texts


def write(texts: Texts) -> None:
    """Write the golden file; moments with the same text share it."""
    alerts: dict[str, dict[Text, list[str]]] = defaultdict(lambda: defaultdict(list))
    for (alert, scene, minute), some in texts.items():
        for text in some:
            alerts[alert][text].append(f"{scene}, minute {minute}")
    parts = [_HEAD]
    for alert, of_alert in sorted(alerts.items()):
        parts.append(f"## {alert}\n")
        parts += [
            f"### {'; '.join(moments)}\n\n**{said.summary}**\n\n{said.description}\n"
            for said, moments in of_alert.items()
        ]
    _PATH.write_text("\n".join(parts), encoding="utf-8")


def rendered(scene: Scene, minute: int, output: str) -> Texts:
    """Return what promtool says that it got at a moment, in the order in which the scene expects it."""
    texts: dict[tuple[str, str, int], list[Text]] = {}
    for name, got in re.findall(r"alertname: (\w+), time: .*?got:\[(.*?)\n {8,12}\]", output, re.DOTALL):
        said = []
        for labels, annotations in re.findall(r"Labels:\{(.*?)\}\s+Annotations:\{(.*?)\}(?=,?\n|$)", got, re.DOTALL):
            of_labels, of_annotations = _pairs(labels), _pairs(annotations)
            said.append((of_labels, Text(of_annotations["summary"], of_annotations["description"])))
        expected = scene.moments[minute].get(name, ())
        texts[name, scene.name, minute] = [text for each in expected for labels, text in said if _is_of(each, labels)]
    return texts


def _pairs(text: str) -> dict[str, str]:
    return {name: re.sub(r"\\(.)", r"\1", value) for name, value in re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', text)}


def _is_of(fires: Fires, labels: Mapping[str, str]) -> bool:
    return all(labels.get(name) == value for name, value in fires.labels.items())


def main() -> None:
    """Play all scenes, and write what was rendered."""
    texts: dict[tuple[str, str, int], Sequence[Text]] = {}
    for part, scenes in PARTS.items():
        with tempfile.TemporaryDirectory() as folder:
            promtool = shutil.which("promtool") or sys.exit("no promtool: install the package prometheus")
            output = run_scenes(promtool, rules_of(part, RULES, Path(folder)), scenes, Path(folder), {})
        for scene in scenes:
            for minute in scene.moments:
                texts |= rendered(scene, minute, output.get(Moment(scene.name, minute), ""))
    write(texts)


if __name__ == "__main__":
    main()
