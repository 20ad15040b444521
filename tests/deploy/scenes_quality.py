"""Scenes of quality: a fall, budgets that burn, safety failures.

`faithfulness` has no objective, so only its falls show.
"""

from collections.abc import Mapping

from expected import quality, together
from promtool_run import Fires, Scene
from worlds import ENVIRONMENT, GONE, JOB, LONG_AGO, MODEL, SERVICE, STARTED, VERSION, Minutes, Mix, World

DROP = "TraceJudgeQualityDrop"
FAST = "TraceJudgeObjectiveBurnFast"
MEDIUM = "TraceJudgeObjectiveBurnMedium"
SLOW = "TraceJudgeObjectiveBurnSlow"
FAILURE = "TraceJudgeSafetyFailure"
FAILURES = "TraceJudgeSafetyFailures"
BURNS = (FAST, MEDIUM, SLOW)
ALL = (DROP, *BURNS, FAILURE, FAILURES)

PANEL = "majority(gpt-4.1-mini,llama)"
SAME = "judge version 1a2b3c4d, judge model gpt-4.1-mini"
OPEN = "Open the dashboard, then failed traces: `tracejudge tail --failed`."


def drop(  # noqa: PLR0917 - read as one sentence
    before: str, now: str, since: str, least: str, share_before: str, share_now: str
) -> dict[str, list[Fires]]:
    return quality(
        DROP,
        "page",
        f"faithfulness/faithfulness of support-bot in prod fell from {share_before} to {share_now}",
        f"In the last 1h {now}; in the 3d before, {before}. With 99% confidence the fall is at least {least} "
        f"percentage points. Since 1970-01-01 {since} +0000 UTC. It is the same {SAME}: the answers have changed, or "
        f"the questions. {OPEN}",
        "faithfulness",
    )


def burn(  # noqa: PLR0917 - read as one sentence
    alert: str, long: str, share: str, passed: str, short: str, rate: str, since: str
) -> dict[str, list[Fires]]:
    return quality(
        alert,
        "ticket" if alert == SLOW else "page",
        f"groundedness/groundedness of support-bot in prod misses its objective: {share} passed in the last {long}",
        f"In the last {long} {passed}; in the last {short}. The objective is 95%: failures use up their budget {rate} "
        f"times as fast as it allows. Since 1970-01-01 {since} +0000 UTC. It is {SAME}. {OPEN}",
        "groundedness",
    )


def failed(alert: str, count: int, judge_model: str = MODEL) -> dict[str, list[Fires]]:
    return quality(
        alert,
        "ticket" if alert == FAILURE else "page",
        f"{count} safety failure{'s' if count > 1 else ''} of support-bot in prod in the last 1h",
        f"In the last 1h {count} of the verdicts of safety/safety of support-bot in prod failed, by judge version "
        f"1a2b3c4d, judge model {judge_model}. Each counts, however few they are. Read them before anything else: "
        "`tracejudge tail --failed`, or the traces on the dashboard.",
        "safety",
        judge_model=judge_model,
    )


def both(count: int) -> Mapping[str, list[Fires]]:
    return together(failed(FAILURE, count), failed(FAILURES, count))


def unsafe(
    *failures: Minutes,
    absent: int = 0,
    born: float = 0,
    instances: str = "a",
    judge_model: str = MODEL,
    within: World | None = None,
) -> World:
    """A safety judge that passes two answers a minute, and beside that fails some."""
    world = (within or World()).judged(Mix(150, 2), judge="safety", outcomes=("pass",), judge_model=judge_model)
    series = {"service": SERVICE, "environment": ENVIRONMENT, "version": VERSION, "judge_model": judge_model}
    for instance in instances:
        names = {**series, "judge": "safety", "metric": "safety", "outcome": "fail", "instance": instance}
        world.counter("tracejudge_verdicts_total", *failures, absent=absent, born=born, job="tracejudge", **names)
    return world


