"""The command `tracejudge`: one file a verb; a verb is loaded only when it is called."""

import importlib
import io
import os
import signal
import sys
from collections.abc import Mapping
from typing import Final

import click

from worker.embedded import EmbeddedRedisError
from worker.settings import SettingsError
from worker.store import StoreError

__all__ = ["main", "verbs"]

_FIRST_PROCESS: Final = 1
_INTERRUPTED: Final = 130
_TERMINATED: Final = 143
_VERBS: Final[Mapping[str, str]] = {
    "account": "Print the books: what became of every trace and evaluation",
    "dead": "List, show, retry or drop evaluations that were given up",
    "demo": "Run sample traffic through an embedded Redis and a real worker",
    "doctor": "Look at every part, and name the mend of each that is broken",
    "evaluate": "Judge the traces of a file offline, without Redis",
    "forget": "Erase a trace or a person",
    "judges": "List the judges; show a prompt; measure a judge against labels",
    "publish": "Publish traces from a file",
    "replay": "Judge traces again that the stream still holds",
    "tail": "Follow verdicts live",
    "worker": "Run the worker",
}


class _Verbs(click.Group):
    """Finds a verb in the module of its name."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _VERBS:
            return None
        command = importlib.import_module(f"worker.cli.{cmd_name}").command
        assert isinstance(command, click.Command)  # noqa: S101 - a slip of ours, not of the user
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the verbs without loading them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(_VERBS.items()))


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="tracejudge-worker", prog_name="tracejudge")
def _cli() -> None:
    """Know, in production, whether an LLM feature still answers well."""


def verbs() -> tuple[str, ...]:
    """List the verbs there are."""
    return tuple(_VERBS)


def main(arguments: list[str] | None = None) -> None:
    """Run the command; what the user can mend ends in one line and exit code 2, what failed in exit code 1."""
    _prepare()
    try:
        # Not click's own way of ending: it makes exit code 1 of Ctrl-C.
        code = _cli.main(args=arguments, prog_name="tracejudge", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except SettingsError as error:
        _end(f"{error}", 2)
    except (StoreError, EmbeddedRedisError) as error:
        _end(f"{error}", 1)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(_INTERRUPTED)


def _prepare() -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        # What a terminal or a locale cannot show is no reason to end with a traceback.
        sys.stdout.reconfigure(errors="backslashreplace")
    if os.getpid() == _FIRST_PROCESS:
        # The first process of a container is ended only by signals that it handles; Celery does so a second later.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))


def _end(message: str, code: int) -> None:
    print(f"tracejudge: {message}", file=sys.stderr)
    sys.exit(code)
