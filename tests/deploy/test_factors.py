"""A row of the table may set factors of its own."""

from pathlib import Path

import msgspec
from promtool_run import Scene, run_groups
from scenes_quality import FAST, Monitored

from deploy.generated import write
from deploy.rules.alert_settings import Objective, load
from deploy.rules.rule_files import generate


def test_factors_of_a_row(promtool: str, tmp_path: Path) -> None:
    """Of two judges with a low objective, the one with a slower factor tells that it burns fast."""
    rows = (
        Objective(judge="faithfulness", metric="faithfulness", objective=0.8, factors={"fast": 4}),
        Objective(judge="relevance", metric="relevance", objective=0.8),
    )
    write(tmp_path, generate(msgspec.structs.replace(load(), objectives=rows)))
    world = Monitored()
    for row in rows:
        labels = {"judge": row.judge, "metric": row.metric}
        world.shares("0.1x60", 0.05, **labels).of_series("quality_objective", "0.8x60", **labels)
    scene = Scene("factors", world).group([FAST], {})
    scene["alert_rule_test"] = [{"eval_time": "15m", "alertname": FAST, "exp_alerts": []}]
    output = run_groups(promtool, [tmp_path / "shares.yaml", tmp_path / "quality.yaml"], [scene], tmp_path)
    assert output.count("Labels:") == output.count('judge="faithfulness"') == 1
