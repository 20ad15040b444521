"""`tracejudge doctor`: look at every part that TraceJudge needs, and name the mend of each that is broken."""

import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import click
import msgspec
from rich.table import Table
from rich.text import Text

from worker.cli.doctor.asking import ASK_S, ask
from worker.cli.doctor.books import books, circuits, dead_letters
from worker.cli.doctor.broker import broker
from worker.cli.doctor.endpoints import endpoint
from worker.cli.doctor.examining import Look, examine
from worker.cli.doctor.finding import Finding, broken, ok
from worker.cli.doctor.judge_versions import judge_versions
from worker.cli.doctor.page import page
from worker.cli.doctor.permissions import permissions, worker_commands
from worker.cli.doctor.receiver import receiver
from worker.cli.doctor.redis_server import clock, keeping, reach
from worker.cli.doctor.running import roles
from worker.cli.options import CONFIG, JSON, OUT, REDIS_URL, settings_from
from worker.keys import Keys
from worker.settings import Settings, SettingsError
from worker.store import Store

__all__ = ["command", "diagnose"]

_STYLES: Final[Mapping[str, str]] = {"ok": "green", "warning": "yellow", "broken": "bold red"}


@click.command("doctor")
@CONFIG
@REDIS_URL
@click.option("--ask", "asks", is_flag=True, help="Ask each model one real, tiny question, and tell what it cost.")
@JSON
def command(config: str | None, redis_url: str | None, *, asks: bool, as_json: bool) -> None:
    """Look at configuration, Redis, broker, models, receiver, clock, workers and books.

    Names each broken part with its mend. Exit code 1 when something is broken; warnings alone are none.
    """
    try:
        settings = settings_from(config, {"redis_url": redis_url})
    except SettingsError as error:
        found = [_misconfigured(error)]
    else:
        found = [ok("configuration", "it can be read"), *diagnose(settings, os.environ, asks=asks)]
    if as_json:
        print(msgspec.json.encode({"ok": not _any_broken(found), "parts": found}).decode())
    else:
        OUT.print(_table(found))
    sys.exit(int(_any_broken(found)))


def diagnose(settings: Settings, environment: Mapping[str, str], *, asks: bool = False) -> list[Finding]:
    """Look at all parts, those that need Redis only when it answers."""
    url = settings.redis_url
    first = examine([Look("redis", lambda: [reach("redis", url)]), *_outside(settings, environment, asks=asks)])
    if first[0].result == "broken":
        return first
    store = Store(url, Keys(settings.prefix))
    try:
        second = examine(_inside(settings, store))
    finally:
        store.close()
    return [first[0], *second, *first[1:]]


def _outside(settings: Settings, environment: Mapping[str, str], *, asks: bool) -> Sequence[Look]:
    """List what can be looked at without Redis."""
    looks = [Look("metrics page", partial(page, settings, environment))]
    if settings.broker_url:
        looks.append(Look("broker", partial(broker, settings)))
    for name, model in settings.models.items():
        looks.append(Look(f"model {name}", partial(endpoint, name, model, environment)))
        if asks and model.provider in {"openai", "anthropic"}:
            looks.append(Look(f"answer of {name}", partial(ask, name, model, environment), ASK_S))
    if (otlp := settings.otlp_endpoint) is not None:
        looks.append(Look("otlp receiver", partial(receiver, otlp)))
    return looks


def _inside(settings: Settings, store: Store) -> Sequence[Look]:
    """List what can be looked at in Redis."""
    url = settings.redis_url
    commands = worker_commands(store.keys)
    return [
        Look("redis keeping", partial(keeping, url)),
        Look("redis permissions", lambda: [permissions("redis permissions", url, commands)]),
        *([] if settings.broker_url else [Look("broker", partial(broker, settings))]),
        Look("clock", partial(clock, url)),
        Look("roles", partial(roles, settings, store)),
        Look("circuits", partial(circuits, store)),
        Look("books", partial(books, store)),
        Look("dead letters", partial(dead_letters, store)),
        Look("judge versions", partial(judge_versions, settings, store)),
    ]


def _misconfigured(error: SettingsError) -> Finding:
    what, _, mend = f"{error}".partition("; ")
    return broken("configuration", what, mend or "correct it there")


def _any_broken(found: Sequence[Finding]) -> bool:
    return any(finding.result == "broken" for finding in found)


def _table(found: Sequence[Finding]) -> Table:
    table = Table(title="What there is", box=None, padding=(0, 2), show_header=False)
    for finding in found:
        said = Text(finding.what)
        if finding.mend:
            said.append(f"\n→ {finding.mend}", style="bold")
        table.add_row(Text(finding.result, style=_STYLES[finding.result]), finding.name, said)
    return table
