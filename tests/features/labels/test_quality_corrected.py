"""Labels in Redis: matched with verdicts, and the shares that they correct."""

import time

import msgspec
import pytest
from structlog.testing import capture_logs
from support.stage_parts import Keyspace, make_judged, rules_of, settings_of

from judges.core.verdict import Verdict
from worker.base.forget.forget import ForgetTarget, Forgetting
from worker.base.lookup import label_store as stored
from worker.base.lookup.feature import LookupKeys
from worker.base.lookup.label_store import Drawn, Label, TooManyLabelsError, attach, read_labels, write_labels
from worker.base.monitor.feature import Monitor
from worker.base.monitor.gauges import MonitorParts
from worker.base.monitor.series import Series, read_series
from worker.base.monitor.sums import QualitySums
from worker.core.config.serving import UserKeys, hashed_user
from worker.core.config.settings import Settings
from worker.core.telemetry.metrics import Metrics
from worker.features.labels.correction import Correction, corrections
from worker.features.labels.correction_watch import CorrectionWatch

VERSION = "0123456789abcdef"


def label(number: int, *, passed: bool, drawn: Drawn = 0.5, **fields: str) -> Label:
    return Label(f"t{number}", "safety", "safety", passed=passed, drawn=drawn, **fields)


class Worker:
    """The monitor of one worker, without its own clock."""

    def __init__(self, keyspace: Keyspace) -> None:
        settings = Settings.from_keys(
            prefix=keyspace.prefix, redis_url=keyspace.url, monitor=Monitor(segments=("model",))
        )
        self.metrics = Metrics(settings)
        self.sums = QualitySums(settings, keyspace.store, self.metrics, rules_of(settings))
        self.sums.prepare()
        self.sums.stopping.set()  # no pause between reads
        self.now = time.time()
        self.watch = CorrectionWatch(
            MonitorParts(settings, keyspace.store, self.metrics, rules_of(settings)), lambda: self.now
        )
        self.sums.tasks = (self.watch,)

    def turn(self) -> None:
        self.now += 400
        self.sums.run_once()

    def gauges(self, segment: str = "") -> dict[str, dict[str, float]]:
        by_method: dict[str, dict[str, float]] = {}
        for family in self.metrics.registry.collect():
            for sample in family.samples:
                if "quality_corrected" in sample.name and sample.labels["segment"] == segment:
                    name = sample.name.removeprefix("tracejudge_quality_corrected_")
                    by_method.setdefault(sample.labels["method"], {})[name] = sample.value
        return by_method


def traffic(keyspace: Keyspace, *, labels: int = 100, drawn: Drawn = 0.5) -> None:
    """200 traces, 160 of which the judge passes; of those that it passes 1 of 8 is wrong, of the others 1 of 4."""
    keyspace.send(*(make_judged(number, passed=number % 5 > 0, model="large") for number in range(200)))
    labels_of_people = []
    for number in range(labels):
        judged = number % 5 > 0
        wrong = number % 8 == 1 if judged else number % 20 == 0
        labels_of_people.append(label(number, passed=judged is not wrong, drawn=drawn))
    write_labels(keyspace.store, labels_of_people)


@pytest.mark.usefixtures("_short_reads")
def test_drawn_labels_correct_the_share_of_their_time(keyspace: Keyspace) -> None:
    traffic(keyspace)
    worker = Worker(keyspace)
    worker.turn()
    passes = [number for number in range(100) if number % 5 > 0]
    right = sum(number % 8 != 1 for number in passes) / len(passes)
    expected = 0.8 * right + 0.2 * (5 / 20)
    for segment in ("", "model=large"):
        gauges = worker.gauges(segment)
        assert list(gauges) == ["ppi"], segment
        gauge_values = gauges["ppi"]
        assert gauge_values["share"] == pytest.approx(expected)
        assert gauge_values["lower"] < expected < gauge_values["upper"] < gauge_values["lower"] + 0.2
        assert gauge_values["window_seconds"] == pytest.approx(3600, abs=300)
    worker.watch.clear()
    assert worker.gauges() == {}


