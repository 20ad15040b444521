"""`tracejudge judges align`: write a version of a judge that agrees better with labelled traces."""

import asyncio
import json
import os
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TextIO, get_args

import click
from rich.markup import escape
from rich.table import Table

from judges.agreement.intervals import Interval
from judges.agreement.labelled import Judged, Labelled, says_yes
from judges.agreement.paired import Halves, balanced, halves, improvement, least_shown
from judges.calling.runs import JudgeRunner
from judges.core.faults import install_command
from judges.core.judge import Judge, is_name
from judges.core.model import CallTotals
from judges.core.verdict import Assessment
from judges.custom import define, is_definition, kind_of
from judges.endpoints.client import OFFLINE_PATIENCE_S, DelayNotes
from judges.features.lab.alignment import Alignment, NotJudgedError, Rules, Trial
from judges.models.registry import decides
from judges.registry import find_file, load_judges
from tracejudge import Trace
from worker.base.commands.options import (
    CONFIG,
    JSON,
    OUT,
    TRACE_FILE,
    amount,
    note,
    offline_judges,
    plain,
    print_json,
    print_line,
    print_table,
)
from worker.base.commands.progress import Meter
from worker.base.commands.trace_files import read_traces
from worker.core.config.settings import Settings, SettingsError
from worker.features.lab.measuring import Comparison, compared
from worker.features.lab.offline import TRIES, open_graders
from worker.features.lab.summary import cost_in_words
from worker.features.lab.test import TracesError, labelled_traces

Optimizer = Literal["memory", "gepa"]
_MIN_LABELLED: Final = 20
_FEW_LABELLED: Final = 100  # With fewer, only a large improvement can be told from chance.
# The first line of each file that is written.
_HEADING: Final = "# Guidance of `tracejudge judges align`: read it before you use it."


class Aligned(NamedTuple):
    """The result of a search, and what was measured on the traces held out: nothing if nothing was found."""

    first: Trial
    best: Trial
    before: Sequence[Judged] = ()
    after: Sequence[Judged] = ()
    note: str | None = None  # Why the model wrote no guidance.

    @property
    def gain(self) -> Interval | None:
        """The improvement on the traces held out."""
        return improvement(self.before, self.after) if self.after else None

    @property
    def refusal(self) -> str | None:
        """Why no file is written; None if the agreement has risen beyond the interval."""
        if self.gain is not None:
            return (
                None if self.gain.low > 0 else "the agreement on the held-out traces did not rise beyond the interval"
            )
        if self.first.agreement == 1:
            return "the judge agrees with all labels of the traces to learn from"
        why = f" (the model wrote none: {self.note})" if self.note is not None else ""
        return f"no guidance raised the agreement on the traces to learn from{why}"


