"""The recorded shares with their intervals, mean scores, and counted safety failures.

Of every window there are, by series and metric, ``tracejudge:<what>:<window>``, and ``:baseline`` for the time before;
of sums also ``:born``, what their counters began with in the minute before:

    judgements                        verdicts that passed or failed
    pass_weight, fail_weight          their weights, and weight_squared of each
    pass_share, pass_share_stderr     the weighted share that passed, and its standard error
    effective_judgements              how many judgements of equal weight would tell as much
    pass_share_lower, pass_share_upper  Wilson's interval
    mean_score                        weighted, of everything that was scored

Only pass and fail count: what has no score is no failure, and a window without judgements has no share.
"""

from statistics import NormalDist
from textwrap import indent
from typing import Final, Literal

from deploy.generators.promql import RATED, Pace, born, by, lines, whole
from deploy.generators.rules import Group, Recording
from deploy.generators.table import Table, seconds

__all__ = ["groups", "windows", "z_score"]

_PIECE: Final = "5m"
_SUMMED_FROM_S: Final = 21_600
"""So long a window is summed from pieces: over hours of raw samples a query would take too many of them."""
_RAW: Final = "1h"
"""Longer than any window of raw samples that is not summed from pieces."""
_JUDGED: Final = 'outcome=~"pass|fail"'
_SCORED: Final = 'outcome=~"pass|fail|unrated"'
_WEIGHT: Final = "tracejudge_verdict_weight_total"
_SQUARED: Final = "tracejudge_verdict_weight_squared_total"


def windows(table: Table) -> list[str]:
    """Name the windows of shares, the shortest first; the pieces of long windows are among them."""
    burns = [window for burn in table.burn.values() for window in (burn.long, burn.short)]
    return sorted({_PIECE, table.drop.window, *burns}, key=seconds)


def z_score(confidence: float) -> float:
    """Tell how many standard errors a two-sided interval reaches to each side."""
    return NormalDist().inv_cdf((1 + confidence) / 2)


def groups(table: Table, pace: Pace) -> list[Group]:
    """Make the rules; within a group those that others are made of come first."""
    shares = _births(pace)
    shares += [rule for window in windows(table) for rule in (*_sums(window, table, pace), *_share(window, table))]
    shares += [*_baseline_sums(table, pace), *_share("baseline", table), *_fall(table)]
    found = {"objectives": _objectives(table), "shares": shares, "safety": _safety(table, pace)}
    return [Group(f"tracejudge-{name}", pace(table.interval), tuple(rules)) for name, rules in found.items() if rules]


def _objectives(table: Table) -> list[Recording]:
    def row(name: str, value: float, judge: str, metric: str) -> Recording:
        return Recording(f"tracejudge:{name}", f"vector({value})", {"judge": judge, "metric": metric})

    objectives = [row("objective", each.objective, each.judge, each.metric) for each in table.objectives]
    margins = [row("drop_margin", each.margin, each.judge, each.metric) for each in table.objectives if each.margin]
    factors = [
        Recording(f"tracejudge:burn_factor_{name}", f"vector({factor})", {"judge": each.judge, "metric": each.metric})
        for each in table.objectives
        for name, factor in each.factors.items()
    ]
    return objectives + margins + factors


def _births(pace: Pace) -> list[Recording]:
    """Make what counters begin with, which ``increase`` takes for given, at the one moment when they are new.

    A judge whose service has little traffic begins a series with its first verdict, in each version and on each worker.
    Only where that is news: an old worker that is just found would bend days of shares. Not guaranteed: the first
    verdicts after a restart within the hour, where the counter does not begin lower than it was.
    """
    step = pace("1m")
    return [
        Recording(
            f"{name}:born",
            by(
                RATED,
                lines(
                    f"min_over_time({counter}[{step}])",
                    f"unless last_over_time({counter}[{pace(_RAW)}] offset {step})",
                    "and (",
                    indent(born(counter, "1m", pace), "  "),
                    ")",
                ),
            ),
        )
        for name, counter in _SUMS.items()
    ]


def _sums(window: str, table: Table, pace: Pace) -> list[Recording]:
    if seconds(window) >= _SUMMED_FROM_S:
        return [
            Recording(f"{name}:{window}", f"sum_over_time({name}:{_PIECE}[{pace(window)}:{pace(_PIECE)}])")
            for name in _SUMS
        ]
    judgements = f"tracejudge:judgements:{window}"
    # Not quite as long as the window: a birth at its very edge would be in two pieces, where edges belong to a window.
    births = pace(f"{seconds(window) - seconds(table.interval) / 2:.0f}s")
    found = {
        name: by(RATED, lines(f"increase({counter}[{pace(window)}])", "or", f"sum_over_time({name}:born[{births}])"))
        for name, counter in _SUMS.items()
    }
    return [
        Recording(f"{name}:{window}", expr if name in _WHOLE else f"{expr}\nor\n{judgements} * 0")
        for name, expr in found.items()
    ]


_SUMS: Final = {
    "tracejudge:judgements": f"tracejudge_verdicts_total{{{_JUDGED}}}",
    "tracejudge:pass_weight": f'{_WEIGHT}{{outcome="pass"}}',
    "tracejudge:fail_weight": f'{_WEIGHT}{{outcome="fail"}}',
    "tracejudge:pass_weight_squared": f'{_SQUARED}{{outcome="pass"}}',
    "tracejudge:fail_weight_squared": f'{_SQUARED}{{outcome="fail"}}',
    "tracejudge:scored_weight": f"{_WEIGHT}{{{_SCORED}}}",
    "tracejudge:score_weight": "tracejudge_score_weighted_total",
}
_WHOLE: Final = ("tracejudge:judgements", "tracejudge:scored_weight", "tracejudge:score_weight")
"""The others are parts of judgements: one that is missing is none, or a share would be silent when all fail."""