@pytest.mark.usefixtures("_short_reads")
def test_labels_find_verdicts_that_come_later_once_each(keyspace: Keyspace) -> None:
    write_labels(keyspace.store, [label(1, passed=True), label(2, passed=False), label(2, passed=True, span_id="s")])
    worker = Worker(keyspace)
    worker.turn()
    assert [stored_label.verdicts for stored_label in read_labels(keyspace.store)] == [(), (), ()]
    keyspace.send(make_judged(1, passed=True), make_judged(2, passed=True, span_id="s"), make_judged(3, passed=True))
    keyspace.send(
        *(make_judged(1, passed=False, origin=origin, evaluation_id=origin) for origin in ("repeat", "canary"))
    )
    for broken in (b"{", b'{"evaluation_id":"\xff"}'):
        keyspace.client.xadd(keyspace.keys.verdicts, {"v": 1, "j": broken})
    keyspace.client.xadd(keyspace.keys.verdicts, {"v": 2, "x": b""})
    keyspace.send(make_judged(1, passed=True, judge="other"), make_judged(1, passed=None, outcome="unscored"), kind="d")
    for _ in range(2):
        worker.turn()
        by_span_id = {
            (stored_label.label.trace_id, stored_label.label.span_id): stored_label
            for stored_label in read_labels(keyspace.store)
        }
        assert {key: [verdict.evaluation_id for verdict in each.verdicts] for key, each in by_span_id.items()} == {
            ("t1", ""): ["e1"],
            ("t2", ""): ["e2"],
            ("t2", "s"): ["e2"],
        }
    # A worker that takes over reads the outbox from its begin.
    keyspace.client.hdel(LookupKeys(keyspace.keys.prefix).labels, f"{label(1, passed=True).id}:e1")
    Worker(keyspace).watch.run_due()
    assert all(stored_label.verdicts for stored_label in read_labels(keyspace.store))


@pytest.mark.usefixtures("_short_reads")
def test_a_golden_set_corrects_the_share_of_now(keyspace: Keyspace) -> None:
    keyspace.send(*(make_judged(number, passed=number % 5 > 0) for number in range(200)))
    write_labels(keyspace.store, [label(number, passed=number < 1050, drawn="golden") for number in range(1000, 1100)])
    # The judge passes 45 of the 50 good traces and 10 of the 50 bad ones, which are of no service of the traffic.
    attach(
        keyspace.store,
        (
            make_judged(number, passed=number < 1045 or number >= 1090, origin="replay", service="offline")
            for number in range(1000, 1100)
        ),
    )
    worker = Worker(keyspace)
    worker.turn()
    (gauge_values,) = worker.gauges().items()
    assert gauge_values[0] == "rogan_gladen"
    assert gauge_values[1]["share"] == pytest.approx((0.8 + 0.8 - 1) / (0.9 + 0.8 - 1))
    assert gauge_values[1]["lower"] < gauge_values[1]["share"] < gauge_values[1]["upper"]
    # Another version of the judge errs in another way.
    keyspace.send(
        *(make_judged(number, passed=True, judge_version="ffff", evaluation_id="n") for number in range(200, 300))
    )
    worker.turn()
    assert [correction.version for correction in corrections_of(keyspace)] == [VERSION[:8]]


def corrections_of(keyspace: Keyspace, since_s: float = 3600.0) -> dict[Series, list[Correction]]:
    now = time.time()
    return corrections(keyspace.store, read_series(keyspace.store).values(), now - since_s, now + 1)


@pytest.mark.usefixtures("_short_reads")
def test_labels_that_do_not_fit_correct_nothing_and_one_line_says_why(keyspace: Keyspace) -> None:
    reasons: dict[Drawn, str] = {
        "queue": "Labels from a queue were chosen without a known probability",
        0.5: "these labels were not drawn from it. Import them as a golden set",
        "golden": "A golden set needs traces that should pass and traces that should not",
    }
    keyspace.send(*(make_judged(number, passed=number % 10 > 0) for number in range(500)))
    keyspace.send(*(make_judged(number, passed=True, service="other", model="small") for number in range(500, 600)))
    worker = Worker(keyspace)
    for drawn, reason in reasons.items():
        keyspace.client.delete(LookupKeys(keyspace.keys.prefix).labels)
        worker.watch.clear()
        # A set with as many verdicts that fail as verdicts that pass.
        chosen = [number for number in range(500) if number % 10 < 2]
        write_labels(keyspace.store, [label(number, passed=True, drawn=drawn) for number in chosen])
        with capture_logs() as logs:
            for _ in range(2):
                worker.turn()
        assert worker.gauges() == {}, drawn
        log_lines = [line["reason"] for line in logs if line["event"] == "share not corrected by labels"]
        assert len(log_lines) == 1, (drawn, log_lines)
        assert reason in log_lines[0]
        for series, (correction,) in corrections_of(keyspace).items():
            backlog = (correction.corrected, correction.labels, reason in correction.refused)
            assert backlog == (None, 100, True), (drawn, series)


