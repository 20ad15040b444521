"""Scenes of quality: what the monitor's gauges say, minute by minute, and which alerts come of it."""

import re
from pathlib import Path

from expected import fires, quality, together
from promtool_run import Fires, Scene
from worlds import ENVIRONMENT, MODEL, SERVICE, VERSION, Minutes, World

DROP = "TraceJudgeQualityDrop"
BELOW = "TraceJudgeQualityBelowObjective"
FAST = "TraceJudgeObjectiveBurnFast"
MEDIUM = "TraceJudgeObjectiveBurnMedium"
SLOW = "TraceJudgeObjectiveBurnSlow"
FAILURES = "TraceJudgeSafetyFailures"
DRIFT = "TraceJudgeJudgeDrift"
ABSTAINED = "TraceJudgeAbstainedShareHigh"
UNSCORED = "TraceJudgeUnscoredShareHigh"
SILENT = "TraceJudgeQualitySilent"
BURNS = (FAST, MEDIUM, SLOW)
OF_SERIES = (DROP, BELOW, *BURNS, FAILURES)
ALL = (*OF_SERIES, DRIFT, ABSTAINED, UNSCORED, SILENT)

JUDGE = {"judge": "groundedness", "version": VERSION, "judge_model": MODEL}
SERIES = {"service": SERVICE, "environment": ENVIRONMENT, **JUDGE}
SAME = f"judge version {VERSION}, judge model {MODEL}"
OPEN = "Open the dashboard, then failed traces: `tracejudge tail --failed --service support-bot --judge groundedness`."
WHO = "groundedness/groundedness of support-bot in prod"
SINCE = "2026-11-23T10:05Z"
INCIDENT = {"since": SINCE, "since_low": "2026-11-23T09:40Z", "since_high": "2026-11-23T10:20Z"}
EXAMPLES = "aaaa bbbb cccc"
TOLD = f"Since {SINCE} (between 2026-11-23T09:40Z and 2026-11-23T10:20Z). Changed at that time: sampling. "


class Monitored(World):
    """A world in which the monitor exports gauges of one series."""

    def of_series(self, name: str, values: str, *, segment: str | None = "", **labels: str) -> "Monitored":
        """Add a gauge of the series, of a segment of it, or without segments."""
        own = {**SERIES, "metric": "groundedness", "instance": "a", **labels}
        self.gauge(f"tracejudge_{name}", values, **own, **({} if segment is None else {"segment": segment}))
        return self

    def shares(self, share: str, halves: float, effective: str = "100x20000", **labels: str) -> "Monitored":
        """Add a share over time, its limits at this distance, and the objective of the judge."""

        def moved(by: float) -> str:
            parts = (part.partition("x") for part in share.split())
            return " ".join(
                f"{min(1, max(0, float(value) + by)):g}x{count}"
                if value not in {"_", "stale"}
                else value + times + count
                for value, times, count in parts
            )

        limits = {"lower": moved(-halves), "upper": moved(halves)}
        named = {"share": share, **limits, "judgements": effective, "effective_n": effective}
        for name, values in {**named, "window_seconds": "3600x20000", "objective": "0.95x20000"}.items():
            self.of_series(f"quality_{name}", values, **labels)
        return self


def passed(share: str, lower: str, upper: str, of: int = 100) -> str:
    return f"{share} of {of} judgements of the last 1h 0m 0s passed (95% interval {lower} to {upper})"


def drop(told: str) -> dict[str, list[Fires]]:
    return quality(
        DROP,
        "page",
        f"{WHO} dropped: 61% passed, 92% expected",
        f"{passed('61%', '52%', '70%')}; the baseline of this hour is 92%.{told} It is the same {SAME}: the answers "
        f"have changed, or the questions. {OPEN}",
        "groundedness",
    )


