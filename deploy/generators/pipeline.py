"""The recorded series of the way to a score: coverage, sampling, freshness, cost.

By series there are, of each window, ``tracejudge:evaluations:<window>``, ``scored``, ``answered``, ``unscored`` and
``coverage``, the share of evaluations with a score.
"""

from typing import Final

from deploy.generators.promql import RATED, SERIES, Pace, by, grown, lines
from deploy.generators.rules import Group, Recording
from deploy.generators.table import Table, seconds

__all__ = ["groups"]

_SCORED: Final = 'outcome=~"pass|fail|unrated"'


def groups(table: Table, pace: Pace) -> list[Group]:
    """Make the rules; those that others are made of come first."""
    windows = sorted({"1h", table.watcher.unscored.window, table.watcher.judge_changed.window}, key=seconds)
    found = [rule for window in windows for rule in _coverage(window, pace)]
    found += [*_traces(table, pace), *_ages(table, pace), *_last_verdict(pace), *_cost(pace)]
    return [Group("tracejudge-pipeline", pace(table.interval), tuple(found))]


def _coverage(window: str, pace: Pace) -> list[Recording]:
    """Make how many evaluations ended, dead letters included, and which share of them has a score.

    A verdict counts under each metric of its judge, and not every metric of it needs to have a score: the fullest one
    tells how many evaluations there were.
    """

    def ended(outcomes: str) -> str:
        counter = f"tracejudge_verdicts_total{{{outcomes}}}"
        return by(SERIES, by(RATED, grown(counter, window, pace)), "max")

    evaluations, unscored = f"tracejudge:evaluations:{window}", f"tracejudge:unscored:{window}"
    scored, answered = f"tracejudge:scored:{window}", f"tracejudge:answered:{window}"
    return [
        Recording(answered, ended('outcome!="unscored"')),
        Recording(
            unscored, lines(by(SERIES, grown("tracejudge_unscored_total", window, pace)), "or", f"{answered} * 0")
        ),
        Recording(evaluations, lines(f"({answered} + {unscored})", "or", unscored)),
        Recording(scored, lines(ended(_SCORED), "or", f"{evaluations} * 0")),
        Recording(f"tracejudge:coverage:{window}", f"{scored} / ({evaluations} > 0)"),
    ]


def _traces(table: Table, pace: Pace) -> list[Recording]:
    window = table.watcher.traces_stopped.window
    eligible = 'outcome=~"sampled|not_sampled|shed|no_rule"'
    sampled = by(["service"], grown('tracejudge_traces_total{outcome="sampled"}', "1h", pace))
    chosen_from = by(["service"], grown(f"tracejudge_traces_total{{{eligible}}}", "1h", pace))
    return [
        Recording(f"tracejudge:traces:{window}", by(["service"], grown("tracejudge_traces_total", window, pace))),
        Recording("tracejudge:sampled_share:1h", lines(sampled, "/", f"({chosen_from} > 0)")),
    ]


def _ages(table: Table, pace: Pace) -> list[Recording]:
    """Make percentiles of how old scores are, and how long requests to judge models take."""
    watcher = table.watcher
    age = f"increase(tracejudge_score_age_seconds_bucket[{pace(watcher.scores_late.window)}])"
    requests = 'tracejudge_judge_request_duration_seconds_bucket{status!="cancelled"}'
    took = f"increase({requests}[{pace(watcher.judge_slow.window)}])"
    found = (
        ("score_age_seconds", "service", age, watcher.scores_late.window),
        ("judge_request_seconds", "judge_model", took, watcher.judge_slow.window),
    )
    return [
        Recording(
            f"tracejudge:{name}_p{percent}:{window}",
            f"histogram_quantile(0.{percent}, {by([label, 'le'], buckets)})",
        )
        for name, label, buckets, window in found
        for percent in (50, 95)
    ]


def _last_verdict(pace: Pace) -> list[Recording]:
    """Keep for a day when each judge of a service last had a verdict, whatever its outcome."""
    name, labels = "tracejudge:last_verdict_timestamp_seconds", ("service", "environment", "judge")
    moved = by(labels, grown("tracejudge_verdicts_total", "2m", pace))
    return [
        Recording(
            name,
            lines(f"(({moved}) > bool 0) * time() > 0", "or", f"last_over_time({name}[{pace('1d')}])"),
        )
    ]


def _cost(pace: Pace) -> list[Recording]:
    labels = ("judge", "judge_model")
    cost = "tracejudge:cost_usd:1h"
    return [
        Recording(cost, by(labels, grown("tracejudge_judge_cost_usd_total", "1h", pace))),
        Recording(
            "tracejudge:cost_usd_per_judgement:1h",
            lines(cost, "/", f"({by(labels, 'tracejudge:evaluations:1h')} > 0)"),
        ),
    ]
