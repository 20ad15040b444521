"""Options and helpers that verbs share."""

import os
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import click
from rich.console import Console

from worker.configuration import load
from worker.keys import Keys
from worker.settings import Settings
from worker.store import Store, StoreError, address

__all__ = ["CONFIG", "JSON", "NOTES", "OUT", "REDIS_URL", "open_store", "settings_from"]

F = TypeVar("F", bound=Callable[..., Any])

OUT: Final = Console()
"""Standard output: what was asked for."""
NOTES: Final = Console(stderr=True)
"""Standard error: progress and remarks."""

CONFIG = click.option("--config", metavar="FILE", help="Configuration file; else tracejudge.toml where there is one.")
REDIS_URL = click.option("--redis-url", metavar="URL", help="Where TraceJudge's Redis is; else from the configuration.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON on standard output and nothing else.")


def settings_from(config: str | None, arguments: Mapping[str, object] | None = None) -> Settings:
    """Load the settings for a verb.

    Raises:
        SettingsError: With file, key and mend.
    """
    return load(os.environ, config, arguments)


def open_store(settings: Settings) -> Store:
    """Connect to Redis, or say where it was sought.

    Raises:
        StoreError: There is no Redis, or it does not let us in.
    """
    store = Store(settings.redis_url, Keys(settings.prefix))
    try:
        store.call(lambda client: client.ping())
    except StoreError as error:
        raise StoreError(
            f"{error}: {address(settings.redis_url)}; set redis_url, TRACEJUDGE_REDIS_URL or --redis-url"
        ) from error
    return store
