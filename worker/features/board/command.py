"""`tracejudge board`: pages with shares, verdicts, losses and human labels."""

import importlib.util
import os

import click
import msgspec

from judges.core.faults import install_command
from worker.base.commands.options import REDIS, note, note_unknown_variables
from worker.core.config.loading import load
from worker.core.config.reading import config_path
from worker.core.config.settings import SettingsError
from worker.core.telemetry import logs
from worker.features.board.feature import BOARD


@click.command("board")
@REDIS
@click.option("--host", help="Address to listen on; other machines need a token or a reverse proxy.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on; 0 chooses a free one.")
@click.option(
    "--metrics-port", type=click.IntRange(0, 65535), help="Port of metrics, /healthz and /readyz; none unless given."
)
def command(
    config: str | None, redis_url: str | None, host: str | None, port: int | None, metrics_port: int | None
) -> None:
    """Serve the board until SIGTERM or Ctrl-C.

    The overview says what got worse, since when, and how sure that is. Verdicts are shown with the evidence of each
    sentence, the funnel with every loss and its reason, and the queue of labels asks people what the judge was asked.

    On the loopback nobody has to sign in; else `[board]` names a token, or the header of a reverse proxy. Use the
    configuration of the workers.

    \b
    Examples:
      tracejudge board
      tracejudge board --port 0 --redis-url redis://localhost:6379/0
    """  # noqa: D301 - click's mark for lines that stay as they are
    if importlib.util.find_spec("jinja2") is None:
        raise SettingsError(f"the board needs further packages: {install_command('board')}")
    settings = load(os.environ, config, {"redis_url": redis_url}, needs_rules=False)
    options = (("host", host), ("port", port), ("metrics_port", metrics_port))
    listen = {name: value for name, value in options if value is not None}
    settings = BOARD.with_value(settings, msgspec.structs.replace(BOARD.read(settings), **listen))
    note_unknown_variables(settings)
    logs.configure(settings.log_level)
    from worker.features.board.board_server import BoardServer  # noqa: PLC0415 - after the check that its packages are there

    server = BoardServer(settings, os.environ, config_path(os.environ, config))
    server.run(started=lambda: note(f"board: {server.url}"))
