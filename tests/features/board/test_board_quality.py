"""Rows of the overview: their order, what they are compared with, falls without a baseline; the index; a stop."""

import itertools
import re
from typing import Any

import msgspec
import pytest
from support.commands import TRACES
from support.processes import stopped_at_start
from support.stages import Keyspace, make_verdict
from support.verdicts import CASES, entry_ids, publish, verdict, write_verdicts

from benchmarks import young
from benchmarks.young import BEGIN, buckets_of
from judges.agreement.intervals import Interval
from judges.agreement.shares import Sums
from judges.core.verdict import Score, Verdict
from worker.base.lookup.label_store import Label, attach, write_labels
from worker.base.lookup.verdict_filter import VerdictFilter
from worker.base.monitor.detection import Detector
from worker.base.monitor.feature import MonitorKeys
from worker.base.monitor.incidents import Incident
from worker.base.monitor.series import read_series
from worker.features.board.charts import Frame, Point, Scale, draw, points_of
from worker.features.board.index import VerdictIndex
from worker.features.board.labelling import LabelQueue, Queue
from worker.features.board.overview import read_funnel, read_overview
from worker.features.board.quality import find_fall, finest, read_rows, written_span
from worker.features.board.series_page import read_chart, read_segments, read_trust


def test_a_fall_is_found_from_its_first_bucket_on_and_chance_is_within_the_budget() -> None:
    good, bad = [(85, 68)], [(85, 15)]
    for name, counts, bucket in (
        ("two buckets before, half a one after", [*good * 2, (42, 7)], 2),
        ("a bucket that both share", [*good, (85, 60), *bad], 2),
        ("few verdicts a bucket", [*[(4, 3)] * 20, *[(4, 0)] * 6], 20),
        ("a fall of ten points needs time", [*good * 20, *[(85, 59)] * 20], 20),
        ("the fall is over", [*good * 3, *bad * 2, *good * 6], None),
        ("nothing before", [(15, 12), *bad * 3], None),
        ("a single share", good * 30, None),
        ("it gets better", [*bad * 3, *good * 10], None),
        ("no verdicts", [], None),
    ):
        since = find_fall(buckets_of(counts), series=10)
        assert since == (None if bucket is None else BEGIN + 10 * bucket), name
    # The same counts in ten sessions, in each of which all verdicts are alike.
    assert find_fall(buckets_of([*good * 2, *bad], per_session=17), series=10) is None
    # Of 30 first hours of a series, one of ten, hardly one has a fall: one a week is the budget of all.
    chances = [young.by_chance(share, judged, 360, 10, 10) for share, judged in ((0.95, 8), (0.6, 3))]
    assert max(chances) <= 0.1


NUMBERS = itertools.count()


def rated(at: float, *, passed: bool | None, **fields: Any) -> Verdict:
    """A verdict that was made at a time; unscored if nothing passed or failed."""
    unscored = {"outcome": "unscored", "reason": "refusal"} if passed is None else {}
    scores = () if passed is None else (Score("grounded", float(passed), passed=passed),)
    return verdict(next(NUMBERS), at, scores=scores, metrics=("grounded",), **unscored, **fields)


def stream(service: str, since: float, until: float, every: float, share: float, **fields: Any) -> list[Verdict]:
    """Lay out verdicts of one share; of each ten as many pass, in the same order."""
    passes = [7 * number % 10 < round(10 * share) for number in range(int((until - since) / every))]
    return [rated(since + every * n, passed=each, service=service, **fields) for n, each in enumerate(passes)]


