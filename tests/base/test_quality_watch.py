"""The gauges of the monitor: shares with intervals of the window, of the active worker only; the file of objectives."""

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.stages import Keyspace, make_judged, rules_of

from deploy.rules.alert_settings import PATH, load
from judges.agreement.shares import ClassSums, SessionSums, Sums
from judges.core.faults import first_raised
from worker.base.monitor.baseline import Decline, flat
from worker.base.monitor.detection import Detector, Reference
from worker.base.monitor.detector import Limits, State
from worker.base.monitor.feature import OBJECTIVES, Monitor, MonitorKeys
from worker.base.monitor.gauges import Watch
from worker.base.monitor.incidents import Incident, keep_examples
from worker.base.monitor.objectives import Objective, read_objectives
from worker.base.monitor.series import Series
from worker.base.monitor.sums import QualitySums
from worker.core.config.loading import load as load_settings
from worker.core.config.settings import Settings
from worker.core.storage.client import StoreError
from worker.core.telemetry.metrics import Metrics

pytestmark = pytest.mark.usefixtures("_short_reads")
SERIES = Series("shop", "", "safety", "01234567", "lexical", "safety")
NAMES = ("service", "environment", "judge", "version", "judge_model", "metric")
LABELS = dict(zip(NAMES, msgspec.structs.astuple(SERIES)[:6], strict=True))


def publish(keyspace: Keyspace, count: int, **fields: Any) -> None:
    for number in range(count):
        verdict = make_judged(number, passed=number % 10 > 0, trace_id=f"t{count}-{number}", **fields)
        keyspace.client.xadd(keyspace.keys.verdicts, {"v": 1, "j": msgspec.json.encode(verdict)})


def write_detector(keyspace: Keyspace, detector: Detector) -> None:
    key = MonitorKeys(keyspace.keys.prefix).quality_detector(SERIES.id)
    keyspace.client.set(key, msgspec.msgpack.encode(detector))


class Worker:
    """The monitor of one worker."""

    def __init__(self, keyspace: Keyspace, *objectives: Objective) -> None:
        monitor = Monitor(segments=("model",))
        settings = Settings.from_keys(prefix=keyspace.prefix, redis_url=keyspace.url, monitor=monitor)
        settings = OBJECTIVES.with_value(settings, objectives)
        self.metrics = Metrics(settings)
        self.sums = QualitySums(settings, keyspace.store, self.metrics, rules_of(settings))
        self.sums.prepare()
        self.sums.stopping.set()  # no pause between reads
        self.turn = self.sums.run_once

    def value(self, name: str, segment: str = "", **labels: str) -> float | None:
        all_labels = LABELS | {"segment": segment} | labels
        return self.metrics.registry.get_sample_value(f"tracejudge_quality_{name}", all_labels)


def test_gauges_show_the_share_with_its_interval(keyspace: Keyspace) -> None:
    publish(keyspace, 100)
    publish(keyspace, 60, model="large")
    publish(keyspace, 20, outcome="abstained", scores=())
    publish(keyspace, 20, outcome="unscored", reason="refusal", scores=(), weight=3.0, probability=1 / 3)
    worker = Worker(keyspace)
    worker.turn()
    expected = {
        # Wilson's interval for 144 of 160.
        "share": 0.9,
        "lower": 0.8438,
        "upper": 0.9375,
        "effective_n": 160,
        "judgements": 160,
        "window_seconds": 3600,
        "abstained_share": 20 / 240,
        "unscored_share": 60 / 240,
        # Wilson's lower limits for 20 of 240, and for 60 of 240 where the unequal weights leave 164.
        "abstained_lower": 0.050,
        "unscored_lower": 0.190,
        # Refused verdicts of weight 60 beside 160: the share is 144 to 204 of 220, before chance.
        "unknown_ratio": 60 / 220,
        "lowest": 0.575,
        "highest": 0.957,
    }
    shown = {name: worker.value(name) for name in expected}
    tolerances = {"lowest": 0.01, "highest": 0.01} | dict.fromkeys(("lower", "upper"), 2e-3)
    tolerances |= dict.fromkeys(("effective_n", "abstained_lower", "unscored_lower"), 2e-3)
    approximate = {name: pytest.approx(value, abs=tolerances.get(name, 1e-9)) for name, value in expected.items()}
    assert shown == approximate
    assert worker.value("judgements", "model=large") == 60
    assert worker.value("share", "model=large") == pytest.approx(0.9)