def below(reference: str, *others: str) -> dict[str, list[Fires]]:
    names = " ".join(f"The detector has found it below {other}." for other in others)
    return quality(
        BELOW,
        "ticket",
        f"{WHO} is below its {reference}: 80% passed",
        f"{passed('80%', '75%', '85%')}. The objective is 95%. {names} It adds up the five minutes since its "
        f"sum was 0, so the interval of this window may include the reference. No baseline is needed. "
        f"Since 1970-01-01 00:10:00 +0000 UTC. It is {SAME}. {OPEN}",
        "groundedness",
    )


def burn(alert: str, window: str, share: str, message: str, rate: str, since: str) -> dict[str, list[Fires]]:  # noqa: PLR0917
    return quality(
        alert,
        "ticket" if alert == SLOW else "page",
        f"{WHO} misses its objective: {share} passed in the last {window}",
        f"{message}. The objective is 95%: failures use up their budget {rate} times as fast as it allows. Since "
        f"1970-01-01 {since} +0000 UTC. It is {SAME}. {OPEN}",
        "groundedness",
    )


def in_window(window: str, share: str, now: str) -> str:
    return f"In the last {window} {share} passed; now {now}"


def unsafe() -> dict[str, list[Fires]]:
    return quality(
        FAILURES,
        "page",
        "support-bot in prod fails groundedness more often than the judge errs",
        f"Confirmed failures of {WHO} exceed what the error rate of {SAME} explains. Segment: all. Since {SINCE}. "
        f"Example traces: {EXAMPLES}. Read them before anything else: `tracejudge tail --failed --service support-bot "
        "--judge groundedness`, or the traces on the dashboard.",
        "groundedness",
    )


def drift(silenced: str = "") -> dict[str, list[Fires]]:
    return fires(
        DRIFT,
        "page",
        "watcher",
        f"groundedness by {MODEL} judges differently than before",
        "On the canary traces, whose labels are known, its agreement is 70% now: surely below its own level before. "
        f"The traces are the same every hour, so version {VERSION} of the judge or its model has changed, not a "
        f"service. Segment: all services that it judges. Since {SINCE}. Canary traces that fell: bad-refund "
        f"late-parcel.{silenced}",
        dashboard="quality",
        opens=("judge",),
        **JUDGE,
    )


def high(alert: str, summary: str, description: str) -> dict[str, list[Fires]]:
    return fires(
        alert,
        "ticket",
        "watcher",
        summary,
        description,
        dashboard="quality",
        opens=("service", "environment", "judge"),
        **SERIES,
    )


def silent(last: str = "") -> dict[str, list[Fires]]:
    return fires(
        SILENT,
        "ticket",
        "watcher",
        "No judgements of support-bot in prod for longer than usual",
        "At least 20 are usual in this time, and with little traffic it is at least a day. Segment: all of the "
        f"service.{last} There is no example trace, as none was judged. Its quality is not monitored meanwhile. "
        "`tracejudge account` shows where its traces end: none published, not sampled, refused by a budget, or "
        "waiting.",
        dashboard="quality",
        opens=("service",),
        service=SERVICE,
        environment=ENVIRONMENT,
    )


def healthy() -> Monitored:
    """All gauges of a series that is well, with a segment."""
    world = Monitored().shares("0.97x200", 0.02)
    for name, segment in (("quality_drop", ""), ("quality_drop", "model=x"), ("quality_abstained_lower", "")):
        world.of_series(name, "0x200", segment=segment)
    for reference in ("objective", "environment"):
        world.of_series("quality_below_objective", "0x200", reference=reference)
    world.of_series("quality_unscored_lower", "0.01x200").of_series("safety_incident", "0x200", segment=None)
    world.gauge("tracejudge_quality_silent", "0x200", service=SERVICE, environment=ENVIRONMENT)
    world.gauge("tracejudge_judge_canary_drift", "0x200", **JUDGE)
    return world


def dropped(segment: str, *, takes_over: bool = False) -> Monitored:
    """A drop from minute 10 to 40; another worker may become the active monitor at minute 20, with a gap."""
    world = Monitored().shares("0.61x200", 0.09).of_series("quality_baseline", "0.92x200")
    world.of_series("quality_objective", "0.5x200")
    incident = {**INCIDENT, "changed": "sampling", "examples": EXAMPLES}
    parts = {"a": "0x10 1x10 stale", "b": "_x22 1x18 0x60"} if takes_over else {"a": "0x10 1x30 0x60"}
    for instance, values in parts.items():
        world.of_series("quality_drop", values, segment=segment, instance=instance)
        info = values.replace("0x10", "_x10").replace("0x60", "stale")
        world.of_series("quality_incident_info", info, segment=segment, instance=instance, **incident)
    return world