def on_another(*failures: Minutes, found: int, began: float = LONG_AGO) -> World:
    """A second worker has found five unsafe answers by the time it is found."""
    world = World().worker("b", found=found, began=began)
    return unsafe(*(failures or [Minutes(80)]), absent=found, born=5, instances="b", within=world)


def back_with_less() -> World:
    """A worker that does not tell when it began is away for ten minutes, and had more failures before."""
    world = World().without("tracejudge_ready", STARTED)
    world.gauge("tracejudge_ready", "1x21 stale _x9 1x100", role="judge", job=JOB, instance="a")
    away = Minutes(20), Minutes(10, GONE), Minutes(40, restart=True, first=1)
    return unsafe(*away, born=5, within=world)


def members(world: World, *judges: str) -> World:
    """Let panels alone ask the judge model of some judges."""
    for judge in judges:
        world.gauge("tracejudge_panel_member", "1x20000", judge=judge, judge_model=MODEL, instance="a")
    return world


def outvoted() -> World:
    """Judge models whose verdicts get worse in every way, and are only wanted for a panel."""
    world = unsafe(Minutes(60), Minutes(85, 1)).judged(Mix(145, 1, 9))
    world.judged(Mix(75, 9, 1), Mix(70, 0, 10), judge="faithfulness")
    return members(world, "safety", "groundedness", "faithfulness")


def of_one_mind() -> World:
    """A panel, each of whose members has found an unsafe answer."""
    failures = Minutes(20), Minutes(1, 1), Minutes(30)
    return members(unsafe(*failures, within=unsafe(*failures, judge_model=PANEL)), "safety")


def healthy() -> World:
    """Three judges as they ought to be; 98 of 100 pass, and no answer is unsafe."""
    world = World().judged(Mix(140, 9.8, 0.2)).judged(Mix(140, 9.8, 0.2), judge="faithfulness")
    return world.judged(Mix(140, 10), judge="safety")


def idle() -> World:
    """Judges that failed much long ago, and nothing since."""
    world = World().judged(Mix(120), born=(100, 900)).judged(Mix(120), born=(100, 900), judge="faithfulness")
    return world.judged(Mix(120), born=(100, 900), judge="safety")


# What is kept firing says what was last true.
BURNT_FAST = burn(
    FAST, "1h", "6.3%", "6.3% of 160 judgements passed (95% interval 3.4% to 11.1%)", "5m 20%", "18.7", "00:03:00"
)
BURNT_MEDIUM = burn(
    MEDIUM,
    "6h",
    "57.1%",
    "57.1% of 350 judgements passed (95% interval 51.9% to 62.2%)",
    "30m 66.7%",
    "8.6",
    "00:05:00",
)


def burnt_slow(share: str, of: int, interval: str, rate: str) -> dict[str, list[Fires]]:
    passed = f"{share} of {of} judgements passed (95% interval {interval})"
    return burn(SLOW, "3d", share, passed, f"6h {share}", rate, "00:05:00")


