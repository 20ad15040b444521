"""The table of completion in the shell: every command with its options, and what each takes."""

import json

import click

from judges.registry import catalogue
from worker.base.commands.completion import TABLE
from worker.cli import cli

__all__ = ["FOLDER", "pages"]

FOLDER = TABLE.parent
_KINDS = {"--judge": "judge", "--model": "model", "--service": "service", "--config": "file", "NAME|FILE": "judge"}


def pages() -> dict[str, str]:
    """Write the table."""
    table = {"judges": sorted(catalogue()), "commands": dict(sorted(_rows("", cli)))}
    return {TABLE.name: f"{json.dumps(table)}\n"}


def _rows(path: str, command: click.Command) -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = []
    if path:
        params = [[_name(each), _kind(each)] for each in command.params if not getattr(each, "hidden", False)]
        rows = [(path, (command.get_short_help_str(60), params))]
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None  # noqa: S101 - click lists it
            rows += _rows(f"{path} {name}".strip(), inner)
    return rows


def _name(parameter: click.Parameter) -> str:
    return parameter.opts[0]


def _kind(parameter: click.Parameter) -> str | list[str]:
    if isinstance(parameter, click.Option) and parameter.is_flag:
        return ""
    if isinstance(parameter.type, click.Choice):
        return [str(choice) for choice in parameter.type.choices]
    for name in (_name(parameter), parameter.metavar):
        if name in _KINDS:
            return _KINDS[name]
    is_file = isinstance(parameter.type, click.Path | click.File) or parameter.metavar in {"FILE", "OUT"}
    return ("files" if parameter.nargs < 0 else "file") if is_file or _name(parameter) == "file" else "text"
