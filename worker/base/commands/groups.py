"""Groups of commands."""

import difflib
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

import click

from worker.core.features import Command, import_attribute, installed

# Of commands whose description has none; each line fits 80 columns.
_EXAMPLES: Final = {
    "account": "account --json",
    "demo": "demo --seconds 40 --full",
    "doctor": "doctor --ask",
    "evaluate": "evaluate traces.jsonl --judge groundedness --output out.jsonl",
    "failures": "failures --service support-bot --hours 24",
    "gateway": "gateway --port 4318",
    "help": "help TraceJudgeQualityDrop",
    "init": "init --base-url http://localhost:8000/v1 --model qwen3",
    "judges": "judges show groundedness",
    "judges align": "judges align tone labels.jsonl --model m --out judges.d/tone.toml",
    "judges show": "judges show groundedness --trace traces.jsonl",
    "judges test": "judges test safety labelled.jsonl --label safe --min 0.8",
    "labels export": "labels export --judge safety --traces --output labels.jsonl",
    "labels import": "labels import labels.jsonl --judge safety --drawn 0.05",
    "labels list": "labels list --judge safety",
    "mcp": "mcp --config tracejudge.toml",
    "plan": "plan --rate 0.1 --rate 0.5 --model chat",
    "publish": "publish traces.jsonl",
    "replay": "replay --since 1h --judge safety --dry-run",
    "tail": "tail --failed --service support-bot",
    "worker": "worker --roles ingest,judge",
}


@cache
def commands(prefix: str = "") -> Mapping[str, Command]:
    """Return the commands of features below a group by name, without importing them: clients and rich take long."""
    rows = sorted(pair for feature in installed() for pair in feature.commands.items() if pair[0].startswith(prefix))
    return {name: row for key, row in rows if " " not in (name := key.removeprefix(prefix))}


class SuggestingGroup(click.Group):
    """Suggests the command that a misspelt name resembles; the help of each ends with an example."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, with its example."""
        command = self.find_command(ctx, cmd_name)
        example = _EXAMPLES.get(cmd_name if self.name == "cli" else f"{self.name} {cmd_name}")
        if command is not None and example is not None:
            command.epilog = f"\b\nExample:\n  tracejudge {example}"
        return command

    def find_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, or None."""
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or raise UsageError with a suggestion."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            longer = [name for name in _EXAMPLES if name.endswith(f" {args[0]}")] if self.name == "cli" else []
            close = longer or difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            if not close:
                raise
            raise click.UsageError(f"{error.message} Did you mean {close[0]!r}?", ctx) from error


class LazyGroup(SuggestingGroup):
    """Imports a command of a feature when it is called."""

    def __init__(self, *args: Any, prefix: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._prefix = prefix

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the names of all commands."""
        return sorted([*super().list_commands(ctx), *commands(self._prefix)])

    def find_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command, or return None."""
        if (row := commands(self._prefix).get(cmd_name)) is None:
            return super().find_command(ctx, cmd_name)
        command: click.Command = import_attribute(f"{row.module}.{row.attribute}")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands."""
        with formatter.section("Commands"):
            formatter.write_dl([*self._help(ctx)])

    def _help(self, ctx: click.Context) -> Iterator[tuple[str, str]]:
        rows = commands(self._prefix)
        for name in self.list_commands(ctx):
            yield name, rows[name].help if name in rows else self.commands[name].get_short_help_str()
