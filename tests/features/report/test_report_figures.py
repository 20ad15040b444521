"""The figures of the report: the verdicts' from whichever source, and to the digit those of gauges and board."""

import datetime as dt
import itertools
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs, to_builtins
from support.stages import Keyspace, rules_of, settings_of
from support.verdicts import DAY_S, NOW, Expected, expected, publish, three_weeks, verdict, write_archive

from benchmarks import coverage
from judges.agreement import pass_share
from judges.agreement.intervals import difference, wilson
from judges.core.model import ModelSettings
from judges.core.verdict import Score, Verdict
from worker.base.lookup.label_store import Label, attach, write_labels
from worker.base.monitor.detection import Detection
from worker.base.monitor.feature import Monitor
from worker.base.monitor.gauges import MonitorParts
from worker.base.monitor.series import read_series
from worker.base.monitor.sums import QualitySums
from worker.core.config.settings import Rule
from worker.core.queue.batch import CascadeStep
from worker.core.telemetry.metrics import Metrics
from worker.features.board.quality import read_rows
from worker.features.board.series_page import read_cascades, read_trust
from worker.features.cascades.feature import Cascade
from worker.features.cascades.watch import CascadeWatch
from worker.features.labels.correction_watch import CorrectionWatch
from worker.features.report.figures import Period, Report, Row, Scope, make_report, time_of
from worker.features.report.sources import read_archives, read_redis

WEEK = Period(NOW - 7 * DAY_S, NOW)
BEFORE = Period(NOW - 14 * DAY_S, NOW - 7 * DAY_S)


def scope(*by: str, period: Period = WEEK, shift_s: float | None = 7 * DAY_S) -> Scope:
    return Scope.from_options(period, shift_s, by, None, (), NOW)


def from_redis(keyspace: Keyspace, asked: Scope) -> Report:
    return make_report(asked, read_redis(keyspace.store, asked, NOW))


def of(verdicts: list[Verdict], period: Period, **labels: str) -> list[Verdict]:
    return [
        each
        for each in verdicts
        if each.started_at + each.duration_s in period
        and all((getattr(each, key) or "") == value for key, value in labels.items())
    ]


def figures(row: Row) -> Expected:
    shown = row.share, row.abstained, row.unscored
    assert None not in shown
    shares = [each.value for each in shown if each is not None]
    assert row.usd_per_thousand is not None
    return Expected(row.judgements, *shares, row.usd_per_thousand)


def codes(report: Report) -> set[str]:
    return {limit.code for limit in report.limits}


def numbers(report: Report) -> list[float]:
    return [number for row in report.rows for number in numbers_of(row)]


def numbers_of(row: Row) -> list[float]:
    """List the figures of a row, times as seconds, and -1 for none."""

    def flat(value: Any) -> list[float]:
        if isinstance(value, dict):
            return [entry for each in value.values() for entry in flat(each)]
        if isinstance(value, list | tuple):
            return [entry for each in value for entry in flat(each)]
        if isinstance(value, str):
            return [dt.datetime.fromisoformat(value).timestamp()]
        return [-1 if value is None else value]

    fields = msgspec.to_builtins(row).items()
    return flat({key: value for key, value in fields if key != "labels" and "_text" not in key})