def test_what_got_worse_comes_first_and_says_since_when(keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    now = keyspace.store.now_ms() / 1000
    old, week, day = now - 8 * 86_400, now - 7 * 86_400, 86_400
    parts = [
        # The young ones publish since ten minutes; one of them falls two minutes ago.
        *stream("young-fallen", now - 600, now - 120, 2.0, 0.9),
        *stream("young-fallen", now - 120, now - 10, 2.0, 0.2),
        *stream("young-steady", now - 600, now - 10, 2.0, 0.8),
        *stream("young-poor", now - 600, now - 10, 2.0, 0.3),
        *stream("old-fallen", old, now - day, 1_800, 0.9),
        *stream("old-fallen", now - day, now, 1_800, 0.5),
        *stream("old-steady", old, now, 1_800, 0.7),
        *stream("old-silent", old, week, 1_800, 0.7),
        *stream("open", old, now, 1_800, 0.9),
        *stream("unscored", now - 600, now - 10, 10.0, 0.9),
        *(rated(now - 300 + n, passed=None, service="unscored") for n in range(5)),
        # Another judge version begins a series of its own: the one before is not what it is compared with.
        *stream("changed", old, now - 3_600, 1_800, 0.9, judge_version="f" * 64),
        *stream("changed", now - 600, now - 10, 2.0, 0.5),
    ]
    publish(keyspace, parts)
    (opened,) = (name for name, series in read_series(keyspace.store).items() if series.service == "open")
    since = int(now - 1_800) // 300
    detector = Detector(
        incident=Incident("model=a", 0.93, since, since - 1, since + 1, 0.4, ("judge_model",), "segment")
    )
    key = MonitorKeys(keyspace.prefix).quality_detector(opened)
    keyspace.client.set(key, msgspec.msgpack.encode(detector))
    rows = read_rows(keyspace.store, "24h", now)
    assert [row.series.service for row in rows][:3] == ["open", "young-fallen", "old-fallen"]
    by_service = {row.series.service: row for row in rows}
    assert by_service.keys() == {each.service for each in parts} - {"old-silent"}
    assert {name for name, row in by_service.items() if row.is_bad} == {"open", "young-fallen", "old-fallen"}
    fallen = by_service["young-fallen"]
    assert fallen.is_fall
    # Sums of ten seconds tell when it fell.
    assert abs(fallen.since - (now - 120)) <= 20
    assert fallen.reference == written_span(fallen.first, fallen.since)
    # With the day where that is not today.
    assert re.fullmatch(r"(\d+ \w{3} )?[\d:]{8}\u2013(\d+ \w{3} )?[\d:]{8}", fallen.reference)
    assert fallen.now is not None
    assert fallen.change is not None
    assert (fallen.now.judgements, fallen.change.high < -0.5) == (pytest.approx(55, abs=10), True)
    # The others of its environment are compared with the same time.
    assert by_service["young-steady"].since == fallen.since
    poor = by_service["young-poor"].now
    assert poor is not None
    assert poor.interval.value == pytest.approx(0.3, abs=0.05)
    old_fallen = by_service["old-fallen"]
    # Whole hours are compared: in the last one of a day the first of them belongs to the next day.
    assert old_fallen.first - (now - 8 * day) == pytest.approx(0, abs=3_600)
    assert old_fallen.since == now - day
    assert old_fallen.reference == written_span(old_fallen.first, now - day)
    assert re.fullmatch(r"\d+ \w{3}\u2013\d+ \w{3}", old_fallen.reference)
    assert by_service["changed"].is_young
    # However many series there are, those of incidents are read.
    with monkeypatch.context() as patch:
        patch.setattr("worker.features.board.quality._MOST_SERIES", 1)
        assert [row.series.service for row in read_rows(keyspace.store, "24h", now)] == ["open"]
    assert [series.version for series in by_service["changed"].former] == ["f" * 8]
    assert by_service["unscored"].unscored == pytest.approx(5 / 64, abs=0.01)
    index = VerdictIndex(keyspace.store)
    overview = read_overview(keyspace.store, index)
    (first, second) = overview.banners
    assert first.panel.row.series.service == "open"
    assert "what fell: model=a, while the others pass as usual (93 %)" in first.facts
    assert "the monitor's alarm is open" in first.facts
    assert second.panel.row.series.service == "young-fallen"
    assert "no alert: no baseline yet" in second.facts
    # All charts of a judge have one range.
    assert len({panel.scale for panel in overview.panels}) == 1
    week_rows = {row.series.service: row for row in read_rows(keyspace.store, "7d", now)}
    assert week_rows["old-steady"].verdicts == pytest.approx(7 * 48, abs=3)


def test_the_page_of_a_series_names_releases_judge_versions_and_segments(keyspace: Keyspace) -> None:
    now = keyspace.store.now_ms() / 1000
    fell = now - 4 * 3_600
    parts = [
        *stream("shop", now - 3 * 86_400, fell, 900, 0.9, release="1.0", judge_version="f" * 64),
        *stream("shop", now - 6 * 3_600, fell, 60, 0.9, release="1.0"),
        *stream("shop", fell, now, 60, 0.4, release="1.1"),
        *stream("shop", fell, now, 60, 0.9, release="1.0"),
        *(rated(now - 7_200 + 600 * n, passed=None, service="shop", release="1.1") for n in range(12)),
    ]
    publish(keyspace, parts, segments=("release",))
    (panel,) = read_overview(keyspace.store, VerdictIndex(keyspace.store)).panels
    chart = read_chart(keyspace.store, panel, "24h", now)
    version = panel.row.series.version
    assert [name for _, name in chart.marks] == [f"judge version {version}", "release 1.1"]
    assert [x for x, _ in chart.marks] == pytest.approx([chart.frame.x(at) for at in (now - 6 * 3_600, fell)], abs=50)
    # Another version of the judge is another line.
    assert len(chart.lines) == 2
    ((begin, width, text),) = chart.bands
    assert text == f"lower since {chart.since}; no baseline yet"
    assert begin + width == pytest.approx(chart.frame.right, abs=0.2)
    assert chart.expected_text in {"before 90 %", "before 91 %"}, "by the place of a few verdicts beside the fall"
    segments = read_segments(keyspace.store, panel.row, now)
    # The fall is found to begin up to some minutes beside the release, which then has a few verdicts before it.
    assert [(each.name, each.is_bad) for each in segments] == [("release=1.1", False), ("release=1.0", False)]
    assert segments[0].since is not None
    assert segments[0].since.share == pytest.approx(0.4, abs=0.02)
    assert segments[0].since.unknown == pytest.approx(12 / 252, abs=0.01)
    tallied, corrections = read_trust(keyspace.store, panel.row)
    assert (tallied.labels, corrections) == (0, [])


def test_the_page_of_labels_says_what_they_correct(keyspace: Keyspace) -> None:
    now = keyspace.store.now_ms() / 1000
    verdicts = stream("shop", now - 85_000, now, 300, 0.8)
    publish(keyspace, verdicts)
    write_labels(
        keyspace.store, [Label(each.trace_id, "safety", "grounded", passed=True, drawn=0.5) for each in verdicts]
    )
    attach(keyspace.store, verdicts)
    queue = LabelQueue(keyspace.store, VerdictIndex(keyspace.store))
    ((series, correction),) = queue.corrections(Queue(judge="safety", service="shop"))
    assert (series.service, correction.labels) == ("shop", len(verdicts))
    assert correction.corrected is not None
    assert queue.corrections(Queue(judge="other")) == []


def test_charts_place_times_and_shares_of_the_finest_buckets_that_hold_all() -> None:
    fives = buckets_of([(30, 20), (20, 10), (10, 5)], step=300)
    tens = buckets_of([(10, 5)] * 35)
    chosen = finest(fives, tens)
    # All of the first, too few of the second (after a monitor of an older version), none of the third.
    assert [bucket.begins_at - BEGIN for bucket in chosen] == [*range(0, 300, 10), *range(300, 350, 10), 600]
    assert [bucket.begins_at - BEGIN for bucket in finest(fives, tens[:31])] == [*range(0, 300, 10), 300, 600]
    history = Sums()
    points = points_of(buckets_of([(40, 30), (2, 1), (40, 10), (1, 0)]), BEGIN, BEGIN + 60, 60, history)
    # Very few verdicts are one point with the next ones, the last with those before.
    assert [(point.begins_at - BEGIN, point.ends_at - BEGIN) for point in points] == [(0, 10), (10, 40)]
    assert len(points_of(buckets_of([(40, 30)] * 300), BEGIN, BEGIN + 3_000, 60, history)) <= 60
    assert points_of(buckets_of([(2, 1)]), BEGIN, BEGIN + 60, 60, history) != []
    whole = Point(0, 100, Interval(0.5, 0.31, 0.69))
    scale = Scale.from_points([whole])
    assert scale == (0.3, 0.7)
    frame = Frame(0, 100, scale, 10, 5, 110, 45)
    assert (frame.x(50), frame.y(0.5), frame.y(0.3), frame.y(2.0)) == (60, 25, 45, 5)
    assert [name for _, name in frame.grid()] == ["30", "40", "50", "60", "70"]
    assert draw(frame, [whole]).line == "10.0,25.0 110.0,25.0"
    assert Scale.from_points([]) == (0.0, 1.0)
    assert Scale.from_points([Point(0, 1, Interval(1.0, 0.99, 1.0))]) == (0.8, 1.0)


def test_the_index_and_the_outbox_select_the_same(keyspace: Keyspace) -> None:
    write_verdicts(keyspace)
    index = VerdictIndex(keyspace.store)
    index.run_once()
    for verdict_filter, numbers in CASES:
        answers = index.select_answers(verdict_filter, limit=9)
        selected = [verdict.entry.partition("@")[2] for answer in answers for verdict in answer if verdict.is_selected]
        assert selected == entry_ids(numbers), verdict_filter


def test_the_index_is_of_all_servers(published: list[Keyspace]) -> None:
    index = VerdictIndex(published[0].store)
    index.run_once()
    answers = index.select_answers(VerdictFilter(), limit=100)
    entries = index.read([verdict.entry for answer in answers for verdict in answer])
    assert {entry.verdict.trace_id for entry in entries.values()} == {trace["trace_id"] for trace in TRACES}
    times = [answer[0].at_ms for answer in answers]
    assert times == sorted(times, reverse=True), "an answer stands at its newest verdict"
    assert index.select_answers(VerdictFilter(), limit=100, before=answers[3][0].entry) == answers[4:]
    late = make_verdict(900, trace_id="late")
    published[2].send(late)
    index.run_once()
    ((newest,),) = index.select_answers(VerdictFilter(), limit=1)
    assert newest.evaluation_id == late.evaluation_id
    published[1].client.delete(published[1].keys.verdicts)
    index.run_once()
    left = {answer[0].entry[0] for answer in index.select_answers(VerdictFilter(), limit=100)}
    assert left == {"0", "2"}, "what is trimmed leaves the index"
    funnel = read_funnel(published[0].store)
    assert (funnel.traces[0].total, funnel.unexplained) == (len(TRACES), 0)


@pytest.mark.endurance("a second variant; tests/core/test_start_and_stop.py stops a worker")
def test_a_board_that_is_stopped_while_it_starts_ends_with_0() -> None:
    assert stopped_at_start(("tracejudge board", True)) == [(0, 0)]