def test_dead_letters_are_not_known_and_what_a_judge_does_not_apply_to_is(keyspace: Keyspace) -> None:
    publish(keyspace, 90)
    publish(keyspace, 30, outcome="unscored", reason="missing_input", scores=())
    worker = Worker(keyspace)
    worker.turn()
    assert (worker.value("unknown_ratio"), worker.value("lowest")) == (0, None)
    for number in range(10):
        dead = make_judged(number, outcome="unscored", reason="timeout", scores=(), trace_id=f"d{number}")
        keyspace.client.xadd(keyspace.keys.verdicts, {"v": 1, "d": msgspec.json.encode(dead)})
    worker.sums.tasks[0]._next_run = 0.0  # at once, not in ten seconds
    worker.turn()
    assert worker.value("unknown_ratio") == pytest.approx(0.1)
    assert worker.value("unscored_share") == pytest.approx(40 / 130)
    assert worker.value("share") == pytest.approx(0.9)
    lowest, highest = worker.value("lowest"), worker.value("highest")
    assert lowest is not None
    assert highest is not None
    assert lowest < 0.81
    assert highest > 0.91
    keyspace.next_case("what is refused in the first hour is not known")
    for metrics in (("safety",), ("rest",)):
        publish(keyspace, 20, outcome="unscored", reason="content_filter", scores=(), metrics=metrics)
    worker = Worker(keyspace)
    worker.turn()
    names = "unknown_ratio", "lowest", "highest", "share"
    assert [worker.value(name) for name in names] == [1, 0, 1, None]
    assert [worker.value(name, metric="rest") for name in names] == [None] * 4, "a metric without a pass rule"
    keyspace.next_case("intervals know how sessions agreed in the last weeks")
    publish(keyspace, 40)
    # 200 sessions of five verdicts that are all the same, in 180 of them passes: a design effect of 5.
    history = Sums({0: ClassSums(1000, 1000, 900, 1000, 900)}, SessionSums(200, 5000, 4500, 4500))
    write_detector(keyspace, Detector(norm=flat(0.9, 10_000), learned_at=time.time(), history=history))
    worker = Worker(keyspace)
    worker.turn()
    assert worker.value("effective_n") == pytest.approx(40 / ((450 + 3.6) / (90 + 3.6)))


def test_one_worker_is_active_and_another_takes_over(keyspace: Keyspace) -> None:
    first, second = Worker(keyspace), Worker(keyspace)
    publish(keyspace, 40)
    for worker in (first, second):
        worker.turn()
    assert (first.value("judgements"), second.value("judgements")) == (40, None)
    first.sums.stop(1.0)
    publish(keyspace, 40)
    second.turn()
    assert second.value("judgements") == 80
    first.turn()
    assert first.value("judgements") is None, "a standby worker shows figures"
    second.sums.stop(1.0)
    first.turn()
    assert first.value("judgements") == 80, "a worker that is active again waits with its figures"
    keyspace.next_case("the lock is renewed between tasks, and no task runs without it")
    worker, seen = Worker(keyspace), list[str]()
    client, lock = keyspace.client, keyspace.keys.monitor

    class Task(Watch):
        """Work of the monitor during which the lock nearly ends, or goes to another worker."""

        every_s = 0.0
        loses = False

        def run(self, now: float) -> None:  # noqa: ARG002
            seen.append("runs" if client.pttl(lock) > 5_000 else "runs without the lock")
            client.pexpire(lock, 500)
            if self.loses:
                client.delete(lock)
                keyspace.store.acquire_lock(lock, "another worker", 10_000)

        def clear(self) -> None:
            seen.append("clears")

    worker.sums.tasks = tuple(Task(keyspace.store) for _ in range(3))
    worker.sums.tasks[1].loses = True
    worker.turn()
    assert seen == ["runs", "runs"]
    worker.turn()
    assert seen == ["runs", "runs", "clears", "clears", "clears"]


