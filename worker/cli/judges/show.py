"""`tracejudge judges show`: what a judge sends to its model, word for word."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TextIO

import click
import msgspec

from judges.judge import Judge
from judges.models.model import Tool
from judges.prompt import Message, neutralise, render
from worker import judge_files
from worker.cli.judges.list import settings_of
from worker.cli.judges.origin import BUILT_IN, origin, template
from worker.cli.judges.samples import Sample, find_sample
from worker.cli.offline_settings import offline_settings
from worker.cli.options import CONFIG, JSON, judges_named, with_judge_files

__all__ = ["show"]


class _Shown(NamedTuple):
    """A judge, where it comes from, and what it sends for a trace."""

    judge: Judge
    origin: str
    template: Mapping[str, object] | None
    sample: Sample
    requests: Sequence[Sequence[Message]]
    tools: Sequence[Tool]


@click.command("show")
@click.argument("given", metavar="NAME|FILE")
@click.option(
    "--trace",
    "file",
    type=click.File("r", encoding="utf-8", errors="surrogateescape"),
    metavar="FILE",
    help="Show it for the first trace of FILE that serves the judge; else for one of our samples.",
)
@CONFIG
@JSON
def show(given: str, file: TextIO | None, config: str | None, *, as_json: bool) -> None:
    """Print the messages that a judge sends for a trace, the schema of its answer, and its settings.

    The judge is one of `tracejudge judges` by its name, or one of yours by its file. The trace is shown whole, also
    where a model with a small context would get it cut. Of a judge that reads the trace by tools, what it sends first
    is shown, and the tools.
    """
    settings, names = with_judge_files(offline_settings(config), given)
    (judge,) = judges_named(settings, *names)
    sample = find_sample(judge, file)
    shown = _Shown(
        judge,
        origin(judge.name, settings) if given == judge.name else str(judge_files.shown(Path(given))),
        template(judge.name, settings),
        sample,
        [render(prompt) for prompt in judge.prompts(sample.trace)],
        () if judge.exploration is None else judge.exploration.open(sample.trace).tools,
    )
    print(msgspec.json.encode(_document(shown)).decode() if as_json else "\n\n".join(_sections(shown)))


def _document(shown: _Shown) -> dict[str, object]:
    judge, sample = shown.judge, shown.sample
    document: dict[str, object] = {
        "name": judge.name,
        "version": judge.version,
        "origin": shown.origin,
        "settings": settings_of(judge),
        "trace": {"file": sample.file, "line": sample.line, "trace_id": sample.trace.trace_id},
        "requests": [
            [{"role": message.role, "content": message.content} for message in messages] for messages in shown.requests
        ],
        "schema": judge.schema,
    }
    if shown.tools:
        document["tools"] = shown.tools
    if shown.template is not None:
        document["template"] = shown.template
    return document


def _sections(shown: _Shown) -> Iterator[str]:
    yield "\n".join(_heading(shown))
    for number, messages in enumerate(shown.requests, 1):
        which = f" ({number} of {len(shown.requests)})" if len(shown.requests) > 1 else ""
        for message in messages:
            yield f"===== {message.role}{which} =====\n{message.content}"
    for tool in shown.tools:
        yield f"===== tool {tool.name} =====\n{tool.description}\n{_indented(tool.parameters)}"
    if shown.judge.run is None:
        yield f"===== schema =====\n{_indented(shown.judge.schema)}"
    else:
        yield "It is code, and asks no judge model."


def _heading(shown: _Shown) -> Iterator[str]:
    judge, sample = shown.judge, shown.sample
    settings = settings_of(judge)
    yield f"{judge.name}, version {judge.version}"
    yield judge.asks
    yield f"settings: {_indented(settings) if settings else 'none'}"
    if shown.origin != BUILT_IN:
        yield f"defined in: {shown.origin}"
    if shown.template is not None:
        # What a published file says of itself may hold anything.
        yield f"template: {neutralise(_indented(shown.template))}"
    yield f"trace: {sample.file}, line {sample.line}, trace_id {neutralise(sample.trace.trace_id)}"


def _indented(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