@click.command("align")
@click.argument("judge_name", metavar="NAME|FILE")
@click.argument("traces", type=TRACE_FILE, nargs=-1, required=True, metavar="LABELS...")
@click.option("--model", required=True, metavar="NAME", help="The [models.NAME] that judges and writes the guidance.")
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The judge file to write, as judges.d/NAME.toml; one that align wrote is overwritten.",
)
@click.option("--force", is_flag=True, help="Overwrite a file of the judge that align did not write.")
@click.option("--label", metavar="TAG", help="Tag with the right answer; else the only one that can be compared.")
@click.option("--invert", is_flag=True, help="Yes in the tag means that the trace should fail.")
@click.option("--metric", metavar="METRIC", help="A metric of the judge; the first with a pass rule unless given.")
@click.option(
    "--optimizer",
    type=click.Choice(get_args(Optimizer)),
    default="memory",
    show_default=True,
    help="How guidance is searched; gepa needs the extra of this name.",
)
@click.option(
    "--rounds",
    type=click.IntRange(1, 100),
    default=3,
    show_default=True,
    metavar="N",
    help="How often guidance is derived at most. Each judges the traces to learn from once more.",
)
@TRIES
@CONFIG
@JSON
def align(
    judge_name: str,
    traces: tuple[TextIO, ...],
    *,
    model: str,
    out: Path,
    force: bool,
    label: str | None,
    invert: bool,
    metric: str | None,
    optimizer: Optimizer,
    rounds: int,
    tries: int,
    config: str | None,
    as_json: bool,
) -> None:
    """Find guidance with which a judge agrees better with LABELS, and write it as a judge file of a new version.

    The judge is a built-in one, or one of yours with `instructions`, `custom_prompt` or `based_on`. A hash of session
    or trace id divides the labelled traces, at least 20, into halves. From one, the judge model derives rules by which
    people seem to decide; the other measures the agreement before and after. The file is written only if the
    improvement there is larger than its 95 % interval explains. Read the rules before you use it: a model wrote them.

    The agreement is the balanced accuracy, in which a trace without a verdict counts as wrong.

    Exit code 0 when the file was written. 1 when nothing improved beyond the interval, or some traces were not judged
    because the endpoint failed. 2 on wrong usage, or too few labels.
    """
    settings, (judge,) = offline_judges(config, judge_name)
    if optimizer == "gepa" and find_spec("gepa") is None:
        raise SettingsError(f"--optimizer gepa needs a further package: {install_command('gepa')}")
    table = _table(judge, settings)
    _check_out(out, judge.name, judge_name, settings, force=force)
    _toml(table)
    tag = label or _only_tag(traces, judge, metric, invert=invert)
    labelled = labelled_traces(traces, tag, settings, judge)
    comparison = compared(judge, metric, labelled, tag, invert=invert)
    divided = _divided(comparison)
    graders = open_graders(settings, (judge,), (model,), DelayNotes(OFFLINE_PATIENCE_S), combine=None, tries=tries)
    grader = graders.runners[0]
    if grader.is_free or decides(settings.models[model]):
        kind = "answers typed questions" if decides(settings.models[model]) else "is built in"
        raise click.UsageError(
            f"--model: {model} {kind} and writes no guidance; name a model of an endpoint that writes text"
        )
    spent = CallTotals()

    async def ask(candidate: Judge, trace: Trace) -> Assessment:
        assessment = (await grader.ask(candidate, trace)).assessment
        nonlocal spent
        spent = spent.plus(assessment.calls, grader.price)
        meter.advance(spent.cost_usd)
        return assessment

    def make(rules: Rules) -> Judge:
        return define(out.stem, {**table, "guidance": list(rules)})

    async def work() -> Aligned:
        try:
            kept = tuple(table.get("guidance", ()))
            metric_name = out.stem if comparison.metric == judge.name else comparison.metric
            alignment = Alignment(make, metric_name, divided.train, ask, kept)
            return await _search(alignment, optimizer, rounds, divided, make, meter=meter)
        finally:
            await graders.aclose((judge,))

    try:
        with Meter("judging the traces to learn from", "answer", total=len(divided.train)) as meter:
            aligned = asyncio.run(work())
    except NotJudgedError as error:
        raise click.ClickException(f"some traces are not judged ({error}): no alignment without them") from error
    text = None
    if aligned.refusal is None:
        measured = f"# with {grader.judge_model} on {amount(len(divided.held_out), 'held-out trace')}"
        figures = f"{balanced(aligned.before)} before, {balanced(aligned.after)} after."
        definition = _toml({**table, "guidance": list(aligned.best.rules)})
        text = f"{_HEADING}\n{measured}: agreement {figures}\n{definition}"
        out.write_text(text, encoding="utf-8")
    report = _Report(judge, comparison.metric, grader, optimizer, divided, aligned, spent)
    report.print(make(aligned.best.rules), None if text is None else out, as_json=as_json)
    if text is not None and table.get("settings") and out.stem == judge.name:
        note(f"take [judges.{judge.name}] out of the configuration: its settings stand in {out}")
    if aligned.refusal is not None:
        note(f"nothing is written: {aligned.refusal}")
    sys.exit(int(aligned.refusal is not None))


async def _search(
    alignment: Alignment,
    optimizer: Optimizer,
    rounds: int,
    divided: Halves,
    make: Callable[[Rules], Judge],
    *,
    meter: Meter,
) -> Aligned:
    """Search on one half, and measure on the other only if the search found something."""
    first = await alignment.trial(alignment.kept)
    meter.begin("searching guidance", None if optimizer == "gepa" else rounds * (len(divided.train) + 1))
    best = await (alignment.gepa(rounds) if optimizer == "gepa" else alignment.memory(rounds))
    if best.agreement <= first.agreement:
        return Aligned(first, first, note=alignment.note)
    meter.begin("judging the held-out traces", 2 * len(divided.held_out))
    before = await alignment.judge(make(alignment.kept), divided.held_out)
    after = await alignment.judge(make(best.rules), divided.held_out)
    return Aligned(first, best, before, after)


