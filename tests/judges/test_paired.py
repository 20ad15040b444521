"""Agreement before and after on the same traces: halves, intervals, and what a number of traces can show."""

import random

import pytest

from judges.agreement.intervals import wilson
from judges.agreement.labelled import Judged, Labelled
from judges.agreement.paired import Cells, balanced, halves, improvement, least_shown
from judges.core.verdict import Assessment, Score
from tracejudge import Trace


def judged(label: str, verdict: str | None) -> Judged:
    trace = Trace(trace_id="t", service="s", output="o")
    if verdict is None:
        return Judged(trace, label, Assessment("unscored", "refusal"))
    passed = verdict == "yes"
    return Judged(trace, label, Assessment("scored", None, (Score("m", float(passed), passed=passed),)))


def test_the_half_of_a_trace_depends_on_its_session_or_id_alone() -> None:
    traces = [
        Labelled(Trace(trace_id=f"{n}", service="s", output="o", session_id=f"{n // 3}" if n < 300 else None), "yes")
        for n in range(1000)
    ]
    train, held_out = halves(traces)
    assert 400 < len(train) < 600
    assert len(train) + len(held_out) == 1000
    sessions = [{sample.trace.session_id for sample in half} - {None} for half in (train, held_out)]
    assert not sessions[0] & sessions[1]
    some = [*reversed(traces[::7])]
    assert set(map(id, halves(some).train)) <= set(map(id, train))


def test_intervals_are_the_published_ones() -> None:
    # Newcombe's example of 1998, and Wilson's interval of the same source for one share.
    difference = Cells(both=36, after=12, before=2, neither=0).difference
    assert [round(figure, 3) for figure in difference] == [0.2, 0.057, 0.34]
    assert [round(figure, 4) for figure in wilson(81 / 263, 263)] == [0.308, 0.2553, 0.3662]
    assert wilson(0, 10).low == 0
    assert wilson(1, 10).high == 1


def test_the_agreement_is_balanced_and_a_trace_without_a_verdict_is_wrong() -> None:
    before = [judged("yes", "yes")] * 90 + [judged("no", "yes")] * 10
    assert balanced(before).value == 0.5
    after = [judged("yes", "yes")] * 90 + [judged("no", "no")] * 8 + [judged("no", None)] * 2
    assert balanced(after).value == pytest.approx(0.9)
    gain = improvement(before, after)
    assert gain.value == pytest.approx(0.4)
    assert 0.15 < gain.low < gain.value < gain.high <= 0.5
    assert improvement(before, before).low < 0


def test_the_interval_covers_and_rarely_shows_an_improvement_where_there_is_none() -> None:
    chance = random.Random(7)
    for shares, after, least_covered in (((0.6, 0.6), (0.6, 0.6), 0.93), ((0.7, 0.5), (0.8, 0.8), 0.93)):
        truth = (sum(after) - sum(shares)) / 2
        covered = shown = 0
        for _ in range(600):
            ends: list[list[Judged]] = [[], []]
            for label, share, later in zip(("yes", "no"), shares, after, strict=True):
                for _ in range(20):
                    # Verdicts of two versions on one trace go together half of the time.
                    first, second = chance.random(), chance.random()
                    second = first if chance.random() < 0.5 else second
                    other = "no" if label == "yes" else "yes"
                    ends[0].append(judged(label, label if first < share else other))
                    ends[1].append(judged(label, label if second < later else other))
            difference = improvement(*ends)
            covered += difference.low <= truth <= difference.high
            shown += difference.low > 0
        assert covered / 600 > least_covered, shares
        assert truth or shown / 600 < 0.05


def test_fewer_than_a_hundred_labels_show_only_improvements_of_about_25_points() -> None:
    assert all(0.19 <= (least_shown(25, 24, before) or 1) <= 0.29 for before in (0.5, 0.6, 0.7, 0.8))
    assert (least_shown(250, 250, 0.7) or 1) < 0.1
    assert least_shown(5, 5, 0.6) is None
