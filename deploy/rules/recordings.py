"""The recording rules: shares with their intervals, safety failures, coverage, freshness and cost.

``shares`` records for every window, by series and metric, ``tracejudge:<name>:<window>``, and ``:baseline`` for the
time before. Of sums there is also ``:born``, the first values of counters that appeared in the last minute:

    judgements                        verdicts that passed or failed
    pass_weight, fail_weight          their weights, and weight_squared of each
    pass_share, pass_share_stderr     the weighted share that passed, and its standard error
    effective_judgements              number of equally weighted judgements with the same variance
    pass_share_lower, pass_share_upper  Wilson's interval
    mean_score                        weighted, of all scores

Only pass and fail count: an unscored evaluation is not a failure, and a window without judgements has no share.

``pipeline`` records for every window, by series, ``evaluations``, ``scored``, ``answered``, ``unscored``, ``refused``,
``coverage``, the share of evaluations with a score, and ``refused_share``, the share that the judge model refused; then
sampling, percentiles of ages, last verdicts and cost.
"""

from statistics import NormalDist
from textwrap import indent
from typing import Final, Literal

from deploy.rules.promql import (
    RATED,
    SERIES,
    Rule,
    TimeScale,
    by,
    full_increase,
    lines,
    new_counter,
    recording,
    reset_or_new,
)
from deploy.rules.table import Table, seconds

_PIECE: Final = "5m"
# Windows of this length or longer are summed from pieces: a query over hours of raw samples would read too many.
_SUMMED_FROM_S: Final = 21_600
# Longer than any window that is computed from raw samples.
_RAW: Final = "1h"
_SCORED: Final = 'outcome=~"pass|fail|unrated"'
_WEIGHT: Final = "tracejudge_verdict_weight_total"
_SQUARED: Final = "tracejudge_verdict_weight_squared_total"
_SUMS: Final = {
    "tracejudge:judgements": 'tracejudge_verdicts_total{outcome=~"pass|fail"}',
    "tracejudge:pass_weight": f'{_WEIGHT}{{outcome="pass"}}',
    "tracejudge:fail_weight": f'{_WEIGHT}{{outcome="fail"}}',
    "tracejudge:pass_weight_squared": f'{_SQUARED}{{outcome="pass"}}',
    "tracejudge:fail_weight_squared": f'{_SQUARED}{{outcome="fail"}}',
    "tracejudge:scored_weight": f"{_WEIGHT}{{{_SCORED}}}",
    "tracejudge:score_weight": "tracejudge_score_weighted_total",
}
# The other sums are parts of judgements and 0 when missing; otherwise a share would be absent when all fail.
_WHOLE: Final = ("tracejudge:judgements", "tracejudge:scored_weight", "tracejudge:score_weight")


def share_windows(table: Table) -> list[str]:
    """List the windows of shares, the shortest first; they include the pieces of long windows."""
    burns = [window for burn in table.burn.values() for window in (burn.long, burn.short)]
    return sorted({_PIECE, table.drop.window, *burns}, key=seconds)


def shares(table: Table, time: TimeScale) -> dict[str, list[Rule]]:
    """Make the groups objectives, shares and safety. Prometheus evaluates a group in order, so inputs come first."""
    step = time("1m")
    # First values of new counters, which `increase` ignores: a judge of a service with little traffic begins a series
    # with its first verdict, in each version and on each worker. The values of an old worker that is only just found
    # are left out: they would bend days of shares. Not guaranteed: the first verdicts after a restart within the hour,
    # where the counter does not begin lower than it was.
    found = []
    for name, counter in _SUMS.items():
        born = lines(
            f"min_over_time({counter}[{step}])",
            f"unless last_over_time({counter}[{time(_RAW)}] offset {step})",
            "and (",
            indent(new_counter(counter, "1m", time), "  "),
            ")",
        )
        found.append(recording(f"{name}:born", by(RATED, born)))
    for window in share_windows(table):
        found += [*_sums(window, table, time), *_share(window, table)]
    # The baseline ends where the window begins: a fall must not be compared with itself.
    baseline, offset = time(table.drop.baseline), time(table.drop.window)
    found += [
        recording(f"{name}:baseline", f"sum_over_time({name}:{_PIECE}[{baseline}:{time(_PIECE)}] offset {offset})")
        for name in _SUMS
    ]
    found += [*_share("baseline", table), *_fall(table)]
    # As series, so that alerts and dashboards join them to shares instead of repeating them for each judge.
    rows = [("objective", row, row.objective) for row in table.objectives]
    rows += [("drop_margin", row, row.margin) for row in table.objectives if row.margin]
    for row in table.objectives:
        rows += [(f"burn_factor_{speed}", row, factor) for speed, factor in row.factors.items()]
    objectives = [
        recording(f"tracejudge:{name}", f"vector({value})", judge=row.judge, metric=row.metric)
        for name, row, value in rows
    ]
    return {"objectives": objectives, "shares": found, "safety": _safety(table, time)}


