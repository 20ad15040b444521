"""Shares corrected by labels: formulas, agreement, coverage; labels in Redis, their verdicts, and the gauges."""

import time
from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs
from support.passes import monitor_parts, quality_sums
from support.stages import Keyspace, make_judged, settings_of
from support.tables import read_table

from benchmarks import label_runs
from benchmarks.label_runs import pair
from judges.agreement.intervals import Interval
from judges.agreement.shares import ClassSums, SessionSums, Sums
from judges.core.verdict import Verdict
from worker.base.forget.forget import ForgetTarget, Forgetting
from worker.base.lookup import label_store as stored
from worker.base.lookup.feature import LookupKeys
from worker.base.lookup.label_store import (
    Drawn,
    Label,
    Labelled,
    TooManyLabelsError,
    attach,
    read_labels,
    with_places_reached,
    write_labels,
)
from worker.base.monitor import corrected as formulas
from worker.base.monitor.feature import Monitor
from worker.base.monitor.series import Bucket, Series, Unjudged, read_series
from worker.core.config.serving import UserKeys, hashed_user
from worker.core.telemetry.metrics import Metrics
from worker.features.labels.correction import Correction, correct, corrections, strata
from worker.features.labels.correction_watch import CorrectionWatch

VERSION = "0123456789abcdef"


def corrected_by(case: dict[str, Any]) -> formulas.Corrected:
    if "golden" in case:
        passed, *counts = case["golden"]
        return formulas.from_golden(passed, 5000, formulas.Confusion(*counts))
    return formulas.from_drawn([formulas.Stratum(bool(verdict), *rest) for verdict, *rest in case["strata"]], 1000)


def width(interval: Interval) -> float:
    return interval.high - interval.low


def test_shares_are_corrected_by_their_formulas_or_refused() -> None:
    cases = read_table(__file__, "corrections")
    for name, case in cases.items():
        if "refused" in case:
            with pytest.raises(formulas.CorrectionRefusedError, match=case["refused"] or None):
                corrected_by(case)
            continue
        corrected = corrected_by(case)
        assert corrected.interval.value == pytest.approx(case["value"]), name
        assert 0 <= corrected.interval.low < corrected.interval.high <= 1, name
        assert width(corrected.interval) > case.get("wider", 0), name
        for key in {"method", "labels"} & case.keys():
            assert getattr(corrected, key) == case[key], name
        assert (corrected.beside_labels is None) is ("golden" in case), name
        assert corrected.beside_labels is None or corrected.beside_labels < case.get("beside_labels_below", 2), name
    # A part without a label widens the interval.
    case = cases["a part without a label, as an even chance"]
    certain = {"strata": [*case["strata"][:2], [0, 1, 40, 4000, 2000]]}
    assert width(corrected_by(case).interval) > width(corrected_by(certain).interval)
    assert (formulas.method_of("drawn"), formulas.method_of("golden")) == ("ppi", "rogan_gladen")
    for origin, asked in (("golden", "ppi"), ("drawn", "rogan_gladen"), ("queue", None)):
        with pytest.raises(formulas.CorrectionRefusedError):
            formulas.method_of(origin, asked)


def test_agreement_is_that_of_the_textbooks() -> None:
    """And of statsmodels, whose import takes two seconds."""
    corrected = formulas.agreement(formulas.Confusion(81, 9, 12, 48))
    for name, expected in (
        ("kappa", (0.70588, 0.58961, 0.82216)),
        ("sensitivity", (81 / 90, 0.82076, 0.94649)),
        ("specificity", (48 / 60, 0.68218, 0.88171)),
        ("agreement", (129 / 150, 0.79545, 0.90657)),
    ):
        assert getattr(corrected, name) == pytest.approx(expected, abs=1e-4), name
    one_sided = formulas.agreement(formulas.Confusion(10, 0, 0, 0))
    assert (one_sided.specificity, one_sided.kappa) == (None, None)
    assert formulas.agreement(formulas.Confusion(0, 0, 0, 10)).sensitivity is None
    for alike in (formulas.Confusion(40, 0, 0, 13), formulas.Confusion(78, 4, 0, 0)):
        # Without a disagreement, or with one kind of verdict, the standard error is 0 and the interval is not.
        kappa = formulas.agreement(alike).kappa
        assert kappa is not None
        assert kappa.low < kappa.value <= kappa.high, alike
        assert width(kappa) > 0.05, alike
    rate, kappa = formulas.flips(formulas.Confusion(880, 30, 20, 70))
    assert kappa is not None
    assert (rate.value, kappa.value) == (0.05, pytest.approx(0.709302, abs=1e-6))
    _, kappa = formulas.flips(formulas.Confusion(9, 1, 0, 0))
    assert kappa is not None
    assert kappa.low == -1, "no kappa is lower"
    for empty in (formulas.agreement, formulas.flips):
        with pytest.raises(ValueError, match=r"^no "):
            empty(formulas.Confusion(0, 0, 0, 0))


