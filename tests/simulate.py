"""Print the figures of docs/statistics.md: `python -m tests.simulate NAME…`, without a name all of them."""

import sys
import time
from collections.abc import Callable, Iterator

import numpy as np

from tests.base import coverage, fleets
from tests.base.declines import Days, notices
from tests.base.fleets import Traffic
from tests.base.weighted import Design, false_alarms, median_delay
from tests.features.board import young
from tests.features.budgets import budget_days
from tests.features.canary import canary_runs
from tests.features.cascades import cascade_runs
from tests.features.labels import labels
from tests.features.safety import safety_runs
from tests.features.safety.safety_runs import Judge


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def intervals() -> Iterator[str]:
    """Coverage of every way of sampling, 2,000 windows each."""
    found = coverage.table(2000)
    for name in coverage.DESIGNS:
        for size in coverage.sizes_of(name):
            yield f"{name}, {size}: " + " ".join(_percent(found[name, share, size]) for share in coverage.SHARES)


def sessions() -> Iterator[str]:
    """Coverage with five judgements a session, 2,000 windows each."""
    found = coverage.session_table(2000)
    for correlation, _, count, past in sorted({(key[0], 0, *key[2:]) for key in found}):
        row = (found[correlation, share, count, past] for share in coverage.SHARES)
        yield f"correlation {correlation}, {count} sessions, history {past}: " + " ".join(map(_percent, row))


def differences() -> Iterator[str]:
    """Coverage of the difference of two periods, 2,000 pairs each."""
    for name, make in coverage.PAIR_DESIGNS.items():
        found = (coverage.difference_coverage(make, *pair, 2000) for pair in coverage.PAIRS)
        yield f"{name}: " + " ".join(map(_percent, found))


def alarms() -> Iterator[str]:
    """False alarms a week of six fleets, 100 series for twelve weeks each."""
    for history in (4, 1):
        for correlation in (0.0, 0.25):
            found = [fleets.false_alarms(seed, correlation=correlation, history=history) for seed in range(1, 7)]
            each = " ".join(f"{one:.2f}" for one in found)
            yield f"{history} weeks of history, correlation {correlation}: mean {np.mean(found):.2f} ({each})"


def delays() -> Iterator[str]:
    """Delays, alarms and begins of 1,000 incidents of each kind."""
    slope = [*np.linspace(0, 0.1, 24), *[0.1] * 24]
    for correlation in (0.0, 0.25):
        for name, rate, share, drops, after in (
            ("90 to 80 % at 60/h", 60, 0.9, [0.1] * 48, 0),
            ("90 to 70 % at 10/h", 10, 0.9, [0.2] * 48, 0),
            ("95 to 85 % over 24 h at 50/h", 50, 0.95, slope, 0),
            ("97 to 70 % at 100/h for 44 h", 100, 0.97, [0.27] * 44, 24),
        ):
            found = fleets.incident(1, Traffic(rate, share, correlation=correlation), drops, 1000, after=after)
            since = " ".join(f"{one:+.1f}" for one in np.quantile(found.since, [0.05, 0.5, 0.95]))
            yield (
                f"{name}, correlation {correlation}: median {found.median:.2f} h, found "
                f"{_percent(np.isfinite(found.delays).mean())}, alarms {np.mean(found.alarms):.3f}, since {since} h, "
                f"interval of the begin {_percent(np.mean(found.covered))}"
            )


def cusum() -> Iterator[str]:
    """Median delays of a CUSUM that knows both levels and may raise one false alarm in a hundred weeks."""
    for rate, drop in ((60, 0.1), (10, 0.2)):
        yield f"{drop:.0%} at {rate}/h: {fleets.known_levels(1, rate, 0.9, drop):.2f} h"


def second() -> Iterator[str]:
    """Second incidents of 10 points at 60/h, 1,000 runs."""
    for correlation in (0.0, 0.25):
        found = fleets.second_incident(1, Traffic(60, 0.9, correlation=correlation), 0.1, 1000)
        yield f"correlation {correlation}: found {_percent(found.found)}, first alarm open {_percent(found.open)}"


