"""`tracejudge judges show`: what a judge sends to its model, word for word."""

from typing import TextIO

import click
import msgspec

from judges.judge import Judge
from judges.prompt import neutralise, render
from worker.cli.judges.list import settings_of
from worker.cli.judges.samples import Sample, find_sample
from worker.cli.options import CONFIG, JSON, judges_named, settings_from

__all__ = ["show"]


@click.command("show")
@click.argument("name")
@click.option(
    "--trace",
    "file",
    type=click.File("r", encoding="utf-8", errors="surrogateescape"),
    metavar="FILE",
    help="Show it for the first trace of FILE that serves the judge; else for one of our samples.",
)
@CONFIG
@JSON
def show(name: str, file: TextIO | None, config: str | None, *, as_json: bool) -> None:
    """Print the messages that the judge NAME sends for a trace, the schema of its answer, and its settings.

    The trace is shown whole, also where a model with a small context would get it cut.
    """
    (judge,) = judges_named(settings_from(config), name)
    sample = find_sample(judge, file)
    requests = [render(prompt) for prompt in judge.prompts(sample.trace)]
    if as_json:
        document = {
            "name": judge.name,
            "version": judge.version,
            "settings": settings_of(judge),
            "trace": {"file": sample.file, "line": sample.line, "trace_id": sample.trace.trace_id},
            "requests": [
                [{"role": message.role, "content": message.content} for message in messages] for messages in requests
            ],
            "schema": judge.schema,
        }
        print(msgspec.json.encode(document).decode())
        return
    print(_heading(judge, sample))
    for number, messages in enumerate(requests, 1):
        which = f" ({number} of {len(requests)})" if len(requests) > 1 else ""
        for message in messages:
            print(f"\n===== {message.role}{which} =====\n{message.content}")
    print(f"\n===== schema =====\n{_indented(judge.schema)}")


def _heading(judge: Judge, sample: Sample) -> str:
    settings = settings_of(judge)
    return "\n".join(
        (
            f"{judge.name}, version {judge.version}",
            judge.asks,
            f"settings: {_indented(settings) if settings else 'none'}",
            f"trace: {sample.file}, line {sample.line}, trace_id {neutralise(sample.trace.trace_id)}",
        )
    )


def _indented(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
