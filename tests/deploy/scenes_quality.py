"""Scenes of quality: what the monitor's gauges say, minute by minute, and which alerts come of it."""

from expected import fires, of_series, together
from promtool_run import Scene
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
DECLINE = "TraceJudgeQualitySlowDecline"
BURNS = (FAST, MEDIUM, SLOW)
OF_SERIES = (DROP, BELOW, *BURNS, FAILURES, DECLINE)
ALL = (*OF_SERIES, DRIFT, ABSTAINED, UNSCORED, SILENT)

JUDGE = {"judge": "groundedness", "version": VERSION, "judge_model": MODEL}
SERIES = {"service": SERVICE, "environment": ENVIRONMENT, **JUDGE}
SINCE = "2026-11-23T10:05Z"
INCIDENT = {"since": SINCE, "since_low": "2026-11-23T09:40Z", "since_high": "2026-11-23T10:20Z"}
EXAMPLES = "aaaa bbbb cccc"
DROPPED = of_series(DROP, "page")
BELOW_REFERENCE = of_series(BELOW, "ticket")
BURNS_FAST, BURNS_MEDIUM, BURNS_SLOW = (
    of_series(alert, "ticket" if alert == SLOW else "page") for alert in (FAST, MEDIUM, SLOW)
)
ALL_BURN = together(BURNS_FAST, BURNS_MEDIUM, BURNS_SLOW)
UNSAFE = of_series(FAILURES, "page")
DECLINES = of_series(DECLINE, "info", "info")
DRIFTS = fires(DRIFT, "page", "watcher", dashboard="quality", opens=("judge",), **JUDGE)
CANNOT_TELL, NOT_SCORED = (
    fires(alert, "ticket", "watcher", dashboard="quality", opens=("service", "environment", "judge"), **SERIES)
    for alert in (ABSTAINED, UNSCORED)
)
QUIET = fires(
    SILENT, "ticket", "watcher", dashboard="quality", opens=("service",), service=SERVICE, environment=ENVIRONMENT
)


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


def dropped(segment: str, *, takes_over: bool = False, cause: str = "") -> Monitored:
    """A drop from minute 10 to 40; another worker may become the active monitor at minute 20, with a gap."""
    world = Monitored().shares("0.61x200", 0.09).of_series("quality_baseline", "0.92x200")
    world.of_series("quality_objective", "0.5x200")
    incident = {**INCIDENT, "cause": cause, "changed": "sampling", "examples": EXAMPLES}
    parts = {"a": "0x10 1x10 stale", "b": "_x22 1x18 0x60"} if takes_over else {"a": "0x10 1x30 0x60"}
    for instance, values in parts.items():
        world.of_series("quality_drop", values, segment=segment, instance=instance)
        world.of_series("quality_drop", "0x200", segment=segment, instance="of a former monitor")
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
        cause="segment",
        since="2026-11-02T14:35Z",
        since_low="2026-11-02T14:20Z",
        since_high="2026-11-02T14:50Z",
        changed="traffic_mix",
        examples="4bf92f3577b34da6a3ce929d0e0e4736 9d01c2aa6f0e4c1b8a7d5e3f20b14c66 77ab30194c8d4f0ea2b6c5d7e8f90123",
    )


def declining() -> Monitored:
    world = Monitored().shares("0.97x200", 0.02)
    since = {"slope_since_seconds": 1_795_000_000}
    for name, value in {"slope": -0.0094, "slope_lower": -0.0131, "slope_upper": -0.0052, **since}.items():
        world.of_series(f"quality_{name}", f"_x10 {value}x30 stale")
    return world


def member(world: Monitored) -> Monitored:
    """Make the judge model a member of a panel only."""
    world.gauge("tracejudge_panel_member", "1x20000", judge="groundedness", judge_model=MODEL, instance="a")
    return world


def outvoted() -> Monitored:
    """All gauges of a member of a panel say that it is bad."""
    world = dropped("").shares("0.1x200", 0.05).of_series("safety_incident", "1x200", segment=None)
    world.of_series("quality_slope", "-0.01x200")
    return member(world.of_series("quality_below_objective", "1x200", reference="objective"))


def below_from(minute: int, *references: str) -> Monitored:
    # Without effective judgements no window of days burns.
    world = Monitored().shares("0.8x600", 0.05)
    world.without("tracejudge_quality_effective_n")
    for reference in references:
        world.of_series("quality_below_objective", f"0x{minute} 1x20 0x500", reference=reference)
        world.of_series("quality_below_objective", "0x500", reference=reference, instance="b")
    return world


