"""`tracejudge calibrate --model`: fits a calibration to the probabilities of one judge model, by labels."""

import html
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, NamedTuple, Self

import click
import msgspec
from rich.table import Table

from judges.agreement.reliability import as_svg, as_text
from judges.core.judge import Judge, Metric
from judges.core.model import ModelSettings
from judges.core.prompt import neutralise
from judges.core.verdict import Verdict
from judges.custom.definition import nearest
from judges.models.registry import decides, judge_for
from judges.registry import load_judges
from worker.base.commands.options import OUT, amount, note, options, plain, print_json, print_table, reasons_in_words
from worker.base.lookup.label_store import Labelled, LabelVerdict, join_verdicts, outbox_verdicts, read_labels
from worker.core.config.graders import calibrate_judge
from worker.core.config.loading import load
from worker.core.config.settings import JudgeCalibration, Settings, SettingsError
from worker.core.storage.client import Store
from worker.features.labels.calibration import Fitted, audited, fit_calibration, probability_rows
from worker.features.labels.command import Defaults, LineError, LineReader, ReadLabel

_SHOWN_DIGITS: Final = 8


class FitOptions(NamedTuple):
    """The options of a fitted calibration."""

    labels: BinaryIO | None = None  # Labels in place of those that are stored.
    field: str = "label"  # The field or tag with the label in them.
    from_audit: bool = False  # Whether the second verdicts of cascades are the labels.
    kind: Literal["platt", "isotonic", "none"] | None = None  # The map.
    precision: float | None = None  # Precision that the threshold must reach.
    svg: str | None = None  # Where the diagram is written.
    write: str | None = None  # The configuration file that receives the calibration.

    def checked(self, model: str | None) -> Self:
        """Check that the options go together. Raises click.UsageError: They do not."""
        if model is None and self != FitOptions():
            raise click.UsageError("options of a fitted calibration need --model")
        if self.labels is not None and self.from_audit:
            raise click.UsageError("--labels and --from-audit exclude each other")
        return self


FIT: Final = options(
    click.option("--labels", type=click.File("rb"), metavar="FILE", help="Labels in place of those that are stored."),
    click.option("--label", "field", default="label", metavar="NAME", help="The field or tag with the label.  [label]"),
    click.option("--from-audit", is_flag=True, help="Second verdicts of cascades are the labels of the first ones."),
    click.option(
        "--map",
        "kind",
        type=click.Choice(("platt", "isotonic", "none")),
        help="How probabilities are corrected; else isotonic from 1,000 labels on, Platt below.",
    ),
    click.option(
        "--precision",
        type=click.FloatRange(0, 1),
        metavar="SHARE",
        help="The share of passing traces that must be labelled pass; else the threshold maximises agreement.",
    ),
    click.option("--svg", metavar="FILE", help="Write the reliability diagram."),
    click.option("--write", metavar="FILE", help="Append the calibration to this configuration file."),
)


