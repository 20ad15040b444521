"""The command `tracejudge gateway`, and `tracejudge forget` for spans that wait."""

import os
from operator import methodcaller

import click
import msgspec

from worker.base.commands.options import REDIS, note_unknown_variables
from worker.base.forget.forget import Eraser
from worker.core.config.reading import config_path, load_without_judges
from worker.core.telemetry import logs
from worker.features.gateway.feature import GATEWAY, GatewayKeys


@click.command("gateway")
@REDIS
@click.option("--host", help="Address to listen on; other machines can send only with tokens.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on; 0 chooses a free one.")
@click.option("--metrics-port", type=click.IntRange(0, 65535), help="Port of its metrics page; 0 chooses a free one.")
def command(
    config: str | None, redis_url: str | None, host: str | None, port: int | None, metrics_port: int | None
) -> None:
    """Accept traces until SIGTERM or Ctrl-C; logs go to standard error as JSON.

    OTLP/HTTP at /v1/traces and /v1/logs, JSON at /v1/tracejudge. A reply of 200 means that Redis has the data.
    """
    settings = load_without_judges(os.environ, config, {"redis_url": redis_url})
    options = {"host": host, "port": port, "metrics_port": metrics_port}
    listen = {name: value for name, value in options.items() if value is not None}
    settings = GATEWAY.with_value(settings, msgspec.structs.replace(GATEWAY.read(settings), **listen))
    note_unknown_variables(settings)
    logs.configure(settings.log_level)
    from worker.features.gateway.server import GatewayServer  # noqa: PLC0415 - no other command needs it

    GatewayServer(settings, os.environ, config_path(os.environ, config)).run()


class SpanEraser(Eraser):
    """Erases gathered spans. Before they are joined they name no person, so only their trace is known."""

    def erase(self) -> None:
        """Erase the spans of the target's traces, which count as ``gathered``."""
        store = self.run.store
        keys = GatewayKeys(store.keys.prefix)
        for trace_id in self.run.target.trace_ids:
            number, size = store.call(methodcaller("hmget", keys.gathered(trace_id), "count", "bytes"))
            self.run.result.gathered += number is not None
            if number is not None and not self.run.dry_run:
                store.run("gather_done", (keys.gather, keys.gather_due), (trace_id, number, size))