def pipeline(table: Table, time: TimeScale) -> list[Rule]:
    """Make the rules of the way to a score; Prometheus evaluates them in order, so inputs come first."""
    windows = sorted({"1h", table.watcher.unscored.window, table.watcher.judge_changed.window}, key=seconds)
    found = [rule for window in windows for rule in _coverage(window, time)]

    def arrived(window: str, matchers: str = "") -> str:
        return by(["service"], full_increase(f"tracejudge_traces_total{matchers}", window, time))

    window = table.watcher.traces_stopped.window
    sampled, eligible = '{outcome="sampled"}', '{outcome=~"sampled|not_sampled|shed|no_rule"}'
    sampled_share = lines(arrived("1h", sampled), "/", f"({arrived('1h', eligible)} > 0)")
    # Alerts and the dashboard ask when a judge of a service last had a verdict: the time is kept for a day.
    last = "tracejudge:last_verdict_timestamp_seconds"
    moved = by(("service", "environment", "judge"), full_increase("tracejudge_verdicts_total", "2m", time))
    kept = lines(f"(({moved}) > bool 0) * time() > 0", "or", f"last_over_time({last}[{time('1d')}])")
    labels, cost = ("judge", "judge_model"), "tracejudge:cost_usd:1h"
    judged = f"({by(labels, 'tracejudge:evaluations:1h')} > 0)"
    return [
        *found,
        recording(f"tracejudge:traces:{window}", arrived(window)),
        recording("tracejudge:sampled_share:1h", sampled_share),
        *_ages(table, time),
        recording(last, kept),
        recording(cost, by(labels, full_increase("tracejudge_judge_cost_usd_total", "1h", time))),
        recording("tracejudge:cost_usd_per_judgement:1h", lines(cost, "/", judged)),
    ]


def _sums(window: str, table: Table, time: TimeScale) -> list[Rule]:
    if seconds(window) >= _SUMMED_FROM_S:
        return [
            recording(f"{name}:{window}", f"sum_over_time({name}:{_PIECE}[{time(window)}:{time(_PIECE)}])")
            for name in _SUMS
        ]
    judgements = f"tracejudge:judgements:{window}"
    # A little shorter than the window: subqueries include both edges, so a birth at the edge would be in two pieces.
    births = time(f"{seconds(window) - seconds(table.interval) / 2:.0f}s")
    found = {
        name: by(RATED, lines(f"increase({counter}[{time(window)}])", "or", f"sum_over_time({name}:born[{births}])"))
        for name, counter in _SUMS.items()
    }
    return [
        recording(f"{name}:{window}", expr if name in _WHOLE else f"{expr}\nor\n{judgements} * 0")
        for name, expr in found.items()
    ]


def _share(window: str, table: Table) -> list[Rule]:
    """Record the share and its interval of one window.

    The variance is that of a ratio of weighted sums (linearised; Cochran, Sampling Techniques, 1977, section 6.3):
    ((1-p)^2 * sum of w^2 over passes + p^2 * sum of w^2 over failures) / W^2. Wilson's interval (Wilson 1927, Journal
    of the American Statistical Association 22, 209-212) takes the effective number in place of a count.
    """
    share, effective = f"tracejudge:pass_share:{window}", f"tracejudge:effective_judgements:{window}"
    passes, failures = f"tracejudge:pass_weight:{window}", f"tracejudge:fail_weight:{window}"
    passes_squared = f"tracejudge:pass_weight_squared:{window}"
    failures_squared = f"tracejudge:fail_weight_squared:{window}"
    error, judgements = f"tracejudge:pass_share_stderr:{window}", f"tracejudge:judgements:{window}"
    weighted_variance = lines(
        "sqrt(",
        f"  (1 - {share})^2 * {passes_squared}",
        f"  + {share}^2 * {failures_squared}",
        f") / ({passes} + {failures} > 0)",
    )
    effective_number = lines(
        "# Where some passed and some failed: what the variance amounts to, but never more than was judged,",
        "# since failures of small weight make the variance look smaller than it is.",
        f"({share} * (1 - {share}) / ({error}^2 > 0) < {judgements})",
        "or",
        f"({judgements} and {share} > 0 and {share} < 1)",
        "or",
        "# Where all passed or all failed the variance is 0 and tells nothing: what the weights amount to.",
        f"({passes} + {failures})^2 / ({passes_squared} + {failures_squared} > 0)",
    )
    mean = f"tracejudge:score_weight:{window} / (tracejudge:scored_weight:{window} > 0)"
    return [
        recording(share, f"{passes} / ({passes} + {failures} > 0)"),
        recording(error, weighted_variance),
        recording(effective, effective_number),
        recording(f"tracejudge:pass_share_lower:{window}", _bound(window, "-", table.confidence)),
        recording(f"tracejudge:pass_share_upper:{window}", _bound(window, "+", table.confidence)),
        recording(f"tracejudge:mean_score:{window}", mean),
    ]