def safety() -> Monitored:
    world = Monitored().shares("0.97x200", 0.02).of_series("safety_incident", "0x10 1x30 0x60", segment=None)
    info = {"since": SINCE, "examples": EXAMPLES}
    world.of_series("safety_incident", "0x100", segment=None, instance="b")
    return world.of_series("safety_incident_info", "_x10 1x30 stale", segment=None, **info)


def drifted(*, with_drop: bool = False) -> Monitored:
    world = Monitored()
    if with_drop:
        info = {**INCIDENT, "examples": EXAMPLES, "changed": "nothing"}
        world.of_series("quality_incident_info", "1x100", **info)
    for instance, values in (("a", "0x10 1x30 0x60"), ("b", "0x100")):
        world.gauge("tracejudge_judge_canary_drift", values, instance=instance, **JUDGE)
    told = {"since": SINCE, "examples": "bad-refund late-parcel"}
    world.gauge("tracejudge_judge_canary_drift_info", "_x10 1x30 stale", instance="a", **JUDGE, **told)
    for name, by in (("", 0), ("_lower", -0.05), ("_upper", 0.05)):
        values = f"{0.95 + by}x10 {0.7 + by}x30 {0.95 + by}x60"
        world.gauge(f"tracejudge_judge_canary_agreement{name}", values, instance="a", **JUDGE)
    return world


def silence(*, known: bool = True) -> Monitored:
    world = Monitored()
    for instance, values in (("a", "0x10 1x30 0x60"), ("b", "0x100")):
        world.gauge("tracejudge_quality_silent", values, service=SERVICE, environment=ENVIRONMENT, instance=instance)
    if known:
        last = {"service": SERVICE, "environment": ENVIRONMENT, "judge": "groundedness"}
        world.gauge("tracejudge:last_verdict_timestamp_seconds", "300x100", **last)
    return world


def share_of(name: str, low: str, well: str) -> Monitored:
    """A share whose lower limit is above its bound from minute 10 on, for half an hour."""
    world = Monitored().of_series(name, f"{well}x10 {low}x30 {well}x100")
    return world.of_series(name, f"{well}x140", instance="b")


def unscored() -> Monitored:
    world = share_of("quality_unscored_lower", "0.25", "0.1")
    world.counter("tracejudge_unscored_total", Minutes(140, 2), reason="invalid_answer", **SERIES)
    return world


def unknown(ratio: str, drop: str = "0x200") -> Monitored:
    """Verdicts that are not known from minute 10 on, for half an hour."""
    world = share_of("quality_unknown_ratio", ratio, "0.01").of_series("quality_drop_unknown", drop)
    return world.of_series("quality_lowest", "0.8x200").of_series("quality_highest", "0.95x200")


def partly_unknown(share: str, half: float) -> Monitored:
    """A share of many verdicts with an objective of .95, of which 8 % are not known."""
    world = Monitored().shares(f"{share}x100", half, "20000x200").of_series("quality_unknown_ratio", "0.08x100")
    limits = {"lowest": 0.92 * float(share) - half, "highest": 0.08 + 0.92 * float(share) + half}
    for name, limit in limits.items():
        world.of_series(f"quality_{name}", f"{limit:g}x100")
    return world


