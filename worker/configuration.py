"""Read the settings: `tracejudge.toml`, then `TRACEJUDGE_*`, then arguments; the later wins.

Every mistake ends as one ``SettingsError`` line that names file (or variable), key and mend.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, get_type_hints
from urllib.parse import urlsplit

import msgspec
from kombu.transport import TRANSPORT_ALIASES

from judges.catalog import CatalogueError, catalogue
from judges.defined import DefinitionError
from judges.defined.installed import installed
from judges.models.http import is_endpoint
from judges.models.model import ModelSettings
from tracejudge import ConfigurationError
from tracejudge.redis_url import parse_redis_url, strays
from worker import judge_files
from worker.access import access_fault
from worker.addresses import each
from worker.files import read_toml
from worker.patterns import fault
from worker.rule_checks import check_models, check_rules
from worker.settings import Rule, Settings, SettingsError
from worker.wording import complaint, nearest

__all__ = ["CONFIG_NAME", "load"]

CONFIG_NAME: Final = "tracejudge.toml"
_PREFIX: Final = "TRACEJUDGE_"
_LISTS: Final = ("series_labels", "roles")
_TABLES: Final = ("models", "judges", "rules")
_DURATIONS: Final = (
    "retention",
    "give_up_after",
    "dead_retention",
    "evaluation_timeout",
    "late_feedback_wait",
    "grace_s",
)
_SIZES: Final = ("max_stream_bytes", "max_trace_bytes", "max_waiting_bytes")
_SECONDS: Final = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES: Final = {"": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_SWITCHES: Final = {"1": True, "true": True, "yes": True, "on": True} | dict.fromkeys(
    ("0", "false", "no", "off"), False
)
_AMOUNT: Final = re.compile(r"\s*(\d{1,18}(?:\.\d{1,18})?)\s*([A-Za-z]*)\s*")
_VARIABLE_NAME: Final = re.compile(r"[A-Z_][A-Z0-9_]{0,100}")
_MAX_KEY_BYTES: Final = 64
_OUR_BROKERS: Final = frozenset({"unix", "redis+sentinel", "rediss+sentinel"})
_QUOTING: Final = "an @ stands behind the host; quote / ? # @ in a password as %2F %3F %23 %40"
_TYPES: Final[Mapping[str, Any]] = get_type_hints(Settings, include_extras=True)


def load(
    environment: Mapping[str, str],
    config: str | None = None,
    arguments: Mapping[str, object] | None = None,
    *,
    needs_rules: bool = True,
) -> Settings:
    """Build the settings.

    Args:
        environment: Where `TRACEJUDGE_*` variables stand.
        config: A file that must exist; else `TRACEJUDGE_CONFIG`, else `tracejudge.toml` where there is one.
        arguments: What the command line says, by setting.
        needs_rules: Whether the rules are to be followed. Without that no model need be the default.

    Raises:
        SettingsError: With file, key and mend in one line.
    """
    path = config or environment.get(f"{_PREFIX}CONFIG") or (CONFIG_NAME if Path(CONFIG_NAME).exists() else None)
    raw: dict[str, object] = read_toml(Path(path), "check --config or TRACEJUDGE_CONFIG") if path else {}
    origin = dict.fromkeys(raw, path or "")
    for key in Settings.__struct_fields__:
        variable = f"{_PREFIX}{key.upper()}"
        if environment.get(variable):
            raw[key], origin[key] = _from_variable(key, variable, environment[variable]), variable
    for key, value in (arguments or {}).items():
        if value is not None:
            raw[key], origin[key] = value, f"--{key.replace('_', '-')}"
    settings = _with_judges(_convert(raw, origin), origin, path)
    _check(settings, origin, needs_rules=needs_rules)
    return settings


def _with_judges(settings: Settings, origin: Mapping[str, str], path: str | None) -> Settings:
    """Take in the judges of the folder, and all templates; what a file names is relative to that file."""
    _check_catalogue()
    # An absent key has no origin, and nothing that could be relative to it.
    base = {key: Path(path).parent if path and place == path else Path() for key, place in origin.items()}
    tables = judge_files.of_tables(settings.judges, origin.get("judges", ""), base.get("judges", Path()))
    if settings.judges_folder is None:
        return msgspec.structs.replace(settings, judges=judge_files.checked(tables))
    folder = base["judges_folder"] / settings.judges_folder
    further = judge_files.of_folder(folder, f"{origin['judges_folder']}: judges_folder")
    judges = judge_files.checked((*tables, *further))
    return msgspec.structs.replace(settings, judges=judges, judges_folder=str(folder))


def _from_variable(key: str, variable: str, text: str) -> object:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise SettingsError(f"{variable}: is not UTF-8; set it to UTF-8") from error
    if key in _LISTS:
        return [part.strip() for part in text.split(",") if part.strip()]
    if key == "redact" and text.strip().lower() in _SWITCHES:
        # The SDK's variable of this name is a switch for the built-in set; one environment may hold it for both.
        return {"builtin": _SWITCHES[text.strip().lower()]}
    if key in _TABLES or key == "redact":
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
        if key == "rules":
            values[key] = _rules(here, value)
        elif key in _TABLES:
            values[key] = _tables(here, key, value)
        else:
            values[key] = _one(here, _amount(here, key, value), _TYPES[key])
    # An empty list of models or rules is as good as none: the defaults hold.
    return msgspec.convert({key: value for key, value in values.items() if key not in _TABLES or value}, Settings)


def _tables(here: str, key: str, value: object) -> Mapping[str, object]:
    """Take `[models.*]` or `[judges.*]`."""
    if not isinstance(value, dict) or not all(isinstance(item, dict) for item in value.values()):
        raise SettingsError(f"{here}: must be tables, each as [{key}.NAME]")
    if key == "judges":
        return value
    return {name: _one(f"{here}.{name}", item, ModelSettings) for name, item in value.items()}


def _rules(here: str, value: object) -> tuple[object, ...]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise SettingsError(f"{here}: must be tables, each under [[rules]]")
    return tuple(_one(f"{here}[{number}]", item, Rule) for number, item in enumerate(value))


def _one(here: str, value: object, kind: Any) -> object:
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        raise SettingsError(complaint(here, kind, error)) from error


def _amount(here: str, key: str, value: object) -> object:
    units: Mapping[str, float] = _SECONDS if key in _DURATIONS else _BYTES if key in _SIZES else {}
    if not units or not isinstance(value, str):
        return value
    match = _AMOUNT.fullmatch(value)
    if match is None or match[2].lower() not in units:
        example = "90, 15m or 24h" if key in _DURATIONS else "1048576, 64MiB or 1GiB"
        raise SettingsError(f"{here}: write an amount as {example}")
    amount = float(match[1]) * units[match[2].lower()]
    return amount if key in _DURATIONS else int(amount)


def _check(settings: Settings, origin: Mapping[str, str], *, needs_rules: bool) -> None:
    """Check what no field shows by itself: relations between rules, judges and models."""
    _check_urls(settings, origin)
    _check_access(settings, origin)
    if len(settings.sampling_key.encode()) > _MAX_KEY_BYTES:
        raise SettingsError(f"{origin['sampling_key']}: sampling_key: must be of at most {_MAX_KEY_BYTES} bytes")
    if not settings.roles:
        raise SettingsError(f"{origin['roles']}: roles: is empty; name at least one of ingest, judge, export")
    if len(set(settings.series_labels)) < len(settings.series_labels):
        raise SettingsError(f"{origin['series_labels']}: series_labels: holds a label twice; name each once")
    _check_patterns(settings, origin)
    check_models(settings, origin.get("models", "defaults"))
    has_rules = "rules" in origin or "default" in settings.models
    if needs_rules and not has_rules:
        mend = "call one default, or write [[rules]] with the model of each"
        raise SettingsError(f"{origin['models']}: models: none is the default; {mend}")
    if settings.give_up_after >= settings.ledger_ttl_s:
        here = f"{origin.get('give_up_after', origin.get('retention', 'defaults'))}: give_up_after"
        raise SettingsError(f"{here}: must be less than retention and 24h together, or a verdict could count twice")
    if has_rules:
        check_rules(settings, origin.get("rules", "defaults"))


def _check_catalogue() -> None:
    try:
        installed(frozenset(catalogue()))
    except (CatalogueError, DefinitionError) as error:
        raise SettingsError(f"{error}") from error


def _check_patterns(settings: Settings, origin: Mapping[str, str]) -> None:
    for number, pattern in enumerate(settings.redact.patterns):
        if (wrong := fault(pattern)) is not None:
            raise SettingsError(f"{origin['redact']}: redact.patterns[{number}]: {wrong}")


def _check_urls(settings: Settings, origin: Mapping[str, str]) -> None:
    try:
        parse_redis_url(settings.redis_url)
    except ConfigurationError as error:
        raise SettingsError(f"{origin['redis_url']}: {error}") from None
    if settings.broker_url and not _is_broker(settings.broker_url):
        mend = _mend(settings.broker_url, "must be a URL, as amqp://host or redis://host:6379/0")
        raise SettingsError(f"{origin['broker_url']}: broker_url: {mend}")
    otlp = settings.otlp_endpoint
    if otlp is not None and (strays(otlp) or not is_endpoint(otlp)):
        mend = _mend(otlp, "must be http://host:port or https://host:port")
        raise SettingsError(f"{origin['otlp_endpoint']}: otlp_endpoint: {mend}")


def _mend(url: str, otherwise: str) -> str:
    return _QUOTING if any(map(strays, each(url))) else otherwise


def _check_access(settings: Settings, origin: Mapping[str, str]) -> None:
    for key in ("metrics_token_env", "metrics_password_env"):
        variable = getattr(settings, key)
        if variable is not None and _VARIABLE_NAME.fullmatch(variable) is None:
            mend = "give the name of the variable that holds the secret, as METRICS_TOKEN, never the secret"
            raise SettingsError(f"{origin[key]}: {key}: {mend}")
    if (wrong := access_fault(settings)) is not None:
        raise SettingsError(f"{origin[wrong.key]}: {wrong.key}: {wrong.mend}")


def _is_broker(url: str) -> bool:
    """Tell whether Celery could use a URL; its own errors are tracebacks that may quote a part of a password."""
    if any(map(strays, each(url))):
        return False
    try:
        parts = urlsplit(url)
        if parts.scheme in _OUR_BROKERS:
            parse_redis_url(url)
            return True
        usable = parts.scheme in TRANSPORT_ALIASES and parts.port != 0
    except ValueError:
        return False
    return usable