class Fitting(NamedTuple):
    """The subject of a fit: one metric of a judge by one model."""

    settings: Settings  # The configuration.
    judge: Judge  # The judge as it is configured.
    metric: str  # The metric.
    model: ModelSettings  # The settings of the model.
    version: str  # The version of the judge for this model without a calibration.
    present: str  # Its present version.

    @classmethod
    def find(cls, settings: Settings, judge: Judge, metric: Metric, name: str) -> Self:
        """Find the model, by its name in the configuration or in verdicts, or raise ``UsageError``."""
        if metric.pass_rule is None:
            raise click.UsageError(f"{metric.name} neither passes nor fails, so that it has no calibration")
        models = {model.judge_model: model for model in settings.models.values() if decides(model)}
        judge_model = settings.models[name].judge_model if name in settings.models else name
        if judge_model not in models:
            what = f"no model that returns probabilities is called {name!r}{nearest(name, models)}"
            raise click.UsageError(f"--model: {what}; without --model any judge is measured")
        model = models[judge_model]
        try:
            versions = judge_for(judge, model).version, calibrate_judge(settings, judge, model).version
        except ValueError as error:
            raise click.UsageError(str(error)) from error
        return cls(settings, judge, metric.name, model, *versions)

    def run(
        self,
        store: Store,
        options: FitOptions,
        archived: Iterable[Verdict],
        fits: Callable[[LabelVerdict], bool],
        *,
        as_json: bool,
    ) -> None:
        """Fit, print and write the calibration; exits with 1 if there is no labelled verdict."""
        judge_model = self.model.judge_model
        rows, left_out = probability_rows(
            self._labelled(store, options, archived),
            {self.version, self.present},
            lambda each: fits(each) and each.judge_model == judge_model,
        )
        if left_out:
            note(f"labels that were not used: {reasons_in_words(left_out)}")
        if not rows:
            what = f"no label of {self.judge.name} has a verdict with a probability by {judge_model}"
            note(f"{what} in the present version of the judge")
            sys.exit(1)
        try:
            fitted = fit_calibration(rows, self.version, options.kind, options.precision)
        except ValueError as error:
            raise click.ClickException(f"{amount(len(rows), 'label')} of {self.judge.name}: {error}") from error
        row = JudgeCalibration(
            **msgspec.structs.asdict(fitted.calibration), judge=self.judge.name, model=judge_model, metric=self.metric
        )
        version, replaces = self._version_with(row)
        if options.svg is not None:
            title = neutralise(f"{row.judge} {row.metric} by {row.model}: {amount(fitted.labels, 'label')}")
            with click.open_file(options.svg, "w", encoding="utf-8") as file:
                file.write(as_svg(fitted.reliability, fitted.calibration, html.escape(title)))
        if as_json:
            counts = {"labels": fitted.labels, "effective": fitted.effective, "left_out": left_out}
            measured = {"reliability": named(fitted.reliability), "threshold": named(fitted.threshold)}
            versions = {"present_version": self.present, "new_version": version}
            print_json({**counts, **measured, "calibration": msgspec.to_builtins(row), **versions})
        else:
            _print(row, fitted)
        shown = f"{version[:_SHOWN_DIGITS]}, after {self.present[:_SHOWN_DIGITS]}"
        note(
            f"with this calibration the version is {shown}: it begins new series, and verdicts so far stay as they are"
        )
        if replaces:
            note("the configuration has a calibration for this judge, model and metric: take it out")
        if options.write is not None:
            append(Path(options.write), as_toml(row))
            note(f"{options.write}: calibration added; it applies after a restart of the workers")

    def _version_with(self, calibration: JudgeCalibration) -> tuple[str, bool]:
        """Return the version of the judge with a calibration, and whether this replaces one of the configuration."""
        former = self.settings.calibrations
        key = calibration.judge, calibration.model, calibration.metric
        kept = tuple(each for each in former if (each.judge, each.model, each.metric_of(self.judge)) != key)
        settings = msgspec.structs.replace(self.settings, calibrations=(*kept, calibration))
        return calibrate_judge(settings, self.judge, self.model).version, len(kept) < len(former)

    def _labelled(self, store: Store, options: FitOptions, archived: Iterable[Verdict]) -> list[Labelled]:
        key = self.judge.name, self.metric
        if options.from_audit:
            return audited(chain(outbox_verdicts(store), archived), *key)
        stored = read_labels(store, lambda label: (label.judge, label.metric) == key)
        if options.labels is None:
            return join_verdicts(stored, archived)
        defaults = Defaults(*key, "golden", options.field)
        reader = LineReader(load_judges(self.settings.judges), defaults, store.now_ms() / 1000)
        of_file = [line for line in _read(reader, options.labels) if (line.label.judge, line.label.metric) == key]
        beside = [line.verdict for line in of_file if line.verdict is not None]
        verdicts: Mapping[str, Sequence[LabelVerdict]] = {item.label.id: item.verdicts for item in stored}
        # Of several labels of one trace the last counts.
        labels = {line.label.id: line.label for line in of_file}
        pairs = [Labelled(label, verdicts.get(name, ())) for name, label in labels.items()]
        return join_verdicts(pairs, chain(outbox_verdicts(store), beside, archived))


