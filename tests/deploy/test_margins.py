"""A row of the table may set a margin and factors of its own."""

from pathlib import Path

import msgspec
import pytest
from promtool_run import Scene, run_groups, run_scenes
from scenes_quality import DROP, FAST
from worlds import Mix, World

from deploy.generated import write
from deploy.rules import generate
from deploy.rules.table import Objective, load


@pytest.mark.slow("promtool")
def test_margin_of_a_row(promtool: str, tmp_path: Path) -> None:
    """A judge with a margin of 0.01 has fallen where one without has not; a wide one has not where others have."""
    rows = (
        Objective(judge="faithfulness", metric="faithfulness", objective=0.5, margin=0.01),
        Objective(judge="relevance", metric="relevance", objective=0.5, margin=0.6),
    )
    write(tmp_path, generate(msgspec.structs.replace(load(), objectives=rows)))
    world = World().judged(Mix(75, 95, 5), Mix(70, 92, 8), judge="faithfulness")
    world.judged(Mix(75, 95, 5), Mix(70, 92, 8), judge="groundedness")
    world.judged(Mix(75, 9, 1), Mix(70, 6, 4), judge="relevance")
    files = [tmp_path / "shares.yaml", tmp_path / "quality.yaml"]
    (said,) = run_scenes(promtool, files, [Scene("margins", world).at(140)], tmp_path).values()
    assert said.count(f'Labels:{{alertname="{DROP}"') == said.count("Labels:") == 1
    assert 'judge="faithfulness"' in said


def test_factors_of_a_row(promtool: str, tmp_path: Path) -> None:
    """Of two judges with a low objective, the one with a slower factor tells that it burns fast."""
    rows = (
        Objective(judge="faithfulness", metric="faithfulness", objective=0.8, factors={"fast": 4}),
        Objective(judge="relevance", metric="relevance", objective=0.8),
    )
    write(tmp_path, generate(msgspec.structs.replace(load(), objectives=rows)))
    world = World().judged(Mix(20, 1, 9), judge="faithfulness").judged(Mix(20, 1, 9), judge="relevance")
    scene = Scene("factors", world).group([FAST])
    scene["alert_rule_test"] = [{"eval_time": "15m", "alertname": FAST, "exp_alerts": []}]
    said = run_groups(promtool, [tmp_path / "shares.yaml", tmp_path / "quality.yaml"], [scene], tmp_path)
    assert said.count("Labels:") == said.count('judge="faithfulness"') == 1
