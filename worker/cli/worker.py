"""`tracejudge worker`: the Celery worker with the right pool and options."""

import os
import socket
import sys

import click

from worker import logs
from worker.cli.options import CONFIG, REDIS_URL, settings_from

__all__ = ["command"]


@click.command("worker")
@CONFIG
@REDIS_URL
@click.option("--roles", metavar="LIST", help="Stages to run: ingest, judge, export, with commas; all unless given.")
@click.option("--metrics-port", type=int, help="Port of the metrics page; 0 takes any free one.")
def command(config: str | None, redis_url: str | None, roles: str | None, metrics_port: int | None) -> None:
    """Run the worker until SIGTERM or Ctrl-C; logs go to standard error as JSON."""
    settings = settings_from(
        config,
        {
            "redis_url": redis_url,
            "metrics_port": metrics_port,
            "roles": [role.strip() for role in roles.split(",")] if roles else None,
        },
    )
    logs.configure(settings.log_level)
    # Celery and Redis are imported only now: a wrong configuration is told at once.
    from worker.celery import make_app  # noqa: PLC0415

    options = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    node = f"tracejudge-{os.getpid()}@{socket.gethostname()}"
    app = make_app(settings)
    app.worker_main(["--quiet", "worker", "--hostname", node, "--loglevel", settings.log_level, *options])
    sys.exit(app.tracejudge_status)