def _table(judge: Judge, settings: Settings) -> Mapping[str, Any]:
    """Return the definition to extend: that of a judge of the user's own, or one that is based on a built-in judge."""
    table = settings.judges.get(judge.name, {})
    if judge.run is not None:
        raise click.UsageError(f"{judge.name} is written in Python: it asks no model that guidance could change")
    if not is_definition(table):
        return {"based_on": judge.name, **({"settings": dict(table)} if table else {})}
    if kind_of(table) not in ("instructions", "custom_prompt", "based_on"):
        raise click.UsageError(f"{judge.name} asks with a template, which stays as it was published")
    return table


def _check_out(out: Path, name: str, source: str, settings: Settings, *, force: bool) -> None:
    """Check the place of the new file before any call is paid for."""
    if out.suffix != ".toml" or not is_name(out.stem):
        raise click.UsageError(f"--out: {out} is no name of a judge file; write it as judges.d/{name}.toml")
    if not out.parent.is_dir():
        raise click.UsageError(f"--out: there is no folder {out.parent}; make it first")
    if not os.access(out.parent, os.W_OK):
        raise click.UsageError(f"--out: the folder {out.parent} cannot be written to")
    if out.stem != name and out.stem in load_judges(settings.judges):
        raise click.UsageError(f"--out: {out.stem} is the name of another judge; choose one of its own")
    folder = find_file(Path(settings.judges_folder), name) if settings.judges_folder else None
    own = [path for path in (Path(source), folder) if path is not None and path.exists()]
    if out.exists() and not any(path.samefile(out) for path in own):
        raise click.UsageError(f"--out: {out} is there already, and does not define {name}; name another file")
    if out.exists() and not force and not out.read_text("utf-8", "replace").startswith(_HEADING):
        raise click.UsageError(f"--out: {out} was not written by align; give --force to overwrite it")


def _only_tag(files: Sequence[TextIO], judge: Judge, metric: str | None, *, invert: bool) -> str:
    """Find the only tag whose values can be compared with the verdicts."""
    by_tag: dict[str, list[Labelled]] = {}
    for file in files:
        if not file.seekable():
            raise click.UsageError(f"{file.name} can be read only once; give --label TAG")
        for _, trace in read_traces(file):
            for tag, value in ({} if isinstance(trace, str) else trace.tags or {}).items():
                by_tag.setdefault(tag, []).append(Labelled(trace, value))  # type: ignore[arg-type]
        file.seek(0)
    tags = []
    for tag, labelled in by_tag.items():
        try:
            tags += [tag] if compared(judge, metric, labelled, tag, invert=invert).is_rated else []
        except click.UsageError:
            continue
    if len(tags) != 1:
        raise click.UsageError(f"give --label TAG; tags that can be compared: {', '.join(sorted(tags)) or 'none'}")
    return tags[0]


def _divided(comparison: Comparison) -> Halves:
    """Divide the labelled traces; both halves need both labels."""
    if not comparison.is_rated:
        raise click.UsageError(f"align needs a pass rule, and the metric {comparison.metric} has none")
    count = len(comparison.labelled)
    if count < _MIN_LABELLED:
        raise TracesError(f"{amount(count, 'trace')} with a label; align needs at least {_MIN_LABELLED}")
    divided = halves(comparison.labelled)
    good, bad = comparison.names
    for half, purpose in zip(divided, ("to learn from", "to measure with"), strict=True):
        labels = {says_yes(item.label) for item in half}
        if len(labels) < 2:  # noqa: PLR2004 - yes and no
            lacking = bad if True in labels else good
            raise TracesError(f"the half {purpose} has no trace with the label {lacking!r}; label more of these")
    return divided


