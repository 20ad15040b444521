"""`tracejudge judges`: all judges with the versions that a worker of this configuration would use."""

import textwrap

import msgspec

from judges.catalog import configured
from judges.code import making
from judges.judge import Judge, Metric
from judges.prompt import neutralise
from worker.cli.judges.origin import BUILT_IN, origin, template
from worker.cli.options import OUT
from worker.settings import Settings

__all__ = ["print_list", "settings_of"]


def print_list(settings: Settings, *, as_json: bool) -> None:
    """Print the catalogue, as one JSON document or for people."""
    judges = configured(settings.judges).values()
    if as_json:
        print(msgspec.json.encode([_row(judge, settings) for judge in judges]).decode())
        return
    for number, judge in enumerate(judges):
        if number:
            print()
        _print(judge, settings)


def settings_of(judge: Judge) -> dict[str, object]:
    """Take the settings in force, by name."""
    in_force = making.settings_of(judge) or judge.settings
    return {name: msgspec.to_builtins(value) for name, value in msgspec.structs.asdict(in_force).items()}


def _row(judge: Judge, settings: Settings) -> dict[str, object]:
    found = template(judge.name, settings)
    return {
        "name": judge.name,
        "metrics": judge.metric_names,
        "needs": judge.needs_in_words,
        "scale": {metric.name: metric.scale for metric in judge.metrics},
        "pass": {metric.name: metric.pass_rule for metric in judge.metrics},
        "version": judge.version,
        "asks": judge.asks,
        "settings": settings_of(judge),
        "origin": origin(judge.name, settings),
        **({} if found is None else {"template": found}),
    }


def _print(judge: Judge, settings: Settings) -> None:
    """Describe a judge in a few lines that stay readable in a narrow terminal."""
    OUT.print(f"[bold]{judge.name}[/bold] [dim]{judge.version[:8]}[/dim]", highlight=False)
    lines = [
        judge.asks,
        f"needs {', '.join(judge.needs_in_words)}",
        *(_gives(metric, bears_name=metric.name == judge.name) for metric in judge.metrics),
    ]
    if in_force := settings_of(judge):
        given = (f"{name} = {msgspec.json.encode(value).decode()}" for name, value in in_force.items())
        lines.append(f"settings {', '.join(given)}")
    if (place := origin(judge.name, settings)) != BUILT_IN:
        lines.append(f"defined in {place}")
    if (found := template(judge.name, settings)) is not None:
        lines.append(f"asks with {neutralise(msgspec.json.encode(found).decode())}")
    for line in lines:
        # What goes on stands further in, so that the beginnings can be read down.
        print(textwrap.fill(line, max(40, OUT.width), initial_indent="  ", subsequent_indent="    "))


def _gives(metric: Metric, *, bears_name: bool) -> str:
    name = "" if bears_name else f"{metric.name}: "
    passes = f"{metric.pass_rule} passes" if metric.pass_rule else metric.passes
    return f"gives {name}{metric.scale}, {passes}"