def test_a_stretch_of_the_traffic_without_a_label_is_refused_and_the_labelled_part_offered() -> None:
    """100 labels: (ln 100 + 5) / 100 = .096 of the traffic may have none."""
    buckets = [
        Bucket(3600.0 * hour, Sums({0: ClassSums(10, 10, 8, 10, 8)}, SessionSums(10, 10, 8, 8)), Unjudged(), Unjudged())
        for hour in range(100)
    ]
    span = 0.0, 360_000.0
    for hours, drawn, is_refused in (
        (range(91), [0.1], False),
        (range(90), [0.1], True),
        (range(10, 100), [0.1], True),
        ([hour for hour in range(100) if not 40 <= hour < 50], [0.1], True),
        # With unequal probabilities: an effective number of 57.8, which allows .157.
        (range(90), [0.1, 0.1, 0.1, 0.02], False),
        (range(80), [0.1, 0.1, 0.1, 0.02], True),
    ):
        pairs = [
            pair(n, 3600.0 * hours[n % len(hours)], drawn=drawn[n % len(drawn)], verdict=n % 5 > 0) for n in range(100)
        ]
        correction = correct("drawn", pairs, buckets, span, 3600)
        assert (correction.corrected is None) is is_refused, (hours, drawn)
        if is_refused:
            first, last = 3600.0 * min(hours), 3600.0 * (max(hours) + 1)
            offered = correction.offered
            # Where the stretch is between labels, no part of the time is labelled as a whole.
            assert (offered is None) is (last - first == span[1]), hours
            assert "of the judged traffic. Label verdicts that are drawn from all of the time" in correction.refused
            if offered is not None:
                assert offered.corrected is not None
                assert (offered.since, offered.until) == (first, last)
                assert offered.corrected.interval.percent in correction.refused
    assert "1970-01-05T00:00Z to 1970-01-05T04:00Z" not in correction.refused
    assert "1970-01-04T08:00Z to 1970-01-05T04:00Z, which has 20% of" in correction.refused


def test_the_probability_of_a_label_of_the_board_is_the_place_reached() -> None:
    """On the first day all were answered, later those up to .02; a judge of another service has an order of its own."""
    day, month = (0.0, 1.0), (0.0, 30.0)
    given: list[tuple[float, float, tuple[float, float] | None, float]] = [
        (0.2, 0.3, day, 0.9),
        (0.5, 0.9, day, 0.9),
        (0.9, 0.001, month, 0.9),
        (9.0, 0.01, month, 0.02),
        (20.0, 0.02, (3.0, 30.0), 0.02),
        (20.0, 0.015, (19.0, 25.0), 0.02),
        (20.0, 0.5, day, 0.5),
        (0.5, 0.05, None, 0.05),
    ]
    labelled = []
    for number, (at, place, reached, _) in enumerate(given):
        label, verdict = pair(number, at, drawn=place)
        service = "other" if number == 6 else "s"
        labelled.append(Labelled(replace(label, reached=reached), (replace(verdict, service=service),)))
    assert [item.label.drawn for item in with_places_reached(labelled)] == [expected for *_, expected in given]
    assert with_places_reached([Labelled(labelled[0].label)])[0].label.drawn == 0.3  # without a verdict