@pytest.mark.usefixtures("_short_reads")
def test_unequal_probabilities_of_judging_and_labelling_leave_no_bias(keyspace: Keyspace) -> None:
    """All traces with an error are judged, of the others 1 of 4; failing verdicts are labelled more often.

    With an error 100 of 200 should pass, without one 720 of 800; the judge is wrong about every tenth trace.
    """
    verdicts, labels = [], []
    for number in range(400):
        is_error = number < 200
        passes = number % 2 > 0 if is_error else number % 10 > 0
        # Every tenth, of passing and failing ones alike.
        judged = passes is not (number // 10 % 10 == 0)
        weight = 1.0 if is_error else 4.0
        verdicts.append(make_judged(number, passed=judged, weight=weight, probability=1 / weight))
        if not judged or number % 3 == 0:
            labels.append(label(number, passed=passes, drawn=1 / 3 if judged else 1.0))
    keyspace.send(*verdicts)
    write_labels(keyspace.store, labels)
    Worker(keyspace).turn()
    ((correction,),) = corrections_of(keyspace).values()
    assert correction.corrected is not None
    assert correction.corrected.interval.value == pytest.approx(0.82, abs=0.015)
    assert correction.corrected.interval.low < 0.82 < correction.corrected.interval.high
    assert correction.raw is not None
    assert correction.raw.interval.value == pytest.approx(
        sum(each.weight * bool(each.scores[0].passed) for each in verdicts) / 1000
    )


def test_a_drawn_label_stays_drawn_when_another_file_has_it(keyspace: Keyspace) -> None:
    def stored_as() -> list[tuple[Drawn, bool]]:
        labels = sorted((item.label for item in read_labels(keyspace.store)), key=lambda each: each.trace_id)
        return [(each.drawn, each.passed) for each in labels]

    in_order = msgspec.structs.replace(label(2, passed=True, drawn=0.25), reached=(0.0, 1.0))
    write_labels(keyspace.store, [label(1, passed=True, drawn=0.1), in_order])
    for drawn, expected in (("queue", [0.1, 0.25]), ("golden", [0.1, 0.25]), (0.5, [0.5, 0.25])):
        changed = [label(number, passed=False, drawn=drawn) for number in (1, 2)]
        assert write_labels(keyspace.store, [changed[0], *changed])["new"] == 0
        assert stored_as() == [(each, False) for each in expected], drawn
        assert +write_labels(keyspace.store, changed) == {"same": 2}, drawn
    # In one file as well, and unless the import says so.
    write_labels(keyspace.store, [label(3, passed=True, drawn=0.1), label(3, passed=True, drawn="golden")])
    assert stored_as()[2] == (0.1, True)
    write_labels(keyspace.store, changed[:1], replace_drawn=True)
    write_labels(keyspace.store, [label(1, passed=False, drawn="golden")], replace_drawn=True)
    assert stored_as()[0] == ("golden", False)


def test_too_many_labels_are_refused(keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "MAX_LABELS", 2)
    with pytest.raises(TooManyLabelsError, match="Redis holds 0 labels, and at most 2 are kept"):
        write_labels(keyspace.store, [label(number, passed=True) for number in range(3)])
    write_labels(keyspace.store, [label(1, passed=True), label(2, passed=True)])
    attach(keyspace.store, [make_judged(1, passed=True), make_judged(2, passed=True)])
    assert write_labels(keyspace.store, [label(1, passed=False)])["changed"] == 1
    with pytest.raises(TooManyLabelsError, match="Redis holds 2 labels, and at most 2 are kept"):
        write_labels(keyspace.store, [label(3, passed=True)])


def test_a_forgotten_person_leaves_no_label(keyspace: Keyspace) -> None:
    settings = settings_of(keyspace)
    keys = UserKeys(settings, keyspace.store)
    person = hashed_user("u-1729", keys.current())
    write_labels(
        keyspace.store, [label(1, passed=True, comment="a secret"), label(2, passed=True), label(3, passed=True)]
    )
    attach(
        keyspace.store, [make_judged(1, passed=True, user_id=person), make_judged(2, passed=True, session_id="talk")]
    )
    for target, left in (
        (ForgetTarget(user_id="u-1729", user_keys=keys.all()), ["t2", "t3"]),
        (ForgetTarget(session_id="talk"), ["t3"]),
        (ForgetTarget(trace_id="t3"), []),
    ):
        assert Forgetting(keyspace.store, settings, target, dry_run=True).run().labels == 1
        assert Forgetting(keyspace.store, settings, target).run().labels == 1
        assert [stored_label.label.trace_id for stored_label in read_labels(keyspace.store)] == left
    assert keyspace.client.exists(LookupKeys(keyspace.keys.prefix).labels) == 0


def test_a_verdict_does_not_stay_without_its_label(keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """`forget` erases the label after the monitor has found it, and before the monitor writes the verdict."""
    write_labels(keyspace.store, [label(1, passed=True)])
    make = stored.LabelVerdict.from_verdict

    def from_verdict(result: Verdict, metric: str) -> stored.LabelVerdict:
        Forgetting(keyspace.store, settings_of(keyspace), ForgetTarget(trace_id="t1")).run()
        return make(result, metric)

    monkeypatch.setattr(stored.LabelVerdict, "from_verdict", from_verdict)
    attach(keyspace.store, [make_judged(1, passed=True)])
    assert keyspace.client.exists(LookupKeys(keyspace.keys.prefix).labels) == 0
