"""Read the settings: `tracejudge.toml`, then `TRACEJUDGE_*`, then arguments; the later wins.

Every mistake ends as one ``SettingsError`` line that names file (or variable), key and mend.
"""

import difflib
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlsplit

import msgspec

from judges.catalog import catalogue
from judges.models.build import ModelSettingsError, check
from judges.models.model import ModelSettings
from worker.settings import Rule, Settings, SettingsError

__all__ = ["CONFIG_NAME", "load"]

_T = TypeVar("_T")

CONFIG_NAME: Final = "tracejudge.toml"
_PREFIX: Final = "TRACEJUDGE_"
_LISTS: Final = ("series_labels", "roles")
_TABLES: Final = ("models", "judges", "rules")
_DURATIONS: Final = ("retention", "give_up_after", "grace_s")
_SIZES: Final = ("max_stream_bytes", "max_trace_bytes", "max_waiting_bytes")
_SECONDS: Final = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES: Final = {"": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_AMOUNT: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
_VARIABLE_NAME: Final = re.compile(r"[A-Z_][A-Z0-9_]{0,100}")
_UNKNOWN_FIELD: Final = re.compile(r"unknown field `([^`]*)`")
_PATH: Final = re.compile(r" - at `\$\.?([^`]*)`")


def load(
    environment: Mapping[str, str], config: str | None = None, arguments: Mapping[str, object] | None = None
) -> Settings:
    """Build the settings.

    Args:
        environment: Where `TRACEJUDGE_*` variables stand.
        config: A file that must exist; else `TRACEJUDGE_CONFIG`, else `tracejudge.toml` where there is one.
        arguments: What the command line says, by setting.

    Raises:
        SettingsError: With file, key and mend in one line.
    """
    path = config or environment.get(f"{_PREFIX}CONFIG") or (CONFIG_NAME if Path(CONFIG_NAME).exists() else None)
    raw = _read(path) if path else {}
    origin = dict.fromkeys(raw, path or "")
    for key in Settings.__struct_fields__:
        variable = f"{_PREFIX}{key.upper()}"
        if environment.get(variable):
            raw[key], origin[key] = _from_variable(key, variable, environment[variable]), variable
    for key, value in (arguments or {}).items():
        if value is not None:
            raw[key], origin[key] = value, f"--{key.replace('_', '-')}"
    settings = _convert(raw, origin)
    _check(settings, origin)
    return settings


def _read(path: str) -> dict[str, object]:
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(
            f"{path}: cannot be read ({error.strerror}); check --config or TRACEJUDGE_CONFIG"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: is not valid TOML: {error}") from error


def _from_variable(key: str, variable: str, text: str) -> object:
    if key in _LISTS:
        return [part.strip() for part in text.split(",") if part.strip()]
    if key in _TABLES:
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise SettingsError(f"{variable}: must be JSON in the form of the configuration file") from error
    return text


def _convert(raw: Mapping[str, object], origin: Mapping[str, str]) -> Settings:
    values: dict[str, object] = {}
    for key, value in raw.items():
        place = origin[key]
        if key not in Settings.__struct_fields__:
            raise SettingsError(f"{place}: {key}: unknown key{_nearest(key, Settings.__struct_fields__)}")
        if key == "models":
            values[key] = _models(place, value)
        elif key == "rules":
            values[key] = _rules(place, value)
        else:
            values[key] = _amount(f"{place}: {key}", key, value)
    # An empty list of models or rules is as good as none: the defaults hold.
    values = {key: value for key, value in values.items() if key not in {"models", "rules"} or value}
    try:
        return msgspec.convert(values, Settings, strict=False)
    except msgspec.ValidationError as error:
        where = _PATH.search(str(error))
        name = where[1] if where else ""
        place = origin.get(re.split(r"[.\[]", name)[0], "configuration")
        raise SettingsError(f"{place}: {name}: {_words(error)}") from error


def _models(place: str, value: object) -> Mapping[str, ModelSettings]:
    if not isinstance(value, dict):
        raise SettingsError(f"{place}: models: must be tables, as [models.default]")
    return {name: _one(f"{place}: models.{name}", item, ModelSettings) for name, item in value.items()}


def _rules(place: str, value: object) -> tuple[Rule, ...]:
    if not isinstance(value, list):
        raise SettingsError(f"{place}: rules: write each rule as a table under [[rules]]")
    return tuple(_one(f"{place}: rules[{number}]", item, Rule) for number, item in enumerate(value))


def _one(place: str, value: object, kind: type[_T]) -> _T:
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        unknown = _UNKNOWN_FIELD.search(str(error))
        where = _PATH.search(str(error))
        inner = f".{where[1]}" if where and where[1] else ""
        if unknown:
            fields = getattr(kind, "__struct_fields__", ()) if not inner else ()
            raise SettingsError(f"{place}{inner}.{unknown[1]}: unknown key{_nearest(unknown[1], fields)}") from error
        raise SettingsError(f"{place}{inner}: {_words(error)}") from error


def _amount(place: str, key: str, value: object) -> object:
    units: Mapping[str, float] = _SECONDS if key in _DURATIONS else _BYTES if key in _SIZES else {}
    if not units or not isinstance(value, str):
        return value
    match = _AMOUNT.fullmatch(value)
    if match is None or match[2].lower() not in units:
        example = "90, 15m or 24h" if key in _DURATIONS else "1048576, 64MiB or 1GiB"
        raise SettingsError(f"{place}: write an amount as {example}")
    amount = float(match[1]) * units[match[2].lower()]
    return amount if key in _DURATIONS else int(amount)


def _words(error: msgspec.ValidationError) -> str:
    text = _PATH.sub("", str(error))
    return text[:1].lower() + text[1:]


def _nearest(name: str, known: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; known are {', '.join(sorted(known))}" if known else ""


def _check(settings: Settings, origin: Mapping[str, str]) -> None:
    """Check what no field shows by itself: relations between rules, judges and models."""
    _check_urls(settings, origin)
    _check_models(settings, origin.get("models", "defaults"))
    _check_rules(settings, origin.get("rules", "defaults"))
    for judge, keys in settings.judges.items():
        here = f"{origin['judges']}: judges.{judge}"
        if judge not in catalogue():
            raise SettingsError(f"{here}: there is no such judge{_nearest(judge, tuple(catalogue()))}")
        for key in keys:
            raise SettingsError(f"{here}.{key}: unknown key; this judge has no settings")


def _check_rules(settings: Settings, place: str) -> None:
    names: set[str] = set()
    for number, rule in enumerate(settings.rules):
        here = f"{place}: rules[{number}]"
        if rule.name in names:
            raise SettingsError(f"{here}.name: {rule.name!r} is taken by another rule; give each its own")
        names.add(rule.name)
        if not rule.judges:
            raise SettingsError(f"{here}.judges: is empty; name at least one judge, or take the rule out")
        for judge in rule.judges:
            if judge not in catalogue():
                raise SettingsError(f"{here}.judges: there is no judge {judge!r}{_nearest(judge, tuple(catalogue()))}")
        if rule.model not in settings.models:
            close = _nearest(rule.model, tuple(settings.models))
            raise SettingsError(f"{here}.model: there is no [models.{rule.model}]{close}")


def _check_urls(settings: Settings, origin: Mapping[str, str]) -> None:
    schemes = {"redis_url": ("redis", "rediss", "unix"), "otlp_endpoint": ("http", "https")}
    for key, allowed in schemes.items():
        value = getattr(settings, key)
        if value is not None and urlsplit(value).scheme not in allowed:
            mend = " or ".join(f"{scheme}://" for scheme in allowed)
            raise SettingsError(f"{origin.get(key, 'defaults')}: {key}: must begin with {mend}")


def _check_models(settings: Settings, place: str) -> None:
    endpoints: dict[str, str | None] = {}
    for name, model in settings.models.items():
        here = f"{place}: models.{name}"
        if model.api_key_env is not None and _VARIABLE_NAME.fullmatch(model.api_key_env) is None:
            raise SettingsError(f"{here}.api_key_env: give the name of the variable that holds the key, never the key")
        try:
            check(model)
        except ModelSettingsError as error:
            raise SettingsError(f"{here}.{error}") from error
        if endpoints.setdefault(model.judge_model, model.base_url) != model.base_url:
            raise SettingsError(f"{here}.label: another endpoint serves {model.judge_model!r} too; label each of them")
