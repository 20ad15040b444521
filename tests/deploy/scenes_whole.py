"""Scenes that all rules look at: what is told, and that nothing else is."""

from expected import together
from promtool_run import Scene
from scenes_quality import ALL as QUALITY
from scenes_quality import DROP, FAILURE, failed
from scenes_watcher import ABSENT, CHANGED, CIRCUIT, NO_VERDICTS, circuit, fires, no_verdicts
from scenes_watcher import ALL as WATCHER
from worlds import ENVIRONMENT, MODEL, SERVICE, Minutes, Mix, World


def one_bad_answer() -> World:
    """A service that is new, and the three judges of its first trace fail it."""
    world = World().traces(Minutes(40), absent=20, born=1)
    for judge in ("groundedness", "relevance_to_query", "safety"):
        world.judged(Mix(40), absent=20, born=(0, 1), judge=judge)
    return world


def endpoint_dies() -> World:
    """At minute 70 the judge model answers no more, and traces still come."""
    world = World().traces(Minutes(100, 5))
    for judge in ("groundedness", "faithfulness", "safety"):
        world.judged(Mix(70, 4.9, 0.1 * (judge != "safety")), Mix(30), judge=judge)
    return world.gauge("tracejudge_judge_circuit_open", "0x70 1x30", judge_model=MODEL)


def judge_gets_strict() -> World:
    """At minute 75 another version of the judge comes, which passes half of what the old one passed."""
    world = World().traces(Minutes(145, 10)).judged(Mix(75, 9, 1), Mix(70), judge="faithfulness")
    return world.judged(Mix(70, 5, 5), absent=75, born=(1, 1), judge="faithfulness", version="99999999")


NEW_VERSION = fires(
    CHANGED,
    "info",
    "info",
    "faithfulness judges support-bot in version 99999999 by gpt-4.1-mini now",
    "Its first verdicts came within the last 1h. It was version 1a2b3c4d by gpt-4.1-mini. A step in its graphs at this "
    "moment comes from the judge, not from the service; drops are compared within one version only, so their baseline "
    "begins anew.",
    dashboard="quality",
    opens=("service", "environment", "judge"),
    service=SERVICE,
    environment=ENVIRONMENT,
    judge="faithfulness",
    version="99999999",
    judge_model=MODEL,
)
SCENES = [
    Scene("one bad answer", one_bad_answer()).at(35, failed(FAILURE, 1), three_fail=[*QUALITY, *WATCHER]),
    Scene("the endpoint dies", endpoint_dies()).at(
        95,
        together(no_verdicts(50, " The last verdict came 23m 0s ago."), circuit()),
        endpoint_dies=[NO_VERDICTS, CIRCUIT, *QUALITY],
    ),
    Scene("the judge gets strict", judge_gets_strict(), every="5m").at(
        130, NEW_VERSION, judge_changes=[DROP, CHANGED, ABSENT]
    ),
]