class _Report(NamedTuple):
    """The result and cost of a search, for display."""

    judge: Judge
    metric: str
    grader: JudgeRunner
    optimizer: Optimizer
    divided: Halves
    aligned: Aligned
    spent: CallTotals

    def print(self, made: Judge, out: Path | None, *, as_json: bool) -> None:
        """Print the agreement before and after, the guidance, and the cost."""
        aligned, gain = self.aligned, self.aligned.gain
        cost = self.spent.reported.cost_usd
        rows = [("traces to learn from", self.divided.train, aligned.first.judged, aligned.best.judged)]
        if gain is not None:
            rows.append(("held-out traces", self.divided.held_out, aligned.before, aligned.after))
        if as_json:
            document: dict[str, object] = {
                "judge": self.judge.name,
                "metric": self.metric,
                "model": self.grader.judge_model,
                "optimizer": self.optimizer,
                "train": _figures(aligned.first.judged, aligned.best.judged),
                "held_out": None
                if gain is None
                else {**_figures(aligned.before, aligned.after), "gain": gain._asdict()},
                "least_shown": self.least_shown,
                "guidance": aligned.best.rules,
                "calls": self.spent.calls,
                "cost_usd": cost,
                "written": None if out is None else str(out),
                "version": None if out is None else made.version,
                "refusal": aligned.refusal,
            }
            print_json(document)
            return
        table = Table(
            "agreement", "traces", "before", "after", title=escape(f"{self.judge.name} by {self.grader.judge_model}")
        )
        for name, labelled, before, after in rows:
            table.add_row(name, f"{len(labelled):,}", str(balanced(before)), str(balanced(after)))
        print_table(OUT, table)
        if gain is not None:
            print_line(OUT, f"improvement on the held-out traces: {gain}")
        is_shown = gain is not None and gain.low > 0
        if not is_shown and len(self.divided.train) + len(self.divided.held_out) < _FEW_LABELLED:
            held_out = amount(len(self.divided.held_out), "held-out trace")
            if (least := self.least_shown) is None:
                few = f"can hardly show any improvement: label at least {_FEW_LABELLED} traces"
            else:
                few = f"can show no improvement under about {round(100 * least)} points: label more traces"
            print_line(OUT, f"{held_out} {few}")
        price = cost_in_words(cost, has_price=self.grader.price is not None)
        print_line(OUT, f"calls: {self.spent.calls:,}; cost: {price}")
        for number, rule in enumerate(aligned.best.rules, 1):
            OUT.print(f"  {number}. {plain(rule)}", soft_wrap=True)
        if out is not None:
            print_line(OUT, f"written: {out}, version {made.version}")

    @property
    def least_shown(self) -> float | None:
        """The smallest improvement that the held-out traces are likely to show."""
        passing = sum(says_yes(trace.label) for trace in self.divided.held_out)
        before = balanced(self.aligned.before or self.aligned.first.judged).value
        return least_shown(passing, len(self.divided.held_out) - passing, before)


def _figures(before: Sequence[Judged], after: Sequence[Judged]) -> dict[str, object]:
    unscored = sum(judged.passed is None for judged in after)
    return {
        "traces": len(before),
        "before": balanced(before)._asdict(),
        "after": balanced(after)._asdict(),
        "unscored": unscored,
    }


def _toml(table: Mapping[str, Any]) -> str:
    """Write a definition as TOML, from which it is read again as it was."""
    text = "".join(f"{_key(key)} = {_value(value, lines=True)}\n" for key, value in table.items())
    try:
        is_same = tomllib.loads(text) == dict(table)
    except tomllib.TOMLDecodeError:
        is_same = False
    if not is_same:
        raise click.UsageError("the definition of the judge cannot be written as TOML: it holds a null or an odd value")
    return text


def _key(key: str) -> str:
    return key if key.replace("_", "").isalnum() and key.isascii() else _quoted(key)


def _quoted(text: str) -> str:
    # JSON's strings are strings of TOML, except for this character.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: object, *, lines: bool = False) -> str:
    """Write a value; with ``lines`` a long text or list gets several lines."""
    if isinstance(value, str):
        if lines and "\n" in value:
            return '"""\n' + "\n".join(_quoted(line)[1:-1] for line in value.split("\n")) + '"""'
        return _quoted(value)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(key)} = {_value(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list | tuple):
        items = [_value(item) for item in value]
        return "[\n" + "".join(f"  {item},\n" for item in items) + "]" if lines else f"[{', '.join(items)}]"
    return json.dumps(value) if isinstance(value, bool | int | float) else str(value)
