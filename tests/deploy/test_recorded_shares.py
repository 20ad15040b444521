"""What the rules record of shares, compared with the same formulas in Python."""

from pathlib import Path
from typing import NamedTuple

import pytest
from figures import Z_OF_FALLS, least_fall, share
from promtool_run import run_groups
from worlds import LONG_AGO, Minutes, Mix, World

pytestmark = pytest.mark.slow("promtool, once a case")

DELTA = 1e-6


class Recorded(NamedTuple):
    """Series that are to have these values at a minute; none at all where the value is None."""

    world: World
    minute: int
    values: dict[str, float | None]
    every: str = "5m"
    """How often rules are evaluated; what is born must not be missed."""
    scraped: str = "1m"
    within: float = DELTA


def of_share(window: str, passes: list[float], fails: list[float]) -> dict[str, float | None]:
    found = share(passes, fails)
    return {
        f"tracejudge:judgements:{window}": len(passes) + len(fails),
        f"tracejudge:pass_share:{window}": found.share,
        f"tracejudge:pass_share_stderr:{window}": found.stderr,
        f"tracejudge:effective_judgements:{window}": found.effective,
        f"tracejudge:pass_share_lower:{window}": found.lower,
        f"tracejudge:pass_share_upper:{window}": found.upper,
    }


def restarted() -> World:
    """A worker counts 8 passes and 2 failures a minute, and begins anew at minute 30."""
    world = World().judged(Mix(60))
    for name in ("verdicts", "verdict_weight", "verdict_weight_squared"):
        for outcome, each in (("pass", 8), ("fail", 2)):
            (key,) = (key for key in world.series if f"_{name}_total" in key and f'outcome="{outcome}"' in key)
            again = Minutes(30, each, restart=True, first=each)
            (world.series[key],) = World(workers=False).counter("x", Minutes(30, each), again).series.values()
    return world.began_anew(30)


def gone_for_a_while() -> World:
    """A worker has judged 20 answers, is away from minute 20 on, and begins anew at minute 25 with three."""
    world = World().judged(Mix(20, 1))
    began_anew = f"stale _x4 3+0x{60 - 25}"
    world.extended({key: f"{values} {began_anew}" for key, values in world.series.items() if "pass" in key})
    return world.began_anew(25)


def joined(found: int, began: float = LONG_AGO) -> World:
    """A second worker has judged 100 answers at minute 30; it was first scraped at a minute."""
    return World().worker("b", found=found, began=began).judged(Mix(30), absent=30, born=(100, 0), instance="b")


