"""The alerts about traces that ought to come, and verdicts on them."""

from typing import Final

from deploy.generators.promql import by, grown, lines
from deploy.generators.rules import Alert
from deploy.generators.watching import Watching

__all__ = ["alerts"]

_VALUE: Final = '{{ $value | printf "%.0f" }}'
_PERCENT: Final = "{{ $value | humanizePercentage }}"


def alerts(watching: Watching) -> list[Alert]:
    """Make them."""
    return [_no_verdicts(watching), _traces_stopped(watching), _producer_drops(watching)]


def _no_verdicts(watching: Watching) -> Alert:
    """Look for traces without verdicts; a series that is missing is none, so it is not silent when all fail."""
    watch = watching.watcher.no_verdicts
    window = watching.pace(watch.window)
    arrived = 'tracejudge_traces_total{outcome=~"sampled|shed"}'
    last = (
        "{{ range query (printf `time() - max(tracejudge:last_verdict_timestamp_seconds{service=%q})` "
        "$labels.service) }} The last verdict came {{ .Value | humanizeDuration }} ago.{{ end }}"
    )
    return watching.alert(
        "TraceJudgeNoVerdicts",
        watch,
        "page",
        lines(
            by(["service"], grown(arrived, watch.window, watching.pace)) + f" >= {watch.bound:g}",
            "unless",
            by(["service"], grown("tracejudge_verdicts_total", watch.window, watching.pace)) + " > 0",
        ),
        summary="No verdicts on {{ $labels.service }} though its traces arrive",
        description=(
            f"{_VALUE} traces of {{{{ $labels.service }}}} were chosen in the last {window}, and no verdict of any "
            f"outcome came.{last} Its quality is not watched meanwhile. See `tracejudge doctor` first, then circuits, "
            "parked batches and dead letters on the dashboard."
        ),
        opens=["service"],
    )


def _traces_stopped(watching: Watching) -> Alert:
    """Compare with the same time a day and a week ago: nights and weekends without traffic are usual."""
    watch = watching.watcher.traces_stopped
    counted, least = f"tracejudge:traces:{watch.window}", f"{watch.bound:g}"
    day, week = watching.pace("1d"), watching.pace("1w")
    behind = f"on () (max(tracejudge_stream_oldest_seconds) > {watching.pace.seconds(watch.window) / 2:g})"
    return watching.alert(
        "TraceJudgeTracesStopped",
        watch,
        "ticket",
        lines(
            f"({counted} offset {day} or quantile_over_time(0.5, {counted}[{day}])) >= {least}",
            f"unless ({counted} offset {week} < {least})",
            f"unless ({counted} > 0)",
            "# Where no worker is scraped, or none gets to read, it is not the service that is silent.",
            "and on () (count(tracejudge_ready) > 0)",
            f"unless {behind}",
        ),
        summary="No traces from {{ $labels.service }} any more",
        description=(
            f"None arrived in the last {watching.pace(watch.window)}, where {_VALUE} are usual at this time. "
            "Either the service has no traffic, or its SDK cannot publish: look at the service's own requests, then at "
            "the warnings of its logger `tracejudge`, and whether Redis lets it in."
        ),
        opens=["service"],
    )


def _producer_drops(watching: Watching) -> Alert:
    watch = watching.watcher.producer_drops
    window = watching.pace(watch.window)
    dropped = by(["service"], grown("tracejudge_producer_dropped_total", watch.window, watching.pace))
    published = by(["service"], grown("tracejudge_producer_published_total", watch.window, watching.pace))
    return watching.alert(
        "TraceJudgeProducerDrops",
        watch,
        "ticket",
        lines(
            f"({dropped} > 0)",
            "/",
            "(",
            "# Who drops all and is not known to have published anything drops everything.",
            f"({published} > 0)",
            "or",
            dropped,
            f") > {watch.bound:g}",
        ),
        summary=f"The SDK in {{{{ $labels.service }}}} drops {_PERCENT} of its traces",
        description=(
            f"So many of what it published in the last {window} never reached Redis. They are lost, and shares rest "
            "on the rest. The reasons are on the dashboard: `buffer_full` means that Redis is slow or away "
            "for it, `too_large` that its traces are."
        ),
        opens=["service"],
    )