def test_a_failed_watch_runs_again_after_a_minute(keyspace: Keyspace) -> None:
    now, runs = [1_000.0], list[float]()
    outcomes: list[Exception | bool | None] = [StoreError("away"), True, None, None]

    class Hourly(Watch):
        every_s = 3_600.0

        def run(self, now: float) -> bool | None:
            runs.append(now)
            outcome = outcomes.pop(0)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

    watch = Hourly(keyspace.store, lambda: now[0])
    with pytest.raises(StoreError):
        watch.run_due()
    for later_s in (59.0, 1.0, 1.0, 3_598.0, 2.0):
        now[0] += later_s
        watch.run_due()
    assert runs == [1_000.0, 1_060.0, 1_061.0, 4_661.0]


def test_gauges_show_an_open_incident_with_its_details(keyspace: Keyspace) -> None:
    publish(keyspace, 40)
    now = time.time()
    bucket = int(now) // 300
    limits = Limits((1.0, 1.0), (50.0, 50.0))
    detector = Detector(
        state=State(alarm=1, starts=[bucket - 8, bucket - 9], judged=[80.0, 90.0], missing=[20.0, 30.0]),
        norm=msgspec.structs.replace(flat(0.95, 10_000), days=13, allowances=((0.02, 0.03), (0.0, 0.0))),
        limits=limits,
        learned_at=now,
        references={"objective": Reference(0.99, 1.0, limits, State(alarm=0, starts=[5, 5]))},
        incident=Incident("all", 0.9, bucket - 9, bucket - 12, bucket - 6, 0.3, ("sampling",), "all"),
        decline=Decline(20_000, 19_972, -0.009, -0.013, -0.005),
    )
    write_detector(keyspace, detector)
    keep_examples(keyspace.store, "drop", SERIES.id, ["t1", "t2"])
    worker = Worker(keyspace, Objective("safety", "safety", 0.99))
    worker.turn()
    assert worker.value("below_objective", reference="environment") is None
    times = [time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime((bucket - back) * 300)) for back in (9, 12, 6)]
    details = dict(zip(("since", "since_low", "since_high"), times, strict=True))
    details |= {"segment": "all", "cause": "all", "changed": "sampling", "examples": "t1 t2"}
    gauges: list[tuple[str, dict[str, str], float]] = [
        *(("drop", {}, 1), ("baseline", {}, 0.95), ("drop_since_seconds", {}, (bucket - 9) * 300)),
        *(("objective", {}, 0.99), ("below_objective", {"reference": "objective"}, 1), ("incident_info", details, 1)),
        *(("slope", {}, -0.009), ("slope_lower", {}, -0.013), ("slope_upper", {}, -0.005)),
        *(("slope_since_seconds", {}, 19_972 * 86_400), ("least_drop", {}, pytest.approx(0.1))),
    ]
    for name, labels, expected in gauges:
        assert worker.value(name, **labels) == expected, name
    worker.sums.stop(1.0)
    Worker(keyspace).turn()
    worker.turn()
    for name, labels, _ in gauges:
        if name in {"incident_info", "below_objective", "drop", "slope", "least_drop"}:
            assert worker.value(name, **labels) is None, name


# --- the file of objectives: found beside the configuration, read alike by the worker and the rules ---
def test_one_file_beside_the_configuration_sets_objectives(tmp_path: Path) -> None:
    assert first_raised(read_objectives(PATH)) == load().objectives
    row = '[[objectives]]\njudge = "safety"\nmetric = "safety"\nobjective = 0.99\n'
    config, beside = tmp_path / "tracejudge.toml", tmp_path / "objectives.toml"
    config.touch()
    assert OBJECTIVES.read(load_settings({}, str(config))) == ()
    beside.write_text(row)
    assert [row.objective for row in OBJECTIVES.read(load_settings({}, str(config)))] == [0.99]
