"""`tracejudge calibrate`: how a judge errs, by human labels, and the shares that these labels correct."""

import fnmatch
import re
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Any, BinaryIO, Final, NamedTuple

import click
from rich.table import Table

from judges.agreement.intervals import Interval
from worker.base.commands.options import (
    JSON,
    NOTES,
    OUT,
    REDIS,
    amount,
    chosen_metric,
    connect,
    judges_named,
    note,
    option_time,
    plain,
    print_json,
    print_table,
)
from worker.base.lookup.label_store import Label, Labelled, LabelVerdict, join_verdicts, read_labels
from worker.base.monitor.corrected import Method, Origin
from worker.base.monitor.series import Series, read_series
from worker.core.storage.client import Store
from worker.features.labels.calibration import Calibration, calibrate
from worker.features.labels.command import read_verdicts
from worker.features.labels.correction import Correction, LabelIndex, corrections
from worker.features.labels.fitting import FIT, FitOptions, Fitting, named

_METHODS: Final = {"ppi": "PPI++", "rogan_gladen": "Rogan-Gladen", None: "none"}
_SERIES: Final = ("service", "environment", "version", "judge_model", "metric")
_ORIGIN_OF: Final[Mapping[Method | None, Origin]] = {"ppi": "drawn", "rogan_gladen": "golden", None: "queue"}
_ORIGINS: Final[Mapping[Origin, str]] = {
    "drawn": "drawn from the traffic",
    "golden": "golden set",
    "queue": "chosen from a queue",
}


@click.command("calibrate")
@click.option("--judge", "name", required=True, metavar="NAME", help="A judge of `tracejudge judges`.")
@click.option("--metric", metavar="METRIC", help="Only this metric.")
@click.option("--since", default="90d", show_default=True, metavar="TIME", help="Only verdicts since then: 24h, 7d, …")
@click.option("--service", metavar="PATTERN", help="Only traces of these services, such as support-*.")
@click.option(
    "--archive",
    "archives",
    type=click.File("rb"),
    multiple=True,
    metavar="FILE",
    help="Verdicts that the outbox no longer holds, one a line, as `tail --json` prints them; repeatable.",
)
@click.option("--model", metavar="NAME", help="A model that returns probabilities: fit its calibration.")
@FIT
@REDIS
@JSON
def command(
    *,
    name: str,
    metric: str | None,
    since: str,
    service: str | None,
    archives: tuple[BinaryIO, ...],
    model: str | None,
    config: str | None,
    redis_url: str | None,
    as_json: bool,
    **fitting: Any,
) -> None:
    """Compare the verdicts of a judge with the labels that `tracejudge labels import` has stored.

    For each version, judge model and origin of the labels: agreement, sensitivity (the share of traces labelled pass
    that the judge passes), specificity, and Cohen's kappa, each with its 95 % interval. For judges with graded values
    also their reliability, and the threshold at which as many traces pass wrongly as fail wrongly. Then each series
    with its raw share, its share corrected by the labels, the method, and why labels are refused.

    With --model the probabilities of one judge model are compared with the labels: a reliability diagram, the expected
    calibration error, the Brier score, and a map and a threshold as `[[calibrations]]` for the configuration. A
    calibrated judge is a new version: it begins new series, and verdicts so far stay as they are.

    \b
    Examples:
      tracejudge calibrate --judge groundedness
      tracejudge calibrate --judge tone --model m --labels l.jsonl --precision 0.9
      tracejudge calibrate --judge safety --model m --from-audit --write new.toml

    Exit code 0 on success, 1 if no label has a verdict or nothing can be fitted, 2 on wrong usage.
    """  # noqa: D301 - click's mark for lines that stay as they are
    options = FitOptions(**fitting).checked(model)
    settings, store = connect(config, redis_url)
    (judge,) = judges_named(settings, name)
    now = time.time()
    chosen = chosen_metric(judge, metric)
    if (begin := option_time("--since", since, now)) >= now:
        raise click.UsageError("--since: must be before now")
    selected = _Selection(judge.name, metric, begin, re.compile(fnmatch.translate(service or "*")))
    archived = chain.from_iterable(map(read_verdicts, archives))
    if model is not None:
        subject = Fitting.find(settings, judge, chosen, model)
        subject.run(store, options, archived, selected.has_verdict, as_json=as_json)
        return
    labelled = join_verdicts(read_labels(store, selected.has_label), archived)
    _measure(store, selected, labelled, now, names_service=service is not None, as_json=as_json)


class _Selection(NamedTuple):
    """Which labels and verdicts are compared."""

    judge: str
    metric: str | None
    begin: float
    service: re.Pattern[str]

    def has_label(self, label: Label) -> bool:
        """Return whether a label is of the judge and metric."""
        return label.judge == self.judge and self.metric in {None, label.metric}

    def has_verdict(self, verdict: LabelVerdict) -> bool:
        """Return whether a verdict is of the time and the services."""
        return verdict.judged_at >= self.begin and self.service.match(verdict.service) is not None

    def has_series(self, series: Series) -> bool:
        """Return whether a series is of the judge, metric and services, and no segment."""
        is_of_metric = series.judge == self.judge and self.metric in {None, series.metric}
        return is_of_metric and not series.segment and self.service.match(series.service) is not None


