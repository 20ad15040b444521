"""What the rules record of the long windows that budgets burn in, from the gauges of the monitor."""

import math
from pathlib import Path

import pytest
from promtool_run import run_groups
from scenes_quality import Monitored
from support.cases import each_case

pytestmark = pytest.mark.slow("promtool, once a case")

HOUR_S, DAY_S = 3600, 86_400
STEP_S = 300
Z = 1.959964


def recorded(*parts: tuple[int, float, float]) -> tuple[float, float, float]:
    """Compute number, share and upper limit of steps of 5 minutes: how many, the share, and judgements a second."""
    number = sum(steps * rate * STEP_S for steps, _, rate in parts)
    share = sum(steps * rate * STEP_S * part for steps, part, rate in parts) / number
    half = Z * math.sqrt(share * (1 - share) / number + Z * Z / (4 * number**2))
    return number, share, min(1, (share + Z * Z / (2 * number) + half) / (1 + Z * Z / number))


def few_then_many() -> Monitored:
    """Gauges of a window of a day for an hour, then of an hour with more judgements and a lower share."""
    world = Monitored()
    world.of_series("quality_share", "0.9x60 0.6x200").of_series("quality_effective_n", "48x60 120x200")
    return world.of_series("quality_window_seconds", f"{DAY_S}x60 {HOUR_S}x200")


def two_workers() -> Monitored:
    """Two workers export the same gauge for a moment."""
    world = Monitored().shares("0.9x200", 0.05)
    return world.shares("_x10 0.9x2 stale", 0.05, instance="b")


CASES = {
    "one rate": (Monitored().shares("0.9x200", 0.05), "6h", recorded((13, 0.9, 100 / HOUR_S))),
    "hours count by their judgements": (few_then_many(), "6h", recorded((12, 0.9, 48 / DAY_S), (1, 0.6, 120 / HOUR_S))),
    "days": (Monitored().shares("0x200", 0.05), "3d", recorded((13, 0, 100 / HOUR_S))),
    "one worker after another": (two_workers(), "6h", recorded((13, 0.9, 100 / HOUR_S))),
}


@each_case("name", CASES)
def test_recorded(name: str, promtool: str, rules: Path, tmp_path: Path) -> None:
    world, window, values = CASES[name]
    names = ("effective_judgements", "pass_share", "pass_share_upper")
    tests = [
        {
            "expr": f"count(abs(tracejudge:{each}:{window} - {value!r}) < 1e-6)",
            "exp_samples": [{"labels": "{}", "value": 1}],
            "eval_time": "60m",
        }
        for each, value in zip(names, values, strict=True)
    ]
    group = {"name": name, "interval": "1m", "input_series": world.input_series(), "promql_expr_test": tests}
    output = run_groups(promtool, [rules / "shares.yaml"], [group], tmp_path, "5m")
    assert "FAILED" not in output, output