CASES = {
    "equal weights": Recorded(World().judged(Mix(60, 8, 2)), 60, of_share("1h", [1] * 480, [1] * 120)),
    "unequal weights": Recorded(
        World().judged(Mix(60, 8, 2), weights=(20.0, 1.0)), 60, of_share("1h", [20] * 480, [1] * 120)
    ),
    "heavy failures": Recorded(
        World().judged(Mix(60, 8, 2), weights=(1.0, 20.0)), 60, of_share("1h", [1] * 480, [20] * 120)
    ),
    "two workers": Recorded(
        World().judged(Mix(60, 8, 2)).judged(Mix(60, 1, 3), weights=(4.0, 4.0), instance="b"),
        60,
        of_share("1h", [1] * 480 + [4] * 60, [1] * 120 + [4] * 180),
    ),
    "all failed": Recorded(World().judged(Mix(60, 0, 5), weights=(1.0, 3.0)), 60, of_share("1h", [], [3] * 300)),
    "all failed, no series of passes": Recorded(
        World().judged(Mix(60, 0, 5), outcomes=("fail",)), 60, of_share("1h", [], [1] * 300)
    ),
    "all passed": Recorded(World().judged(Mix(60, 5)), 60, of_share("1h", [1] * 300, [])),
    "days, of pieces": Recorded(World().judged(Mix(60, 8, 2)), 60, of_share("3d", [1] * 480, [1] * 120)),
    "a restart": Recorded(restarted(), 60, of_share("1h", [1] * 480, [1] * 120)),
    "born late": Recorded(
        World().judged(Mix(30, 8, 2), absent=30), 60, {"tracejudge:pass_share:1h": 0.8, "tracejudge:judgements:1h": 300}
    ),
    "born with verdicts": Recorded(
        World().judged(Mix(30), absent=30, born=(2, 1), weights=(4.0, 2.0)), 60, of_share("1h", [4, 4], [2]), every="1m"
    ),
    "born with verdicts, once among pieces": Recorded(
        World().judged(Mix(30), absent=30, born=(2, 1)), 60, of_share("6h", [1, 1], [1]), every="1m"
    ),
    "born with verdicts, no more": Recorded(
        World().judged(Mix(90), absent=30, born=(2, 1)), 100, {"tracejudge:judgements:1h": 0}, every="1m"
    ),
    "born with verdicts, and more before the rules look": Recorded(
        # Born with one verdict at 30m15s, and one more with each scrape, three of them before the rules look. At its
        # edges `increase` guesses as much as one scrape brings.
        World().judged(Mix(60, 1), absent=121, born=(1, 0)),
        40,
        {"tracejudge:judgements:1h": 40},
        scraped="15s",
        within=0.03,
        every="1m",
    ),
    "of a worker that was there before its verdicts": Recorded(
        joined(20), 59, {"tracejudge:judgements:1h": 100}, every="1m"
    ),
    "of an old worker that was just found": Recorded(
        joined(30), 59, {"tracejudge:judgements:1h": 0, "tracejudge:judgements:3d": 0}, every="1m"
    ),
    "of a worker that began an hour before it was found": Recorded(
        joined(30, began=-30), 59, {"tracejudge:judgements:1h": 0}, every="1m"
    ),
    "of a worker that has just begun": Recorded(
        joined(30, began=28.5), 59, {"tracejudge:judgements:1h": 100}, every="1m"
    ),
    "of a worker whose clock is behind": Recorded(
        joined(30, began=26), 59, {"tracejudge:judgements:1h": 100}, every="1m"
    ),
    "of a worker whose clock is ahead": Recorded(
        joined(30, began=31), 59, {"tracejudge:judgements:1h": 100}, every="1m"
    ),
    "of a worker that is as new as Prometheus": Recorded(
        World(began=-0.5).judged(Mix(60), born=(8, 2)), 55, of_share("1h", [1] * 8, [1] * 2), every="1m"
    ),
    "of an old worker that a new Prometheus found": Recorded(
        World().judged(Mix(60), born=(800, 200)), 55, {"tracejudge:judgements:1h": 0, "tracejudge:pass_share:1h": None}
    ),
    "a restart with a gap": Recorded(gone_for_a_while(), 60, {"tracejudge:judgements:1h": 23}, every="1m"),
    "no judgement": Recorded(
        World().judged(Mix(60), born=(50, 50)),
        60,
        {
            "tracejudge:pass_share:1h": None,
            "tracejudge:effective_judgements:1h": None,
            "tracejudge:mean_score:1h": None,
        },
    ),
    "descriptive": Recorded(
        World().judged(Mix(60), outcomes=("unrated",), judge="ragbench", metric="relevance"),
        60,
        {"tracejudge:pass_share:1h": None, "tracejudge:pass_share:3d": None},
    ),
    "a fall": Recorded(
        World().judged(Mix(60, 9, 1), Mix(60, 6, 4), weights=(2.0, 5.0)),
        120,
        {
            "tracejudge:pass_share_fall_lower:1h": least_fall(
                share([2] * 540, [5] * 60, Z_OF_FALLS), share([2] * 360, [5] * 240, Z_OF_FALLS)
            )
        },
    ),
    "mean score": Recorded(World().judged(Mix(60, 6, 2), weights=(2.0, 2.0)), 60, {"tracejudge:mean_score:1h": 0.75}),
}


def expression(series: str, value: float | None, within: float) -> dict[str, object]:
    """Compare within a small distance: floats of another order of sums differ in their last digits."""
    if value is None:
        return {"expr": f"count({series})", "exp_samples": []}
    near = f"count(abs({series} - {value!r}) < {within * (1 + value)!r})"
    return {"expr": near, "exp_samples": [{"labels": "{}", "value": 1}]}


@pytest.mark.parametrize("name", CASES)
def test_recorded(name: str, promtool: str, rules: Path, tmp_path: Path) -> None:
    case = CASES[name]
    tests = [{**expression(*each, case.within), "eval_time": f"{case.minute}m"} for each in case.values.items()]
    group = {
        "name": name,
        "interval": case.scraped,
        "input_series": case.world.input_series(),
        "promql_expr_test": tests,
    }
    said = run_groups(promtool, [rules / "shares.yaml"], [group], tmp_path, case.every)
    assert "FAILED" not in said, said
