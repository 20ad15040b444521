"""`tracejudge judges`: the catalogue, what a judge asks, and how far one agrees with labels."""

import click

from worker.cli.judges.list import print_list
from worker.cli.judges.show import show
from worker.cli.judges.test import test
from worker.cli.offline_settings import offline_settings
from worker.cli.options import CONFIG, JSON

__all__ = ["command"]


@click.group("judges", invoke_without_command=True)
@CONFIG
@JSON
@click.pass_context
def command(context: click.Context, config: str | None, *, as_json: bool) -> None:
    """List the judges as they are configured; `show` one's prompt, or `test` one against labels."""
    if context.invoked_subcommand is None:
        print_list(offline_settings(config), as_json=as_json)
    elif config or as_json:
        raise click.UsageError(f"write options behind `judges {context.invoked_subcommand}`")


command.add_command(show)
command.add_command(test)
