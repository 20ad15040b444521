"""The alerts about quality: a drop, a budget of failures that burns, a safety failure.

Of models that are asked together the panel's series raises them, and not those of its members: they are several so that
one of them may err.
"""

from deploy.generators.annotations import Severity, about, annotations, figure, labels, since
from deploy.generators.promql import RATED, Pace, but_members, lines
from deploy.generators.rules import Alert, Group
from deploy.generators.table import Burn, Speed, Table

__all__ = ["groups"]

_WHO = "{{ $labels.judge }}/{{ $labels.metric }} of {{ $labels.service }}"
_WHERE = "{{ with $labels.environment }} in {{ . }}{{ end }}"
_SERIES = "judge version {{ $labels.version }}, judge model {{ $labels.judge_model }}"
_OPEN = "Open the dashboard, then failed traces: `tracejudge tail --failed`."


def groups(table: Table, pace: Pace) -> list[Group]:
    """Make the alerts."""
    alerts = [
        _drop(table, pace),
        *(_burn(name, burn, table, pace) for name, burn in table.burn.items()),
        *_safety(table, pace),
    ]
    return [Group("tracejudge-quality", pace(table.interval), tuple(alerts))]


def _drop(table: Table, pace: Pace) -> Alert:
    """Compare a series with itself: a changed judge begins a new one, which has no baseline and so no drop."""
    name, drop, window = "TraceJudgeQualityDrop", table.drop, table.drop.window
    surely = f"tracejudge:pass_share_fall_lower:{window}"
    beyond = f"{surely} > {drop.margin}"
    if any(row.margin for row in table.objectives):
        own = f"{surely} > on (judge, metric) group_left () tracejudge:drop_margin"
        beyond = f"{own} or ({surely} unless on (judge, metric) tracejudge:drop_margin) > {drop.margin}"
    expr = lines(
        f"tracejudge:pass_share_fall:{window}",
        f"and ({beyond})",
        *_enough(table, window, "baseline"),
        but_members(),
    )
    description = (
        about(RATED)
        + f"In the last {pace(window)} {_share(window, table)}; in the {pace(drop.baseline)} before, "
        + f"{_share('baseline', table)}. With {drop.confidence:.0%} confidence the fall is at least "
        + f"{figure(surely, 'points', '100 * {}')} percentage points."
        + since(name)
        + f" It is the same {_SERIES}: what changed are the answers, or what is asked. {_OPEN}"
    )
    summary = (
        about(RATED)
        + f"{_WHO}{_WHERE} fell from {figure('tracejudge:pass_share:baseline', 'percent')} to "
        + figure(f"tracejudge:pass_share:{window}", "percent")
    )
    return Alert(
        name,
        expr,
        pace(drop.holds),
        labels(drop.severity, "quality"),
        annotations(name, "quality", table, summary=summary, description=description, labels=RATED),
        keep_firing_for=pace(drop.keep_firing_for),
    )


def _burn(speed: Speed, burn: Burn, table: Table, pace: Pace) -> Alert:
    """Join the objectives, so that a judge without one raises nothing.

    The short window ends the alert soon after the trouble. It has a share only where it has a judgement, and of few: a
    share near the bound crosses it again and again, so the alert outlives each crossing for a while.
    """
    name = f"TraceJudgeObjectiveBurn{speed.title()}"
    bound = f"on (judge, metric) group_left () ({_least(speed, burn, table)})"
    expr = lines(
        f"tracejudge:pass_share:{burn.long}",
        f"and (tracejudge:pass_share_upper:{burn.long} < {bound})",
        f"and (tracejudge:pass_share:{burn.short} < {bound})",
        *_enough(table, burn.long),
        but_members(),
    )
    goal = "{{ range query (printf `tracejudge:objective{judge=%q,metric=%q}` $labels.judge $labels.metric) }}"
    rate = "(1 - {}) / on (judge, metric) group_left () (1 - tracejudge:objective)"
    description = (
        about(RATED)
        + f"In the last {pace(burn.long)} {_share(burn.long, table)}; in the last {pace(burn.short)} "
        + f"{figure(f'tracejudge:pass_share:{burn.short}', 'percent')}. The objective is "
        + goal
        + "{{ .Value | humanizePercentage }}{{ end }}: failures use up their budget "
        + f"{figure(f'tracejudge:pass_share:{burn.long}', 'rate', rate)} times as fast as it allows."
        + since(name)
        + f" It is {_SERIES}. {_OPEN}"
    )
    summary = (
        about(RATED)
        + f"{_WHO}{_WHERE} misses its objective: "
        + f"{figure(f'tracejudge:pass_share:{burn.long}', 'percent')} passed in the last {pace(burn.long)}"
    )
    return Alert(
        name,
        expr,
        pace(burn.holds),
        labels(burn.severity, "quality"),
        annotations(name, "quality", table, summary=summary, description=description, labels=RATED),
        keep_firing_for=pace(burn.keep_firing_for),
    )


def _least(speed: Speed, burn: Burn, table: Table) -> str:
    """Write the share below which a budget burns that fast, by judge and metric."""
    usual = f"1 - {burn.factor:g} * (1 - tracejudge:objective)"
    if not any(speed in row.factors for row in table.objectives):
        return usual
    return f"1 - tracejudge:burn_factor_{speed} * (1 - tracejudge:objective) or {usual}"


def _safety(table: Table, pace: Pace) -> list[Alert]:
    window = table.safety.window
    failures = f"tracejudge:safety_failures:{window}"

    def alert(name: str, severity: Severity, least: int) -> Alert:
        count = '{{ $value | printf "%.0f" }}'
        description = (
            f"In the last {pace(window)} {count} of the verdicts of {_WHO}{_WHERE} failed, by {_SERIES}. Each counts, "
            "however few they are. Read them before anything else: `tracejudge tail --failed`, or the traces on the "
            "dashboard."
        )
        plural = "{{ if gt $value 1.0 }}s{{ end }}"
        summary = f"{count} safety failure{plural} of {{{{ $labels.service }}}}{_WHERE} in the last {pace(window)}"
        return Alert(
            name,
            lines(f"{failures} >= {least}", but_members()),
            "0s",
            labels(severity, "quality"),
            annotations(name, "quality", table, summary=summary, description=description, labels=RATED),
        )

    return [
        alert("TraceJudgeSafetyFailure", "ticket", 1),
        alert("TraceJudgeSafetyFailures", "page", table.safety.page_from),
    ]


def _enough(table: Table, *windows: str) -> list[str]:
    return [f"and (tracejudge:judgements:{window} >= {table.min_judgements})" for window in windows]


def _share(window: str, table: Table) -> str:
    """Write a share with all that it rests on, after ``about``."""
    lower, upper = f"tracejudge:pass_share_lower:{window}", f"tracejudge:pass_share_upper:{window}"
    return (
        f"{figure(f'tracejudge:pass_share:{window}', 'percent')} of "
        f"{figure(f'tracejudge:judgements:{window}', 'count')} judgements passed "
        f"({table.confidence:.0%} interval {figure(lower, 'percent')} to {figure(upper, 'percent')})"
    )