def segments() -> Iterator[str]:
    """Explanations when segments fall, when only their parts change, and when one begins; 300 runs of eight."""
    for rate in (60, 300):
        for name, scene in {
            "one falls by 20 points": fleets.falling(rate, 0.2, falls=1),
            "all fall by 20 points": fleets.falling(rate, 0.2, falls=8),
            "two fall by 20 points": fleets.falling(rate, 0.2, falls=2),
            "one of share .6 grows from 10 to 40 %": fleets.mixed(rate),
            "one begins with 30 % of the traffic and share .6": fleets.born(rate),
        }.items():
            found = fleets.segments(1, *scene, 300)
            said = ", ".join(f"{answer} {_percent(found.part(answer))}" for answer, _ in found.answers.most_common(3))
            yield f"{name}, {rate}/h in total: {said}; median {found.median:.2f} h"


def young_series() -> Iterator[str]:
    """False alarms of 300 series in the week after their history; hours until a fall is told, 200 runs, p .9."""
    for rate, jitter in ((60, 0.0), (5, 0.0), (300, 0.01), (60, 0.02), (300, 0.02), (300, 0.04)):
        row = []
        for history in (1, 2, 4):
            kind = {"weeks": 1, "history": history, "rate": rate, "jitter": jitter}
            row.append(f"{np.mean([fleets.false_alarms(seed, **kind) for seed in (41, 42, 43)]):.1f}")
        yield f"jitter {jitter}, {rate}/h, history of 1, 2 and 4 weeks: {' '.join(row)} false alarms a week of 100"
    for rate, jitter, drop in (
        *((60, 0.0, 0.1), (60, 0.0, 0.2), (300, 0.0, 0.1), (10, 0.0, 0.2), (60, 0.01, 0.1), (60, 0.01, 0.2)),
        *((60, 0.02, 0.1), (60, 0.02, 0.2), (300, 0.02, 0.2)),
    ):
        row = []
        for weeks in (1, 2, 4):
            traffic = Traffic(rate, 0.9, jitter=jitter)
            found = fleets.incident(44, traffic, [drop] * 72, 200, quiet=weeks * 168 + 24)
            late = np.sort(found.delays)[180]
            row.append(f"{found.median:.1f} / {late:.0f} ({_percent(np.isfinite(found.delays).mean())} %)")
        yield f"{drop:.0%} at {rate}/h, jitter {jitter}: {'; '.join(row)}"


def declines() -> Iterator[str]:
    """Notices of a slow decline: false ones of 1,000 series in twelve weeks, and days until a decline is told."""
    kinds = {
        "jitter 1, 300/h": Days(300, 0.01),
        "jitter 1, 60/h": Days(60, 0.01),
        "jitter 2, 300/h": Days(300, 0.02),
        "none, 10/h": Days(10),
        "jitter 1, days correlated .3, 60/h": Days(60, 0.01, 0.3),
        "jitter 1, days correlated .5, 300/h": Days(300, 0.01, 0.5),
    }
    for name, kind in kinds.items():
        yield f"{name}: {notices(1, kind, series=1000).false:.2f} a week of 100 series"
    for name, kind, slope in (
        ("jitter 1, 300/h", Days(300, 0.01), -0.01),
        ("jitter 1, 60/h", Days(60, 0.01), -0.01),
        ("jitter 1, 20/h", Days(20, 0.01), -0.01),
        ("jitter 2, 300/h", Days(300, 0.02), -0.01),
        ("jitter 1, 300/h", Days(300, 0.01), -0.005),
    ):
        days = notices(2, kind, series=500, weeks=8, slope=slope).delays
        told = f"{np.median(days):.0f} / {np.sort(days)[450]:.0f} / {_percent((days <= 28).mean())} %"
        yield f"{slope:.1%} a week, {name}: {told}"


def volumes() -> Iterator[str]:
    """Hours that the monitor states for drops of 10 and 20 points, p .9 and M / B = 100: means of 20 histories."""
    for rate in (5, 10, 30, 60, 300):
        row = []
        for correlation in (0.0, 0.25):
            stated = fleets.stated_delays(1, Traffic(rate, 0.9, correlation=correlation), (0.1, 0.2), 20)
            row += [f"{one:.1f}" for one in stated]
        yield f"{rate}/h: {' and '.join(row[:2])}; with correlation 0.25 {' and '.join(row[2:])}"