def _measure(
    store: Store, selected: _Selection, labels: Sequence[Labelled], now: float, *, names_service: bool, as_json: bool
) -> None:
    """Print how the judge errs and the corrected shares; exits with 1 if no label has a verdict."""
    measured, left_out = calibrate(labels, selected.has_verdict)
    series = filter(selected.has_series, read_series(store).values())
    corrected = corrections(store, series, selected.begin, now, LabelIndex(labels, selected.begin))
    if as_json:
        print_json(_document(selected.judge, measured, left_out, corrected))
    else:
        for calibration in measured:
            _print(selected.judge, calibration)
        all_corrections = [(series, correction) for series, results in corrected.items() for correction in results]
        labelled = {
            *((item.label.origin, verdict.service) for item in labels for verdict in item.verdicts),
            *((origin, series.service) for origin in _ORIGINS for series in corrected if names_service),
        }
        _print_corrections(all_corrections, labelled)
        if left_out:
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(left_out.items()))
            note(f"labels that were not used: {reasons}")
    if not measured:
        if not labels:
            NOTES.print(f"no labels of {selected.judge}; tracejudge labels import FILE adds some")
        elif not as_json:
            NOTES.print(f"{amount(len(labels), 'label')} of {selected.judge}, none with a verdict that passes or fails")
        sys.exit(1)


def _print(judge: str, errors: Calibration) -> None:
    subject, cells = errors.subject, errors.confusion
    metric = "" if subject.metric == judge else f" {subject.metric}"
    version = subject.version[:8]
    title = f"{judge}{metric} {version} by {plain(subject.judge_model)}: {amount(errors.labels, 'label')}, "
    table = Table(title=title + _ORIGINS[subject.origin], title_justify="left", show_header=False, box=None)
    for row in (
        ("agreement", _shown(errors.agreement.agreement)),
        ("sensitivity", f"{_shown(errors.agreement.sensitivity)} of the traces labelled pass are passed"),
        ("specificity", f"{_shown(errors.agreement.specificity)} of the traces labelled fail are failed"),
        ("kappa", "-" if errors.agreement.kappa is None else str(errors.agreement.kappa)),
        ("labelled pass", f"{cells.pass_pass:,} judged pass, {cells.pass_fail:,} judged fail"),
        ("labelled fail", f"{cells.fail_pass:,} judged pass, {cells.fail_fail:,} judged fail"),
        ("wrong verdicts", f"{errors.false_pass:.1%} of all pass wrongly, {errors.false_fail:.1%} fail wrongly"),
    ):
        table.add_row(*row)
    if errors.reliability is not None and (balanced := errors.balanced) is not None:
        table.add_row(
            "balanced threshold",
            f"{balanced.value:.3g}: {balanced.false_pass:.1%} pass wrongly, {balanced.false_fail:.1%} fail wrongly",
        )
        table.add_row("calibration error", f"{errors.reliability.error}; Brier score {errors.reliability.brier}")
        for each in errors.reliability.bins:
            table.add_row(
                f"value {each.low:.2f} to {each.high:.2f}",
                f"mean {each.mean:.3f}; {each.passing.percent} of {amount(each.labels, 'label')} say pass",
            )
    print_table(OUT, table)


def _shown(interval: Interval | None) -> str:
    return "-" if interval is None else interval.percent


def _print_corrections(pairs: Sequence[tuple[Series, Correction]], labelled: Collection[tuple[Origin, str]]) -> None:
    """Print corrected shares, and each refusal once.

    ``labelled`` are origins of labels with the services of their traces. Labels of a golden set or a queue are those of
    the judge in all services; refusals of services without such labels are left out of the table.
    """
    rows = [
        (series, row)
        for series, row in pairs
        if row.corrected is not None or (_ORIGIN_OF[row.method], series.service) in labelled
    ]
    table = Table(title="Shares that should pass", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for name in ("service", "metric", "version", "judge model", "raw", "corrected", "method"):
        table.add_column(name)
    for series, row in rows:
        service = f"{series.service} {series.environment}".strip()
        raw = "-" if row.raw is None else row.raw.interval.percent
        shown = "refused" if row.corrected is None else row.corrected.interval.percent
        method = f"{_METHODS[row.method]}, {amount(row.labels, 'label')}"
        table.add_row(*map(plain, (service, series.metric, series.version, series.judge_model, raw, shown, method)))
    if rows:
        print_table(OUT, table)
    refused: dict[tuple[str, str], list[str]] = {}
    for pair in pairs:
        series, row = pair
        if row.refused:
            refused.setdefault((series.judge_model, row.refused), []).extend([series.service] if pair in rows else [])
        elif row.corrected is not None and row.corrected.beside_labels is not None:
            ratio = f"{row.corrected.beside_labels:.2f} times as wide as by the labels alone"
            note(f"{series.service} by {series.judge_model}: the corrected interval is {ratio}")
    for (model, reason), services in refused.items():
        note(f"{', '.join(dict.fromkeys(services)) or 'services without such labels'} by {model}: {reason}")


def _document(
    judge: str,
    measured: Sequence[Calibration],
    left_out: Mapping[str, int],
    corrected: Mapping[Series, Sequence[Correction]],
) -> dict[str, object]:
    return {
        "judge": judge,
        "calibrations": [
            {
                **named(calibration.subject),
                **{name: value for name, value in named(calibration).items() if name != "subject"},
                **named(calibration.agreement),  # it has a field of that name
            }
            for calibration in measured
        ],
        "left_out": dict(left_out),
        "corrections": [
            {
                **{name: getattr(series, name) for name in _SERIES},
                "method": correction.method,
                "labels": correction.labels,
                "since": correction.since,
                "until": correction.until,
                "raw": None if correction.raw is None else named(correction.raw.interval),
                "corrected": None if correction.corrected is None else named(correction.corrected.interval),
                "width_beside_labels": None if correction.corrected is None else correction.corrected.beside_labels,
                "refused": correction.refused or None,
            }
            for series, results in corrected.items()
            for correction in results
        ],
    }
