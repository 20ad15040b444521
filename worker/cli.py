"""The command line `tracejudge`: a module a command, imported when the command is called."""

import gc
import io
import os
import signal
import sys
from typing import Final

import click

from worker.base.commands.groups import LazyGroup

_FIRST_PROCESS: Final = 1


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="\b\nExample:\n  tracejudge demo",
)
@click.version_option(package_name="tracejudge-worker", prog_name="tracejudge")
def cli() -> None:
    """Judge production traces of LLM features and export the scores."""


def main(arguments: list[str] | None = None) -> None:
    """Run a command; wrong usage or configuration ends in one line and exit code 2, a failure in exit code 1."""
    # Imports make objects that stay; at the default of 700 looking for garbage among them is a tenth of a start.
    gc.set_threshold(50_000, 20, 20)
    from judges.core.faults import ReportedError  # noqa: PLC0415 - after the line above

    if isinstance(sys.stdout, io.TextIOWrapper):
        # A character that the terminal or the locale cannot show must not end the command.
        sys.stdout.reconfigure(errors="backslashreplace")
    if os.getpid() == _FIRST_PROCESS and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        # The first process of a container ignores signals without a handler.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        # click's standalone mode would end with exit code 1 on Ctrl-C.
        code = cli.main(args=arguments, prog_name="tracejudge", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except ReportedError as error:
        print(f"tracejudge: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    # `python -m worker.cli` is the command `tracejudge`.
    from tracejudge_worker import main as checked_main

    checked_main()
