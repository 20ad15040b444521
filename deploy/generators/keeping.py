"""The alerts about what holds traces and verdicts meanwhile, and about the workers."""

from typing import Final

from deploy.generators.annotations import total
from deploy.generators.promql import by, grown, lines
from deploy.generators.rules import Alert
from deploy.generators.watching import Watching

__all__ = ["alerts"]

_VALUE: Final = '{{ $value | printf "%.0f" }}'
_PERCENT: Final = "{{ $value | humanizePercentage }}"


def alerts(watching: Watching) -> list[Alert]:
    """Make them."""
    return [
        _stream(watching),
        _cut_off(watching),
        _exporter(watching),
        _export_dropped(watching),
        *_not_ready(watching),
        *_absent(watching),
    ]


def _stream(watching: Watching) -> Alert:
    watch = watching.watcher.stream
    lag, capacity = total("max(tracejudge_stream_lag)", "count"), "min(tracejudge_stream_capacity > 0)"
    return watching.alert(
        "TraceJudgeStreamNearlyFull",
        watch,
        "page",
        f"max(tracejudge_stream_lag) / {capacity} > {watch.bound:g}",
        summary=f"The stream of traces is {_PERCENT} full of unread ones",
        description=(
            f"{lag} traces wait, and {total(capacity, 'count')} have room; then the oldest are cut off unread, and are "
            "lost. Look at the ingest role and at what waits behind it; more workers help when they are busy, "
            "a larger `max_stream` or `max_stream_bytes` buys time."
        ),
    )


def _cut_off(watching: Watching) -> Alert:
    watch = watching.watcher.cut_off
    window = watching.pace(watch.window)
    return watching.alert(
        "TraceJudgeTracesCutOff",
        watch,
        "ticket",
        f"sum(\n{grown('tracejudge_cut_off_total', watch.window, watching.pace)}\n) > 0",
        summary=f"{_VALUE} traces were cut off unread",
        description=(
            f"The stream's cap of count, bytes or age removed them in the last {window} before a worker read them. "
            "They are lost. Look why ingest was behind; raise `max_stream_bytes` or `retention` if it was a burst."
        ),
    )


def _exporter(watching: Watching) -> Alert:
    """Compare with what an hour brings too: where there is little traffic, a receiver may be away for weeks before."""
    watch = watching.watcher.exporter
    window = watching.pace(watch.window)
    lag = by(["exporter"], f"min_over_time(tracejudge_outbox_lag[{window}])", "max")
    return watching.alert(
        "TraceJudgeExporterBehind",
        watch,
        "ticket",
        lines(
            f"{lag} > {watch.bound:g}",
            "or",
            "# Less than that, but more than all that ended in an hour; of a few nobody is told.",
            f"({lag} >= {watch.min_count}) > on () group_left () (sum(tracejudge:evaluations:1h) or vector(0))",
        ),
        summary=f"Exporter {{{{ $labels.exporter }}}} is {_VALUE} verdicts behind",
        description=(
            f"It was never closer in the last {window}. Past `max_outbox` the oldest are cut off for it. "
            "`/readyz` of the worker says what it waits for; see whether its receiver answers."
        ),
    )


def _export_dropped(watching: Watching) -> Alert:
    watch = watching.watcher.export_dropped
    window = watching.pace(watch.window)
    dropped = by(["exporter", "reason"], grown("tracejudge_export_dropped_total", watch.window, watching.pace))
    cut = by(["exporter"], grown("tracejudge_outbox_cut_off_total", watch.window, watching.pace))
    return watching.alert(
        "TraceJudgeExportDropped",
        watch,
        "ticket",
        f'{dropped} > 0\nor\nlabel_replace(\n{cut},\n"reason", "cut_off", "", ""\n) > 0',
        summary=f"Exporter {{{{ $labels.exporter }}}} lost {_VALUE} verdicts: {{{{ $labels.reason }}}}",
        description=(
            f"They were not delivered in the last {window} and will not be. `cut_off` means that the outbox was full "
            "before they were sent; any other reason is what the receiver said. The ledger and the other exporters "
            "have them."
        ),
    )


def _not_ready(watching: Watching) -> list[Alert]:
    """Page where nobody does the work; where some do it is a ticket.

    Roles may run in workers of their own: when the last of one is gone, no gauge of it is left that could be 0.
    """
    name, watch = "TraceJudgeRoleNotReady", watching.watcher.not_ready
    lately = watching.pace(watch.baseline)
    asleep = "sum by (role) (tracejudge_ready == bool 0)"
    look = "`/readyz` of a worker says which thread stands still, and what for; `tracejudge doctor` looks at the rest."
    awake = "max by (role) (tracejudge_ready)"
    return [
        watching.alert(
            name,
            watch,
            "page",
            lines(
                f"{asleep} and {awake} == 0",
                "or",
                "# A role that is gone, and not even asleep; where no worker is seen, TraceJudgeMetricsAbsent fires.",
                f"0 * max by (role) (last_over_time(tracejudge_ready[{lately}]))",
                f"unless {awake}",
                "and on () (count(tracejudge_ready) > 0)",
            ),
            summary="No worker is ready in the role {{ $labels.role }}",
            description=(
                f"{{{{ if $value }}}}None of those seen makes progress in it ({_VALUE} in all){{{{ else }}}}One had it "
                f"within the last {lately}, and those that are seen now have other roles{{{{ end }}}}, so nobody does "
                f"this work. {look}"
            ),
        ),
        watching.alert(
            name,
            watch,
            "ticket",
            f"{asleep} > 0 and {awake} == 1",
            summary=(
                f"{_VALUE} worker{{{{ if gt $value 1.0 }}}}s are{{{{ else }}}} is{{{{ end }}}} not ready in the role "
                "{{ $labels.role }}"
            ),
            description=f"Others do the work meanwhile, with less room. {look}",
        ),
    ]


def _absent(watching: Watching) -> list[Alert]:
    """Page where Prometheus sees no worker at all: every other alert is silent then."""
    name, watch, job = "TraceJudgeMetricsAbsent", watching.watcher.absent, watching.table.job
    return [
        watching.alert(
            name,
            watch,
            "page",
            "absent(tracejudge_ready)",
            summary="Prometheus sees no worker of TraceJudge",
            description=(
                "No worker is scraped, so neither quality nor the watcher is seen, and every other alert is silent. "
                "Look at Prometheus' page of targets: is one listed, and what does its scrape say? Then whether "
                "workers run."
            ),
        ),
        watching.alert(
            name,
            watch,
            "ticket",
            f'up{{job="{job}"}} == 0 and on () count(tracejudge_ready) > 0',
            summary="Worker {{ $labels.instance }} is not scraped",
            description=(
                "Prometheus does not reach it, while it sees others. What only this worker does is not seen. Look at "
                "the page of targets for the error, then whether the worker runs."
            ),
        ),
    ]