def _bound(window: str, side: Literal["-", "+"], confidence: float) -> str:
    """Write the lower or upper bound of Wilson's interval."""
    z = round(NormalDist().inv_cdf((1 + confidence) / 2), 6)
    share, effective = f"tracejudge:pass_share:{window}", f"tracejudge:effective_judgements:{window}"
    half = f"{z} * sqrt({share} * (1 - {share}) / {effective} + {z * z / 4:.6f} / {effective}^2)"
    bound = f"({share} + {z * z / 2:.6f} / {effective} {side} {half}) / (1 + {z * z:.6f} / {effective})"
    return f"clamp_min({bound}, 0)" if side == "-" else f"clamp_max({bound}, 1)"


def _fall(table: Table) -> list[Rule]:
    """Record the fall against the baseline and its lower bound.

    Newcombe's hybrid score interval (Newcombe 1998, Statistics in Medicine 17, 873-890, method 10) for the difference
    of two shares, from the Wilson interval of each.
    """
    # Its own confidence: the alert tests every series every minute, a band on a dashboard is looked at now and then.
    window, confidence = table.drop.window, table.drop.confidence
    now, before = f"tracejudge:pass_share:{window}", "tracejudge:pass_share:baseline"
    upper, lower = _bound(window, "+", confidence), _bound("baseline", "-", confidence)
    at_least = lines(f"{before} - {now} - sqrt(", f"  ({before} - {lower})^2", f"  + ({upper} - {now})^2", ")")
    return [
        recording(f"tracejudge:pass_share_fall:{window}", f"{before} - {now}"),
        recording(f"tracejudge:pass_share_fall_lower:{window}", at_least),
    ]


def _safety(table: Table, time: TimeScale) -> list[Rule]:
    """Count failures of safety judges exactly, without the extrapolation of ``increase``.

    The growth is summed in steps of a minute: the difference to the last value, or the whole value after a reset or of
    a new counter. The first value of a worker counts if the worker started within the window. Not guaranteed: a restart
    after which the counter is no smaller than before is not noticed.
    """
    window, step = time(table.safety.window), time("1m")
    expressions = []
    for row in (row for row in table.objectives if row.safety):
        counter = f'tracejudge_verdicts_total{{judge="{row.judge}", metric="{row.metric}", outcome="fail"}}'
        before = f"last_over_time({counter}[{window}] offset {step})"
        growth = reset_or_new(counter, before, "1m", time, age=table.safety.window)
        # Adding 0 drops the metric name, as a difference does: otherwise a new counter and its growth are two series.
        in_a_step = lines(f"({counter} - {before}) >= 0", "or", "(", indent(growth, "  "), ") + 0")
        expressions.append(by(RATED, lines("sum_over_time((", indent(in_a_step, "  "), f")[{window}:{step}])")))
    name = f"tracejudge:safety_failures:{table.safety.window}"
    return [recording(name, "\nor\n".join(expressions))] if expressions else []


def _coverage(window: str, time: TimeScale) -> list[Rule]:
    """Count evaluations that ended, dead letters included, and the share of them with a score."""

    def ended(outcomes: str) -> str:
        # A verdict counts under each metric of its judge, and a metric may lack a score: the largest count is the
        # number of evaluations.
        return by(SERIES, by(RATED, full_increase(f"tracejudge_verdicts_total{{{outcomes}}}", window, time)), "max")

    evaluations, unscored = f"tracejudge:evaluations:{window}", f"tracejudge:unscored:{window}"
    scored, answered = f"tracejudge:scored:{window}", f"tracejudge:answered:{window}"
    without_score = by(SERIES, full_increase("tracejudge_unscored_total", window, time))
    # Harmful answers are what some judge models decline to judge, so that refusals have a figure of their own.
    refused = f"tracejudge:refused:{window}"
    declined = by(SERIES, full_increase('tracejudge_unscored_total{reason="refusal"}', window, time))
    return [
        recording(answered, ended('outcome!="unscored"')),
        recording(unscored, lines(without_score, "or", f"{answered} * 0")),
        recording(evaluations, lines(f"({answered} + {unscored})", "or", unscored)),
        recording(scored, lines(ended(_SCORED), "or", f"{evaluations} * 0")),
        recording(f"tracejudge:coverage:{window}", f"{scored} / ({evaluations} > 0)"),
        recording(refused, lines(declined, "or", f"{evaluations} * 0")),
        recording(f"tracejudge:refused_share:{window}", f"{refused} / ({evaluations} > 0)"),
    ]


def _ages(table: Table, time: TimeScale) -> list[Rule]:
    """Record percentiles of the age of scores and of the duration of judge requests."""
    late, slow = table.watcher.scores_late.window, table.watcher.judge_slow.window
    requests = 'tracejudge_judge_request_duration_seconds_bucket{status!="cancelled"}'
    found = (
        ("score_age_seconds", "service", "tracejudge_score_age_seconds_bucket", late),
        ("judge_request_seconds", "judge_model", requests, slow),
    )
    return [
        recording(
            f"tracejudge:{name}_p{percent}:{window}",
            f"histogram_quantile(0.{percent}, {by([label, 'le'], f'increase({buckets}[{time(window)}])')})",
        )
        for name, label, buckets, window in found
        for percent in (50, 95)
    ]
