"""Scenes of the watcher itself: it is blind, slow, or loses traces or verdicts."""

from expected import fires, together, watcher
from promtool_run import Fires, Scene
from worlds import ENVIRONMENT, GONE, LONG_AGO, MODEL, SERVICE, VERSION, Minutes, Mix, World

NO_VERDICTS = "TraceJudgeNoVerdicts"
STOPPED = "TraceJudgeTracesStopped"
CIRCUIT = "TraceJudgeJudgeCircuitOpen"
SLOW = "TraceJudgeJudgeSlow"
LATE = "TraceJudgeScoresLate"
STREAM = "TraceJudgeStreamNearlyFull"
MEMORY = "TraceJudgeRedisNearlyFull"
PARTITION = "TraceJudgePartitionAway"
CUT_OFF = "TraceJudgeTracesCutOff"
DEAD = "TraceJudgeDeadLettersGrowing"
DROPS = "TraceJudgeProducerDrops"
NOT_READY = "TraceJudgeRoleNotReady"
BEHIND = "TraceJudgeExporterBehind"
DROPPED = "TraceJudgeExportDropped"
ABSENT = "TraceJudgeMetricsAbsent"
CHANGED = "TraceJudgeJudgeChanged"
EXHAUSTED = "TraceJudgeBudgetExhausted"
REDUCED = "TraceJudgeBudgetRatesReduced"
OVERSPENT = "TraceJudgeBudgetOverspent"
COUNTED = (NO_VERDICTS, STOPPED, SLOW, LATE, CUT_OFF, DROPS, DROPPED, CHANGED, EXHAUSTED)
ALL = (*COUNTED, CIRCUIT, STREAM, MEMORY, PARTITION, DEAD, NOT_READY, BEHIND, ABSENT, REDUCED, OVERSPENT)

SERIES = {
    "service": SERVICE,
    "environment": ENVIRONMENT,
    "judge": "groundedness",
    "version": VERSION,
    "judge_model": MODEL,
}


def requests(world: World, minutes: int, at_most: dict[str, float], **labels: str) -> World:
    """Add requests to the judge model: for each number of seconds, how many a minute took at most that long."""
    labels = {"judge_model": MODEL, "status": "ok"} | labels
    for seconds, each in at_most.items():
        world.counter("tracejudge_judge_request_duration_seconds_bucket", Minutes(minutes, each), le=seconds, **labels)
    each = max(at_most.values())
    return world.counter("tracejudge_judge_request_duration_seconds_count", Minutes(minutes, each), **labels)


def ages(world: World, minutes: int, at_most: dict[str, float]) -> World:
    """Add scores: for each number of seconds, how many a minute were at most that old."""
    for seconds, each in at_most.items():
        world.counter("tracejudge_score_age_seconds_bucket", Minutes(minutes, each), le=seconds, service=SERVICE)
    each = max(at_most.values())
    return world.counter("tracejudge_score_age_seconds_count", Minutes(minutes, each), service=SERVICE)


def pipeline(minutes: int, each: float) -> World:
    """A healthy pipeline with this many traces a minute."""
    world = World().traces(Minutes(minutes, each)).traces(Minutes(minutes, each), outcome="not_sampled")
    world.judged(Mix(minutes, each)).judged(Mix(minutes, each), judge="safety")
    requests(world, minutes, {"1.28": each, "20.48": each, "40.96": each, "+Inf": each})
    ages(world, minutes, {"60": each, "900": each, "3600": each, "+Inf": each})
    world.counter("tracejudge_unscored_total", Minutes(minutes, each / 20), reason="truncated", **SERIES)
    world.counter("tracejudge_producer_published_total", Minutes(minutes, 2 * each), service=SERVICE)
    world.counter("tracejudge_producer_dropped_total", Minutes(minutes), born=5, service=SERVICE, reason="buffer_full")
    world.counter("tracejudge_cut_off_total", Minutes(minutes), born=50)
    for exporter in ("metrics", "otel"):
        world.counter("tracejudge_outbox_cut_off_total", Minutes(minutes), born=3, exporter=exporter)
        world.counter("tracejudge_export_dropped_total", Minutes(minutes), exporter=exporter, reason="unreadable")
        world.gauge("tracejudge_outbox_lag", f"40x{minutes}", exporter=exporter)
    world.gauge("tracejudge_stream_lag", f"120x{minutes}").gauge("tracejudge_stream_capacity", f"200000x{minutes}")
    world.gauge("tracejudge_redis_used_bytes", f"1000x{minutes}").gauge("tracejudge_redis_max_bytes", f"2000x{minutes}")
    world.gauge("tracejudge_dead_letters", f"500x{minutes}").gauge(
        "tracejudge_partition_up", f"1x{minutes}", partition="0"
    )
    world.counter("tracejudge_budget_refused_total", Minutes(minutes), born=40, budget="all")
    # Usual in the hours of most traffic, and calls in flight at the end of the hour.
    world.gauge("tracejudge_budget_rate_factor", f"0.25x{minutes}", budget="all")
    world.gauge("tracejudge_budget_spent_ratio", f"1.01x{minutes}", budget="all", limit="usd_per_hour")
    return world.gauge("tracejudge_judge_circuit_open", f"0x{minutes}", judge_model=MODEL)