SCENES = [
    Scene("healthy", healthy(), every="5m").at(135, healthy=ALL),
    Scene("no data", World()).at(30, no_data=ALL),
    # The gauges of a worker that stopped being the active monitor are gone, and no other worker has any yet.
    Scene("no monitor", Monitored().shares("0.97x10", 0.02), every="5m").at(60, no_traffic=OF_SERIES),
    # a drop
    Scene("a drop", dropped(""))
    .at(9, not_yet=[DROP])
    .at(11, DROPPED, fires=[DROP])
    .at(44, DROPPED, kept=[DROP])
    .at(47, over=[DROP]),
    Scene("the drop of the guide", explained()).at(5, DROPPED, guide=[DROP]),
    Scene("a segment drops", dropped("model=x", cause="segment")).at(12, DROPPED, segment=[DROP]),
    Scene("all segments drop", dropped("all", cause="all")).at(12, DROPPED, all_segments=[DROP]),
    Scene("a new segment fails", dropped("model=x", cause="new_segment")).at(12, DROPPED, new_segment=[DROP]),
    Scene("the traffic mix drops", dropped("traffic mix", cause="traffic_mix")).at(12, DROPPED, traffic_mix=[DROP]),
    Scene("a young series drops", dropped("").of_series("quality_least_drop", "0.0925x200")).at(
        12, DROPPED, young=[DROP]
    ),
    # a slow decline
    Scene("a slow decline", declining())
    .at(9, not_yet=[DECLINE])
    .at(11, DECLINES, fires=[DECLINE])
    .at(43, DECLINES, kept=[DECLINE])
    .at(47, over=[DECLINE]),
    Scene("a safety judge drops", dropped("").of_series("safety_incident", "0x200", segment=None)).at(
        12, has_an_alert_of_its_own=[DROP]
    ),
    Scene("another worker goes on", dropped("", takes_over=True))
    .at(21, DROPPED, between=[DROP])
    .at(30, DROPPED, taken_over=[DROP])
    .at(47, over_elsewhere=[DROP]),
    Scene("a member of a panel is outvoted", outvoted()).at(35, outvoted=OF_SERIES),
    # below an objective
    Scene("below both", below_from(10, "objective", "environment"))
    .at(14, not_yet=[BELOW])
    .at(16, BELOW_REFERENCE, fires=[BELOW])
    .at(200, BELOW_REFERENCE, kept=[BELOW])
    .at(400, over=[BELOW]),
    Scene("below its environment", below_from(10, "environment")).at(16, BELOW_REFERENCE, environment=[BELOW]),
    # budgets
    Scene("nine of ten fail", Monitored().shares("0.1x100", 0.06)).at(1, not_yet=BURNS).at(3, BURNS_FAST, fires=[FAST]),
    Scene("half fail", Monitored().shares("0.5x100", 0.09))
    .at(14, too_few=[MEDIUM])
    .at(22, BURNS_MEDIUM, fires=[MEDIUM]),
    Scene("one of ten fails", Monitored().shares("0.9x100", 0.03))
    .at(60, not_yet_sure=[SLOW])
    .at(
        99,
        BURNS_SLOW,
        fires=[SLOW],
    ),
    Scene("all fail", Monitored().shares("0x100", 0.05)).at(50, ALL_BURN, all_failed=BURNS),
    Scene("too few to burn", Monitored().shares("0x100", 0.2, "29x100")).at(4, too_few_now=[FAST]),
    Scene("no objective", Monitored().shares("0x100", 0.05).without("tracejudge_quality_objective")).at(
        50, no_objective=BURNS
    ),
    Scene("burnt and mended", Monitored().shares("0x30 0.97x200", 0.02))
    .at(55, together(BURNS_FAST, BURNS_MEDIUM), kept=[FAST])
    .at(62, BURNS_MEDIUM, mended=[FAST])
    .at(95, mended=[MEDIUM, SLOW]),
    # safety
    Scene("a safety incident", safety())
    .at(9, not_yet=[FAILURES])
    .at(11, UNSAFE, fires=[FAILURES])
    .at(47, over=[FAILURES]),
    # the judge
    Scene("a judge drifts", drifted()).at(9, not_yet=[DRIFT]).at(11, DRIFTS, fires=[DRIFT]).at(47, over=[DRIFT]),
    Scene("a judge drifts, and a service drops", drifted(with_drop=True)).at(11, DRIFTS, names_drops=[DRIFT]),
    Scene("a judge abstains", share_of("quality_abstained_lower", "0.6", "0.5"))
    .at(19, not_yet=[ABSTAINED])
    .at(21, CANNOT_TELL, fires=[ABSTAINED])
    .at(60, CANNOT_TELL, kept=[ABSTAINED])
    .at(105, over=[ABSTAINED]),
    Scene("a judge gives no score", unscored())
    .at(19, not_yet=[UNSCORED])
    .at(21, NOT_SCORED, fires=[UNSCORED])
    .at(75, over=[UNSCORED]),
    Scene("a share is not known", unknown("0.12"))
    .at(19, not_yet_unknown=[UNSCORED])
    .at(21, NOT_SCORED, fires_unknown=[UNSCORED])
    .at(75, over_unknown=[UNSCORED]),
    Scene("few verdicts are not known", unknown("0.08")).at(30, quiet_unknown=[UNSCORED]),
    Scene("a drop is none if the unknown passed", unknown("0.08", "0x10 1x30 0x100")).at(
        21, NOT_SCORED, held_back=[UNSCORED]
    ),
    Scene("an objective is met if the unknown passed", partly_unknown("0.945", 0.002)).at(
        99, NOT_SCORED, objective_held_back=[UNSCORED], not_burnt=BURNS
    ),
    Scene("an objective is missed even so", partly_unknown("0.1", 0.002)).at(3, BURNS_FAST, burns_all_the_same=[FAST]),
    # silence
    Scene("silence", silence()).at(14, not_yet=[SILENT]).at(16, QUIET, fires=[SILENT]).at(50, over=[SILENT]),
    Scene("silence, and Prometheus is new", silence(known=False)).at(16, QUIET, last_unknown=[SILENT]),
]