def as_toml(calibration: JudgeCalibration) -> str:
    """Write a calibration as it stands in a configuration file."""
    # Defaults are left out of the struct's encoding.
    values = {**msgspec.to_builtins(calibration), "threshold": calibration.threshold}
    names = ("judge", "model", "metric", "threshold", "platt", "isotonic", "judge_version")
    # A JSON string, number or list of numbers is one of TOML as well, except that TOML refuses surrogate pairs.
    lines = (f"{name} = {json.dumps(values[name], ensure_ascii=False)}" for name in names if name in values)
    return "\n".join(["[[calibrations]]", *lines]) + "\n"


def append(path: Path, block: str) -> None:
    """Append a table to a configuration file, or raise ``SettingsError`` if the settings would not load with it."""
    path = path.resolve()
    changed: Path | None = None
    try:
        text = path.read_text(encoding="utf-8")
        # Beside the file, since the settings name files relative to it.
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, suffix=".toml", delete=False) as file:
            changed = Path(file.name)
            file.write(text + "\n" * (not text.endswith("\n")) + "\n" * bool(text) + block)
        load(os.environ, str(changed))
        shutil.copymode(path, changed)
        changed.replace(path)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: cannot be written: {error}; name a configuration file") from error
    except SettingsError as error:
        raise SettingsError(f"{str(error).replace(str(changed), str(path))}; the calibration is not written") from error
    finally:
        if changed is not None:
            changed.unlink(missing_ok=True)


def named(value: object) -> Any:
    """Return tuples with names as objects, at any depth."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: named(each) for name, each in value._asdict().items()}
    return [named(each) for each in value] if isinstance(value, list) else value


def _read(reader: LineReader, file: BinaryIO) -> Iterator[ReadLabel]:
    for number, label in reader.lines(file):
        if isinstance(label, LineError):
            raise click.ClickException(f"{file.name}: line {number} {label}")
        if label is not None:
            yield label


def _print(calibration: JudgeCalibration, fit: Fitted) -> None:
    title = f"{calibration.judge} {calibration.metric} by {plain(calibration.model)}: {amount(fit.labels, 'label')}"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for name in ("probability", "labels", "labelled pass", "0 … 1: o labelled pass, - its limits, | mean probability"):
        table.add_column(name, justify="left", no_wrap=True)
    for each in fit.reliability.bins:
        limits = f"{each.low:.3f} to {each.high:.3f}"
        table.add_row(limits, f"{each.labels:,}", each.passing.percent, as_text(each))
    print_table(OUT, table)
    fitted = "none"
    if calibration.platt is not None:
        fitted = f"Platt: logit(p') = {calibration.platt[0]:.3f} * logit(p) {calibration.platt[1]:+.3f}"
    elif calibration.isotonic:
        fitted = f"isotonic, {amount(len(calibration.isotonic), 'point')}"
    precision = fit.threshold.precision
    lines = Table(show_header=False, box=None)
    for row in (
        ("calibration error", str(fit.reliability.error)),
        ("Brier score", str(fit.reliability.brier)),
        ("map", fitted),
        ("threshold", f"{fit.threshold.value} after the map"),
        ("agreement", f"{fit.threshold.agreement.percent} of other traces would be judged as labelled"),
        ("precision", "-" if precision is None else f"{precision.percent} of those that pass are labelled pass"),
    ):
        lines.add_row(*row)
    print_table(OUT, lines)
    print(f"\n{as_toml(calibration)}", end="")