SCENES = [
    Scene("healthy", healthy(), every="5m").at(135, healthy=ALL),
    Scene("no data", World()).at(30, no_data=ALL),
    Scene("no traffic", idle(), every="5m").at(110, no_traffic=ALL),
    Scene("answers get worse", World().judged(Mix(75, 9, 1), Mix(70, 6, 4), judge="faithfulness"), every="5m")
    .at(90, not_surely=[DROP])
    .at(100, not_yet=[DROP])
    .at(
        130,
        drop(
            "90% of 700 judgements passed (95% interval 87.6% to 92%)",
            "62.5% of 600 judgements passed (95% interval 58.6% to 66.3%)",
            "01:40:00",
            "21.6",
            "90%",
            "62.5%",
        ),
        fires=[DROP],
    ),
    Scene(
        "answers get a little worse", World().judged(Mix(75, 95, 5), Mix(70, 92, 8), judge="faithfulness"), every="5m"
    ).at(140, within_the_margin=[DROP]),
    Scene("too few now", World().judged(Mix(60, 9, 1), Mix(55), Mix(25, 0, 1), judge="faithfulness"), every="5m").at(
        140, too_few=[DROP]
    ),
    Scene("too few before", World().judged(Mix(60, 0.4), Mix(65, 0, 5), judge="faithfulness"), every="5m").at(
        120, too_few_before=[DROP]
    ),
    Scene("all answers fail", World().judged(Mix(75, 10), Mix(70, 0, 10), judge="faithfulness"), every="5m").at(
        130,
        drop(
            "100% of 700 judgements passed (95% interval 99.5% to 100%)",
            "8.3% of 600 judgements passed (95% interval 6.4% to 10.8%)",
            "01:25:00",
            "88.2",
            "100%",
            "8.3%",
        ),
        all_failed=[DROP],
    ),
    Scene("nine of ten fail", World().judged(Mix(60, 1, 9)))
    .at(4, not_yet=BURNS)
    .at(
        5,
        burn(
            FAST,
            "1h",
            "10%",
            "10% of 50 judgements passed (95% interval 4.3% to 21.4%)",
            "5m 10%",
            "18.0",
            "00:03:00",
        ),
        fires=[FAST],
    ),
    Scene("half fail", World().judged(Mix(60, 5, 5))).at(
        15,
        burn(
            MEDIUM,
            "6h",
            "50%",
            "50% of 150 judgements passed (95% interval 42.1% to 57.9%)",
            "30m 50%",
            "10.0",
            "00:05:00",
        ),
        fires=[MEDIUM],
    ),
    Scene("one of ten fails", World().judged(Mix(90, 9, 1)))
    .at(38, not_yet_slow=[SLOW])
    .at(
        60,
        burn(
            SLOW,
            "3d",
            "90%",
            "90% of 600 judgements passed (95% interval 87.3% to 92.2%)",
            "6h 90%",
            "2.0",
            "00:10:00",
        ),
        fires=[SLOW],
    ),
    Scene("all fail, and passes have no series", World().judged(Mix(60, 0, 10), outcomes=("fail",))).at(
        45,
        together(
            burn(
                FAST, "1h", "0%", "0% of 450 judgements passed (95% interval 0% to 0.8%)", "5m 0%", "20.0", "00:03:00"
            ),
            burn(
                MEDIUM,
                "6h",
                "0%",
                "0% of 450 judgements passed (95% interval 0% to 0.8%)",
                "30m 0%",
                "20.0",
                "00:05:00",
            ),
            burn(
                SLOW, "3d", "0%", "0% of 450 judgements passed (95% interval 0% to 0.8%)", "6h 0%", "20.0", "00:05:00"
            ),
        ),
        all_failed=BURNS,
    ),
    Scene("too few to burn", World().judged(Mix(29, 0, 1))).at(28, too_few=BURNS),
    Scene("no objective", World().judged(Mix(60, 0, 10), judge="faithfulness"), every="5m").at(45, no_objective=BURNS),
    Scene("burnt and mended", World().judged(Mix(15, 0, 10), Mix(85, 10)))
    .at(40, together(BURNT_FAST, BURNT_MEDIUM, burnt_slow("62.5%", 400, "57.7% to 67.1%", "7.5")), kept=[FAST])
    .at(60, together(BURNT_MEDIUM, burnt_slow("75%", 600, "71.4% to 78.3%", "5.0")), mended=[FAST]),
    Scene("half burnt and mended", World().judged(Mix(40, 5, 5), Mix(100, 10)), every="5m").at(
        130, burnt_slow("84.6%", 1300, "82.6% to 86.5%", "3.1"), mended=[MEDIUM]
    ),
    Scene("two workers", World().judged(Mix(60, 0, 1)).judged(Mix(60, 0, 1), instance="b")).at(
        17,
        burn(FAST, "1h", "0%", "0% of 34 judgements passed (95% interval 0% to 10.2%)", "5m 0%", "20.0", "00:15:00"),
        two_workers=[FAST],
    ),
    Scene("one unsafe answer", unsafe(Minutes(20), Minutes(1, 1), Minutes(100)))
    .at(19, not_yet=[FAILURE])
    .at(21, failed(FAILURE, 1), fires=[FAILURE], not_yet_page=[FAILURES])
    .at(90, forgotten=[FAILURE]),
    Scene("two unsafe answers", unsafe(Minutes(20), Minutes(1, 1), Minutes(10), Minutes(1, 1), Minutes(60)))
    .at(30, failed(FAILURE, 1), not_yet=[FAILURES])
    .at(35, both(2), fires=[FAILURES]),
    Scene("born with an unsafe answer", unsafe(Minutes(70), absent=20, born=1))
    .at(20, failed(FAILURE, 1), born=[FAILURE])
    .at(85, born_long_ago=[FAILURE]),
    Scene("found by a new Prometheus", unsafe(Minutes(20), born=5)).at(3, new_prometheus=[FAILURE, FAILURES]),
    Scene("a new Prometheus finds a new worker", unsafe(Minutes(80), born=1, within=World(began=-0.5)))
    .at(1, failed(FAILURE, 1), both_new=[FAILURE])
    .at(70, both_new_long_ago=[FAILURE]),
    Scene("a new Prometheus finds a worker of this hour", unsafe(Minutes(20), born=1, within=World(began=-40))).at(
        3, failed(FAILURE, 1), worker_of_this_hour=[FAILURE]
    ),
    Scene(
        "a new Prometheus finds a worker of the hour before", unsafe(Minutes(20), born=1, within=World(began=-70))
    ).at(3, worker_of_the_hour_before=[FAILURE]),
    Scene("a new Prometheus sees an old worker's first failure", unsafe(Minutes(20), absent=1, born=1)).at(
        2, failed(FAILURE, 1), new_prometheus_new_failure=[FAILURE]
    ),
    Scene("an old worker is added", on_another(found=20)).at(25, old_worker_added=[FAILURE, FAILURES]),
    Scene("an added old worker goes on", on_another(Minutes(5), Minutes(1, 1), Minutes(30), found=20)).at(
        28, failed(FAILURE, 1), added_worker_goes_on=[FAILURE]
    ),
    Scene("a worker comes under a new name", on_another(found=20, began=19.5))
    .at(19, not_yet_new_name=[FAILURES])
    .at(21, both(5), new_name=[FAILURES])
    .at(85, new_name_long_ago=[FAILURE]),
    Scene(
        "one unsafe answer on each of two workers",
        unsafe(Minutes(60), absent=20, born=1, instances="ab", within=World().worker("b")),
    ).at(22, both(2), two_workers=[FAILURES]),
    Scene(
        "an unsafe answer before and after a restart",
        unsafe(
            *(Minutes(20), Minutes(1, 1), Minutes(20), Minutes(5, restart=True), Minutes(1, 1), Minutes(50)),
            within=World().began_anew(41),
        ),
    )
    .at(44, failed(FAILURE, 1), restart=[FAILURE])
    .at(50, both(2), restart=[FAILURES]),
    Scene("back with less", back_with_less()).at(33, failed(FAILURE, 1), back_with_less=[FAILURE]),
    Scene("not scraped for a while", unsafe(Minutes(70), Minutes(10, GONE), Minutes(60), born=5), every="5m").at(
        90, not_scraped=[FAILURE]
    ),
    Scene("a member of a panel is outvoted", outvoted(), every="5m").at(130, outvoted=ALL),
    Scene("a member of a panel by another judge", members(unsafe(Minutes(20), Minutes(9, 1)), "groundedness")).at(
        21, failed(FAILURE, 1), another_judge=[FAILURE]
    ),
    Scene("a panel of one mind", of_one_mind()).at(21, failed(FAILURE, 1, PANEL), of_one_mind=[FAILURE]),
    Scene("all answers are unsafe", unsafe(Minutes(60, 3), absent=5)).at(65, both(180), all_failed=[FAILURE, FAILURES]),
]
