"""The claims of the documentation: what is simulated, with which goal, and how a table shows it."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

import numpy as np

from benchmarks import budget_days, canary_runs, cascade_runs, fleets, label_runs, safety_runs, young
from benchmarks import coverage as windows
from benchmarks.declines import Days, notices
from benchmarks.fleets import Traffic
from benchmarks.safety_runs import Judge
from benchmarks.statistics import Figure, Length, Row, Table, at_most, coverage, events, part
from benchmarks.weighted import Design
from benchmarks.weighted import false_alarms as weighted_alarms
from benchmarks.weighted import median_delay as weighted_delay

_COVERAGE: Final = "94 % less the standard errors"
_DESIGNS: Final = {
    "uniform": "uniform",
    "errors always": "errors always judged, others one of ten",
    "rate ÷ 10 half-way": "rate ÷ 10 half-way",
    "continuous fall": "rate falls all the time, to 1/20",
    "continuous fall, errors always": "the same, errors always judged",
}
_USUAL: Final = 0.25  # Correlation of sessions, where no other is named.
_UNEVEN: Final = {"one bot with 20 %": "one bot with 20 % of the verdicts"}


def _intervals(length: Length) -> Iterator[Row]:
    runs = length.runs(2000, 40)
    found = windows.table(runs)
    for name, text in _DESIGNS.items():
        for number, size in enumerate(windows.sizes_of(name)):
            cell = [coverage(found[name, share, size], runs, length) for share in windows.SHARES]
            yield Row(["" if number else text, str(size)], [cell], _COVERAGE)


def _sessions(length: Length) -> Iterator[Row]:
    runs = length.runs(2000, 40)
    found = windows.session_table(runs)
    for correlation, count in dict.fromkeys((key[0], key[2]) for key in found):
        cells = [
            [coverage(found[correlation, share, count, past], runs, length) for share in windows.SHARES]
            for past in (False, True)
        ]
        yield Row([f"correlation {_short(correlation)}", str(count)], cells, _COVERAGE)


def _uneven(length: Length) -> Iterator[Row]:
    runs = length.runs(2000, 60)
    for sizes, correlation, past, counts in windows.UNEVEN:
        name = _UNEVEN.get(sizes, sizes) + f", correlation {_short(correlation)}" * (correlation != _USUAL)
        name += f", with a history of {past} windows" * (past > 0)
        for number, count in enumerate(counts):
            # With one bot the page has 94.6 % at .95; 2,000 windows of three seeds gave 92.2 to 92.7.
            least = 0.925 if past and sizes == windows.BOT else 0.94
            both = [
                windows.uneven_windows(sizes, correlation, past, count=count, share=share, runs=runs)
                for share in (0.8, 0.95)
            ]
            cells = [
                [coverage(covered, runs, length, least) for covered, _ in both],
                [Figure(f"{100 * width:.0f}") for _, width in both],
            ]
            yield Row(["" if number else name, str(count)], cells, f"{100 * least:g} % less the standard errors")


def _differences(length: Length) -> Iterator[Row]:
    runs = length.runs(2000, 100)
    for name, make in windows.PAIR_DESIGNS.items():
        cell = [coverage(windows.difference_coverage(make, *pair, runs), runs, length) for pair in windows.PAIRS]
        yield Row([name], [cell], _COVERAGE)


_INCIDENTS: Final = (
    ("90 to 80 % at 60 an hour (median delays, M / B = 100)", Traffic(60, 0.9), [0.1] * 48, 0, (3.4, 7.6)),
    ("90 to 70 % at 10 an hour", Traffic(10, 0.9), [0.2] * 48, 0, (6.4, 10.4)),
    ("95 to 85 % over 24 h at 50 an hour", Traffic(50, 0.95), [*np.linspace(0, 0.1, 24), *[0.1] * 24], 0, (15.8, 19.7)),
    (
        "97 to 70 % at 100 an hour for 44 h: delay, alarms an incident",
        Traffic(100, 0.97),
        [0.27] * 44,
        24,
        (0.33, 0.92),
    ),
)
"""Names, traffic, drops by hour, hours afterwards, and the goals for the median delay, independent and by session."""


def _drops(length: Length) -> Iterator[Row]:
    text = (
        "false alarms a week of a fleet: 100 series of 30 to 300 judgements an hour, shares .7 to .95, day and night "
        "±10 points (±4 at .95), weekends 5 points lower, {} weeks of history"
    )
    weeks, seeds = (4, [1]) if length.is_brief else (12, [1, 2, 3, 4, 5, 6])
    for history, name in ((4, text.format(4)), (1, "the same, one week of history")):
        cells = []
        for correlation in (0.0, 0.25):
            # In brief fewer series, whose alarms are counted for a hundred.
            count = length.runs(100, 6)
            found = [
                fleets.false_alarms(seed, count=count, total=100, weeks=weeks, correlation=correlation, history=history)
                * 100
                / count
                for seed in seeds
            ]
            exposure = weeks * len(found) * count / 100
            cells.append([events(float(np.mean(found)), 1.0, exposure, length, 2)])
        yield Row([name], cells, "one a week")
    begins = []
    for name, traffic, drops, after, goals in _INCIDENTS:
        cells = []
        for correlation, goal in zip((0.0, 0.25), goals, strict=True):
            runs = length.runs(1000, 8)
            incident = fleets.incident(1, traffic._replace(correlation=correlation), drops, runs, after=after)
            delay = at_most(incident.median, _latest(goal, runs, length), 2, " h")
            alarms = float(np.mean(incident.alarms)) if after else 1.0
            text = f"{delay.text}, {alarms:.3f}" if after else delay.text
            # The two figures of one cell, with a comma between them: a chart draws the first.
            cells.append([Figure(text, delay.is_met and alarms <= (1.2 if length.is_brief else 1.02))])
            if drops == [0.1] * 48:
                since = " / ".join(f"{hours:+.1f}" for hours in np.quantile(incident.since, [0.05, 0.5, 0.95]))
                begins.append(
                    [
                        Figure(
                            f"{since} h; {100 * np.mean(incident.covered):.0f} %", bool(np.mean(incident.covered) > 0.7)
                        )
                    ]
                )
        yield Row([name], cells, f"{goals[0]:g} and {goals[1]:g} h")
    if not length.is_brief:
        found_by = [
            [at_most(fleets.known_levels(1, rate, 0.9, drop), most, 2, " h")]
            for rate, drop, most in ((60, 0.1, 3.3), (10, 0.2, 5.3))
        ]
        name = "a CUSUM that knows both levels, one false alarm in 100 weeks"
        yield Row([f"{name}: 90 to 80 % at 60 an hour; 90 to 70 % at 10"], found_by, "3.3 and 5.3 h")
    yield Row(
        ["begin reported for 90 to 80 % at 60 an hour, 5 / 50 / 95 %; its 90 % interval holds the begin"],
        begins,
        "holds it in 70 %",
    )
    yield Row(
        ["a second incident of 10 points after 36 h of one twice as deep and 10 h of health: an alarm of its own"],
        [
            [part(fleets.second_incident(1, Traffic(60, 0.9, correlation=each), 0.1, runs).found, 0.96, runs, length)]
            for runs in (length.runs(1000, 8),)
            for each in (0.0, 0.25)
        ],
        "96 %",
    )


def _latest(goal: float, runs: int, length: Length) -> float:
    """Return a limit of median delays: delays vary like waiting times, and are known to a bucket of five minutes."""
    return float(goal * (1 + length.errors / runs**0.5) + 1 / 12)


def _what_fell(length: Length) -> Iterator[Row]:
    runs = length.runs(300, 3)
    for name, make, answer, least in (
        ("one of eight falls by 20 points: it is named", lambda rate: fleets.falling(rate, 0.2, falls=1), "0", 0.988),
        ("all eight fall by 20 points: all", lambda rate: fleets.falling(rate, 0.2, falls=8), "all", 0.998),
        ("one of share .6 grows from 10 to 40 %, none falls: traffic mix", fleets.mixed, "traffic_mix", 0.9),
        ("one begins with 30 % of the traffic and share .6: it is named", fleets.born, "0", 0.93),
    ):
        cells = []
        for rate in (60, 300):
            found = fleets.segments(1, *make(rate), runs)
            cells.append([part(found.part(answer), least, runs, length)])
            cells.append([Figure(f"{found.median:.1f}")])
        yield Row([name], cells, f"{100 * least:.1f} %")


_YOUNG: Final = (
    (0, 60, 24, (0.5, 2.0, 0.5)),
    (0, 5, 24, (0.5, 0.5, 1.0)),
    (1, 300, 24, (1.0, 0.5, 2.0)),
    (2, 60, 24, (1.0, 1.5, 1.0)),
    (2, 300, 24, (1.2, 1.0, 1.0)),
    (4, 300, 24, (0.5, 0.5, 0.5)),
    (3, 60, 4, (3.7, 2.5, 0.5)),
    (3, 300, 12, (1.0, 2.0, 0.7)),
)
"""Points by which spans differ, verdicts an hour, length of the spans in hours, false alarms after 1, 2 and 4 weeks.