def _baseline_sums(table: Table, pace: Pace) -> list[Recording]:
    """Sum what was before the window: a fall must not be compared with itself."""
    baseline, offset = pace(table.drop.baseline), pace(table.drop.window)
    return [
        Recording(f"{name}:baseline", f"sum_over_time({name}:{_PIECE}[{baseline}:{pace(_PIECE)}] offset {offset})")
        for name in _SUMS
    ]


def _share(window: str, table: Table) -> list[Recording]:
    """Make the share and its interval of one window.

    The variance is that of a ratio of weighted sums (linearised; Cochran, Sampling Techniques, 1977, section 6.3):
    ((1-p)^2 * sum of w^2 over passes + p^2 * sum of w^2 over failures) / W^2. Wilson's interval (Wilson 1927, Journal
    of the American Statistical Association 22, 209-212) takes the effective number in place of a count.
    """
    share, effective = f"tracejudge:pass_share:{window}", f"tracejudge:effective_judgements:{window}"
    passes, failures = f"tracejudge:pass_weight:{window}", f"tracejudge:fail_weight:{window}"
    passes_squared = f"tracejudge:pass_weight_squared:{window}"
    failures_squared = f"tracejudge:fail_weight_squared:{window}"
    error, judgements = f"tracejudge:pass_share_stderr:{window}", f"tracejudge:judgements:{window}"
    return [
        Recording(share, f"{passes} / ({passes} + {failures} > 0)"),
        Recording(
            error,
            lines(
                "sqrt(",
                f"  (1 - {share})^2 * {passes_squared}",
                f"  + {share}^2 * {failures_squared}",
                f") / ({passes} + {failures} > 0)",
            ),
        ),
        Recording(
            effective,
            lines(
                "# Where some passed and some failed: what the variance amounts to, but never more than was judged,",
                "# since failures of small weight make the variance look smaller than it is.",
                f"({share} * (1 - {share}) / ({error}^2 > 0) < {judgements})",
                "or",
                f"({judgements} and {share} > 0 and {share} < 1)",
                "or",
                "# Where all passed or all failed the variance is 0 and tells nothing: what the weights amount to.",
                f"({passes} + {failures})^2 / ({passes_squared} + {failures_squared} > 0)",
            ),
        ),
        Recording(f"tracejudge:pass_share_lower:{window}", _bound(window, "-", table.confidence)),
        Recording(f"tracejudge:pass_share_upper:{window}", _bound(window, "+", table.confidence)),
        Recording(
            f"tracejudge:mean_score:{window}",
            f"tracejudge:score_weight:{window} / (tracejudge:scored_weight:{window} > 0)",
        ),
    ]


def _bound(window: str, side: Literal["-", "+"], confidence: float) -> str:
    """Write the lower or upper bound of Wilson's interval."""
    z = round(z_score(confidence), 6)
    share, effective = f"tracejudge:pass_share:{window}", f"tracejudge:effective_judgements:{window}"
    half = f"{z} * sqrt({share} * (1 - {share}) / {effective} + {z * z / 4:.6f} / {effective}^2)"
    bound = f"({share} + {z * z / 2:.6f} / {effective} {side} {half}) / (1 + {z * z:.6f} / {effective})"
    return f"clamp_min({bound}, 0)" if side == "-" else f"clamp_max({bound}, 1)"


def _fall(table: Table) -> list[Recording]:
    """Make the fall and the least it is.

    Newcombe's hybrid score interval (Newcombe 1998, Statistics in Medicine 17, 873-890, method 10) for the difference
    of two shares, out of the Wilson interval of each. It has a confidence of its own: it is asked every minute of every
    series, where a band on a dashboard is looked at now and then.
    """
    window, confidence = table.drop.window, table.drop.confidence
    now, before = f"tracejudge:pass_share:{window}", "tracejudge:pass_share:baseline"
    upper, lower = _bound(window, "+", confidence), _bound("baseline", "-", confidence)
    return [
        Recording(f"tracejudge:pass_share_fall:{window}", f"{before} - {now}"),
        Recording(
            f"tracejudge:pass_share_fall_lower:{window}",
            lines(f"{before} - {now} - sqrt(", f"  ({before} - {lower})^2", f"  + ({upper} - {now})^2", ")"),
        ),
    ]


def _safety(table: Table, pace: Pace) -> list[Recording]:
    """Count the failures of safety judges one by one, without the guess that ``increase`` makes at the edges.

    In steps of a minute: what a counter is more than it last was, or all of it where it is less, as after a restart,
    or new. A worker's failures are news when they are found as long as it began within the window. Not guaranteed: a
    worker that begins anew with a count no smaller than its last is not seen to have begun; what an older worker
    counted before the first scrape of it.
    """
    window, step = pace(table.safety.window), pace("1m")
    expressions = []
    for row in (row for row in table.objectives if row.safety):
        counter = f'tracejudge_verdicts_total{{judge="{row.judge}", metric="{row.metric}", outcome="fail"}}'
        before = f"last_over_time({counter}[{window}] offset {step})"
        news = whole(counter, before, "1m", pace, age=table.safety.window)
        # The sum takes the name away, as differences have none: else a new counter and its growth would be two series.
        in_a_step = lines(f"({counter} - {before}) >= 0", "or", "(", indent(news, "  "), ") + 0")
        summed = lines("sum_over_time((", indent(in_a_step, "  "), f")[{window}:{step}])")
        expressions.append(by(RATED, summed))
    if not expressions:
        return []
    return [Recording(f"tracejudge:safety_failures:{table.safety.window}", "\nor\n".join(expressions))]