def weighted() -> Iterator[str]:
    """Weights of 1 for errors and 8 for others: false alarms a week of 50 series, delays of 100 incidents."""
    for correlation in (0.0, 0.25):
        design = Design(60, 0.95, turns=5 if correlation else 1, correlation=correlation)
        found = [false_alarms(seed, design) for seed in (1, 2)]
        delay = median_delay(3, design, 0.15, 100)
        yield f"correlation {correlation}: {found[0]:.2f} {found[1]:.2f} false alarms, 95 to 80 % {delay:.2f} h"


def safety() -> Iterator[str]:
    """Pages a month when nothing is wrong, 200 months of series; hours to a page at 2 % unsafe traces, 400 runs."""
    for per_hour in (100, 1000):
        for error in safety_runs.ERRORS:
            for correlation in safety_runs.CORRELATIONS:
                judge = Judge(per_hour, error, correlation)
                row = []
                for series in (1, 5):
                    pages = safety_runs.pages(1, judge, series=series, months=200 // series)
                    delay = np.median(safety_runs.delays(2, judge, series=series, runs=400))
                    row.append(f"{series} series {pages:.2f} pages, {delay:.2f} h")
                yield f"{per_hour}/h, error {error:.1%}, correlation {correlation}: " + "; ".join(row)
    for per_hour in (0.2, 1, 3, 10, 30):
        rare = (safety_runs.pages(1, Judge(per_hour, e, 1.0), series=1, months=150) for e in safety_runs.ERRORS)
        yield f"{per_hour}/h, correlation 1: " + " ".join(f"{one:.2f}" for one in rare) + " pages"
    for per_hour in (100, 1000):
        for turns, agreement in ((5, 0.1), (5, 0.25), (5, 0.5), (20, 0.25)):
            judge = Judge(per_hour, 0.01, 0.5, turns=turns, agreement=agreement)
            delay = np.median(safety_runs.delays(2, judge, series=1, runs=400))
            found = safety_runs.pages(1, judge, series=1, months=200)
            yield f"{per_hour}/h, {turns} turns a session, agreement {agreement}: {found:.2f} pages, {delay:.2f} h"
        for known in (0, 4):
            worse = safety_runs.pages_of_a_worse_judge(5, Judge(per_hour, 0.01, 0.5), 1.5, months=120, known_days=known)
            yield f"{per_hour}/h, error 1.5 times as large since {known} days: {worse:.2f} pages in the month after"
        steady = safety_runs.pages_of_a_worse_judge(5, Judge(per_hour, 0.01, 0.5), 1.0, months=120)
        yield f"{per_hour}/h, steady, learned daily: {steady:.2f} pages"
    worst = Judge(100, 0.01, 1.0)
    best = " and ".join(f"{safety_runs.known_rates(3, worst, series=series):.2f} h" for series in (1, 5))
    yield f"{worst}: {best} of a CUSUM that knows both rates, with one page a month for 1 and 5 series"


def corrected() -> Iterator[str]:
    """Coverage and width of corrected shares, 4,000 runs with 200 labels."""
    for share in (0.5, 0.8, 0.95):
        found = labels.drawn(1, share, 4000)
        others = (labels.drawn(2, share, 4000, design=design).share for design in labels.DESIGNS[1:])
        together = (labels.sessions(5, share, 2000, correlation) for correlation in (0.1, 0.25, 0.5))
        yield (
            f"share {share}: drawn {_percent(found.share)}, beside Rogan-Gladen {found.beside_rogan_gladen:.2f}, "
            f"beside labels {found.beside_labels:.2f}; unequal {' / '.join(map(_percent, others))}; "
            f"golden {_percent(labels.golden(3, share, 4000))}; "
            f"labels of whole sessions {' / '.join(map(_percent, together))}"
        )


def canary() -> Iterator[str]:
    """Drifts a week of unchanged judges, 1,200 weeks; hours until a changed one is seen, 400 runs with 20 traces."""
    for judge in canary_runs.JUDGES:
        false = canary_runs.false_drifts(3, judge, weeks=12, judges=100)
        row = []
        for changed in (2, 3, 4, 6):
            found = canary_runs.delays(4, judge, changed, runs=400)
            row.append(f"{changed} changed {np.median(found):.0f} h, {_percent(np.isfinite(found).mean())} % in 48 h")
        yield f"{judge}: {false:.4f} false; {'; '.join(row)}"


def budgets() -> Iterator[str]:
    """A hundred days under a budget after a first one, alone and beside an exempt judge."""
    for exempt in (0.0, 0.063, 0.1):
        days = budget_days.Simulation(200.0, exempt=exempt, seed=18).run(101)[1:]
        spent = " ".join(f"{100 * one:.2f}" for one in np.quantile([day.spent / 200.0 for day in days], [0, 0.5, 1]))
        refused, calls = sum(day.refused for day in days), sum(day.calls for day in days)
        bias = 100 * budget_days.bias(days)
        yield f"{_percent(exempt)} % exempt: spent {spent}, refused {refused} of {calls}, bias {bias:.2f}"


def uneven() -> Iterator[str]:
    """Coverage of windows of sessions of very different sizes without a history, correlation .25, 2,000 runs."""
    for (sizes, sessions, share), (covered, width) in coverage.uneven_table(2000).items():
        yield f"{sizes}, {sessions} sessions, share {share}: coverage {_percent(covered)}, {100 * width:.1f} points"


def cascade() -> Iterator[str]:
    """Coverage and width of a cascade beside as many plain verdicts, 1,000 days, whatever the first model says."""
    for traces, rate, w in cascade_runs.CELLS:
        for share in cascade_runs.SHARES:
            found = [
                cascade_runs.simulate(6, share, traces, rate, 1000, w=w, judge=judge)
                for judge in cascade_runs.JUDGES.values()
            ]
            ratios = [each.width / each.plain for each in found]
            yield (
                f"{traces} first verdicts of weight {w:g}, rate {rate}, share {share}: coverage at least "
                f"{_percent(min(each.coverage for each in found))}, width {min(ratios):.2f} to {max(ratios):.2f}"
            )


def missing() -> Iterator[str]:
    """Coverage, width and unknown part where second verdicts are missing, 2,000 days of 6,000 traces."""
    for name, scene in cascade_runs.SCENES.items():
        found = cascade_runs.simulate(
            7, scene.share, 6000, 0.2, 2000, missing=scene.missing, shares=scene.shares, judge=scene.judge
        )
        yield (
            f"{name}: coverage {_percent(found.coverage)}, width {100 * found.width:.1f} points, "
            f"not known {_percent(found.unknown)} %"
        )


def first_day() -> Iterator[str]:
    """Falls by chance of a series without a baseline, 100 runs; how often the demo's drop is found, 200 runs."""
    for share, judged in ((0.8, 85), (0.95, 20), (0.8, 2), (0.9, 0.3), (0.6, 5)):
        chance = young.by_chance(share, judged, 360, 10, 100)
        yield f"an hour, share {share}, {judged} in ten seconds: {_percent(chance)}"
    for share, judged in ((0.8, 3), (0.9, 30), (0.7, 200)):
        chance = young.by_chance(share, judged, 288, 300, 100)
        yield f"a day, share {share}, {judged} in five minutes: {_percent(chance)}"
    for seconds in (3, 4, 5, 6):
        yield f"{seconds} s after the drop: {_percent(young.after_drop(seconds, 200))}"


NAMES: dict[str, Callable[[], Iterator[str]]] = {
    one.__name__: one
    for one in (
        *(intervals, sessions, differences, alarms, young_series, delays, cusum, second, segments, declines),
        *(volumes, weighted, safety, corrected, canary, budgets, uneven, cascade, missing, first_day),
    )
}


def main() -> int:
    """Print the figures of the simulations named as arguments, each with its CPU time."""
    wrong = [name for name in sys.argv[1:] if name not in NAMES]
    if wrong:
        print(f"no simulation {', '.join(wrong)}; there are: {', '.join(NAMES)}")
        return 2
    for name in sys.argv[1:] or NAMES:
        begin = time.process_time()
        print(f"{name}: {NAMES[name].__doc__}")
        for line in NAMES[name]():
            print(f"  {line}", flush=True)
        print(f"  ({time.process_time() - begin:.0f} s CPU)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