def test_labels_of_a_session_agree_by_a_quarter_at_least() -> None:
    """Twenty labels of sessions of five whose truths do not agree count as ten: 1 + (5 - 1) / 4 = 2."""
    sums = Sums({0: ClassSums(500, 500, 400, 500, 400)}, SessionSums(100, 2500, 2000, 1620))
    pairs = [pair(n, 0.0, passed=n // 5 != n % 5, session_id=str(n // 5)) for n in range(20)]
    assert [each.labels for each in strata(pairs, sums)] == pytest.approx([10.0, 0.0])


def test_corrected_shares_cover_in_short() -> None:
    # Counted by the configured rate these labels reach 2 %.
    assert label_runs.in_time(47, 15, "falling order", judged=4000).covered >= 0.8
    corrected = label_runs.drawn(41, 0.95, 150)
    assert 0.91 <= corrected.share <= 0.99
    assert corrected.beside_rogan_gladen <= 0.7
    assert 0.91 <= label_runs.golden(42, 0.95, 150) <= 0.99
    for design in label_runs.DESIGNS[1:]:
        assert 0.9 <= label_runs.drawn(44, 0.8, 100, design=design).share <= 1, design
    # As independent labels these sessions reach 79 %.
    assert 0.9 <= label_runs.sessions(45, 0.5, 60, 0.5) <= 1


def label(number: int, *, passed: bool, drawn: Drawn = 0.5, **fields: str) -> Label:
    return Label(f"t{number}", "safety", "safety", passed=passed, drawn=drawn, **fields)


class Worker:
    """The monitor of one worker, without its own clock."""

    def __init__(self, keyspace: Keyspace) -> None:
        settings = settings_of(keyspace, monitor=Monitor(segments=("model",)))
        self.metrics, self.now = Metrics(settings), time.time()
        self.sums = quality_sums(keyspace, settings)
        self.sums.stopping.set()  # no pause between reads
        self.watch = CorrectionWatch(monitor_parts(keyspace, settings, self.metrics), lambda: self.now)
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


@pytest.mark.usefixtures("_short_reads")
def test_labels_find_verdicts_that_come_later_once_each(keyspace: Keyspace) -> None:
    write_labels(keyspace.store, [label(1, passed=True), label(2, passed=False), label(2, passed=True, span_id="s")])
    worker = Worker(keyspace)
    worker.turn()
    assert [each.verdicts for each in read_labels(keyspace.store)] == [(), (), ()]
    keyspace.send(make_judged(1, passed=True), make_judged(2, passed=True, span_id="s"), make_judged(3, passed=True))
    keyspace.send(*(make_judged(1, passed=False, origin=each, evaluation_id=each) for each in ("repeat", "canary")))
    for broken in (b"{", b'{"evaluation_id":"\xff"}'):
        keyspace.client.xadd(keyspace.keys.verdicts, {"v": 1, "j": broken})
    keyspace.client.xadd(keyspace.keys.verdicts, {"v": 2, "x": b""})
    keyspace.send(make_judged(1, passed=True, judge="other"), make_judged(1, passed=None, outcome="unscored"), kind="d")
    for _ in range(2):
        worker.turn()
        found = {
            f"{each.label.trace_id} {each.label.span_id}": [verdict.evaluation_id for verdict in each.verdicts]
            for each in read_labels(keyspace.store)
        }
        assert found == {"t1 ": ["e1"], "t2 ": ["e2"], "t2 s": ["e2"]}
    # A worker that takes over reads the outbox from its begin.
    keyspace.client.hdel(LookupKeys(keyspace.keys.prefix).labels, f"{label(1, passed=True).id}:e1")
    Worker(keyspace).watch.run_due()
    assert all(each.verdicts for each in read_labels(keyspace.store))


@pytest.mark.usefixtures("_short_reads")
def test_a_golden_set_corrects_the_share_of_now(keyspace: Keyspace) -> None:
    keyspace.send(*(make_judged(number, passed=number % 5 > 0) for number in range(200)))
    write_labels(keyspace.store, [label(number, passed=number < 1050, drawn="golden") for number in range(1000, 1100)])
    # The judge passes 45 of the 50 good traces and 10 of the 50 bad ones, which are of no service of the traffic.
    golden = {number: number < 1045 or number >= 1090 for number in range(1000, 1100)}
    attach(
        keyspace.store,
        (make_judged(number, passed=passed, origin="replay", service="offline") for number, passed in golden.items()),
    )
    worker = Worker(keyspace)
    worker.turn()
    ((method, seen),) = worker.gauges().items()
    assert (method, seen["share"]) == ("rogan_gladen", pytest.approx((0.8 + 0.8 - 1) / (0.9 + 0.8 - 1)))
    assert seen["lower"] < seen["share"] < seen["upper"]
    # Another version of the judge errs in another way.
    newer = {"judge_version": "ffff", "evaluation_id": "n"}
    keyspace.send(*(make_judged(number, passed=True, **newer) for number in range(200, 300)))
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
        (line,) = (line for line in logs if line["event"] == "share not corrected by labels")
        assert reason in line["reason"]
        for series, (correction,) in corrections_of(keyspace).items():
            shown = (correction.corrected, correction.labels, reason in correction.refused)
            assert shown == (None, 100, True), (drawn, series)


@pytest.mark.usefixtures("_short_reads")
def test_drawn_labels_correct_the_share_of_their_time_whatever_their_probabilities(keyspace: Keyspace) -> None:
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
        verdicts.append(make_judged(number, passed=judged, weight=weight, model="large"))
        if not judged or number % 3 == 0:
            labels.append(label(number, passed=passes, drawn=1 / 3 if judged else 1.0))
    keyspace.send(*verdicts)
    write_labels(keyspace.store, labels)
    worker = Worker(keyspace)
    worker.turn()
    weighted = sum(each.weight * bool(each.scores[0].passed) for each in verdicts)
    found = corrections_of(keyspace)
    assert {(series.segment, series.value) for series in found} == {("", ""), ("model", "large")}
    for series, (correction,) in found.items():
        assert correction.corrected is not None
        assert correction.raw is not None
        interval = correction.corrected.interval
        assert interval.value == pytest.approx(0.82, abs=0.015)
        assert interval.low < 0.82 < interval.high < interval.low + 0.2
        assert correction.raw.interval.value == pytest.approx(weighted / 1000)
        ((method, seen),) = worker.gauges("model=large" if series.segment else "").items()
        assert (method, seen.pop("window_seconds")) == ("ppi", pytest.approx(3600, abs=300))
        assert seen == pytest.approx(dict(zip(("share", "lower", "upper"), interval, strict=True)))
    worker.watch.clear()
    assert worker.gauges() == {}


def test_a_drawn_label_stays_drawn_when_another_file_has_it(keyspace: Keyspace) -> None:
    def stored_as() -> list[tuple[Drawn, bool]]:
        labels = sorted((item.label for item in read_labels(keyspace.store)), key=lambda each: each.trace_id)
        return [(each.drawn, each.passed) for each in labels]

    in_order = replace(label(2, passed=True, drawn=0.25), reached=(0.0, 1.0))
    write_labels(keyspace.store, [label(1, passed=True, drawn=0.1), in_order])
    again: tuple[tuple[Drawn, float], ...] = (("queue", 0.1), ("golden", 0.1), (0.5, 0.5))
    for drawn, first in again:
        changed = [label(number, passed=False, drawn=drawn) for number in (1, 2)]
        assert write_labels(keyspace.store, [changed[0], *changed])["new"] == 0
        assert stored_as() == [(first, False), (0.25, False)], drawn
        assert +write_labels(keyspace.store, changed) == {"same": 2}, drawn
    # In one file as well, and unless the import says so.
    write_labels(keyspace.store, [label(3, passed=True, drawn=0.1), label(3, passed=True, drawn="golden")])
    assert stored_as()[2] == (0.1, True)
    write_labels(keyspace.store, [label(1, passed=False, drawn="golden")], replace_drawn=True)
    assert stored_as()[0] == ("golden", False)


def test_too_many_labels_are_refused_and_no_verdict_stays_alone(
    keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "MAX_LABELS", 2)
    with pytest.raises(TooManyLabelsError, match="Redis holds 0 labels, and at most 2 are kept"):
        write_labels(keyspace.store, [label(number, passed=True) for number in range(3)])
    write_labels(keyspace.store, [label(1, passed=True), label(2, passed=True)])
    attach(keyspace.store, [make_judged(1, passed=True), make_judged(2, passed=True)])
    assert write_labels(keyspace.store, [label(1, passed=False)])["changed"] == 1
    with pytest.raises(TooManyLabelsError, match="Redis holds 2 labels, and at most 2 are kept"):
        write_labels(keyspace.store, [label(3, passed=True)])
    keyspace.next_case("a label that is erased meanwhile")
    # `forget` erases the label after the monitor has found it, and before the monitor writes the verdict.
    write_labels(keyspace.store, [label(1, passed=True)])
    make = stored.LabelVerdict.from_verdict

    def from_verdict(result: Verdict, metric: str) -> stored.LabelVerdict:
        Forgetting(keyspace.store, settings_of(keyspace), ForgetTarget(trace_id="t1")).run()
        return make(result, metric)

    monkeypatch.setattr(stored.LabelVerdict, "from_verdict", from_verdict)
    attach(keyspace.store, [make_judged(1, passed=True)])
    assert keyspace.client.exists(LookupKeys(keyspace.keys.prefix).labels) == 0


def test_a_forgotten_person_leaves_no_label(keyspace: Keyspace) -> None:
    settings = settings_of(keyspace)
    keys = UserKeys(settings, keyspace.store)
    person = hashed_user("u-1729", keys.current())
    write_labels(keyspace.store, [label(number, passed=True, comment="a secret") for number in (1, 2, 3)])
    attach(keyspace.store, [make_judged(1, user_id=person), make_judged(2, session_id="talk")])
    for target, left in (
        (ForgetTarget(user_id="u-1729", user_keys=keys.all()), ["t2", "t3"]),
        (ForgetTarget(session_id="talk"), ["t3"]),
        (ForgetTarget(trace_id="t3"), []),
    ):
        assert Forgetting(keyspace.store, settings, target, dry_run=True).run().labels == 1
        assert Forgetting(keyspace.store, settings, target).run().labels == 1
        assert [each.label.trace_id for each in read_labels(keyspace.store)] == left
    assert keyspace.client.exists(LookupKeys(keyspace.keys.prefix).labels) == 0
