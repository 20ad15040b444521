"""`tracejudge worker`: the Celery worker with the right pool and options."""

import os
import socket
import sys

import click

from judges.custom.definition import nearest
from tracejudge_worker import replaced_files
from worker.base.commands.options import REDIS
from worker.core.config.loading import load
from worker.core.config.reading import config_path
from worker.core.config.settings import SettingsError
from worker.core.telemetry import logs


@click.command("worker")
@REDIS
@click.option(
    "--roles",
    metavar="LIST",
    help="Roles to run: ingest, judge, export, monitor, separated by commas; all unless given.",
)
@click.option(
    "--queues",
    metavar="LIST",
    help="Judge models to judge with, as metrics name them, `code` or `panel`, separated by commas; all unless given.",
)
@click.option(
    "--partitions", metavar="LIST", help="Partitions of a cluster to serve, from 0, as 0-3 or 0,2; all unless given."
)
@click.option("--metrics-port", type=int, help="Port of the metrics page; 0 chooses a free one.")
def command(  # noqa: PLR0917 - click calls by name
    config: str | None,
    redis_url: str | None,
    roles: str | None,
    queues: str | None,
    partitions: str | None,
    metrics_port: int | None,
) -> None:
    """Run the worker until SIGTERM or Ctrl-C; logs go to standard error as JSON."""
    if (wrong := replaced_files()) is not None:
        raise SettingsError(wrong)
    chosen = [role.strip() for role in roles.split(",")] if roles else None
    arguments = {"redis_url": redis_url, "metrics_port": metrics_port, "roles": chosen, "served_partitions": partitions}
    settings = load(os.environ, config, arguments, needs_broker=True)
    logs.configure(settings.log_level, has_own_broker=settings.broker_url is not None)
    # Celery is imported after the settings are checked, so that a wrong configuration is reported at once.
    from worker.celery import make_app  # noqa: PLC0415

    app = make_app(settings, config_path(os.environ, config))
    consumed = [name.strip() for name in queues.split(",")] if queues else []
    labels = [queue.removeprefix(settings.queue("")) for queue in app.tracejudge_queues]
    for name in consumed:
        if name not in labels:
            raise SettingsError(f"--queues: no rule uses the judge model {name!r}{nearest(name, labels)}")
    # Not by `app.worker_main`: Celery's command line imports an interactive shell, a fifth of the CPU of a start.
    worker = app.Worker(
        hostname=f"tracejudge-{os.getpid()}@{socket.gethostname()}",
        loglevel=settings.log_level,
        queues=list(map(settings.queue, consumed)) or None,
        quiet=True,
        without_gossip=True,
        without_mingle=True,
        # A monitor that receives task events recognises a worker by its Celery heartbeat.
        without_heartbeat=not settings.task_events,
    )
    worker.start()
    sys.exit(app.tracejudge_status)
