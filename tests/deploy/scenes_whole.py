"""Scenes for all rules together: the expected alerts, and no others."""

from expected import together
from promtool_run import Scene
from scenes_quality import ALL as QUALITY
from scenes_quality import DROP, Monitored
from scenes_watcher import ABSENT, CHANGED, CIRCUIT, NO_VERDICTS, OPEN_CIRCUIT, SILENT_SERVICE, changed
from scenes_watcher import ALL as WATCHER
from worlds import MODEL, Minutes, Mix, World


def one_bad_answer() -> World:
    """The first trace of a new service fails by three judges."""
    world = Monitored().traces(Minutes(40), absent=20, born=1)
    for judge in ("groundedness", "relevance_to_query", "safety"):
        world.judged(Mix(40), absent=20, born=(0, 1), judge=judge)
        gauges = {"share": 0, "lower": 0, "upper": 0.95, "judgements": 1, "effective_n": 1, "objective": 0.95}
        for name, value in {**gauges, "window_seconds": 86_400}.items():
            labels = {"judge": judge, "metric": judge}
            world.of_series(f"quality_{name}", f"_x20 {value}x40", **labels)
    return world


def endpoint_dies() -> World:
    """From minute 70 on the judge model does not answer while traces arrive; the gauges show the past."""
    world = Monitored().shares("0.98x200", 0.01).traces(Minutes(100, 5))
    for judge in ("groundedness", "faithfulness", "safety"):
        world.judged(Mix(70, 4.9, 0.1 * (judge != "safety")), Mix(30), judge=judge)
    return world.gauge("tracejudge_judge_circuit_open", "0x70 1x30", judge_model=MODEL)


def judge_gets_strict() -> World:
    """At minute 75 a new version of the judge begins, with half the pass share of the old one."""
    world = Monitored().shares("0.97x76 stale", 0.02, version="1a2b3c4d")
    world.shares("_x75 0.98x100", 0.01, "_x75 100x100", version="99999999")
    world.traces(Minutes(145, 10)).judged(Mix(75, 9, 1), Mix(70))
    return world.judged(Mix(70, 5, 5), absent=75, born=(1, 1), version="99999999")


SCENES = [
    Scene("one bad answer", one_bad_answer()).at(35, three_fail=[*QUALITY, *WATCHER]),
    Scene("the endpoint dies", endpoint_dies()).at(
        95,
        together(SILENT_SERVICE, OPEN_CIRCUIT),
        endpoint_dies=[NO_VERDICTS, CIRCUIT, *QUALITY],
    ),
    Scene("the judge gets strict", judge_gets_strict(), every="5m").at(
        130, changed("99999999", MODEL), judge_changes=[DROP, CHANGED, ABSENT]
    ),
]
