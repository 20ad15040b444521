"""`tracejudge judges`: list the judges, show the prompt of one, measure one against labels, or align it."""

import os
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, TextIO, cast

import click
import msgspec

from judges.calling.evaluation import prepared
from judges.core.judge import Judge, has_text
from judges.core.prompt import neutralise, render
from judges.custom import is_definition
from judges.custom.template import metadata_of
from judges.registry import catalogue, display, find_file, load_installed_judges, load_judges, origin_of
from tracejudge import Trace
from worker.base.commands.groups import LazyGroup
from worker.base.commands.options import CONFIG, JSON, OUT, TRACE_FILE, offline_judges, print_json
from worker.base.commands.trace_files import Conversations, read_traces
from worker.core.config.loading import load
from worker.core.config.settings import Settings

_BUILT_IN: Final = "built-in"


@click.group("judges", cls=LazyGroup, prefix="judges ", invoke_without_command=True)
@CONFIG
@JSON
@click.pass_context
def command(context: click.Context, config: str | None, *, as_json: bool) -> None:
    """List the judges as they are configured; `show` the prompt of one, `test` it against labels, or `align` it."""
    if context.invoked_subcommand is not None:
        if config or as_json:
            raise click.UsageError(f"write options behind `judges {context.invoked_subcommand}`")
        return
    settings = load(os.environ, config, needs_rules=False)
    judges = load_judges(settings.judges).values()
    if as_json:
        print_json([_row(judge, settings) for judge in judges])
        return
    for number, judge in enumerate(judges):
        if number:
            print()
        _describe(judge, settings)


def _row(judge: Judge, settings: Settings) -> dict[str, object]:
    template = _template(judge.name, settings)
    return {
        "name": judge.name,
        "metrics": judge.metric_names,
        "needs": judge.needs_in_words,
        "scale": {metric.name: metric.scale for metric in judge.metrics},
        "pass": {metric.name: metric.pass_rule for metric in judge.metrics},
        "version": judge.version,
        "asks": judge.asks,
        "unit": judge.unit,
        "forms": judge.forms,
        "settings": _settings_of(judge),
        "origin": _origin(judge.name, settings),
        **({} if template is None else {"template": template}),
    }


def _describe(judge: Judge, settings: Settings) -> None:
    """Describe a judge in a few lines that stay readable in a narrow terminal."""
    OUT.print(f"[bold]{judge.name}[/bold] [dim]{judge.version[:8]}[/dim]")
    lines = [judge.asks, f"needs {', '.join(judge.needs_in_words)}"]
    for metric in judge.metrics:
        name = "" if metric.name == judge.name else f"{metric.name}: "
        passes = f"{metric.pass_rule} passes" if metric.pass_rule else metric.passes
        lines.append(f"gives {name}{metric.scale}, {passes}")
    if judge.unit == "session":
        lines.append('judges whole conversations, by rules with unit = "session"')
    if judge.forms:
        lines.append(f"asks models of the kinds {', '.join(judge.forms)}")
    if in_force := _settings_of(judge):
        in_words = (f"{name} = {msgspec.json.encode(value).decode()}" for name, value in in_force.items())
        lines.append(f"settings {', '.join(in_words)}")
    if (place := _origin(judge.name, settings)) != _BUILT_IN:
        lines.append(f"defined in {place}")
    if (template := _template(judge.name, settings)) is not None:
        lines.append(f"asks with {neutralise(msgspec.json.encode(template).decode())}")
    for line in lines:
        print(textwrap.fill(line, max(40, OUT.width), initial_indent="  ", subsequent_indent="    "))


def _origin(name: str, settings: Settings) -> str:
    """Name the definition of a judge: built-in, a distribution, a file of the folder, or the configuration."""
    if name in catalogue() and not is_definition(settings.judges.get(name, {})):
        return _BUILT_IN
    if name in load_installed_judges():
        return f"distribution {origin_of(name)}"
    file = find_file(Path(settings.judges_folder), name) if settings.judges_folder else None
    return "configuration" if file is None else str(display(file))


def _template(name: str, settings: Settings) -> Mapping[str, object] | None:
    return metadata_of(settings.judges.get(name, {}))


def _settings_of(judge: Judge) -> dict[str, object]:
    # The code of a judge in Python knows the settings in force, which are no part of its version.
    return dict(msgspec.to_builtins(getattr(judge.run, "settings", judge.settings)))


class Sample(NamedTuple):
    """A trace as the judge gets it, and its place."""

    trace: Trace
    file: str
    line: int