@pytest.mark.slow("two seconds of CPU")
def test_figures_of_buckets_outbox_and_archives_are_those_of_the_verdicts(keyspace: Keyspace, tmp_path: Path) -> None:
    tags = [{"prompt_version": "v1", "plan": name} for name in ("shop", "bot")]
    verdicts = [structs.replace(each, tags=tags[each.service == "bot"]) for each in three_weeks(700)]
    publish(keyspace, verdicts, segments=("release",))
    report = from_redis(keyspace, scope("service", "environment"))
    rows = [row for row in report.rows if row.labels["metric"] == "safety"]
    assert [(row.labels["service"], row.labels["environment"]) for row in rows] == [
        *(("bot", ""), ("bot", "prod"), ("shop", ""), ("shop", "prod"))
    ]
    for row in rows:
        labels = {key: row.labels[key] for key in ("service", "environment")}
        assert figures(row) == pytest.approx(expected(of(verdicts, WEEK, **labels))), labels
        before = expected(of(verdicts, BEFORE, **labels))
        assert row.compared is not None
        assert row.difference is not None
        assert row.share is not None
        assert (row.compared_judgements, row.compared.value) == pytest.approx((before.judgements, before.share))
        assert row.difference.value == pytest.approx(row.share.value - before.share)
        assert row.difference.low < row.difference.value < row.difference.high
        live = [each for each in of(verdicts, WEEK, **labels) if each.origin == "live"]
        assert (row.verdicts, row.traffic) == pytest.approx((len(live), sum(each.weight for each in live)))
        assert sum(point.judgements for point in row.points) == row.judgements
    # Metrics without a pass rule have no share, and no zero in its place.
    assert {row.share for row in report.rows if row.labels["metric"] == "tone"} == {None}
    assert "sums of the monitor" in report.sources.shares
    assert ("judge_changed" in codes(report), "no_sums" in codes(report)) == (True, False)
    (row, _) = from_redis(keyspace, scope("judge")).rows
    for point in row.points:
        begins_at = point.begins_at.timestamp()
        of_day = expected(of(verdicts, Period(max(begins_at, WEEK.since), begins_at + DAY_S)))
        assert (point.judgements, point.share.value) == pytest.approx((of_day.judgements, of_day.share)), point
        assert point.share.low <= point.share.value <= point.share.high
    assert len(row.points) in {7, 8}
    half = len(verdicts) // 2
    # Files of a receiver that delivers at least once overlap.
    files = [write_archive(tmp_path / "a", verdicts[: half + 100]), write_archive(tmp_path / "b", verdicts[half:])]
    # The monitor knows how sessions agreed in four weeks.
    series = read_series(keyspace.store)
    later = itertools.count(int(NOW), 300)
    detection = Detection(keyspace.store, Monitor(), (), lambda: next(later))
    while any(detector.history is None for detector in detection.step(series).values()):
        pass
    asked = scope("service", "environment", "version", "judge_model")
    of_buckets, of_archives = from_redis(keyspace, asked), make_report(asked, read_archives(files, asked))
    # Sums of floats in another order differ in the last digits.
    assert numbers(of_archives) == pytest.approx(numbers(of_buckets), rel=1e-9, abs=1e-12)
    assert "skipped_repeated" in codes(of_archives)
    assert of_archives.sources.shares.startswith("a, b, which hold verdicts of 20")
    for by in ("tags.plan", "prompt_version"):
        reports = from_redis(keyspace, scope(by)), make_report(scope(by), read_archives(files, scope(by)))
        shares = [[(row.labels[by], row.judgements, row.share) for row in each.rows if row.share] for each in reports]
        assert [row[:2] for row in shares[0]] == [row[:2] for row in shares[1]] != [], by
    assert of_archives.coverage is None
    by_release = from_redis(keyspace, scope("release", "version", "judge_model", "service", "environment"))
    # The outbox, for keys that the monitor keeps no sums of, has a row without a release as well.
    by_both = from_redis(keyspace, scope("release", "name", "version", "judge_model", "service", "environment"))
    assert "without_label" in codes(by_release)
    assert "no_sums" in codes(by_both)
    with_release = [row for row in by_both.rows if row.labels["release"]]
    assert [number for row in with_release for number in numbers_of(row)] == pytest.approx(
        numbers(by_release), rel=1e-9, abs=1e-12
    )
    assert {row.labels["release"] for row in by_both.rows} == {"", "1.0", "1.1"}


