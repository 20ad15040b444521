"""The reference page of commands, from click: each command with its arguments, options and defaults."""

import inspect
import textwrap
from collections.abc import Iterator
from typing import Final

import click

from worker.cli import cli

__all__ = ["each_command", "page"]

_HEAD: Final = """\
# Commands

Every command of `tracejudge` with its arguments and options; `tracejudge COMMAND --help` prints the same. Options that
name no default are off, or absent. [Exit codes and errors](errors.md) have a page of their own.

With `--json` standard output holds JSON and nothing else; logs go to standard error. Where an id is expected, a unique
prefix of six characters is enough. Durations are written as `90s`, `15m`, `24h` or `7d`.
"""


def each_command() -> Iterator[tuple[str, click.Command]]:
    """Yield every command that can be called, with its whole name."""
    yield from _walk("tracejudge", cli)


def page() -> str:
    """Write the page."""
    parts = [_HEAD, "| command | does |", "| --- | --- |"]
    commands = list(each_command())
    parts += [
        f"| [`{name}`](#{name.replace(' ', '-')}) | {command.get_short_help_str(200)} |" for name, command in commands
    ]
    for name, command in commands:
        parts += ["", f"## {name}\n", f"```text\n{_usage(name, command)}\n```\n", _text(command)]
        arguments = [one for one in command.params if isinstance(one, click.Argument)]
        options = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
        if options:
            parts += ["", "| option | default | what |", "| --- | --- | --- |"]
            parts += [_row(option) for option in options]
        parts += [""] if arguments and not options else []
    return "\n".join(parts) + "\n"


def _walk(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group) or (command.invoke_without_command and command is not cli):
        yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for inner in sorted(command.list_commands(context)):
            found = command.get_command(context, inner)
            assert found is not None  # noqa: S101 - click lists it
            yield from _walk(f"{name} {inner}", found)


def _usage(name: str, command: click.Command) -> str:
    context = click.Context(command, info_name=name)
    return " ".join([name, *command.collect_usage_pieces(context)])


def _text(command: click.Command) -> str:
    """Return the help text as paragraphs, and as code what click leaves as it is."""
    paragraphs = inspect.cleandoc(command.help or "").split("\f")[0].strip().split("\n\n")
    return "\n\n".join(_paragraph(paragraph) for paragraph in paragraphs)


def _paragraph(text: str) -> str:
    if "\b" not in text:
        return _escaped(" ".join(text.split()))
    title, _, lines = text.replace("\b", "").strip("\n").partition("\n")
    return f"{title}\n\n```text\n{textwrap.dedent(lines)}\n```"


def _row(option: click.Option) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    kind = option.make_metavar(click.Context(click.Command(""))) if not option.is_flag else ""
    default = option.default
    is_shown = default not in (None, False, (), []) and not callable(default) and "UNSET" not in repr(default)
    shown = f"`{default}`" if is_shown else "-"
    text = " ".join((option.help or "").split())
    required = "Required. " if option.required else ""
    return f"| {names}{f' {_escaped(kind)}' if kind else ''} | {shown} | {required}{_escaped(text)} |"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