@command.command("show")
@click.argument("judge_or_file", metavar="NAME|FILE")
@click.option(
    "--trace",
    "file",
    type=TRACE_FILE,
    metavar="FILE",
    help="Use the first trace or conversation of FILE that the judge can judge; else a built-in sample.",
)
@CONFIG
@JSON
def show(judge_or_file: str, file: TextIO | None, config: str | None, *, as_json: bool) -> None:
    """Print the messages that a judge sends for a trace, the schema of its answer, and its settings.

    The judge is one of `tracejudge judges` by its name, or one of yours by its file. The trace is shown whole, even
    where it would be truncated for a model with a small context. Of a judge that reads the trace by tools, the first
    messages are shown, and the tools.
    """
    settings, (judge,) = offline_judges(config, judge_or_file)
    sample = find_sample(judge, file, settings)
    document: dict[str, Any] = {
        "name": judge.name,
        "version": judge.version,
        "origin": _origin(judge.name, settings) if judge_or_file == judge.name else str(display(Path(judge_or_file))),
        "unit": judge.unit,
        "needs": judge.needs_in_words,
        "forms": judge.forms,
        "settings": _settings_of(judge),
        "trace": {"file": sample.file, "line": sample.line, "trace_id": sample.trace.trace_id},
        "requests": [
            [{"role": message.role, "content": message.content} for message in render(prompt)]
            for prompt in judge.prompts(sample.trace)
        ],
        "schema": judge.schema,
    }
    if judge.decision_form is not None:
        asked = judge.for_decisions({})
        prompts = asked.prompts(sample.trace)
        document["questions"] = [question for prompt in prompts for question in prompt.questions]
    if judge.exploration is not None and (tools := judge.exploration.open(sample.trace).tools):
        document["tools"] = tools
    if (template := _template(judge.name, settings)) is not None:
        document["template"] = template
    if as_json:
        print_json(document)
    else:
        print("\n\n".join(_sections(judge, document)))


def find_sample(judge: Judge, file: TextIO | None, settings: Settings) -> Sample:
    """Find the first trace or conversation that a judge can judge, in a file or in the built-in samples."""
    lacking: dict[str, None] = {}
    samples = _built_in_samples(judge) if file is None else _read_samples(file)
    for candidate in _join_sessions(samples, settings) if judge.unit == "session" and file is not None else samples:
        # As in an evaluation, a judge may change the trace before it decides whether it can judge it.
        sample = candidate._replace(trace=prepared(judge, candidate.trace))
        missing = judge.missing(sample.trace)
        if missing is None:
            return sample
        lacking[missing] = None
    where = "the built-in samples" if file is None else file.name
    fix = "; give a file with one by --trace FILE" if file is None else ""
    reasons = "; ".join(lacking) or "it holds no trace"
    raise click.ClickException(f"no trace of {where} serves {judge.name}: {reasons}{fix}")


def _read_samples(file: IO[str]) -> Iterator[Sample]:
    for number, trace in read_traces(cast("TextIO", file)):
        if isinstance(trace, str):
            raise click.ClickException(f"{file.name}: line {number} {trace}")
        yield Sample(trace, file.name, number)


def _join_sessions(samples: Iterable[Sample], settings: Settings) -> Iterator[Sample]:
    """Join the traces of each conversation at the place of its last trace; the others follow."""
    conversations, places, single = Conversations(settings), dict[str, Sample](), list[Sample]()
    for sample in samples:
        if has_text(sample.trace.session_id):
            conversations.add(sample.trace, len(msgspec.json.encode(sample.trace)))
            places[sample.trace.trace_id] = sample
        else:
            single.append(sample)
    for conversation in conversations.joined():
        yield places[conversation.trace.trace_id]._replace(trace=conversation.trace)
    yield from single


def _built_in_samples(judge: Judge) -> Iterator[Sample]:
    folder = files("judges").joinpath("samples")
    places = (folder, folder.joinpath("references"), folder.joinpath("agents"))
    # A judge that reads the steps of a trace accepts nearly every trace, but only those of agents have steps.
    for place in places if judge.exploration is None else reversed(places):
        for path in sorted(place.iterdir(), key=lambda path: path.name):
            if path.name.endswith(".jsonl"):
                with path.open("r", encoding="utf-8") as file:
                    for sample in _read_samples(file):
                        yield sample._replace(file=path.name)


def _sections(judge: Judge, document: Mapping[str, Any]) -> Iterator[str]:
    def indent_json(value: object) -> str:
        return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()

    heading = [f"{judge.name}, version {judge.version}", judge.asks, f"needs {', '.join(document['needs'])}"]
    heading.append(f"settings: {indent_json(document['settings']) if document['settings'] else 'none'}")
    if judge.unit == "session":
        heading.append("unit: session")
    if document["origin"] != _BUILT_IN:
        heading.append(f"defined in: {document['origin']}")
    if "template" in document:
        # Metadata of a published file may hold control characters.
        heading.append(f"template: {neutralise(indent_json(document['template']))}")
    file, line, trace_id = document["trace"].values()
    heading.append(f"trace: {file}, line {line}, trace_id {neutralise(trace_id)}")
    yield "\n".join(heading)
    requests = document["requests"]
    for number, messages in enumerate(requests, 1):
        which = f" ({number} of {len(requests)})" if len(requests) > 1 else ""
        for message in messages:
            yield f"===== {message['role']}{which} =====\n{message['content']}"
    for tool in document.get("tools", ()):
        yield f"===== tool {tool.name} =====\n{tool.description}\n{indent_json(tool.parameters)}"
    for question in document.get("questions", ()):
        listed = "".join(f"\n- {value}: {meaning}" for value, meaning in question.options)
        yield f"===== {question.kind}, for a model of decisions =====\n{question.instructions}{listed}"
    if judge.run is None:
        yield f"===== schema =====\n{indent_json(judge.schema)}"
    else:
        yield "It is written in Python, and asks no judge model."