def test_a_short_period_has_fine_buckets(keyspace: Keyspace) -> None:
    verdicts = [verdict(number, NOW - 60 * number, passed=number % 3 > 0) for number in range(1, 240)]
    publish(keyspace, verdicts)
    last_hour = Period(NOW - 3_000, NOW)
    report = from_redis(keyspace, scope("judge", period=last_hour, shift_s=3_600))
    (row,) = report.rows
    expected_values = of(verdicts, last_hour), of(verdicts, Period(NOW - 6_600, NOW - 3_600))
    assert (row.judgements, row.compared_judgements) == tuple(map(len, expected_values)) == (50, 50)
    assert "five minutes" in report.sources.shares


def test_what_figures_cannot_say_is_said_beside_them(keyspace: Keyspace, tmp_path: Path) -> None:
    publish(keyspace, [verdict(number, NOW - DAY_S - 60 * number) for number in range(3)])
    texts = {limit.code: limit.text for limit in from_redis(keyspace, scope("service", "release")).limits}
    assert texts["no_values"] == "no release in these verdicts"
    assert texts["nothing_compared"].startswith("nothing to compare with: no judgements between ")
    assert not {"no_values", "nothing_compared"} & codes(from_redis(keyspace, scope("service", shift_s=None)))
    keyspace.next_case("a period beyond the buckets")
    publish(keyspace, [verdict(number, NOW - 100 * DAY_S + number) for number in range(10)])
    report = from_redis(keyspace, scope("service", period=Period(NOW - 120 * DAY_S, NOW), shift_s=None))
    assert codes(report) == {"older_than_buckets", "cost_span", "cost_unknown"}
    keyspace.next_case("traces with images")
    details = [{}, {"images_left_out": 2}, {"images_left_out": 1}, {"images_left_out": "2"}]
    verdicts = [verdict(number, NOW - 60 * number, details=each) for number, each in enumerate(details, 1)]
    publish(keyspace, verdicts)
    archive = write_archive(tmp_path / "verdicts.jsonl", verdicts)
    of_archive = make_report(scope("service"), read_archives([archive], scope("service")))
    for report in (from_redis(keyspace, scope("service")), of_archive):
        (text,) = [limit.text for limit in report.limits if limit.code == "images_left_out"]
        assert text == f"evaluations that were judged without images of their traces: {report.rows[0].name} (2)"
    keyspace.next_case("coverage and cuts by the account")
    publish(keyspace, [verdict(number, NOW - number) for number in range(1, 4)])
    days = [keyspace.keys.account(time_of(at).date()) for at in (WEEK.since, WEEK.until - 1)]
    for key in days:
        counts = {"published": 100, "sampled": 20, "not_sampled": 80, "chosen": 20, "scored": 15, "unscored": 5}
        keyspace.client.hset(key, mapping={**counts, "unscored:over_budget": 4, "unscored:refusal": 1, "shed": 3})
    keyspace.client.hset(keyspace.keys.account_all, mapping={"outbox_cut_off:monitor": 7, "cut_off": 11})
    report = from_redis(keyspace, scope("service"))
    assert report.coverage is not None
    assert (report.coverage.published, report.coverage.sampled, report.coverage.scored) == (200, 40, 30)
    assert report.coverage.reasons == {"over_budget": 8, "refusal": 2}
    texts = {limit.code: limit.text for limit in report.limits}
    for code, number in (("outbox_cut_off", "7 "), ("stream_cut_off", "11 "), ("budget_stops", "8 "), ("shed", "6 ")):
        assert texts[code].startswith(number), texts[code]
    assert "few_judgements" in texts
    assert "cost_unknown" in texts


def test_a_share_of_two_judge_models_is_not_corrected(keyspace: Keyspace) -> None:
    """That one of a single judge model is: test_report_gauges_and_board_agree_to_the_last_digit."""
    verdicts = [verdict(number, NOW - number, passed=number % 5 > 0) for number in range(1, 201)]
    publish(keyspace, [*verdicts, verdict(500, NOW - 0.5, judge_model="other")])
    labels = [Label(each.trace_id, "safety", "safety", passed=True, drawn=0.5) for each in verdicts[::2]]
    write_labels(keyspace.store, labels)
    attach(keyspace.store, verdicts)
    report = from_redis(keyspace, scope("service"))
    assert report.rows[0].corrected == []
    assert "not_corrected" in codes(report)