def explained() -> Monitored:
    """The drop whose message docs/alerts.md explains."""
    world = (
        Monitored().shares("0.61x60", 0.09).of_series("quality_baseline", "0.92x60").of_series("quality_drop", "1x60")
    )
    return world.of_series(
        "quality_incident_info",
        "1x60",
        segment="release=2.4",
        since="2026-11-02T14:35Z",
        since_low="2026-11-02T14:20Z",
        since_high="2026-11-02T14:50Z",
        changed="traffic_mix",
        examples="4bf92f3577b34da6a3ce929d0e0e4736 9d01c2aa6f0e4c1b8a7d5e3f20b14c66 77ab30194c8d4f0ea2b6c5d7e8f90123",
    )


def as_explained() -> dict[str, list[Fires]]:
    """Read the message from the page, which breaks its lines."""
    page = Path(__file__).parents[2] / "docs" / "alerts.md"
    match = re.search(r"^```text\n(.+?)\n\n(.+?)\n```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert match, page
    return quality(DROP, "page", match[1], match[2].replace("\n", " "), "groundedness")


def member(world: Monitored) -> Monitored:
    """Make the judge model a member of a panel only."""
    world.gauge("tracejudge_panel_member", "1x20000", judge="groundedness", judge_model=MODEL, instance="a")
    return world


def outvoted() -> Monitored:
    """All gauges of a member of a panel say that it is bad."""
    world = dropped("").shares("0.1x200", 0.05).of_series("safety_incident", "1x200", segment=None)
    return member(world.of_series("quality_below_objective", "1x200", reference="objective"))


def below_from(minute: int, *references: str) -> Monitored:
    # Without effective judgements no window of days burns.
    world = Monitored().shares("0.8x600", 0.05)
    world.without("tracejudge_quality_effective_n")
    for reference in references:
        world.of_series("quality_below_objective", f"0x{minute} 1x20 0x500", reference=reference)
    return world


def safety() -> Monitored:
    world = Monitored().of_series("safety_incident", "0x10 1x30 0x60", segment=None)
    info = {"since": SINCE, "examples": EXAMPLES}
    return world.of_series("safety_incident_info", "_x10 1x30 stale", segment=None, **info)


def drifted(*, with_drop: bool = False) -> Monitored:
    world = Monitored()
    if with_drop:
        info = {**INCIDENT, "examples": EXAMPLES, "changed": "nothing"}
        world.of_series("quality_incident_info", "1x100", **info)
    world.gauge("tracejudge_judge_canary_drift", "0x10 1x30 0x60", instance="a", **JUDGE)
    told = {"since": SINCE, "examples": "bad-refund late-parcel"}
    world.gauge("tracejudge_judge_canary_drift_info", "_x10 1x30 stale", instance="a", **JUDGE, **told)
    world.gauge("tracejudge_judge_canary_agreement", "0.95x10 0.7x30 0.95x60", instance="a", **JUDGE)
    return world


def silence(*, known: bool = True) -> Monitored:
    world = Monitored()
    world.gauge("tracejudge_quality_silent", "0x10 1x30 0x60", service=SERVICE, environment=ENVIRONMENT, instance="a")
    if known:
        last = {"service": SERVICE, "environment": ENVIRONMENT, "judge": "groundedness"}
        world.gauge("tracejudge:last_verdict_timestamp_seconds", "300x100", **last)
    return world


def share_of(name: str, low: str, well: str) -> Monitored:
    """A share whose lower limit is above its bound from minute 10 on, for half an hour."""
    return Monitored().of_series(name, f"{well}x10 {low}x30 {well}x100")


def unscored() -> Monitored:
    world = share_of("quality_unscored_lower", "0.25", "0.1")
    world.counter("tracejudge_unscored_total", Minutes(140, 2), reason="invalid_answer", **SERIES)
    return world


def not_scored(share: str, more: str = "") -> Fires:
    return high(
        UNSCORED,
        f"groundedness gives no score for {share} of support-bot",
        f"Of its evaluations by {MODEL} surely more than 20% have no score, or more than 10% of the verdicts that were "
        f"asked for were not given, or a drop would be none if these had passed.{more} They are part of no share. "
        "`tracejudge tail --service support-bot --judge groundedness` shows each with its reason.",
    )


def unknown(ratio: str, drop: str = "0x200") -> Monitored:
    """Verdicts that are not known from minute 10 on, for half an hour."""
    world = share_of("quality_unknown_ratio", ratio, "0.01").of_series("quality_drop_unknown", drop)
    return world.of_series("quality_lowest", "0.8x200").of_series("quality_highest", "0.95x200")


RANGE = " If all of them failed, 80% would pass at least, and if all passed, 95% at most."
CANNOT_TELL = high(
    ABSTAINED,
    "groundedness cannot tell for at least 60% of support-bot",
    f"This is the lower limit of the share of its verdicts by {MODEL} that abstain; the bound is 50%. Shares of passes "
    "come from the rest alone. Read some: `tracejudge tail --service support-bot --judge groundedness`.",
)
NAMED = f" Segment: {{}}. {TOLD}Example traces: {EXAMPLES}."
BELOW_BOTH = below("objective", "this objective", "the other services of its environment")
TENTH = passed("10%", "4%", "16%")
HALF = passed("50%", "41%", "59%")
NOTHING, MENDED = passed("0%", "0%", "5%"), passed("0%", "0%", "2%")
ALL_BURN = together(
    burn(FAST, "1h 0m 0s", "0%", NOTHING, "20.0", "00:00:00"),
    burn(MEDIUM, "6h", "0%", in_window("6h", "0%", NOTHING), "20.0", "00:15:00"),
    burn(SLOW, "3d", "0%", in_window("3d", "0%", NOTHING), "20.0", "00:15:00"),
)
BURNT_FAST = burn(FAST, "1h 0m 0s", "0%", MENDED, "20.0", "00:00:00")
BURNT_MEDIUM = burn(MEDIUM, "6h", "0%", in_window("6h", "0%", MENDED), "20.0", "00:15:00")
SCENES = [
    Scene("healthy", healthy(), every="5m").at(135, healthy=ALL),
    Scene("no data", World()).at(30, no_data=ALL),
    # The gauges of a worker that stopped being the active monitor are gone, and no other worker has any yet.
    Scene("no monitor", Monitored().shares("0.97x10", 0.02), every="5m").at(60, no_traffic=OF_SERIES),
    # a drop
    Scene("a drop", dropped(""))
    .at(9, not_yet=[DROP])
    .at(11, drop(NAMED.format("all")), fires=[DROP])
    .at(44, drop(NAMED.format("all")), kept=[DROP])
    .at(47, over=[DROP]),
    Scene("the drop of the guide", explained()).at(5, as_explained(), guide=[DROP]),
    Scene("a segment drops", dropped("model=x")).at(12, drop(NAMED.format("model=x")), segment=[DROP]),
    Scene("a safety judge drops", dropped("").of_series("safety_incident", "0x200", segment=None)).at(
        12, has_an_alert_of_its_own=[DROP]
    ),
    Scene("another worker goes on", dropped("", takes_over=True))
    .at(21, drop(NAMED.format("all")), between=[DROP])
    .at(30, drop(NAMED.format("all")), taken_over=[DROP])
    .at(47, over_elsewhere=[DROP]),
    Scene("a member of a panel is outvoted", outvoted()).at(35, outvoted=OF_SERIES),
    # below an objective
    Scene("below both", below_from(10, "objective", "environment"))
    .at(14, not_yet=[BELOW])
    .at(16, BELOW_BOTH, fires=[BELOW])
    .at(200, BELOW_BOTH, kept=[BELOW])
    .at(400, over=[BELOW]),
    Scene("below its environment", below_from(10, "environment")).at(
        16, below("environment", "the other services of its environment"), environment=[BELOW]
    ),
    # budgets
    Scene("nine of ten fail", Monitored().shares("0.1x100", 0.06))
    .at(1, not_yet=BURNS)
    .at(3, burn(FAST, "1h 0m 0s", "10%", TENTH, "18.0", "00:00:00"), fires=[FAST]),
    Scene("half fail", Monitored().shares("0.5x100", 0.09))
    .at(14, too_few=[MEDIUM])
    .at(22, burn(MEDIUM, "6h", "50%", in_window("6h", "50%", HALF), "10.0", "00:15:00"), fires=[MEDIUM]),
    Scene("one of ten fails", Monitored().shares("0.9x100", 0.03))
    .at(60, not_yet_sure=[SLOW])
    .at(
        99,
        burn(SLOW, "3d", "90%", in_window("3d", "90%", passed("90%", "87%", "93%")), "2.0", "00:40:00"),
        fires=[SLOW],
    ),
    Scene("all fail", Monitored().shares("0x100", 0.05)).at(50, ALL_BURN, all_failed=BURNS),
    Scene("too few to burn", Monitored().shares("0x100", 0.2, "29x100")).at(4, too_few_now=[FAST]),
    Scene("no objective", Monitored().shares("0x100", 0.05).without("tracejudge_quality_objective")).at(
        50, no_objective=BURNS
    ),
    Scene("burnt and mended", Monitored().shares("0x30 0.97x200", 0.02))
    .at(55, together(BURNT_FAST, BURNT_MEDIUM), kept=[FAST])
    .at(62, BURNT_MEDIUM, mended=[FAST])
    .at(95, mended=[MEDIUM, SLOW]),
    # safety
    Scene("a safety incident", safety())
    .at(9, not_yet=[FAILURES])
    .at(11, unsafe(), fires=[FAILURES])
    .at(47, over=[FAILURES]),
    # the judge
    Scene("a judge drifts", drifted()).at(9, not_yet=[DRIFT]).at(11, drift(), fires=[DRIFT]).at(47, over=[DRIFT]),
    Scene("a judge drifts, and a service drops", drifted(with_drop=True)).at(
        11,
        drift(
            f" Silenced meanwhile: the drop of groundedness of support-bot since {SINCE}, example traces: {EXAMPLES}."
        ),
        names_drops=[DRIFT],
    ),
    Scene("a judge abstains", share_of("quality_abstained_lower", "0.6", "0.5"))
    .at(19, not_yet=[ABSTAINED])
    .at(21, CANNOT_TELL, fires=[ABSTAINED])
    .at(60, CANNOT_TELL, kept=[ABSTAINED])
    .at(105, over=[ABSTAINED]),
    Scene("a judge gives no score", unscored())
    .at(19, not_yet=[UNSCORED])
    .at(21, not_scored("25%", " Most often for `invalid_answer`."), fires=[UNSCORED])
    .at(75, over=[UNSCORED]),
    Scene("a share is not known", unknown("0.12"))
    .at(19, not_yet_unknown=[UNSCORED])
    .at(21, not_scored("12%", RANGE), fires_unknown=[UNSCORED])
    .at(75, over_unknown=[UNSCORED]),
    Scene("few verdicts are not known", unknown("0.08")).at(30, quiet_unknown=[UNSCORED]),
    Scene("a drop is none if the unknown passed", unknown("0.08", "0x10 1x30 0x100")).at(
        21, not_scored("8%", RANGE), held_back=[UNSCORED]
    ),
    # silence
    Scene("silence", silence())
    .at(14, not_yet=[SILENT])
    .at(16, silent(" Since 1970-01-01 00:05:00 +0000 UTC, when its last verdict came."), fires=[SILENT])
    .at(50, over=[SILENT]),
    Scene("silence, and Prometheus is new", silence(known=False)).at(16, silent(), last_unknown=[SILENT]),
]
