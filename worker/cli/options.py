"""Options and helpers that verbs share."""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, get_args

import click
import msgspec
from rich.console import Console

from judges.catalog import configured
from judges.combine import Combine
from judges.judge import Judge
from judges.models.build import ModelSettingsError, build
from worker.configuration import load
from worker.judge_files import checked, read_judge
from worker.keys import Keys
from worker.limits.gate import Gate
from worker.limits.model import LimitedModel
from worker.limits.retries import Retries, RetryBudget
from worker.limits.witness import Witness
from worker.metrics import Metrics
from worker.settings import Settings, SettingsError
from worker.store import Store, StoreError, address
from worker.wording import nearest

__all__ = [
    "COMBINE",
    "CONFIG",
    "JSON",
    "MODELS",
    "NOTES",
    "OUT",
    "PATIENCE_S",
    "REDIS_URL",
    "TRIES",
    "amount",
    "is_judge_file",
    "judges_named",
    "open_model",
    "open_store",
    "reasons_in_words",
    "settings_from",
    "with_judge_files",
]

OUT: Final = Console()
"""Standard output: what was asked for."""
NOTES: Final = Console(stderr=True)
"""Standard error: progress and remarks."""

PATIENCE_S: Final = 600.0
"""An endpoint that asks for more, as at the end of a day's quota, is not waited for."""

CONFIG = click.option("--config", metavar="FILE", help="Configuration file; else tracejudge.toml where there is one.")
REDIS_URL = click.option("--redis-url", metavar="URL", help="Where TraceJudge's Redis is; else from the configuration.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON on standard output and nothing else.")
MODELS = click.option(
    "--model",
    "model_names",
    default=("default",),
    show_default=True,
    multiple=True,
    metavar="NAME",
    help="Which [models.NAME] judges; repeatable.",
)
COMBINE = click.option(
    "--combine", type=click.Choice(get_args(Combine)), help="Add a verdict that combines those of all models."
)
TRIES = click.option(
    "--tries",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    metavar="N",
    help="How often to ask when the model is busy, slow or away.",
)


def amount(count: int, noun: str) -> str:
    """Write a number with its noun."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def settings_from(config: str | None, arguments: Mapping[str, object] | None = None) -> Settings:
    """Load the settings for a verb.

    Raises:
        SettingsError: With file, key and mend.
    """
    return load(os.environ, config, arguments)


def judges_named(settings: Settings, *names: str) -> tuple[Judge, ...]:
    """Take judges as they are configured, each once.

    Raises:
        click.UsageError: There is no judge of a name.
    """
    known = configured(settings.judges)
    for name in names:
        if name not in known:
            raise click.UsageError(f"there is no judge {name!r}{nearest(name, known)}")
    return tuple(known[name] for name in dict.fromkeys(names))


def with_judge_files(settings: Settings, *given: str) -> tuple[Settings, tuple[str, ...]]:
    """Take judges from their files, beside those of the configuration or in place of one of the same name.

    Args:
        given: Names of judges, and files: whatever ends in `.toml`, or is no judge and is a file.

    Returns:
        The settings with what the files define, and the names of the judges that were given.

    Raises:
        SettingsError: A file defines no judge; with file, key and mend.
    """
    files = {one: read_judge(Path(one)) for one in given if is_judge_file(one, settings)}
    tables = checked(files.values())
    names = tuple(files[one].name if one in files else one for one in given)
    return msgspec.structs.replace(settings, judges={**settings.judges, **tables}), names


def is_judge_file(given: str, settings: Settings) -> bool:
    """Tell whether a judge is given by its file and not by a name that is known."""
    return given.endswith(".toml") or (given not in configured(settings.judges) and _is_file(given))


def _is_file(given: str) -> bool:
    try:
        return Path(given).is_file()
    except (OSError, ValueError):
        # A name that no file could have, or in a folder that is not ours to look into.
        return False


def open_model(settings: Settings, name: str, tries: int, witness: Witness) -> LimitedModel:
    """Make the model of `[models.NAME]` under the limits of the worker, but with more patience.

    Args:
        tries: How often one request is sent at most.
        witness: Who is told why calls wait.

    Raises:
        SettingsError: There is no such model, or it cannot be made from its settings.
    """
    if name not in settings.models:
        raise SettingsError(f"there is no [models.{name}]{nearest(name, settings.models)}")
    try:
        model = build(settings.models[name], os.environ)
    except ModelSettingsError as error:
        raise SettingsError(f"models.{name}.{error}") from error
    gate = Gate(model.settings.judge_model, model.settings.max_in_flight, patience_s=PATIENCE_S, witness=witness)
    # Whoever says how often to try pays for it: no budget beside that.
    return LimitedModel(model, Metrics(settings), gate, Retries(tries, RetryBudget(reserve=math.inf, cap=math.inf)))


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


def reasons_in_words(unscored: Mapping[str, int]) -> str:
    """List counts by reason on one line."""
    return ", ".join(f"{amount:,} {reason}" for reason, amount in sorted(unscored.items())) or "none"