CHEAP = ModelSettings(provider="decisions", base_url="http://localhost", model="cheap")
STRONG = ModelSettings(provider="scripted", model="strong")
SETTINGS: dict[str, Any] = {
    "models": {"default": STRONG, "cheap": CHEAP, "strong": STRONG},
    "cascades": {"both": Cascade("cheap", "strong", rate=0.25)},
    "rules": (Rule(name="all", judges=("safety",), model="both", rate=0.5),),
}


def traffic() -> list[Verdict]:
    """Verdicts of two days: weights, sessions, refusals, and second judgings, some of them refused or away."""
    random_ = random.Random(37)
    verdicts = []
    for number in range(1_500):
        # None in the last hour: the window of the gauges is the day.
        at = NOW - 2 * DAY_S + (2 * DAY_S - 3_700) * number / 1_500
        w, refused = random_.choice((1.0, 2.0, 8.0)), random_.random() < 0.03
        g = random_.choice((0.2, 0.7, 0.97))
        scores = (Score("safety", g, passed=g > 0.5, probability=g),)
        rate, is_chosen = 0.5 if g == 0.7 else 0.25, random_.random() < (0.5 if g == 0.7 else 0.25)
        step = CascadeStep("both", "12345678", rate, is_chosen)
        fields = {"service": "shop", "judge": "safety", "session_id": f"s{number // 3 % 400}", "metrics": ("safety",)}
        judged = {"outcome": "scored", "scores": scores, "details": {"cascade": to_builtins(step)}}
        outcome = {"outcome": "unscored", "reason": "content_filter", "scores": ()} if refused else judged
        first = verdict(number, at, judge_model="cheap", weight=w, probability=1 / w, **outcome, **fields)
        verdicts.append(first)
        hour = int((NOW - at) // 3_600)
        if refused or not is_chosen or hour == 9:
            continue
        of_first = {"first": first.evaluation_id, "judge_model": "cheap", "ended_at": at, "probability": {"safety": g}}
        again = structs.replace(step, **of_first)
        passed, is_refused = random_.random() < g, random_.random() < 0.02
        judged = {"outcome": "scored", "scores": (Score("safety", float(passed), passed=passed),)}
        outcome = {"outcome": "unscored", "reason": "refusal", "scores": ()} if is_refused else judged
        second = {"judge_model": "strong", "details": {"cascade": to_builtins(again)}, "weight": w / rate}
        verdicts.append(verdict(number + 10_000, at + 1, probability=rate / w, **second, **outcome, **fields))
    return verdicts


def label_some(keyspace: Keyspace, verdicts: list[Verdict]) -> None:
    """Label an eighth of the first verdicts of the last day."""
    recent = [each for each in verdicts if each.started_at > NOW - DAY_S]
    drawn = [each for each in recent if each.judge_model == "cheap" and each.outcome == "scored"][::8]
    passes = (number % 5 > 0 for number in range(len(drawn)))
    labels = [Label(each.trace_id, "safety", "safety", passed=next(passes), drawn=0.125) for each in drawn]
    write_labels(keyspace.store, labels)
    attach(keyspace.store, drawn)


def test_report_gauges_and_board_agree_to_the_last_digit(keyspace: Keyspace) -> None:
    verdicts = traffic()
    publish(keyspace, verdicts)
    label_some(keyspace, verdicts)
    settings = settings_of(keyspace, **SETTINGS)
    metrics = Metrics(settings)
    parts = MonitorParts(settings, keyspace.store, metrics, rules_of(settings))
    watches = (QualitySums(settings, keyspace.store, metrics, rules_of(settings)).tasks[0],)
    watches[0]._clock = watches[0]._detection._clock = lambda: NOW  # type: ignore[attr-defined]
    for watch in (*watches, CascadeWatch(parts, lambda: NOW), CorrectionWatch(parts, lambda: NOW)):
        while watch.run(NOW):
            pass

    def gauge(name: str, **labels: str) -> float | None:
        whole = {"service": "shop", "environment": "", "judge": "safety", "metric": "safety", "segment": ""}
        return metrics.registry.get_sample_value(f"tracejudge_quality_{name}", {**whole, **labels})

    window = Period(NOW - DAY_S, NOW)
    asked = Scope.from_options(window, None, ("service", "judge_model", "version"), None, (), NOW)
    report = make_report(asked, read_redis(keyspace.store, asked, NOW))
    rows = {row.series.judge_model: row for row in read_rows(keyspace.store, "24h", NOW)}
    assert {row.labels["judge_model"] for row in report.rows} == set(rows) == {"cheap", "strong"}
    for row in report.rows:
        model, version = row.labels["judge_model"], row.labels["version"]
        of_board = rows[model].now
        assert row.share is not None
        assert of_board is not None
        names = ("share", "lower", "upper", "effective_n", "unknown_ratio", "lowest", "highest")
        shown = [gauge(name, judge_model=model, version=version) for name in names]
        own = [row.share.value, row.share.low, row.share.high, row.effective_n, row.unknown, row.lowest, row.highest]
        has_range = row.unknown > 0.02
        board = [*of_board[:3], of_board.effective, of_board.unknown]
        board += [of_board.lowest, of_board.highest] if has_range else [None, None]
        assert shown == own == board, model
        # Each own session, as the share does not depend on them.
        inside = [each for each in verdicts if each.judge_model == model and each.started_at + 0.5 >= window.since]
        passed = [each.scores[0].passed if each.scores else None for each in inside]
        of_arrays = pass_share(passed, weight=[each.weight for each in inside])
        assert of_arrays is not None
        assert (of_arrays.share, of_arrays.unknown) == (row.share.value, row.unknown)
    version = report.rows[0].labels["version"]
    corrected = [share for row in report.rows for share in row.corrected]
    assert [share.method for share in corrected] == ["ppi"]
    _, of_trust = read_trust(keyspace.store, rows["cheap"])
    names = ("corrected_share", "corrected_lower", "corrected_upper")
    shown = [gauge(name, judge_model="cheap", version=version, method="ppi") for name in names]
    assert shown == [*structs.astuple(corrected[0].share)]
    assert of_trust[0].corrected is not None
    (cascade,) = report.cascades
    assert cascade.share is not None
    shown = [gauge(name, judge_model="both", version="12345678", method="cascade") for name in names]
    shown += [gauge(name, judge_model="both", version="12345678") for name in ("unknown_ratio", "lowest", "highest")]
    assert shown == list(cascade.share[:6])
    assert 0.02 < cascade.share.unknown < 0.1
    assert read_cascades(keyspace.store, rows["cheap"], NOW) == [cascade.text]


def test_intervals_of_differences_cover_and_are_newcombe_s() -> None:
    for pair, (name, make) in zip(itertools.cycle(coverage.PAIRS), coverage.PAIR_DESIGNS.items(), strict=False):
        # 2,000 runs reach 94.4 to 96.6 %; the standard error of 120 runs is 2 %.
        assert 0.89 <= coverage.difference_coverage(make, *pair, 120) <= 1, (name, pair)
    # As statsmodels computes them, whose import takes two seconds.
    for (a, m), (b, n), bounds in (
        ((56, 70), (48, 80), (0.05243, 0.33387)),
        ((9, 10), (3, 10), (0.17052, 0.80902)),
        ((400, 400), (395, 400), (0.0006, 0.02892)),
        ((0, 20), (7, 9), (-0.93677, -0.41486)),
    ):
        corrected = difference(wilson(a / m, m), wilson(b / n, n))
        assert (corrected.low, corrected.high) == pytest.approx(bounds, abs=1e-4), (a, m, b, n)
