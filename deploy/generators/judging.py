"""The alerts about judges: which give no score, fail, are slow, or have changed."""

from typing import Final

from deploy.generators.annotations import total
from deploy.generators.promql import SERIES, by, lines
from deploy.generators.rules import Alert
from deploy.generators.table import seconds
from deploy.generators.watching import Watching

__all__ = ["alerts"]

_VALUE: Final = '{{ $value | printf "%.0f" }}'
_PERCENT: Final = "{{ $value | humanizePercentage }}"
_DURATION: Final = "{{ $value | humanizeDuration }}"


def alerts(watching: Watching) -> list[Alert]:
    """Make them."""
    return [
        _unscored(watching),
        _circuit(watching),
        _judge_slow(watching),
        _scores_late(watching),
        _dead_letters(watching),
        _judge_changed(watching),
    ]


def _unscored(watching: Watching) -> Alert:
    watch, names = watching.watcher.unscored, ("service", "environment", "judge", "judge_model")
    window = watch.window
    unscored, ended = (by(names, f"tracejudge:{name}:{window}") for name in ("unscored", "evaluations"))
    selector = ",".join(f"{name}=%q" for name in names)
    main = (
        f"{{{{ range query (printf `topk(1, sum by (reason) (increase(tracejudge_unscored_total{{{selector}}}"
        f"[{watching.pace(window)}])) > 0)` {' '.join(f'$labels.{name}' for name in names)}) }}}}"
        " Most often for `{{ .Labels.reason }}`.{{ end }}"
    )
    return watching.alert(
        "TraceJudgeUnscoredShareHigh",
        watch,
        "ticket",
        f"{unscored}\n/\n({ended} >= {watch.min_count}) > {watch.bound:g}",
        summary=f"{{{{ $labels.judge }}}} gives no score for {_PERCENT} of {{{{ $labels.service }}}}",
        description=(
            f"So many of its evaluations of the last {watching.pace(window)} by {{{{ $labels.judge_model }}}} ended "
            f"without a score.{main} They are in no share: quality is judged by the rest alone. "
            "`tracejudge tail` shows each with its reason."
        ),
        opens=names,
        dashboard="quality",
    )


def _circuit(watching: Watching) -> Alert:
    watch = watching.watcher.circuit
    return watching.alert(
        "TraceJudgeJudgeCircuitOpen",
        watch,
        "ticket",
        "max by (judge_model) (\n"
        f"  max_over_time(tracejudge_judge_circuit_open[{watching.pace(watch.window)}])\n"
        ") == 1",
        summary="Judge model {{ $labels.judge_model }} fails and is left alone",
        description=(
            f"Its circuit has been open for {watching.pace(watch.holds)} and more. What it was to judge is parked, and "
            "given up after `give_up_after` (6 h); what it would tell of quality is not seen. `tracejudge doctor` asks "
            "its endpoint; mend key, quota or address, then it goes on by itself."
        ),
        keep_firing_for="5m",
    )


def _judge_slow(watching: Watching) -> Alert:
    watch = watching.watcher.judge_slow
    window = watching.pace(watch.window)
    requests = f'increase(tracejudge_judge_request_duration_seconds_count{{status!="cancelled"}}[{window}])'
    return watching.alert(
        "TraceJudgeJudgeSlow",
        watch,
        "ticket",
        lines(
            f"tracejudge:judge_request_seconds_p95:{watch.window} > {watch.bound:g}",
            "and",
            f"{by(['judge_model'], requests)} >= {watch.min_count}",
        ),
        summary=f"Requests to {{{{ $labels.judge_model }}}} take {_DURATION}",
        description=(
            f"One in twenty of the last {window} took longer than that; {watch.bound:g} s is the bound. Scores come "
            "late, and what waits grows. See concurrency and limits on the dashboard, then the provider's status."
        ),
    )


def _scores_late(watching: Watching) -> Alert:
    watch = watching.watcher.scores_late
    window = watching.pace(watch.window)
    scores = by(["service"], f"increase(tracejudge_score_age_seconds_count[{window}])")
    return watching.alert(
        "TraceJudgeScoresLate",
        watch,
        "ticket",
        lines(
            f"tracejudge:score_age_seconds_p95:{watch.window} > {watch.bound:g}",
            "and",
            f"{scores} >= {watch.min_count}",
        ),
        summary=f"Scores of {{{{ $labels.service }}}} are {_DURATION} old when they come",
        description=(
            f"One in twenty of the last {window} was older than that; {watch.bound:g} s is the bound. What the quality "
            "alerts tell is as late. Look where it waits: stream, batches or judge model, in this order."
        ),
        opens=["service"],
    )


def _dead_letters(watching: Watching) -> Alert:
    watch = watching.watcher.dead_letters
    window = watching.pace(watch.window)
    now = total("max(tracejudge_dead_letters)", "count")
    return watching.alert(
        "TraceJudgeDeadLettersGrowing",
        watch,
        "ticket",
        f"max(tracejudge_dead_letters) - max(tracejudge_dead_letters offset {window}) > {watch.bound:g}",
        summary=f"{_VALUE} evaluations more were given up in {window}",
        description=(
            f"There are {now} dead letters now. They have no score and count as unscored. "
            "`tracejudge dead list` names their reasons; when the cause is mended, `tracejudge dead retry`."
        ),
    )


def _judge_changed(watching: Watching) -> Alert:
    watch = watching.watcher.judge_changed
    window, baseline = watching.pace(watch.window), watching.pace(watch.baseline)
    now = f"tracejudge:evaluations:{watch.window}"
    # In steps that overlap: each looks back over a window, so nothing is skipped, and a week is not read whole.
    step = watching.pace(f"{seconds(watch.window) / 4:.0f}s")
    before = f"max_over_time({now}{{}}[{baseline}:{step}] offset {window}) > 0"
    place = ("service", "environment", "judge")
    seen = before.replace("{}", "")
    asked = before.replace("{}", "{service=%q,environment=%q,judge=%q}")
    former = (
        f"{{{{ range query (printf `topk(1, {asked})` $labels.service $labels.environment $labels.judge) }}}} "
        "It was version {{ .Labels.version }} by {{ .Labels.judge_model }}.{{ end }}"
    )
    return watching.alert(
        "TraceJudgeJudgeChanged",
        watch,
        "info",
        lines(
            f"{now} > 0",
            f"unless {seen}",
            f"and on ({', '.join(place)}) {seen}",
        ),
        summary=(
            "{{ $labels.judge }} judges {{ $labels.service }} in version {{ $labels.version }} by "
            "{{ $labels.judge_model }} now"
        ),
        description=(
            f"Its first verdicts came within the last {window}.{former} A step in its graphs at this moment is the "
            "judge and not the service; drops are compared within a version only, and begin anew."
        ),
        opens=SERIES,
        dashboard="quality",
        kind="info",
    )
