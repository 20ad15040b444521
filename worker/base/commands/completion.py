"""Completion in the shell from a table of all commands: importing the commands would take a second for each key.

`completion.json` is written by `make generate` from the commands. Values come from the configuration's text, which is
not checked here, and from the services of the last report.
"""

import json
import os
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import click
from click.shell_completion import CompletionItem, shell_complete

TABLE: Final = Path(__file__).with_name("completion.json")
_VARIABLE: Final = "_TRACEJUDGE_COMPLETE"


def complete() -> None:
    """Answer the shell, and end the process, if it asks for completions."""
    if instruction := os.environ.get(_VARIABLE):
        sys.exit(shell_complete(_tree(json.loads(TABLE.read_text("utf-8"))), {}, "tracejudge", _VARIABLE, instruction))


def _services_file() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "tracejudge", "services.json")


def remember_services(names: Iterable[str]) -> None:
    """Keep the services of a report for completion; a folder that cannot be written to is no failure."""
    with suppress(OSError, RuntimeError):
        file = _services_file()
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.write_text(json.dumps(sorted(names)[:200]), encoding="utf-8")


def _tree(table: Mapping[str, Any]) -> click.Group:
    root = click.Group("tracejudge")
    for path, (text, parameters) in table["commands"].items():
        group, _, name = path.rpartition(" ")
        parent: Any = root.commands[group] if group else root  # A group comes before its commands.
        params = [_parameter(name, takes, table["judges"]) for name, takes in parameters]
        kind = click.Group if any(other.startswith(f"{path} ") for other in table["commands"]) else click.Command
        parent.add_command(kind(name, params=params, help=text))
    return root


def _parameter(name: str, kind: str | list[str], judges: list[str]) -> click.Parameter:
    many = kind == "files"

    def values(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
        names = sorted(set(_values(kind, context.params.get("config"), judges)))
        items = [CompletionItem(value) for value in names if value.startswith(incomplete)]
        return items or [CompletionItem(incomplete, type="file")] if kind == "judge" else items

    choices = click.Choice(kind) if isinstance(kind, list) else click.Path() if kind.startswith("file") else None
    completing = None if choices or not kind else values
    if not name.startswith("-"):
        return click.Argument([name], type=choices, nargs=-1 if many else 1, shell_complete=completing)
    return click.Option([name], type=choices, is_flag=not kind, multiple=bool(kind), shell_complete=completing)


def _values(kind: str | list[str], config: Sequence[str] | None, judges: list[str]) -> Iterator[str]:
    path = Path(config[0] if config else os.environ.get("TRACEJUDGE_CONFIG") or "tracejudge.toml")
    settings: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        settings = tomllib.loads(path.read_text("utf-8"))
    with suppress(OSError, ValueError, TypeError, AttributeError, RuntimeError):
        if kind == "judge":
            yield from judges
            yield from settings.get("judges", {})
            yield from (file.stem for file in (path.parent / settings.get("judges_folder", "judges.d")).glob("*.toml"))
        elif kind == "model":
            yield from settings.get("models", {"default": {}})
        elif kind == "service":
            rules = [rule.get("where", {}) for rule in settings.get("rules", [])]
            yield from (where["service"] for where in rules if "service" in where)
            yield from json.loads(_services_file().read_text("utf-8"))
