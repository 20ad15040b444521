"""`tracejudge labels`: import, list and export human labels of traces."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, BinaryIO, Final, NamedTuple, cast

import click
import msgspec
from rich.table import Table

from judges.agreement.labelled import is_known_label, says_yes, scale_of
from judges.core.judge import Judge, Metric
from judges.core.verdict import Verdict
from judges.custom.definition import nearest
from judges.custom.variables import declared_labels, passing
from judges.parsing.answer import folded
from judges.parsing.rows import as_trace
from judges.registry import load_judges
from worker.base.commands.groups import SuggestingGroup
from worker.base.commands.options import (
    JSON,
    OUT,
    REDIS,
    amount,
    chosen_metric,
    connect,
    counts_table,
    judges_named,
    note,
    output_file,
    parse_time,
    print_json,
    print_table,
)
from worker.base.commands.progress import Meter, file_size
from worker.base.commands.trace_files import Line, split_lines
from worker.base.lookup.label_store import (
    MAX_TEXT_CHARS,
    MAX_VERDICT_BYTES,
    MAX_VERDICTS,
    Drawn,
    Label,
    Labelled,
    TooManyLabelsError,
    attach,
    outbox_verdicts,
    read_labelled_trace,
    read_labels,
    write_labels,
)
from worker.base.lookup.lookup import keep_traces
from worker.core.storage.client import Store
from worker.features.labels.answers import read_answers

_CHUNK: Final = 500
_MAX_LINE_BYTES: Final = 16 * 1024 * 1024
_MAX_SHOWN: Final = 10
_MAX_ID_CHARS: Final = 128
# The first five are known before labels are stored.
_MEANINGS: Final = {
    "new": "stored for the first time",
    "changed": "replace another label of the same trace and metric",
    "same": "stored before",
    "unlabelled": "lines whose label is empty",
    "wrong": "lines with an error",
    "without_verdict": "imported labels whose trace has no verdict so far",
    "ambiguous": "imported labels of traces with several judged spans: add span_id",
    "too_large": f"verdicts of more than {MAX_VERDICT_BYTES >> 10} KiB without their texts, not stored",
    "too_many": f"verdicts beyond the {MAX_VERDICTS:,} that are kept, not stored",
    "without_copy": "labelled traces that are gone, or found no room for a copy",
}
_verdict_decoder: Final = msgspec.json.Decoder(Verdict)


class LineError(Exception):
    """A line that is no label: what is wrong, and how to fix it."""


class Defaults(NamedTuple):
    """Values for lines that do not have their own."""

    judge: str | None = None
    metric: str | None = None
    drawn: Drawn | None = None
    field: str = "label"
    inverted: bool = False


class ReadLabel(NamedTuple):
    """A label of a file, with the verdict that stands beside it."""

    label: Label
    verdict: Verdict | None


_Lines = Iterator[tuple[int, ReadLabel | LineError | None]]


class LineReader:
    """Reads labels from JSON lines, a JSON array or CSV."""

    def __init__(self, judges: Mapping[str, Judge], defaults: Defaults, now: float) -> None:
        self._judges = judges
        self._defaults = defaults
        self._now = now

    def lines(self, file: BinaryIO) -> _Lines:
        """Yield the number of each line that is not blank with its label, its error, or None for an empty label."""
        for line in split_lines(file, _MAX_LINE_BYTES, needs_output=False):
            if text := _error_of(line):
                yield line.number, LineError(text)
                continue
            try:
                yield line.number, self.read(line.payload)
            except LineError as error:
                yield line.number, error

    def read(self, text: bytes) -> ReadLabel | None:
        """Read a line; None if its label is empty. Raises ``LineError`` if it is no label."""
        try:
            row = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            raise LineError("is not JSON") from error
        if not isinstance(row, dict):
            raise LineError('is no object; write {"trace_id": "…", "label": "pass"}')
        tags = row.get("tags")
        value = row.get(self._defaults.field, tags.get(self._defaults.field) if isinstance(tags, dict) else None)
        if value is None or value == "":
            return None
        judge = self._judge(row)
        name = row.get("metric", self._defaults.metric)
        try:
            metric = chosen_metric(judge, None if name is None else str(name))
        except click.UsageError as error:
            raise LineError(error.message) from error
        passed = parse_label(judge, metric, value)
        time = row.get("time") or 0.0
        if isinstance(time, bool) or not isinstance(time, int | float):
            try:
                time = parse_time(str(time), self._now)
            except ValueError as error:
                raise LineError('has another "time" than seconds since the epoch or 2026-05-01T12:00:00Z') from error
        drawn = row.get("drawn", self._defaults.drawn)
        if drawn is None:
            raise LineError('does not say how its trace was chosen; add "drawn", or use --drawn')
        label = Label(
            trace_id=_trace_id(row),
            judge=judge.name,
            metric=metric.name,
            passed=passed is not self._defaults.inverted,
            drawn=parse_drawn(drawn),
            span_id=_text(row, "span_id", _MAX_ID_CHARS),
            annotator=_text(row, "annotator", _MAX_ID_CHARS),
            comment=_text(row, "comment", MAX_TEXT_CHARS),
            labelled_at=float(time),
        )
        return ReadLabel(label, _verdict_in(row, label))

    def _judge(self, row: Mapping[str, object]) -> Judge:
        name = row.get("judge", self._defaults.judge)
        metric = row.get("metric", self._defaults.metric)
        if name is None and metric is not None:
            judges = [judge for judge in self._judges.values() if metric in judge.metric_names]
            if len(judges) == 1:
                return judges[0]
        if not isinstance(name, str):
            raise LineError('names no judge; add "judge", or use --judge')
        if name not in self._judges:
            raise LineError(f"there is no judge {name!r}{nearest(name, self._judges)}")
        return self._judges[name]


def parse_label(judge: Judge, metric: Metric, value: object) -> bool:
    """Return whether a label means that the trace should pass, or raise ``LineError``.

    It is true or false, yes or no, 1 or 0, pass or fail, a label of the judge, or a grade on its scale.
    """
    if isinstance(value, bool):
        return value
    text = str(value).strip() if isinstance(value, str | int | float) else ""
    own, scale = declared_labels(judge), scale_of(judge, metric)
    if folded(text) in own:
        passes = passing(judge)
        if not passes:
            raise LineError(f"no label of {judge.name} passes or fails; use pass or fail")
        return passes[folded(text)]
    grade = None if scale is None else scale.value(text)
    # On a scale from 1 to 5 a 1 is the lowest grade, not a yes.
    if scale is not None and grade is not None and (scale.lowest, scale.highest) != (0.0, 1.0):
        if metric.pass_at is None:
            raise LineError(f"{metric.name} has no grade from which it passes; use pass or fail")
        return grade >= metric.pass_at - 1e-9
    if is_known_label(text):
        return says_yes(text)
    accepted = ["pass or fail", *(["one of " + ", ".join(own.values())] if own else [])]
    accepted += [scale.in_words] if scale is not None and metric.pass_at is not None else []
    raise LineError(f"has the label {text[:40]!r}, which {judge.name} does not know; use {', or '.join(accepted)}")


def parse_drawn(value: object) -> Drawn:
    """Return how a trace was chosen, by a probability, `queue` or `golden`; raises ``LineError`` for anything else."""
    if value in ("queue", "golden"):
        return cast("Drawn", value)
    try:
        probability = -1.0 if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        probability = -1.0
    if not 0 < probability <= 1:
        raise LineError(f"was drawn {str(value)[:40]!r}; write a probability above 0 up to 1, queue or golden")
    return probability


def _trace_id(row: Mapping[str, Any]) -> str:
    trace_id = row.get("trace_id")
    if trace_id is None:
        # Rows of labelled data have the ids that `evaluate` gives them.
        trace = as_trace(row)
        trace_id = trace["trace_id"] if "output" in trace else None
    if not isinstance(trace_id, str) or not 0 < len(trace_id) <= _MAX_ID_CHARS:
        raise LineError('names no trace; add "trace_id"')
    return trace_id


def _text(row: Mapping[str, object], name: str, longest: int) -> str:
    value = row.get(name)
    return "" if value is None else str(value)[:longest]


def _verdict_in(row: Mapping[str, object], label: Label) -> Verdict | None:
    """Return the verdict under `judged`, or that which the line is itself; None without any."""
    fields = row.get("judged", row if "evaluation_id" in row else None)
    if fields is None:
        return None
    try:
        verdict = msgspec.convert(fields, Verdict)
    except msgspec.ValidationError as error:
        raise LineError(f"holds no verdict as `tail --json` and `evaluate` print it: {error}") from error
    if (verdict.trace_id, verdict.judge) != (label.trace_id, label.judge):
        raise LineError("holds the verdict of another judge, or on another trace")
    return verdict


@click.group("labels", cls=SuggestingGroup)
def command() -> None:
    """Import, list and export human labels, by which shares are corrected and judges are measured.

    \b
    Examples:
      tracejudge labels import labels.jsonl --judge groundedness --drawn 0.05
      tracejudge labels import golden.jsonl --judge safety --drawn golden
      tracejudge labels list
      tracejudge labels export --traces --output labels.jsonl
    """  # noqa: D301 - click's mark for lines that stay as they are


@command.command("import")
@click.argument("file", type=click.File("rb"))
@click.option("--judge", metavar="NAME", help="The judge, for lines that name none.")
@click.option("--metric", metavar="METRIC", help="Its metric; the first with a pass rule unless given.")
@click.option("--drawn", metavar="HOW", help="How the traces were chosen: a probability, queue or golden.")
@click.option("--label", "field", default="label", metavar="NAME", help="The field or tag with the label.  [label]")
@click.option("--invert", is_flag=True, help="Yes in the label means that the trace should fail.")
@click.option(
    "--verdicts",
    type=click.File("rb"),
    multiple=True,
    metavar="FILE",
    help="Verdicts on the traces, as `evaluate --output` writes them; repeatable.",
)
@click.option("--replace-drawn", is_flag=True, help="Labels that were drawn become queue or golden ones as well.")
@click.option("--dry-run", is_flag=True, help="Check and count the labels, and store nothing.")
@REDIS
@JSON
def import_labels(
    *,
    file: BinaryIO,
    judge: str | None,
    metric: str | None,
    drawn: str | None,
    field: str,
    invert: bool,
    verdicts: tuple[BinaryIO, ...],
    replace_drawn: bool,
    dry_run: bool,
    config: str | None,
    redis_url: str | None,
    as_json: bool,
) -> None:
    """Import the labels of FILE: JSON lines ('-' is standard input), a JSON array or CSV.

    A line has `trace_id`, `label` and `drawn`, and may have `span_id`, `judge`, `metric`, `annotator`, `time` and
    `comment`. A label is pass or fail (true or false, yes or no, 1 or 0), a label of the judge, or a grade on its
    scale. A line may be a verdict of `tracejudge tail --json` with `label` and `drawn` added, or a labelled row as for
    `judges test`.

    `drawn` is the probability with which the trace was chosen from the judged traffic, `queue` for traces that
    somebody picked, or `golden` for a set made for measuring.

    The verdicts on the traces are searched in the outbox, in FILE itself and in --verdicts; the monitor adds later
    ones. The same label twice is one; another label of the same trace and metric replaces the first,
    but a drawn one stays drawn.

    Exit code 0 on success, 1 when a line has an error (all others are stored) or no line has a label, 2 on wrong usage,
    such as a file that cannot be opened.
    """
    settings, store = connect(config, redis_url)
    judges = load_judges(settings.judges)
    if judge is not None and judge not in judges:
        raise click.UsageError(f"there is no judge {judge!r}{nearest(judge, judges)}")
    try:
        defaults = Defaults(judge, metric, None if drawn is None else parse_drawn(drawn), field, invert)
    except LineError as error:
        raise click.UsageError(f"--drawn: a trace {error}") from error
    reader = LineReader(judges, defaults, store.now_ms() / 1000)
    with Meter("importing", "line", total=file_size(file)) as meter:
        run = _Import(store, dry_run=dry_run, replace_drawn=replace_drawn)
        try:
            run.read(
                reader.lines(file), lambda number: meter.update(number, done=file.tell() if file.seekable() else None)
            )
        except TooManyLabelsError as error:
            raise click.ClickException(f"{error} Labels of earlier lines are stored.") from error
        meter.begin("reading verdicts")
        run.attach(chain.from_iterable(map(read_verdicts, verdicts)), meter.update)
        if not dry_run and run.labels:
            meter.begin("searching the outbox")
            run.attach(outbox_verdicts(store), meter.update)
            run.count_stored(keep_traces(store, settings, {label.trace_id for label in run.labels.values()}))
    wrong, unlabelled = run.counts["wrong"], run.counts["unlabelled"]
    if wrong > _MAX_SHOWN:
        note(f"{wrong - _MAX_SHOWN:,} further lines have an error")
    counts = {name: run.counts[name] for name in islice(_MEANINGS, 5 if dry_run else None)}
    if as_json:
        print_json({**counts, "dry_run": dry_run})
    else:
        rows = ((name, count, _MEANINGS[name]) for name, count in counts.items())
        OUT.print(counts_table("What would be imported" if dry_run else "Imported", rows))
    if not (run.labels or wrong):
        lines = f"none of its {amount(unlabelled, 'line')} has a {field!r}; name the field of the labels by --label"
        note(f"{file.name} has no label" + (f": {lines}" if unlabelled else ""))
    sys.exit(0 if run.labels and not wrong else 1)


class _Import:
    """One run of the command; ``counts`` has the keys of ``_MEANINGS``."""

    def __init__(self, store: Store, *, dry_run: bool, replace_drawn: bool) -> None:
        self.counts: Counter[str] = Counter()
        self.labels: dict[str, Label] = {}
        self._store = store
        self._dry_run, self._replace_drawn = dry_run, replace_drawn

    def read(self, lines: _Lines, advance: Callable[[int], None]) -> None:
        """Store the labels of a file."""
        chunk: list[ReadLabel] = []
        for number, label in lines:
            if isinstance(label, LineError):
                self.counts["wrong"] += 1
                if self.counts["wrong"] <= _MAX_SHOWN:
                    note(f"line {number} {label}")
            elif label is None:
                self.counts["unlabelled"] += 1
            else:
                chunk.append(label)
            if len(chunk) == _CHUNK:
                self._store_chunk(chunk)
                chunk = []
                advance(number)
        self._store_chunk(chunk)

    def attach(self, verdicts: Iterator[Verdict], advance: Callable[[int], None]) -> None:
        """Add verdicts to the labels of their traces."""
        seen = 0
        while chunk := list(islice(verdicts, _CHUNK)):
            if not self._dry_run:
                attached = attach(self._store, chunk)
                self.counts.update(too_large=attached.too_large, too_many=attached.too_many)
            advance(seen := seen + len(chunk))

    def count_stored(self, without_copy: int) -> None:
        """Count the imported labels that lack something."""
        stored = read_labels(self._store, lambda label: label.id in self.labels)
        without_verdict = sum(not item.verdicts for item in stored)
        ambiguous = sum(item.is_ambiguous for item in stored)
        self.counts.update(without_verdict=without_verdict, ambiguous=ambiguous, without_copy=without_copy)

    def _store_chunk(self, chunk: Sequence[ReadLabel]) -> None:
        labels = [line.label for line in chunk]
        self.counts += write_labels(self._store, labels, dry_run=self._dry_run, replace_drawn=self._replace_drawn)
        self.labels |= {label.id: label for label in labels}
        self.attach((line.verdict for line in chunk if line.verdict is not None), lambda _: None)


def _error_of(line: Line) -> str | None:
    return f"is longer than {_MAX_LINE_BYTES >> 20} MiB" if len(line.payload) > _MAX_LINE_BYTES else line.error


def read_verdicts(file: BinaryIO) -> Iterator[Verdict]:
    """Read verdicts, one a line, as `tail --json` and `evaluate` print them, or raise ``ClickException``."""
    for line in split_lines(file, _MAX_LINE_BYTES):
        if text := _error_of(line):
            raise click.ClickException(f"{file.name}: line {line.number} {text}")
        try:
            yield _verdict_decoder.decode(line.payload)
        except (msgspec.DecodeError, RecursionError) as error:
            raise click.ClickException(f"{file.name}: line {line.number} is no verdict: {error}") from error


@command.command("list")
@click.option("--judge", metavar="NAME", help="Only labels of this judge.")
@REDIS
@JSON
def list_labels(*, judge: str | None, config: str | None, redis_url: str | None, as_json: bool) -> None:
    """Count the labels by judge, metric and how they were drawn; with --json print each as a line.

    Exit code 0 on success, 1 if there is no label, 2 on wrong usage.
    """
    settings, store = connect(config, redis_url)
    labels = read_labels(store, lambda label: judge is None or label.judge == judge)
    # Labels of a judge that is configured no more stay.
    if judge is not None and not labels:
        judges_named(settings, judge)
    if not labels:
        note("no labels" + ("" if judge is None else f" of {judge}") + "; tracejudge labels import FILE adds some")
        sys.exit(1)
    if as_json:
        for item in labels:
            verdicts = [msgspec.to_builtins(verdict) for verdict in item.verdicts]
            print_json({**msgspec.to_builtins(item.label), "verdicts": verdicts})
        return
    groups: dict[tuple[str, str, str], list[Labelled]] = {}
    for item in labels:
        groups.setdefault((item.label.judge, item.label.metric, item.label.origin), []).append(item)
    table = Table(box=None, padding=(0, 2))
    for name in ("judge", "metric", "drawn"):
        table.add_column(name)
    for name in ("labels", "pass", "fail", "with verdict", "ambiguous"):
        table.add_column(name, justify="right")
    for key, group in sorted(groups.items()):
        passes = Counter(item.label.passed for item in group)
        numbers = (len(group), passes[True], passes[False], sum(bool(item.verdicts) for item in group))
        table.add_row(*key, *map("{:,}".format, (*numbers, sum(item.is_ambiguous for item in group))))
    print_table(OUT, table)
    note(f"{amount(len(labels), 'label')}; tracejudge calibrate --judge NAME compares them with the verdicts")


@command.command("export")
@click.option("--judge", metavar="NAME", help="Only labels of this judge.")
@click.option("--traces", "with_traces", is_flag=True, help="Add the copy of each trace that was kept with its label.")
@click.option("--output", "path", metavar="FILE", help="The file to write; standard output unless given.")
@REDIS
@JSON
def export_labels(
    *, judge: str | None, with_traces: bool, path: str | None, config: str | None, redis_url: str | None, as_json: bool
) -> None:
    """Save the labels as JSON lines that `labels import` reads.

    A line has the label, how its trace was drawn, the answer of each annotator of the board with a hash of the
    annotator's name, and the judge versions whose verdicts are known. `label` is empty if as many annotators say
    pass as fail. `trace_kept` says whether there is a copy of the trace.

    Exit code 0 on success, 1 if there is no label, 2 on wrong usage.
    """
    if as_json and path is None:
        raise click.UsageError("--json prints the counts: add --output for the labels")
    settings, store = connect(config, redis_url)
    labels = {own.label.id: own for own in read_labels(store, lambda label: judge in {None, label.judge})}
    answers = {name: opinions for name, opinions in read_answers(store).items() if judge in {None, opinions[0].judge}}
    if judge is not None and not (labels or answers):
        judges_named(settings, judge)
    gone = 0
    with output_file(path) as file:
        for name in sorted({*labels, *answers}):
            own, opinions = labels.get(name), answers.get(name, [])
            about = opinions[0] if own is None else own.label
            row: dict[str, object] = {
                **{key: getattr(about, key) for key in ("trace_id", "span_id", "judge", "metric", "drawn")},
                "label": "" if own is None else "pass" if own.label.passed else "fail",
            }
            versions = {answer.judge_version for answer in opinions}
            if own is not None:
                row |= {"annotator": own.label.annotator, "comment": own.label.comment, "time": own.label.labelled_at}
                row["origin"] = own.label.origin
                versions |= {verdict.version for verdict in own.verdicts}
            trace = read_labelled_trace(store, about.trace_id)
            gone += trace is None
            row |= {"judge_versions": sorted(versions), "answers": msgspec.to_builtins(opinions)}
            row["trace_kept"] = trace is not None
            if with_traces and trace is not None:
                row["trace"] = msgspec.to_builtins(trace)
            file.write(msgspec.json.encode(row).decode() + "\n")
    total = len({*labels, *answers})
    if as_json:
        print_json({"labels": total, "without_copy": gone})
    note(f"saved {amount(total, 'label')}" + (f"; no copy is kept of the traces of {gone:,}" if gone else ""))
    sys.exit(0 if total else 1)