SILENT_SERVICE = watcher(NO_VERDICTS, "page", opens=("service",), service=SERVICE)
NO_TRACES = watcher(STOPPED, "ticket", opens=("service",), service=SERVICE)
OPEN_CIRCUIT = watcher(CIRCUIT, "ticket", judge_model=MODEL)
SLOW_MODEL = watcher(SLOW, "ticket", judge_model=MODEL)
LATE_SCORES = watcher(LATE, "ticket", opens=("service",), service=SERVICE)
NEARLY_FULL = watcher(STREAM, "page")
LITTLE_MEMORY = watcher(MEMORY, "page")
PARTITION_1_AWAY = watcher(PARTITION, "page", partition="1")
TRACES_CUT_OFF = watcher(CUT_OFF, "ticket")
GIVEN_UP = watcher(DEAD, "ticket")
SDK_DROPS = watcher(DROPS, "ticket", opens=("service",), service=SERVICE)
OTEL_BEHIND = watcher(BEHIND, "ticket", exporter="otel")
REFUSED_CALLS = watcher(EXHAUSTED, "ticket", dashboard="cost", budget="support")
LOW_RATES = watcher(REDUCED, "ticket", dashboard="cost", budget="support")
OVER_LIMIT = watcher(OVERSPENT, "ticket", dashboard="cost", budget="support", limit="tokens_per_day")
UNSEEN = watcher(ABSENT, "page")
ONE_UNSEEN = watcher(ABSENT, "ticket", job="tracejudge", instance="b")


def lag(values: str) -> World:
    """The lag of an exporter as a worker sees it; another one saw it last before it grew."""
    world = World().gauge("tracejudge_outbox_lag", values, exporter="otel", instance="a")
    return world.gauge("tracejudge_outbox_lag", "0x70", exporter="otel", instance="b")


def redis_memory(used: str, most: str) -> World:
    """The memory that Redis uses and its limit, as a worker exports them."""
    world = World().gauge("tracejudge_redis_used_bytes", used)
    return world.gauge("tracejudge_redis_max_bytes", most)


def partitions(*values: str) -> World:
    world = World()
    for number, each in enumerate(values):
        world.gauge("tracejudge_partition_up", each, partition=str(number))
    return world


def not_ready_role(severity: str, role: str) -> dict[str, list[Fires]]:
    return watcher(NOT_READY, severity, role=role)


def lost(reason: str) -> dict[str, list[Fires]]:
    return watcher(DROPPED, "ticket", exporter="otel", reason=reason)


def factors(*of_workers: str) -> World:
    """The factor of one budget as each worker shows it while it is the active monitor."""
    world = World()
    for instance, values in zip("ab", of_workers, strict=False):
        world.gauge("tracejudge_budget_rate_factor", values, budget="support", instance=instance)
    return world


def changed(version: str, model: str) -> dict[str, list[Fires]]:
    labels = {**SERIES, "version": version, "judge_model": model}
    return fires(CHANGED, "info", "info", dashboard="quality", opens=("service", "environment", "judge"), **labels)


def two_workers() -> World:
    """Of two workers the second has no ready judge from minute 10 on."""
    world = World()
    for role in ("ingest", "judge", "export"):
        values = "1x10 0x90" if role == "judge" else "1x100"
        world.gauge("tracejudge_ready", values, role=role, job="tracejudge", instance="b")
    return world


