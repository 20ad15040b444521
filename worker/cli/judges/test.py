"""`tracejudge judges test`: how far a judge agrees with labelled traces."""

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TextIO

import click
import msgspec
from rich.progress import MofNCompleteColumn, Progress
from rich.table import Table

import tracejudge
from judges.agreement import Agreement, Judged, Share, agreement, is_known_label, shares
from judges.catalog import catalogue
from judges.evaluate import evaluate
from judges.judge import Judge
from judges.models.build import ModelSettingsError, build
from judges.models.model import ChatModel
from worker.cli.options import CONFIG, JSON, NOTES, OUT, settings_from
from worker.cli.publish import read_traces
from worker.settings import SettingsError

__all__ = ["test"]


class Labelled(msgspec.Struct, frozen=True):
    """A trace and the value of its tag."""

    trace: tracejudge.Trace
    label: str


@click.command("test")
@click.argument("name")
@click.argument("traces", type=click.File("r", encoding="utf-8", errors="surrogateescape"))
@click.option("--label", metavar="TAG", help="Tag with the right answer, yes or no: prints the agreement.")
@click.option("--by", metavar="TAG", help="Tag that says something else: prints the share of passes per value.")
@click.option("--min", "minimum", type=click.FloatRange(0, 1), help="Exit code 1 below this balanced accuracy.")
@click.option("--model", "model_name", default="default", show_default=True, help="Which [models.NAME] judges.")
@CONFIG
@JSON
def test(
    name: str,
    traces: TextIO,
    label: str | None,
    by: str | None,
    *,
    minimum: float | None,
    model_name: str,
    config: str | None,
    as_json: bool,
) -> None:
    """Run the judge NAME over the labelled TRACES, a JSON object a line, and compare.

    Traces without the tag are left out. Unscored traces are counted by reason and are in no other figure.
    """
    tag = label or by
    if tag is None or (label and by) or (by and minimum is not None):
        raise click.UsageError("give --label TAG (agreement, with --min if wanted) or --by TAG (shares)")
    judge = catalogue().get(name)
    if judge is None:
        raise click.UsageError(f"there is no judge {name!r}; known are {', '.join(catalogue())}")
    labelled = _labelled(traces, tag)
    if label and not all(is_known_label(one.label) for one in labelled):
        raise click.UsageError(f"the tag {tag!r} holds other values than yes and no; --by {tag} prints shares")
    model = _model(config, model_name)
    judged = asyncio.run(_judge_all(judge, model, labelled))
    if by:
        _print_shares(judge, model, shares(judged), tag, as_json=as_json)
        return
    result = agreement(judged)
    _print_agreement(judge, model, result, judged, as_json=as_json)
    accuracy = result.balanced_accuracy
    if sum(result.unscored.values()) == len(judged):
        notes = sorted({one.assessment.note for one in judged if one.assessment.note})
        NOTES.print(f"nothing was scored: {'; '.join(notes)}", markup=False)
        sys.exit(1)
    if minimum is not None and (accuracy is None or accuracy < minimum):
        NOTES.print(f"balanced accuracy is below {minimum}")
        sys.exit(1)


def _labelled(file: TextIO, tag: str) -> list[Labelled]:
    found = []
    for line in read_traces(file):
        if line.trace is None:
            raise click.ClickException(f"line {line.number} {line.error}")
        if line.trace.tags and tag in line.trace.tags:
            found.append(Labelled(line.trace, line.trace.tags[tag]))
    if not found:
        raise click.UsageError(f"no trace of the file has the tag {tag!r}")
    return found


def _model(config: str | None, name: str) -> ChatModel:
    settings = settings_from(config)
    if name not in settings.models:
        raise SettingsError(f"there is no [models.{name}]; known are {', '.join(settings.models)}")
    try:
        return build(settings.models[name], os.environ)
    except ModelSettingsError as error:
        raise SettingsError(f"models.{name}.{error}") from error


async def _judge_all(judge: Judge, model: ChatModel, labelled: Sequence[Labelled]) -> list[Judged]:
    slots = asyncio.Semaphore(model.settings.max_in_flight)
    with Progress(*Progress.get_default_columns(), MofNCompleteColumn(), console=NOTES) as progress:
        task = progress.add_task(f"{judge.name} by {model.settings.judge_model}", total=len(labelled))

        async def one(item: Labelled) -> Judged:
            async with slots:
                assessment = await evaluate(judge, item.trace, model)
            progress.advance(task)
            return Judged(item.trace, item.label, assessment)

        try:
            return list(await asyncio.gather(*(one(item) for item in labelled)))
        finally:
            await model.aclose()


def _cost(model: ChatModel, judged: Sequence[Judged]) -> float | None:
    price = model.settings.price
    if price is None:
        return None
    calls = [call for one in judged for call in one.assessment.calls]
    return sum(call.input_tokens * price.input + call.output_tokens * price.output for call in calls) / 1_000_000


def _print_agreement(
    judge: Judge, model: ChatModel, result: Agreement, judged: Sequence[Judged], *, as_json: bool
) -> None:
    cost = _cost(model, judged)
    if as_json:
        figures = {
            "judge": judge.name,
            "version": judge.version,
            "model": model.settings.judge_model,
            "traces": len(judged),
            "balanced_accuracy": result.balanced_accuracy,
            "cost_usd": cost,
            **result._asdict(),
        }
        print(msgspec.json.encode(figures).decode())
        return
    table = Table("label", "judged pass", "judged fail", title=f"{judge.name} by {model.settings.judge_model}")
    table.add_row("yes", f"{result.true_pass:,}", f"{result.false_fail:,}")
    table.add_row("no", f"{result.false_pass:,}", f"{result.true_fail:,}")
    OUT.print(table)
    accuracy = result.balanced_accuracy
    said = "no figure: a label group is empty" if accuracy is None else f"{accuracy:.3f} (0.5 is chance)"
    OUT.print(f"balanced accuracy: {said}")
    OUT.print(f"unscored: {_reasons(result.unscored)}; cost: {'no price set' if cost is None else f'{cost:.4f} USD'}")


def _print_shares(judge: Judge, model: ChatModel, groups: Mapping[str, Share], tag: str, *, as_json: bool) -> None:
    if as_json:
        figures = {
            "judge": judge.name,
            "version": judge.version,
            "model": model.settings.judge_model,
            "by": tag,
            "groups": {label: {**group._asdict(), "share": group.share} for label, group in groups.items()},
        }
        print(msgspec.json.encode(figures).decode())
        return
    table = Table(tag, "passes", "scored", "share", "unscored", title=f"{judge.name} by {model.settings.judge_model}")
    for label, group in groups.items():
        share = "-" if group.share is None else f"{group.share:.1%}"
        table.add_row(label, f"{group.passed:,}", f"{group.scored:,}", share, _reasons(group.unscored))
    OUT.print(table)
    OUT.print(f"This is no agreement: {tag!r} is not what {judge.name} is asked.")


def _reasons(unscored: Mapping[str, int]) -> str:
    return ", ".join(f"{amount:,} {reason}" for reason, amount in sorted(unscored.items())) or "none"