Where the page has no alarm, the goal is one of the 200 series that were simulated for it.
"""


def _young(length: Length) -> Iterator[Row]:
    seeds, count = ([41], 10) if length.is_brief else ([41, 42, 43, 44, 45], 100)
    for points, rate, span, goals in _YOUNG:
        cells = []
        for history, goal in zip((1, 2, 4), goals, strict=True):
            if length.is_brief and history > 1:
                cells.append([Figure("-")])
                continue
            fleet = partial(fleets.false_alarms, weeks=1, history=history, count=count, total=100, rate=rate)
            found = [fleet(seed, jitter=points / 100, span=span) for seed in seeds]
            # The goal has as large an error as the figure.
            exposure = len(found) * count / 200
            cells.append([events(float(np.mean(found)) * 100 / count, goal, exposure, length)])
        goal_text = ", ".join(map(str, goals))
        yield Row([f"{_jitter(points, span)}, {rate} an hour"], cells, f"{goal_text} after 1, 2 and 4 weeks")


def _young_delays(length: Length) -> Iterator[Row]:
    runs = length.runs(200, 12)
    for rate, jitter, drop, goals in (
        (60, 0, 0.1, (5.8, 3.6, 3.2)),
        (60, 0, 0.2, (1.2, 1.2, 1.2)),
        (300, 0, 0.1, (1.3, 1.3, 1.3)),
        (10, 0, 0.2, (6.6, 6.6, 6.6)),
        (60, 1, 0.1, (8.9, 4.3, 4.2)),
        (60, 1, 0.2, (1.5, 1.5, 1.5)),
        (60, 2, 0.1, (np.inf, 16.0, 11.0)),
        (60, 2, 0.2, (2.7, 2.7, 2.7)),
        (300, 2, 0.1, (43.0, 43.0, 43.0)),
        (300, 2, 0.2, (0.7, 0.7, 0.7)),
    ):
        cells = []
        for weeks, goal in zip((1, 2, 4), goals, strict=True):
            traffic = Traffic(rate, 0.9, jitter=jitter / 100)
            found = fleets.incident(44, traffic, [drop] * 72, runs, quiet=weeks * 168 + 24)
            late, told = np.sort(found.delays)[int(0.9 * runs)], float(np.isfinite(found.delays).mean())
            median = "-" if np.isinf(found.median) else f"{found.median:.1f}"
            text = f"{median} / {'-' if np.isinf(late) else f'{late:.0f}'}" + (f" ({told:.0%})" if told < 1 else "")
            cells.append([Figure(text, bool(found.median <= _latest(goal, runs, length)))])
        words = ", ".join("none" if np.isinf(goal) else f"{goal:g} h" for goal in goals)
        yield Row([f"{100 * drop:.0f} points at {rate} an hour, {_jitter(jitter)}"], cells, f"medians of {words}")


def _declines(length: Length) -> Iterator[Row]:
    series = length.runs(1000, 30)
    for name, kind, most in (
        ("days differ by 1 point, 300 an hour", Days(300, 0.01), 0.13),
        ("1 point, 60 an hour", Days(60, 0.01), 0.12),
        ("2 points, 300 an hour", Days(300, 0.02), 0.15),
        ("not at all, 10 an hour", Days(10), 0.02),
        ("1 point, neighbours correlated by .3, 60 an hour", Days(60, 0.01, 0.3), 0.39),
        ("1 point, neighbours correlated by .5, 300 an hour", Days(300, 0.01, 0.5), 1.1),
    ):
        exposure = series * 12 / 100
        yield Row(
            [name], [[events(notices(1, kind, series=series).false, most, exposure, length, 2)]], f"{most} a week"
        )


def _declines_told(length: Length) -> Iterator[Row]:
    series = length.runs(500, 40)
    for name, kind, slope, least in (
        ("a point a week, days differ by 1 point, 300 an hour", Days(300, 0.01), -0.01, 0.99),
        ("the same, 60 an hour", Days(60, 0.01), -0.01, 0.89),
        ("the same, 20 an hour", Days(20, 0.01), -0.01, 0.56),
        ("days differ by 2 points, 300 an hour", Days(300, 0.02), -0.01, 0.52),
        ("half a point a week, 1 point, 300 an hour", Days(300, 0.01), -0.005, 0.46),
    ):
        days = np.sort(notices(2, kind, series=series, weeks=8, slope=slope).delays)
        told = part(float((days <= 28).mean()), least, series, length)
        late = days[int(0.9 * series)]
        cells = [[Figure(f"{np.median(days):.0f}"), Figure("-" if np.isinf(late) else f"{late:.0f}")], [told]]
        yield Row([name], cells, f"{100 * least:.0f} % within 28 days")


def _volumes(length: Length) -> Iterator[Row]:
    for rate in (5, 10, 30, 60, 300):
        stated = [
            hours
            for correlation in (0.0, 0.25)
            for hours in fleets.stated_delays(
                1, Traffic(rate, 0.9, correlation=correlation), (0.1, 0.2), length.runs(20, 1)
            )
        ]
        # The limits of 300 an hour, in proportion: what the monitor says falls with the number of judgements.
        goals = [limit * 300 / rate for limit in (1.2, 0.4, 2.4, 0.8)]
        cells = [
            [Figure(f"{hours:.2g}", hours <= goal * length.runs(1, 2))]
            for hours, goal in zip(stated, goals, strict=True)
        ]
        yield Row([str(rate)], cells, " and ".join(f"{goal:.2g}" for goal in goals))


def _weighted(length: Length) -> Iterator[Row]:
    for correlation, most in ((0.0, 2.5), (0.25, 4.2)):
        design = Design(60, 0.95, turns=5 if correlation else 1, correlation=correlation)
        delay = weighted_delay(3, design, 0.15, length.runs(100, 4))
        cells = [[at_most(delay, most * length.runs(1, 2), 2, " h")]]
        if not length.is_brief:
            cells.insert(0, [at_most(weighted_alarms(seed, design), 1.0) for seed in (1, 2)])
        yield Row([f"weights 1 and 8, correlation {_short(correlation)}"], cells, f"one a week; {most} h")


def _safety(length: Length) -> Iterator[Row]:
    months, runs = length.runs(200, 25), length.runs(400, 25)
    for per_hour in (100, 1000):
        for error in safety_runs.ERRORS:
            for correlation in safety_runs.CORRELATIONS:
                judge = Judge(per_hour, error, correlation)
                pages = [safety_runs.pages(1, judge, series=each, months=months // each) for each in (1, 5)]
                hours = [float(np.median(safety_runs.delays(2, judge, series=each, runs=runs))) for each in (1, 5)]
                # One of five series is not found within 5 h where the errors of both judgings are the same.
                goals = (5.0, 6.5) if per_hour == 100 else (1.0, 1.2)
                cells = [
                    [events(found, 1.0, months, length, 2) for found in pages],
                    [at_most(each, goal * length.runs(10, 15) / 10) for each, goal in zip(hours, goals, strict=True)],
                ]
                yield Row([f"{per_hour}, {100 * error:.1f} %, {correlation}"], cells, f"a page a month; {goals} h")


def _safety_sessions(length: Length) -> Iterator[Row]:
    months, runs = length.runs(200, 25), length.runs(400, 25)
    for per_hour, hours, most in ((100, 5.0, 0.6), (1000, 1.0, 0.35)):
        for turns, agreement in ((5, 0.1), (5, 0.25), (5, 0.5), (20, 0.25)):
            judge = Judge(per_hour, 0.01, 0.5, turns=turns, agreement=agreement)
            delay = float(np.median(safety_runs.delays(2, judge, series=1, runs=runs)))
            sent = events(safety_runs.pages(1, judge, series=1, months=months), most, months, length, 2)
            name = f"{turns} turns a session, correlation {_short(agreement)}, {per_hour:,} an hour"
            # A session counts once in six hours: long ones take longer.
            limit = hours * (1.4 if turns > 5 else 1.0)
            yield Row([name], [[sent], [at_most(delay, limit)]], f"{most} a month; {limit:g} h")
    months = length.runs(120, 12)
    for per_hour in (100, 1000):
        judge = Judge(per_hour, 0.01, 0.5)
        for name, factor, known, most in (
            ("steady error", 1.0, 1, 1.0),
            ("error 1.5 times as large since four days, the month after", 1.5, 4, 1.0),
            ("error 1.5 times as large from now on, its first month", 1.5, 0, 2.0),
        ):
            pages = safety_runs.pages_of_a_worse_judge(5, judge, factor, months=months, known_days=known)
            yield Row(
                [f"{name}, {per_hour:,} an hour"], [[events(pages, most, months, length, 2)], []], f"{most} a month"
            )


def _corrected(length: Length) -> Iterator[Row]:
    runs, few = length.runs(4000, 100), length.runs(2000, 60)
    for share, most in ((0.5, 0.65), (0.8, 0.6), (0.95, 0.45)):
        found = label_runs.drawn(1, share, runs)
        cells = [
            [coverage(found.share, runs, length)],
            [at_most(found.beside_rogan_gladen, most)],
            [at_most(found.beside_labels, 1.0)],
            [
                coverage(label_runs.drawn(2, share, runs, design=design).share, runs, length)
                for design in label_runs.DESIGNS[1:]
            ],
            [coverage(label_runs.golden(3, share, runs), runs, length)],
            [coverage(label_runs.sessions(5, share, few, each), few, length) for each in (0.1, 0.25, 0.5)],
            [coverage(label_runs.sessions(6, share, few, 0.5, errors=0.0), few, length)],
        ]
        yield Row([str(share)], cells, f"{_COVERAGE}; width {most}")


def _labels_in_time(length: Length) -> Iterator[Row]:
    runs = length.runs(2000, 20)
    for design, name, is_refused in (
        ("all of the time", "labels of all of the time", False),
        ("first days", "labels of the first three days", True),
        ("changed rate", "a third of the rate of labels in the second half", False),
        (
            "falling order",
            "all verdicts of the first day on the board, later a tenth of those that a rate of .05 draws",
            False,
        ),
        ("queue file", "a file of the disagreeing traces as `queue` after the drawn ones", False),
    ):
        # On the board there are more verdicts: a tenth of .05 of them is answered.
        found = label_runs.in_time(7, runs, design, judged=8000 if design == "falling order" else 2000)
        most = 0.02 + length.errors * (0.02 / runs) ** 0.5
        refused = Figure(f"{100 * found.refused:.1f}", found.refused == 1 if is_refused else found.refused <= most)
        held = found.offered_covered if is_refused else found.covered
        yield Row(
            [name + ": the share of that time is offered" * is_refused],
            [[refused], [coverage(held, runs, length)]],
            f"{'all' if is_refused else '2 %'} refused; {_COVERAGE}",
        )


def _canary(length: Length) -> Iterator[Row]:
    runs = length.runs(400, 8)
    # The least shares that are seen within 48 h with two, three, four and six changed traces.
    for judge, least in (
        ("steady", (0.97, 0.97, 0.97, 0.97)),
        ("borderline", (0.4, 0.97, 0.97, 0.97)),
        ("scattered", (0.05, 0.6, 0.97, 0.97)),
    ):
        weeks, judges = (2, 8) if length.is_brief else (12, 100)
        false = canary_runs.false_drifts(3, judge, weeks=weeks, judges=judges)
        cells = []
        for changed, seen in zip((2, 3, 4, 6), least, strict=True):
            found = canary_runs.delays(4, judge, changed, runs=runs)
            told = float(np.isfinite(found).mean())
            median = "-" if np.isinf(np.median(found)) else f"{np.median(found):.0f}"
            cells.append(
                [Figure(f"{median} ({part(told, seen, runs, length).text} %)", part(told, seen, runs, length).is_met)]
            )
        yield Row([judge], [[at_most(false, 0.005, 4)], *cells], f"{least} within 48 h")


def _budgets(length: Length) -> Iterator[Row]:
    for name, exempt in (("one rule", 0.0), ("the same beside an exempt judge with half of the costs", 0.063)):
        days = budget_days.Simulation(200.0, exempt=exempt, seed=18).run(length.runs(101, 2))[1:]
        spent = np.quantile([100 * day.spent / 200.0 for day in days], [0, 0.5, 1])
        refused, calls = sum(day.refused for day in days), sum(day.calls for day in days)
        bias = 100 * budget_days.bias(days)
        cells = [
            [Figure(", ".join(f"{each:.2f}" for each in spent), bool(spent[0] >= 97.5 and spent[2] <= 100))],
            [Figure(f"{refused:,} of {calls:,}", refused <= 0.002 * calls)],
            # A day has a standard deviation of .26 points.
            [Figure(f"{bias:+.2f}", abs(bias) <= 0.03 + length.errors * 0.26 / len(days) ** 0.5)],
        ]
        yield Row([name], cells, "97.5 to 100 %; .2 % refused; .03 points")


def _cascade(length: Length) -> Iterator[Row]:
    judges = list(cascade_runs.JUDGES.values())[:: length.runs(1, 3)]
    for traces, rate, w, goals in cascade_runs.CELLS:
        figures = []
        runs = length.runs(200, 3) if traces * w >= 20_000 else length.runs(500, 6)
        for share, goal in zip(cascade_runs.SHARES, goals, strict=True):
            found = [cascade_runs.simulate(6, share, traces, rate, runs, w=w, judge=judge) for judge in judges]
            ratios = [float(each.width / each.plain) for each in found]
            is_met = max(ratios) <= goal + length.errors * 0.2 / runs**0.5
            figures.append(
                (
                    coverage(float(min(each.coverage for each in found)), runs, length),
                    Figure(f"{min(ratios):.2f} to {max(ratios):.2f}", is_met),
                )
            )
        name = f"{traces:,}, {w:g}, {rate}"
        yield Row([name], list(zip(*figures[:4], strict=True)), f"{_COVERAGE}; width {goals[:4]}")
        yield Row([f"{name}, share .99 alone"], list(zip(*figures[4:], strict=True)), f"{_COVERAGE}; width {goals[4]}")


def _cascade_kinds(length: Length) -> Iterator[Row]:
    for name, traces, rate, shares, kind in cascade_runs.KINDS:
        runs = length.runs(1000, 8)
        found = [cascade_runs.simulate(8, share, traces, rate, runs, **kind) for share in shares]
        covered = [coverage(float(each.coverage), runs, length) for each in found]
        widths = [Figure(f"{each.width / each.plain:.2f}") for each in found]
        yield Row([name], [covered, widths], _COVERAGE)


def _missing(length: Length) -> Iterator[Row]:
    for name, scene in cascade_runs.SCENES.items():
        runs = length.runs(400, 4) if scene.traces * scene.w >= 20_000 else length.runs(2000, 12)
        found = cascade_runs.missing(7, scene, scene.traces, runs)
        cells = [
            [coverage(float(found.coverage), runs, length, scene.lowest)],
            [Figure(f"{100 * found.width:.1f}")],
            [Figure(f"{100 * found.unknown:.1f} %")],
        ]
        yield Row([name], cells, _COVERAGE if scene.lowest else "cannot be seen")


def _first_day(length: Length) -> Iterator[Row]:
    for name, buckets, seconds, kinds, most, brief in (
        (
            "in its first hour, 0.03 to 8.5 verdicts a second",
            360,
            10,
            ((0.8, 85), (0.95, 20), (0.8, 2), (0.9, 0.3), (0.6, 5)),
            0.06,
            3,
        ),
        ("in its first day, 3 to 200 verdicts in five minutes", 288, 300, ((0.8, 3), (0.9, 30), (0.7, 200)), 0.03, 3),
    ):
        runs = length.runs(100, brief)
        chances = [young.by_chance(share, judged, buckets, seconds, runs) for share, judged in kinds]
        limit = most + length.errors * (most / runs) ** 0.5
        yield Row(
            [name],
            [[Figure(f"{min(chances):.0%} to {max(chances):.0%}".replace("%", " %"), max(chances) <= limit)]],
            f"{most:.0%}",
        )


def _short(value: float) -> str:
    return f"{value:g}".removeprefix("0") or "0"


def _jitter(points: int, span: int = 24) -> str:
    if not points:
        return "days do not differ"
    spans = "days" if span == 24 else f"spans of {span} h"
    return f"{spans} differ by {points} point{'s' * (points != 1)}"


_SHARES: Final = "share .5 / .8 / .9 / .95"
TABLES: Final[Mapping[str, Table]] = {
    "intervals": Table((f"2,000 windows each, {_SHARES}", "judgements", "coverage, %"), _intervals),
    "sessions": Table(
        (
            f"2,000 windows of five judgements a session, {_SHARES}",
            "sessions",
            "without history, %",
            "with history, %",
        ),
        _sessions,
    ),
    "uneven": Table(
        (
            "2,000 windows of sessions of different sizes, correlation .25, no history, share .8 / .95",
            "sessions",
            "coverage, %",
            "width, points",
        ),
        _uneven,
    ),
    "differences": Table(("2,000 pairs of periods", "coverage, %"), _differences, ""),
    "drops": Table(("simulation", "independent judgements", "five a session, correlation .25"), _drops),
    "what-fell": Table(
        (
            "300 incidents of a series with eight segments",
            "said at 60 an hour in total, %",
            "median delay, h",
            "said at 300 an hour, %",
            "median delay, h",
        ),
        _what_fell,
    ),
    "young": Table(
        (
            "false alarms a week of 100 series in the week after their history",
            "one week of history",
            "two weeks",
            "four weeks",
        ),
        _young,
    ),
    "young-delays": Table(
        (
            "hours until a fall from .9 is told: median / 90 % (share within 72 h)",
            "one week of history",
            "two weeks",
            "four weeks",
        ),
        _young_delays,
    ),
    "declines": Table(("series that do not decline", "notices a week of 100 series"), _declines),
    "declines-told": Table(
        ("series that decline", "days until the notice: median / 90 %", "told within 28 days, %"), _declines_told
    ),
    "volumes": Table(
        (
            "judgements an hour",
            "10 points, hours",
            "20 points, hours",
            "10 points, five a session, hours",
            "20 points, five a session, hours",
        ),
        _volumes,
    ),
    "weights": Table(("traffic", "false alarms a week", "delay"), _weighted, ""),
    "safety": Table(
        (
            "judgements an hour, judge's error, ρ",
            "false pages a month, one series / an installation with five",
            "median hours to a page at 2 % unsafe traces, one series / one of five",
        ),
        _safety,
    ),
    "safety-sessions": Table(
        ("judge with an error of 1 %, ρ .5", "false pages a month", "median hours to a page at 2 % unsafe traces"),
        _safety_sessions,
    ),
    "corrected": Table(
        (
            "share",
            "drawn: coverage, %",
            "width beside Rogan-Gladen",
            "width beside the labels alone",
            "drawn with changed / verdict-dependent / weighted probability, %",
            "golden set, %",
            "labels of whole sessions, correlation .1 / .25 / .5, %",
            "the same, truths correlated by .5, errors not, %",
        ),
        _corrected,
    ),
    "labels-in-time": Table(
        ("200 labels of 28 days in which the share falls from .95 to .80", "refused, %", "coverage, %"), _labels_in_time
    ),
    "canary": Table(
        (
            "simulated judge, 20 traces judged every hour",
            "false drifts a week",
            "two traces changed: median hours (seen within 48 h)",
            "three",
            "four",
            "six",
        ),
        _canary,
    ),
    "budgets": Table(
        (
            "100 days after the first, 200 traces a minute, seed 18",
            "spent, % of the budget: least, median, most",
            "refused calls",
            "bias of the weighted share, points",
        ),
        _budgets,
    ),
    "cascade": Table(
        (
            "first verdicts a day, weight, rate",
            "lowest coverage at a share of .8 / .9 / .95 / .98, %",
            "width, same shares",
        ),
        _cascade,
        "reference/measured/cascades.md",
    ),
    "cascade-kinds": Table(
        ("other cascades, their shares", "coverage, %", "width beside a plain sample"), _cascade_kinds, ""
    ),
    "missing": Table(
        ("6,000 first verdicts, rate 0.2, share .9, 2,000 days each", "coverage, %", "width, points", "not known"),
        _missing,
        "reference/measured/cascades.md",
    ),
    "first-day": Table(("a series of ten without a fall, 100 runs each", "fall by chance"), _first_day),
}