def roles_apart() -> World:
    """Two workers share the roles; the one that ingests is gone from minute 10 on."""
    world = World(workers=False)
    for role, instance, values in (("ingest", "a", "1x10 stale"), ("judge", "b", "1x200"), ("export", "b", "1x200")):
        world.gauge("tracejudge_ready", values, role=role, job="tracejudge", instance=instance)
    return world


def vanishing() -> World:
    """The only worker is gone from minute 10 on."""
    world = World(workers=False).gauge("up", "1x10 0x90", job="tracejudge", instance="a")
    return world.gauge("tracejudge_ready", "1x10 stale", role="judge", job="tracejudge", instance="a")


def not_ready() -> World:
    return (
        World()
        .without('tracejudge_ready{role="judge"')
        .gauge("tracejudge_ready", "1x10 0x90", role="judge", job="tracejudge", instance="a")
    )


def cut_off_meanwhile() -> World:
    """The only worker is away for forty minutes; back again, it finds that 500 traces were cut off."""
    away = Minutes(60), Minutes(40, GONE), Minutes(40, restart=True, first=500)
    worker = {"job": "tracejudge", "instance": "a"}
    world = World(workers=False).gauge("tracejudge_ready", "1x60 stale _x39 1x60", role="ingest", **worker)
    world.gauge("process_start_time_seconds", f"-9000x60 stale _x39 {99 * 60}x60", **worker)
    return world.counter("tracejudge_cut_off_total", *away)


def joined(began: float = LONG_AGO) -> World:
    """A second worker has seen much go wrong by minute 30, when it is found."""
    world = World().worker("b", found=30, began=began)
    names = {"absent": 30, "born": 500, "instance": "b"}
    world.counter("tracejudge_cut_off_total", Minutes(60), **names)
    world.counter("tracejudge_producer_dropped_total", Minutes(60), **names, service=SERVICE, reason="buffer_full")
    world.counter("tracejudge_export_dropped_total", Minutes(60), **names, exporter="otel", reason="rejected")
    return world.counter("tracejudge_traces_total", Minutes(60), **names, service=SERVICE, outcome="sampled")


def after_the_weekend() -> World:
    """In steps of ten minutes: two days after its last verdict, a judge has its first in another version."""
    world = World().judged(Mix(20, 5), Mix(310))
    return world.judged(Mix(20, 5), absent=310, born=(3, 2), version="99999999")


def a_day() -> World:
    """In steps of ten minutes: ten traces each until minute 1560; another service in office hours only.

    At the end ingest stands still for a while.
    """
    world = World().without("tracejudge_stream_oldest").traces(Minutes(156, 10), Minutes(26), outcome="no_rule")
    world.traces(Minutes(30), Minutes(120, 10), Minutes(32), service="office", outcome="no_rule")
    world.traces(Minutes(182), service="silent")
    world.gauge("tracejudge_stream_oldest_seconds", "0x182", instance="b")
    return world.gauge("tracejudge_stream_oldest_seconds", "0x164 1200x6 0x12")


def a_week() -> World:
    """In steps of ten minutes: ten traces each, but for the first hours, and for the same ones a week later."""
    return World().traces(Minutes(20), Minutes(990, 10), Minutes(30), outcome="no_rule")


