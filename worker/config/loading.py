"""Loads the settings: `tracejudge.toml`, then `TRACEJUDGE_*`, then arguments; the later wins.

Every mistake becomes a ``SettingsError`` of one line: the file or variable, the key, and how to fix it.
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, get_type_hints

import msgspec

from judges.core.model import ModelSettings
from judges.custom import DefinitionError
from judges.custom.definition import nearest, read_toml
from judges.custom.installed import installed
from judges.registry import CatalogueError, catalogue
from tracejudge.settings import VARIABLES as SDK_VARIABLES
from tracejudge.settings import Settings as SdkSettings
from tracejudge.settings import load_settings
from tracejudge.sharding import split_urls
from worker.config import judge_files
from worker.config.canary_file import Canary
from worker.config.checks import check_files, check_settings
from worker.config.errors import describe_error, with_rule_name
from worker.config.objectives import FILE_NAME, read_objectives
from worker.config.receivers import KINDS
from worker.config.settings import Budget, Cascade, JudgeCalibration, Rule, Seconds, Settings, SettingsError, Size

CONFIG_NAME: Final = "tracejudge.toml"
_PREFIX: Final = "TRACEJUDGE_"
_LISTS: Final = ("series_labels", "roles", "user_keys_former", "served_shards")
_TABLES: Final = ("models", "judges", "rules", "cascades", "budgets", "calibrations", "receivers")
_ROWS: Final = {"rules": Rule, "calibrations": JudgeCalibration}
# Tables of judges are converted later, by the judges that they configure.
_CONVERTED: Final = {"models": ModelSettings, "budgets": Budget, "cascades": Cascade}
_SECONDS: Final = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES: Final = {"": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_SWITCHES: Final = {"1": True, "true": True, "yes": True, "on": True} | dict.fromkeys(
    ("0", "false", "no", "off"), False
)
_AMOUNT: Final = re.compile(r"\s*(\d{1,18}(?:\.\d{1,18})?)\s*([A-Za-z]*)\s*")
_TYPES: Final[Mapping[str, Any]] = get_type_hints(Settings, include_extras=True)
# Celery reads these before its configuration.
_OF_CELERY: Final = re.compile("CELERY_(BROKER(_READ|_WRITE)?_URL|RESULT_BACKEND|LOADER|CONFIG_MODULE)")
# Kubernetes sets these in each pod for services whose names begin with `tracejudge`.
_OF_KUBERNETES: Final = re.compile(r".*_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)")
_OF_A_SERVICE: Final = "is a link of Kubernetes to a service, and is ignored; set enableServiceLinks: false"
_OF_ANOTHER_PROGRAM: Final = "is for another program with Celery, and is ignored; take it out of this environment"
_LINK: Final = re.compile(r"(?:tcp|udp|sctp)://\S+")


def load(
    environment: Mapping[str, str],
    config: str | None = None,
    arguments: Mapping[str, object] | None = None,
    *,
    needs_rules: bool = True,
) -> Settings:
    """Load and check the settings.

    Args:
        environment: The environment variables.
        config: A file that must exist; otherwise `TRACEJUDGE_CONFIG`, or `tracejudge.toml` where it exists.
        arguments: Settings of the command line; None is absent.
        needs_rules: Whether the rules are used. Without them no model need be called default.

    Raises:
        SettingsError: A value is wrong, or values do not go together.
    """
    given = read(environment, config)
    for key, value in (arguments or {}).items():
        if value is not None:
            # `--shards` of the worker chooses, as `served_shards` does.
            given.values[key], given.origin[key] = value, f"--{key.removeprefix('served_').replace('_', '-')}"
    settings = build(given, needs_rules=needs_rules)
    check_files(settings, given.origin, environment)
    return settings


class Given(NamedTuple):
    """What file and variables set, as it was read: values and their origins by key, and the file."""

    values: dict[str, object]
    origin: dict[str, str]
    path: str | None


def read(environment: Mapping[str, str], config: str | None = None) -> Given:
    """Read the file, then the variables, which win.

    Raises:
        SettingsError: The file is no TOML, or a variable no JSON.
    """
    path = config_path(environment, config)
    raw: dict[str, object] = read_toml(Path(path), "check --config or TRACEJUDGE_CONFIG") if path else {}
    origin = dict.fromkeys(raw, path or "")
    for key in Settings.__struct_fields__:
        variable = f"{_PREFIX}{key.upper()}"
        if environment.get(variable) and not _is_link(variable, environment):
            raw[key], origin[key] = _from_variable(key, variable, environment[variable]), variable
    return Given(raw, origin, path)


def build(given: Given, *, needs_rules: bool = True) -> Settings:
    """Convert and check what was read.

    Raises:
        SettingsError: A value is wrong, or values do not go together.
    """
    raw, origin, path = dict(given.values), dict(given.origin), given.path
    _choose_servers(raw, origin)
    settings = _with_objectives(_with_judges(_convert(raw, origin), origin, path), origin, path)
    if settings.canary_file is not None and path and origin["canary_file"] == path:
        settings = msgspec.structs.replace(settings, canary_file=str(Path(path).parent / settings.canary_file))
    check_settings(settings, origin, needs_rules=needs_rules)
    if settings.canary_file is not None:
        Canary.of(settings, f"{origin['canary_file']}: canary_file")
    return settings


def _choose_servers(raw: dict[str, object], origin: dict[str, str]) -> None:
    """Make `redis_url` the first shard; `--redis-url` stands for one server alone."""
    if origin.get("redis_url") == "--redis-url":
        raw.pop("shards", None)
        raw.pop("served_shards", None)
    shards = raw.get("shards")
    if isinstance(shards, list | tuple) and shards:
        if "redis_url" in raw and raw["redis_url"] != shards[0]:
            here = f"{origin['redis_url']}: redis_url"
            raise SettingsError(f"{here}: is not the first of shards; leave it out where shards are set")
        raw["redis_url"] = shards[0]
        origin.setdefault("redis_url", origin["shards"])


def producer_settings(settings: Settings, service: str, *, shard: int = 0, **further: Any) -> SdkSettings:
    """Build the SDK's settings of a producer within this program to one Redis, without the SDK's environment.

    `TRACEJUDGE_DISABLED` and the like are meant for services.
    """
    bounds = {"max_items": 1, "max_bytes": 1, "max_stream": settings.max_stream, "exit_timeout_s": 0.0}
    place = {"redis_url": settings.redis_urls[shard], "prefix": settings.prefix}
    return load_settings(service=service, environ={}, disabled=False, **place, **bounds, **further)


def config_path(environment: Mapping[str, str], config: str | None = None) -> str | None:
    """Return the configuration file that ``load`` reads, None if there is none."""
    return config or environment.get(f"{_PREFIX}CONFIG") or (CONFIG_NAME if Path(CONFIG_NAME).exists() else None)


def place_of(key: str, environment: Mapping[str, str], path: str | None) -> str:
    """Name the variable or the configuration file that sets a key, for errors that are found after loading."""
    variable = f"{_PREFIX}{key.upper()}"
    is_set = environment.get(variable) and not _is_link(variable, environment)
    return variable if is_set else path or "defaults"


def redis_fix(path: str | None, settings: Settings) -> str:
    """Return how to correct the address of Redis, where ``path`` is the configuration file."""
    if settings.shards:
        return f"start it, or correct shards{f' in {path}' if path else ''} or {_PREFIX}SHARDS"
    return f"start it, or correct redis_url{f' in {path}' if path else ''}, {_PREFIX}REDIS_URL or --redis-url"


def unconfigured(settings: Settings, path: str | None) -> str | None:
    """Return what a user should know who has configured neither models nor rules in a file or a variable, else None."""
    if path is not None or (settings.models, settings.rules) != (Settings().models, Settings().rules):
        return None
    looked_at = f"--config and {_PREFIX}CONFIG are not set, and there is no {CONFIG_NAME} in {Path.cwd()}"
    return f"no configuration ({looked_at}): the built-in heuristic judges every trace"


class UnknownVariable(NamedTuple):
    """A variable that looks like a setting and is none, and the name that it resembles."""

    name: str
    close: str | None
    ignored: str | None = None  # Why it is ignored though its name is that of a setting, and how to be rid of it.

    def __str__(self) -> str:
        if self.ignored:
            return f"{self.name} {self.ignored}"
        return f"{self.name} is no setting" + (f"; did you mean {self.close}?" if self.close else "; nothing reads it")


def unknown_variables(settings: Settings, environment: Mapping[str, str]) -> list[UnknownVariable]:
    """Find set variables that nothing reads: `TRACEJUDGE_*` that are no settings, those of Celery's own, and links.

    A link of Kubernetes counts where it has the name of a setting.
    """
    known = {f"{_PREFIX}CONFIG", *SDK_VARIABLES, *(f"{_PREFIX}{key.upper()}" for key in Settings.__struct_fields__)}
    known |= named_variables(settings)
    found = sorted(name for name in environment if name.startswith(_PREFIX) and name not in known)
    # Without what they all begin with, which makes any two alike.
    endings = {name.removeprefix(_PREFIX): name for name in sorted(known)}
    unknown = [UnknownVariable(name, None, _OF_ANOTHER_PROGRAM) for name in foreign_variables(environment)]
    unknown += [UnknownVariable(name, None, _OF_A_SERVICE) for name in sorted(known) if _is_link(name, environment)]
    for name in (one for one in found if _OF_KUBERNETES.fullmatch(one) is None):
        close = difflib.get_close_matches(name.removeprefix(_PREFIX), endings, n=1)
        unknown.append(UnknownVariable(name, endings[close[0]] if close else None))
    return unknown


def foreign_variables(environment: Mapping[str, str]) -> list[str]:
    """List set variables by which Celery would replace what the settings say, as its broker; workers drop them."""
    return sorted(name for name, value in environment.items() if value and _OF_CELERY.fullmatch(name))


def _is_link(name: str, environment: Mapping[str, str]) -> bool:
    """Return whether Kubernetes has set a variable: a service `tracejudge-metrics` makes TRACEJUDGE_METRICS_PORT."""
    return _OF_KUBERNETES.fullmatch(name) is not None and _LINK.fullmatch(environment.get(name, "")) is not None


def named_variables(settings: Settings) -> set[str]:
    """Return the names of variables that settings hold, as `api_key_env` does."""
    return set(_named_variables(msgspec.to_builtins(settings, enc_hook=repr)))


def _named_variables(document: object) -> Iterator[str]:
    if isinstance(document, Mapping):
        for key, value in document.items():
            if isinstance(value, str) and (key == "env" or str(key).endswith("_env")):
                yield value
            else:
                yield from _named_variables(value)
    elif isinstance(document, list | tuple):
        for item in document:
            yield from _named_variables(item)


def _with_judges(settings: Settings, origin: Mapping[str, str], path: str | None) -> Settings:
    """Add the judges of the folder and all templates; names of files in a file are relative to it."""
    try:
        installed(frozenset(catalogue()))
    except (CatalogueError, DefinitionError) as error:
        raise SettingsError(f"{error}") from error
    base = {key: Path(path).parent if path and place == path else Path() for key, place in origin.items()}
    tables = judge_files.of_tables(settings.judges, origin.get("judges", ""), base.get("judges", Path()))
    if settings.judges_folder is None:
        return msgspec.structs.replace(settings, judges=judge_files.checked(tables))
    folder = base["judges_folder"] / settings.judges_folder
    further = judge_files.of_folder(folder, f"{origin['judges_folder']}: judges_folder")
    judges = judge_files.checked((*tables, *further))
    return msgspec.structs.replace(settings, judges=judges, judges_folder=str(folder))


def _with_objectives(settings: Settings, origin: Mapping[str, str], path: str | None) -> Settings:
    """Find and check the file of objectives: the one named, relative to the configuration, or the one beside it."""
    named, place = settings.monitor.objectives, origin.get("monitor", "")
    file = (Path(path).parent if path and place in {path, ""} else Path()) / (named or FILE_NAME)
    if named is None and (path is None or not file.exists()):
        return settings
    rows = read_objectives(file, f"{place}: monitor.objectives" if named else str(file))
    safety = tuple(dict.fromkeys((*settings.monitor.safety, *(row.judge for row in rows if row.safety))))
    monitor = msgspec.structs.replace(settings.monitor, objectives=str(file), safety=safety)
    return msgspec.structs.replace(settings, monitor=monitor)


def _from_variable(key: str, variable: str, text: str) -> object:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise SettingsError(f"{variable}: is not UTF-8; set it to UTF-8") from error
    if key == "shards":
        return split_urls(text)
    if key in _LISTS:
        return [part.strip() for part in text.split(",") if part.strip()]
    if key == "redact" and text.strip().lower() in _SWITCHES:
        # The SDK reads the same variable as a switch for the built-in set; both may run in one environment.
        return {"builtin": _SWITCHES[text.strip().lower()]}
    if key in _TABLES or key in {"redact", "gateway", "monitor", "board"}:
        try:
            return msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            raise SettingsError(f"{variable}: is not JSON; write in JSON what the file holds under {key}") from error
    return text


def _convert(raw: Mapping[str, object], origin: Mapping[str, str]) -> Settings:
    values: dict[str, object] = {}
    for key, value in raw.items():
        here = f"{origin[key]}: {key}"
        if key not in _TYPES:
            raise SettingsError(f"{here}: unknown key{nearest(key, _TYPES)}")
        if key in _ROWS:
            if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
                raise SettingsError(f"{here}: must be tables, each under [[{key}]]")
            rows = []
            for number, item in enumerate(value):
                try:
                    rows.append(_one(f"{here}[{number}]", item, _ROWS[key]))
                except SettingsError as error:
                    raise with_rule_name(error, item.get("name"), len(value) if key == "rules" else 1) from error
            values[key] = tuple(rows)
        elif key in _TABLES:
            if not isinstance(value, dict) or not all(isinstance(item, dict) for item in value.values()):
                raise SettingsError(f"{here}: must be tables, each as [{key}.NAME]")
            kind = _CONVERTED.get(key)
            if key == "receivers":
                values[key] = {name: _receiver(f"{here}.{name}", item) for name, item in value.items()}
            else:
                values[key] = {
                    name: item if kind is None else _one(f"{here}.{name}", item, kind) for name, item in value.items()
                }
        else:
            values[key] = _one(here, value, _TYPES[key])
    # An empty table of models or rules counts as absent: the defaults apply.
    return msgspec.convert({key: value for key, value in values.items() if key not in _TABLES or value}, Settings)


def _receiver(here: str, item: Mapping[str, object]) -> object:
    """Convert the settings of a receiver by its kind."""
    name = item.get("kind")
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        hint = nearest(name, KINDS) if isinstance(name, str) else f"; set one of {', '.join(KINDS)}"
        raise SettingsError(f"{here}.kind: {'unknown kind' if 'kind' in item else 'is missing'}{hint}")
    return _one(here, item, kind)


def _one(here: str, value: object, kind: Any) -> object:
    """Convert a value; durations and sizes may have a unit."""
    units: Mapping[str, float] = _SECONDS if kind == Seconds else _BYTES if kind == Size else {}
    if units and isinstance(value, str):
        match = _AMOUNT.fullmatch(value)
        if match is None or match[2].lower() not in units:
            example = "90, 15m or 24h" if kind == Seconds else "1048576, 64MiB or 1GiB"
            raise SettingsError(f"{here}: write an amount such as {example}")
        amount = float(match[1]) * units[match[2].lower()]
        value = amount if kind == Seconds else int(amount)
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        raise SettingsError(describe_error(here, kind, error)) from error
