"""The help of every command: an example that fits a terminal of 80 columns, and is parsed as it stands."""

import contextlib
import shlex
from collections.abc import Iterator

import click
import pytest

from worker.cli import cli


def each_command(command: click.Command, context: click.Context) -> Iterator[click.Context]:
    yield context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from each_command(inner, click.Context(inner, parent=context, info_name=name))


def test_every_help_ends_with_examples_that_fit_and_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(click.File, "convert", lambda _self, value, *_: value)
    monkeypatch.setattr(click.Path, "convert", lambda _self, value, *_: value)
    root = click.Context(cli, info_name="tracejudge", terminal_width=80)
    for context in each_command(cli, root):
        name, text = context.command_path, context.command.get_help(context)
        _, marked, examples = text.rpartition("\n  Example")
        assert marked, f"{name}: no example"
        examples = examples.partition("\n\n")[0]
        lines = [line.strip() for line in examples.replace("\\\n", " ").splitlines()[1:] if line.strip()]
        assert lines, name
        assert [line for line in examples.splitlines() if len(line) > 80] == [], name
        assert any(line.startswith(name) for line in lines), (name, lines)
        for line in lines:
            words = shlex.split(line, comments=True)
            words = words[: next((place for place, word in enumerate(words) if word in {"|", ">"}), None)]
            parent, command = root, cli
            while words[1:] and isinstance(command, click.Group) and not words[1].startswith("-"):
                inner = command.get_command(parent, words.pop(1))
                assert inner is not None, (name, line)
                command = inner
            with contextlib.suppress(click.exceptions.NoArgsIsHelpError):
                command.make_context(line, words[1:], parent=root)


def test_every_verb_that_ends_prints_json_by_either_name() -> None:
    servers = {"board", "gateway", "up", "worker"}
    for context in each_command(cli, click.Context(cli, info_name="tracejudge")):
        command = context.command
        if isinstance(command, click.Group) or command.name in servers:
            continue
        text, short, long = (
            command.make_context("", [*options], resilient_parsing=True).params
            for options in ((), ("--json",), ("--format", "json"))
        )
        assert short == long != text, context.command_path