SCENES = [
    Scene("healthy", pipeline(100, 5), every="5m")
    .at(5, new_prometheus=[NO_VERDICTS, CUT_OFF, DROPS, DROPPED])
    .at(95, healthy=ALL),
    Scene("no data", World()).at(30, no_data=[alert for alert in ALL if alert != ABSENT]),
    Scene("nothing at all", World(workers=False))
    .at(4, not_yet=[ABSENT])
    .at(6, UNSEEN, no_data=[ABSENT], fires=[ABSENT]),
    Scene("no traffic", pipeline(130, 0), every="5m").at(125, no_traffic=COUNTED),
    # verdicts
    Scene("no verdict ever", World().traces(Minutes(40, 1)))
    .at(5, not_yet=[NO_VERDICTS])
    .at(15, SILENT_SERVICE, all_failed=[NO_VERDICTS]),
    Scene("verdicts end", World().traces(Minutes(60, 1)).judged(Mix(30, 1), Mix(30)))
    .at(44, not_yet_ended=[NO_VERDICTS])
    .at(50, SILENT_SERVICE, fires=[NO_VERDICTS]),
    Scene("one trace and no verdict", World().traces(Minutes(20), absent=10, born=1)).at(
        18, SILENT_SERVICE, one_trace=[NO_VERDICTS]
    ),
    Scene("all is shed", World().traces(Minutes(40, 1), outcome="shed")).at(15, SILENT_SERVICE, all_shed=[NO_VERDICTS]),
    Scene(
        "one trace and one verdict",
        World().traces(Minutes(20), absent=10, born=1).judged(Mix(20), absent=10, born=(1, 0)),
    ).at(18, born=[NO_VERDICTS]),
    # traces
    Scene("a day", a_day(), interval="10m", every="10m")
    .at(1500, healthy_day=[STOPPED])
    .at(1590, not_yet=[STOPPED])
    .at(1600, NO_TRACES, fires=[STOPPED])
    .at(1680, ingest_is_behind=[STOPPED]),
    Scene("a week", a_week(), interval="10m", every="30m")
    .at(10200, as_a_week_ago=[STOPPED])
    .at(10350, NO_TRACES, unlike_a_week_ago=[STOPPED]),
    # judges
    Scene(
        "circuit",
        World()
        .gauge("tracejudge_judge_circuit_open", "0x10 1x50 0x40", judge_model=MODEL)
        .gauge("tracejudge_judge_circuit_open", "0x100", judge_model=MODEL, instance="b"),
    )
    .at(14, not_yet=[CIRCUIT])
    .at(20, OPEN_CIRCUIT, fires=[CIRCUIT])
    .at(70, closed=[CIRCUIT]),
    Scene("circuit that is probed", World().gauge("tracejudge_judge_circuit_open", "1 0 " * 15, judge_model=MODEL)).at(
        20, OPEN_CIRCUIT, flaps=[CIRCUIT]
    ),
    Scene("slow", requests(World(), 60, {"20.48": 2.4, "40.96": 3, "81.92": 3, "+Inf": 3}))
    .at(8, not_yet=[SLOW])
    .at(40, SLOW_MODEL, fires=[SLOW]),
    Scene(
        "nothing but timeouts",
        requests(World(), 60, {"20.48": 0, "40.96": 0, "81.92": 0, "+Inf": 10}, status="timeout"),
    ).at(40, SLOW_MODEL, all_failed=[SLOW]),
    Scene("late", ages(World(), 60, {"300": 5, "900": 9, "3600": 10, "+Inf": 10}))
    .at(8, not_yet=[LATE])
    .at(40, LATE_SCORES, fires=[LATE]),
    Scene("as late as the bound", ages(World(), 60, {"300": 0, "900": 19, "3600": 20, "+Inf": 20})).at(
        40, at_the_bound=[LATE]
    ),
    Scene("all late", ages(World(), 60, {"300": 0, "900": 0, "3600": 10, "+Inf": 10})).at(
        40, LATE_SCORES, all_failed=[LATE]
    ),
    Scene(
        "given up",
        World().gauge("tracejudge_dead_letters", "5x70 20x60").gauge("tracejudge_dead_letters", "0x130", instance="b"),
    )
    .at(75, not_yet=[DEAD])
    .at(85, GIVEN_UP, fires=[DEAD]),
    Scene("as many given up as the bound", World().gauge("tracejudge_dead_letters", "5x70 15x60")).at(
        85, at_the_bound=[DEAD]
    ),
    Scene("many given up long ago", World().gauge("tracejudge_dead_letters", "5000x120"), every="5m").at(
        110, long_ago=[DEAD]
    ),
    # what holds traces and verdicts
    Scene(
        "stream fills",
        # Another worker saw it before, and counts larger entries.
        World()
        .gauge("tracejudge_stream_lag", "0x10 170000x20")
        .gauge("tracejudge_stream_capacity", "200000x30")
        .gauge("tracejudge_stream_lag", "0x30", instance="b")
        .gauge("tracejudge_stream_capacity", "400000x30", instance="b"),
    )
    .at(11, not_yet=[STREAM])
    .at(15, NEARLY_FULL, fires=[STREAM]),
    Scene(
        "stream is full",
        World().gauge("tracejudge_stream_lag", "200000x30").gauge("tracejudge_stream_capacity", "200000x30"),
    ).at(15, NEARLY_FULL, all_failed=[STREAM]),
    Scene(
        "stream not measured yet",
        World().gauge("tracejudge_stream_lag", "0x30").gauge("tracejudge_stream_capacity", "0x30"),
    ).at(15, no_traffic=[STREAM]),
    Scene(
        "redis fills",
        redis_memory(f"{2**32}x10 {7680 * 2**20}x20", f"{2**33}x30")
        .gauge("tracejudge_redis_used_bytes", f"{2**30}x30", instance="b")
        .gauge("tracejudge_redis_max_bytes", f"{2**32}x30", instance="b"),
    )
    .at(11, not_yet=[MEMORY])
    .at(15, LITTLE_MEMORY, fires=[MEMORY]),
    Scene("redis is full", redis_memory(f"{2**33}x30", f"{2**33}x30")).at(15, LITTLE_MEMORY, all_failed=[MEMORY]),
    Scene("one of two partitions is away", partitions("1x30", "1x10 0x20"))
    .at(11, not_yet=[PARTITION])
    .at(15, PARTITION_1_AWAY, fires=[PARTITION]),
    Scene(
        "one worker does not reach a partition",
        partitions("1x30", "1x10 0x20").gauge("tracejudge_partition_up", "1x30", partition="1", instance="b"),
    ).at(15, reached=[PARTITION]),
    Scene("both partitions are away", partitions("1x10 0x20", "1x10 0x20")).at(15, all_failed=[PARTITION]),
    Scene("redis without a bound", redis_memory(f"{2**33}x30", "0x30")).at(15, no_traffic=[MEMORY]),
    Scene("cut off", World().counter("tracejudge_cut_off_total", Minutes(60), Minutes(1, 50), Minutes(40)))
    .at(59, not_yet=[CUT_OFF])
    .at(62, TRACES_CUT_OFF, fires=[CUT_OFF])
    .at(95, past=[CUT_OFF]),
    Scene("an old worker is added", joined()).at(55, old_worker_added=[NO_VERDICTS, CUT_OFF, DROPS, DROPPED]),
    Scene("a new worker is found", joined(began=28)).at(
        38,
        together(SILENT_SERVICE, TRACES_CUT_OFF, SDK_DROPS, lost("rejected")),
        new_worker_found=[NO_VERDICTS, CUT_OFF, DROPS, DROPPED],
    ),
    Scene("cut off while nobody worked", cut_off_meanwhile()).at(103, TRACES_CUT_OFF, meanwhile=[CUT_OFF]),
    Scene("exporter behind", lag("0x10 25000x60")).at(35, not_yet=[BEHIND]).at(50, OTEL_BEHIND, fires=[BEHIND]),
    Scene("exporter catches up", World().gauge("tracejudge_outbox_lag", "25000x10 10 " * 6, exporter="otel")).at(
        60, catches_up=[BEHIND]
    ),
    Scene(
        "exporter behind, little traffic",
        lag("0x10 100x60").judged(Mix(70, 1)),
    )
    .at(35, not_yet_few=[BEHIND])
    .at(50, OTEL_BEHIND, fires_few=[BEHIND]),
    Scene("an hour is more", World().judged(Mix(60, 3)).gauge("tracejudge_outbox_lag", "100x60", exporter="otel")).at(
        55, within_an_hour=[BEHIND]
    ),
    Scene(
        "export drops",
        World()
        .counter("tracejudge_export_dropped_total", Minutes(50), absent=10, born=3, exporter="otel", reason="rejected")
        .counter("tracejudge_outbox_cut_off_total", Minutes(20), Minutes(1, 7), Minutes(40), exporter="otel"),
    )
    .at(9, not_yet=[DROPPED])
    .at(12, lost("rejected"), born=[DROPPED])
    .at(30, together(lost("rejected"), lost("cut_off")), fires=[DROPPED]),
    Scene(
        "one of twenty dropped",
        World()
        .counter("tracejudge_producer_published_total", Minutes(60, 100), service=SERVICE)
        .counter("tracejudge_producer_dropped_total", Minutes(60, 5), service=SERVICE, reason="buffer_full"),
    )
    .at(4, not_yet=[DROPS])
    .at(40, SDK_DROPS, fires=[DROPS]),
    Scene(
        "one of a hundred dropped",
        World()
        .counter("tracejudge_producer_published_total", Minutes(60, 100), service=SERVICE)
        .counter("tracejudge_producer_dropped_total", Minutes(60, 1), service=SERVICE, reason="buffer_full"),
    ).at(40, at_the_bound=[DROPS]),
    Scene(
        "all dropped",
        World()
        .counter("tracejudge_producer_published_total", Minutes(40), service=SERVICE)
        .counter(
            "tracejudge_producer_dropped_total", Minutes(40), absent=10, born=40, service=SERVICE, reason="buffer_full"
        ),
    ).at(20, SDK_DROPS, all_failed=[DROPS]),
    # budgets
    Scene(
        "a budget is exhausted",
        World().counter(
            "tracejudge_budget_refused_total", Minutes(10), Minutes(1, 7), Minutes(40), absent=10, budget="support"
        ),
    )
    .at(20, not_yet=[EXHAUSTED])
    .at(22, REFUSED_CALLS, fires=[EXHAUSTED])
    .at(45, past=[EXHAUSTED]),
    Scene(
        "the first refused call",
        World().counter("tracejudge_budget_refused_total", Minutes(40), absent=10, born=1, budget="support"),
    ).at(12, REFUSED_CALLS, born=[EXHAUSTED]),
    Scene("rates are reduced", factors("1x10 0.03125x100 0.0625x20"))
    .at(75, not_yet=[REDUCED])
    .at(85, LOW_RATES, fires=[REDUCED])
    .at(115, recovered=[REDUCED]),
    # The second worker becomes the active monitor five minutes after the first one ended.
    Scene("reduced by two monitors", factors("1x10 0.03125x40 stale", "_x55 0.03125x60")).at(
        85, LOW_RATES, monitor_changes=[REDUCED]
    ),
    Scene(
        "exempt judges exceed a limit",
        World()
        .gauge("tracejudge_budget_spent_ratio", "1.04x10 1.06x30 0x10", budget="support", limit="tokens_per_day")
        .gauge("tracejudge_budget_spent_ratio", "0x50", budget="support", limit="tokens_per_day", instance="b"),
    )
    .at(19, not_yet=[OVERSPENT])
    .at(25, OVER_LIMIT, fires=[OVERSPENT])
    .at(42, next_day=[OVERSPENT]),
    # workers
    Scene("nobody ready", not_ready())
    .at(14, not_yet=[NOT_READY])
    .at(20, not_ready_role("page", "judge"), fires=[NOT_READY]),
    Scene("one of two not ready", two_workers()).at(
        20,
        not_ready_role("ticket", "judge"),
        fires_ticket=[NOT_READY],
    ),
    Scene("a role vanishes", roles_apart())
    .at(14, not_yet_gone=[NOT_READY])
    .at(
        20,
        not_ready_role("page", "ingest"),
        gone=[NOT_READY],
    )
    .at(90, long_gone=[NOT_READY]),
    Scene("the worker vanishes", vanishing()).at(14, not_yet_gone=[ABSENT]).at(17, UNSEEN, gone=[ABSENT]),
    Scene("one of two vanishes", World().gauge("up", "1x10 0x90", job="tracejudge", instance="b"))
    .at(14, not_yet_ticket=[ABSENT])
    .at(16, ONE_UNSEEN, fires_ticket=[ABSENT]),
    # a judge
    Scene(
        "a new version",
        World().judged(Mix(90, 5), Mix(60)).judged(Mix(60, 5), absent=90, born=(3, 2), version="99999999"),
    )
    .at(89, not_yet=[CHANGED])
    .at(90, changed("99999999", MODEL), fires=[CHANGED], born=[CHANGED]),
    Scene(
        "another model",
        World().judged(Mix(90, 5), Mix(90)).judged(Mix(90, 5), absent=90, born=(1, 0), judge_model="gpt-4.1"),
    )
    .at(120, changed(VERSION, "gpt-4.1"), another_model=[CHANGED])
    .at(155, known_by_now=[CHANGED]),
    Scene("a new version after the weekend", after_the_weekend(), interval="10m", every="30m").at(
        3120, changed("99999999", MODEL), after_the_weekend=[CHANGED]
    ),
    Scene("two models from the first", World().judged(Mix(90, 5)).judged(Mix(90, 5), judge_model="gpt-4.1")).at(
        85, always_two=[CHANGED]
    ),
    Scene("a new judge", World().judged(Mix(30, 5), absent=90, born=(1, 0))).at(110, new_judge=[CHANGED]),
]
