"""`tracejudge judges`: the catalogue, and a judge measured against labels."""

import click
import msgspec

from judges.catalog import catalogue
from judges.judge import Judge
from worker.cli.judges.test import test
from worker.cli.options import JSON, OUT

__all__ = ["command"]


@click.group("judges", invoke_without_command=True)
@JSON
@click.pass_context
def command(context: click.Context, *, as_json: bool) -> None:
    """List the judges, or measure one against labels with `judges test`."""
    if context.invoked_subcommand is not None:
        return
    if as_json:
        print(msgspec.json.encode([_row(judge) for judge in catalogue().values()]).decode())
    else:
        for judge in catalogue().values():
            OUT.print(_listing(judge), soft_wrap=True)


command.add_command(test)


def _row(judge: Judge) -> dict[str, object]:
    return {
        "name": judge.name,
        "metrics": judge.metric_names,
        "needs": judge.needs_in_words,
        "scale": {metric.name: metric.scale for metric in judge.metrics},
        "pass": {metric.name: metric.pass_rule for metric in judge.metrics},
        "version": judge.version,
        "asks": judge.asks,
    }


def _listing(judge: Judge) -> str:
    """Describe a judge in three lines that stay readable in a narrow terminal."""
    needs = ", ".join(judge.needs_in_words)
    metrics = "; ".join(
        f"{metric.name}: {metric.scale}, {f'{metric.pass_rule} passes' if metric.pass_rule else 'descriptive'}"
        for metric in judge.metrics
    )
    return f"[bold]{judge.name}[/bold] {judge.version[:8]}\n  {judge.asks}\n  needs {needs} - gives {metrics}"
