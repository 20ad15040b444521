"""Reads the settings: `tracejudge.toml`, then `TRACEJUDGE_*`, then arguments; the later wins.

Each wrong value is a fault that names the file or variable, the key, and how to fix it.
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeGuard, TypeVar

import msgspec
from msgspec import UNSET, Struct, inspect, structs

from judges.core.faults import Fault, Faults, Kind, fault_of, first_raised, map_faults
from judges.core.model import ModelSettings
from judges.custom.definition import conversion_fault, missing_fault, read_toml, unknown_name_fault
from tracejudge.settings import VARIABLES as SDK_VARIABLES
from tracejudge.settings import Settings as SdkSettings
from tracejudge.settings import load_settings
from worker.core.config.checks import file_faults, setting_faults
from worker.core.config.settings import ExtensibleTable, JudgeCalibration, Rule, Seconds, Settings, Size
from worker.core.features import installed_tables

T = TypeVar("T")
CONFIG_NAME: Final = "tracejudge.toml"
_PREFIX: Final = "TRACEJUDGE_"
_LISTS: Final = ("series_labels", "roles", "user_keys_former")
_NAMED: Final = ("models", "judges", "rules", "calibrations")
_ROWS: Final = {"rules": Rule, "calibrations": JudgeCalibration}
_SECONDS: Final = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES: Final = {"": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_SWITCHES: Final = {"1": True, "true": True, "yes": True, "on": True} | dict.fromkeys(
    ("0", "false", "no", "off"), False
)
_AMOUNT: Final = re.compile(r"\s*(\d{1,18}(?:\.\d{1,18})?)\s*([A-Za-z]*)\s*")
# Celery reads these before its configuration.
_CELERY_VARIABLE: Final = re.compile("CELERY_(BROKER(_READ|_WRITE)?_URL|RESULT_BACKEND|LOADER|CONFIG_MODULE)")
# Kubernetes sets these in each pod for services whose names begin with `tracejudge`.
_KUBERNETES_VARIABLE: Final = re.compile(r".*_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)")
_SERVICE_LINK_FAULT: Final = "is a link of Kubernetes to a service, and is ignored; set enableServiceLinks: false"
_FOREIGN_VARIABLE_FAULT: Final = "is for another program with Celery, and is ignored; take it out of this environment"
_UNKNOWN_VARIABLE_FAULT: Final = "is no setting, and nothing reads it; take it out"
_LINK: Final = re.compile(r"(?:tcp|udp|sctp)://\S+")


class ConfigSources(NamedTuple):
    """Values from file, variables and arguments, with the origin of each key, and the path of the file."""

    values: dict[str, Any]
    origin: dict[str, str]
    path: str | None

    def with_places(self, faults: Faults[T]) -> Faults[T]:
        """Name the place of each fault, the origin of its key unless it has one, and the rule, if there are several."""

        def change(fault: Fault) -> Fault:
            place = fault.place or self.origin.get(re.split(r"[.\[]", fault.key)[0], "defaults")
            match, rules = re.match(r"rules\[(\d+)\]\.(?!name$)", fault.key), self.values.get("rules")
            part = "fix" if fault.fix else "text"
            name = rules[int(match[1])].get("name") if match and rules and len(rules) > 1 else None
            named = f" (rule {name!r})" if name is not None else ""
            return structs.replace(fault, place=place, **{part: getattr(fault, part) + named})

        return map_faults(faults, change)


def load_without_judges(
    environment: Mapping[str, str], config: str | None = None, arguments: Mapping[str, object] | None = None
) -> Settings:
    """Load settings without a check of models, judges and rules, for processes that judge nothing."""

    def converted() -> Faults[Settings]:
        settings, _ = yield from convert(sources)
        yield from setting_faults(settings)
        yield from file_faults(settings, environment)
        return settings

    sources = first_raised(read(environment, config, arguments))
    return first_raised(sources.with_places(converted()))


def read(
    environment: Mapping[str, str], config: str | None = None, arguments: Mapping[str, object] | None = None
) -> Faults[ConfigSources]:
    """Read the file, the variables, and the arguments that are not None; the later wins."""
    path = config_path(environment, config)
    raw = read_toml(Path(path), "check --config or TRACEJUDGE_CONFIG") if path else {}
    origin = dict.fromkeys(raw, path or "")
    for key in key_types():
        variable = f"{_PREFIX}{key.upper()}"
        if environment.get(variable) and not _is_link(variable, environment):
            try:
                raw[key], origin[key] = _from_variable(key, environment[variable]), variable
            except ValueError as error:
                yield fault_of("", f"{error}", "unreadable-file", variable)
    for key, value in (arguments or {}).items():
        if value is not None:
            # `--partitions` of the worker chooses, as `served_partitions` does.
            raw[key], origin[key] = value, f"--{key.removeprefix('served_').replace('_', '-')}"
    return ConfigSources(raw, origin, path)


def producer_settings(settings: Settings, service: str, **further: Any) -> SdkSettings:
    """Build the SDK's settings of a producer within this program, without the SDK's environment."""
    # `TRACEJUDGE_DISABLED` and the like are meant for services.
    bounds = {"max_items": 1, "max_bytes": 1, "max_stream": settings.max_stream, "exit_timeout_s": 0.0}
    place = {"redis_url": settings.redis_url, "prefix": settings.prefix}
    return load_settings(service=service, environ={}, disabled=False, **place, **bounds, **further)


def config_path(environment: Mapping[str, str], config: str | None = None) -> str | None:
    """Return the configuration file that ``load`` reads, None if there is none."""
    return config or environment.get(f"{_PREFIX}CONFIG") or (CONFIG_NAME if Path(CONFIG_NAME).exists() else None)


def place_of(key: str, environment: Mapping[str, str], path: str | None) -> str:
    """Name the variable or the configuration file that sets a key, for errors that are found after loading."""
    variable = f"{_PREFIX}{key.upper()}"
    is_set = environment.get(variable) and not _is_link(variable, environment)
    return variable if is_set else path or "defaults"


def redis_place(path: str | None) -> str:
    """Return where the address of Redis is set; ``path`` is the configuration file."""
    return f"redis_url{f' in {path}' if path else ''}, {_PREFIX}REDIS_URL or --redis-url"


def unconfigured(settings: Settings, path: str | None) -> str | None:
    """Return what a user should know who has configured neither models nor rules in a file or a variable, else None."""
    if path is not None or (settings.models, settings.rules) != (Settings().models, Settings().rules):
        return None
    looked_at = f"--config and {_PREFIX}CONFIG are not set, and there is no {CONFIG_NAME} in {Path.cwd()}"
    return f"no configuration ({looked_at}): the built-in heuristic judges every trace"


def unknown_variables(settings: Settings, environment: Mapping[str, str]) -> list[Fault]:
    """Find set `TRACEJUDGE_*` that nothing reads: no settings, Celery's own, Kubernetes' links named as settings."""
    names = {f"{_PREFIX}CONFIG", *SDK_VARIABLES, *(f"{_PREFIX}{key.upper()}" for key in key_types())}
    names |= named_variables(settings)
    unknown_names = sorted(name for name in environment if name.startswith(_PREFIX) and name not in names)
    # Compare without `TRACEJUDGE_`: the common prefix makes any two names similar.
    endings = {name.removeprefix(_PREFIX): name for name in sorted(names)}
    code: Kind = "unknown-variable"
    faults = [fault_of("", _FOREIGN_VARIABLE_FAULT, code, name) for name in foreign_variables(environment)]
    faults += [fault_of("", _SERVICE_LINK_FAULT, code, name) for name in sorted(names) if _is_link(name, environment)]
    for name in unknown_names:
        match = _KUBERNETES_VARIABLE.fullmatch(name)
        # A user may write a port as TRACEJUDGE_GATEWAY_PORT; Kubernetes writes a link there.
        if match is not None and (not re.search("(?<!_SERVICE)_PORT$", name) or _is_link(name, environment)):
            continue
        close = difflib.get_close_matches(name.removeprefix(_PREFIX), endings, n=1)
        what = f"is no setting; did you mean {endings[close[0]]}?" if close else _UNKNOWN_VARIABLE_FAULT
        faults.append(fault_of("", _in_table(name) or what, code, name))
    return faults


def _in_table(variable: str) -> str | None:
    """Return what to write in place of a variable that is named like a key of a table; None if it is not."""
    for table, kind in key_types().items():
        key = variable.removeprefix(f"{_PREFIX}{table.upper()}_").lower()
        if _is_struct(kind) and key != variable.lower() and key in key_types(kind):
            return f"is no setting; set {key} in [{table}], or in JSON in {_PREFIX}{table.upper()}"
    return None


def foreign_variables(environment: Mapping[str, str]) -> list[str]:
    """List set variables by which Celery would replace what the settings say, as its broker; workers drop them."""
    return sorted(name for name, value in environment.items() if value and _CELERY_VARIABLE.fullmatch(name))


def _is_link(name: str, environment: Mapping[str, str]) -> bool:
    """Return whether Kubernetes has set a variable: a service `tracejudge-metrics` makes TRACEJUDGE_METRICS_PORT."""
    return _KUBERNETES_VARIABLE.fullmatch(name) is not None and _LINK.fullmatch(environment.get(name, "")) is not None


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


def _from_variable(key: str, text: str) -> object:
    """Read the text of a variable, or raise ``ValueError`` with what is wrong and how to fix it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("is not UTF-8; set it to UTF-8") from error
    if key in _LISTS:
        return [part.strip() for part in text.split(",") if part.strip()]
    if key == "redact" and text.strip().lower() in _SWITCHES:
        # The SDK reads the same variable as a switch for the built-in set; both may run in one environment.
        return {"builtin": _SWITCHES[text.strip().lower()]}
    if key in named_keys() or _is_struct(key_types()[key]):
        try:
            return msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(f"is not JSON; write in JSON what the file holds under {key}") from error
    return text


def convert(sources: ConfigSources) -> Faults[tuple[Settings, set[str]]]:
    """Convert what was read; of a wrong value the default is taken, and its key returned beside the settings."""
    raw, wrong, values = dict(sources.values), set[str](), dict[str, Any]()
    types, named = key_types(), named_keys()
    for key, value in raw.items():
        for_rows, is_rows = _ROWS.get(key), isinstance(value, list) and all(isinstance(row, dict) for row in value)
        is_tables = isinstance(value, dict) and all(isinstance(table, dict) for table in value.values())
        if key not in types:
            yield unknown_name_fault(key, "unknown key", key, types, "unknown-key")
        elif not (is_rows if for_rows else is_tables or key not in named):
            wrong.add(key)
            yield Fault(key, f"must be tables, each {f'under [[{key}]]' if for_rows else f'as [{key}.NAME]'}")
        elif for_rows is not None:
            values[key] = ()
            for number, row in enumerate(value):
                values[key] += ((yield from _convert_value(f"{key}[{number}]", row, for_rows, wrong)),)
        elif key in named:
            tables = {}
            for name, table in value.items():
                tables[name] = yield from _table(key, name, table, wrong)
            values[key] = {name: table for name, table in tables.items() if table is not UNSET}
        elif (converted := (yield from _convert_value(key, value, types[key], wrong))) is not UNSET:
            values[key] = converted
    # An empty table of models or rules counts as absent, so that the defaults apply.
    return Settings.from_keys(**{key: value for key, value in values.items() if key not in named or value}), wrong


def named_keys() -> frozenset[str]:
    """Return the keys whose values are tables by name, or rows."""
    return frozenset((*_NAMED, *(table.key for table in installed_tables().values() if table.is_named)))


@cache
def key_types(kind: type[Struct] = Settings) -> Mapping[str, Any]:
    """Return the keys of the configuration, or of a table, with their types: those of the core, then of features."""
    types: dict[str, Any] = {field.encode_name: field.type for field in structs.fields(kind)}
    if issubclass(kind, ExtensibleTable):
        del types["tables"]
        types |= {key: table.type for key, table in installed_tables(kind.extension).items()}
    return types


def _table(key: str, name: str, table: Mapping[str, Any], wrong: set[str]) -> Faults[Any]:
    """Convert `[key.name]`; tables of judges are converted later, by the judges that they configure."""
    tables = installed_tables()
    kind: Any = tables[key].type if key in tables else ModelSettings if key == "models" else None
    if key in tables and (kinds := tables[key].kinds):
        chosen = table.get("kind")
        kind = kinds.get(chosen) if isinstance(chosen, str) else None
        if kind is None:
            key = f"{key}.{name}.kind"
            wrong.add(key)
            if isinstance(chosen, str):
                yield unknown_name_fault(key, "unknown kind", chosen, kinds, "unknown-key")
            else:
                what = "unknown kind" if "kind" in table else "is missing"
                yield Fault(key, what, f"set one of {', '.join(kinds)}", "missing-key")
            return UNSET
    return table if kind is None else (yield from _convert_value(f"{key}.{name}", table, kind, wrong))


def _is_struct(kind: Any) -> TypeGuard[type[Struct]]:
    return isinstance(kind, type) and issubclass(kind, Struct)


def _convert_value(key: str, value: object, kind: Any, wrong: set[str]) -> Faults[Any]:
    """Convert a value, a table by its keys; return UNSET for a wrong one. Durations and sizes may have a unit."""
    if _is_struct(kind) and isinstance(value, dict):
        return (yield from _convert_struct(key, value, kind, wrong))
    units: Mapping[str, float] = _SECONDS if kind == Seconds else _BYTES if kind == Size else {}
    fault: Fault | None = None
    if units and isinstance(value, str) and "." not in key:
        match = _AMOUNT.fullmatch(value)
        if match is None or match[2].lower() not in units:
            example = "90, 15m or 24h" if kind == Seconds else "1048576, 64MiB or 1GiB"
            fault = Fault(key, f"write an amount such as {example}")
        else:
            amount = float(match[1]) * units[match[2].lower()]
            value = amount if kind == Seconds else int(amount)
    if fault is None:
        try:
            return msgspec.convert(value, kind, strict=False)
        except msgspec.ValidationError as error:
            fault = conversion_fault(key, kind, error)
    wrong |= {key, fault.key}
    yield fault
    return UNSET


def _convert_struct(key: str, value: Mapping[str, object], kind: type[Struct], wrong: set[str]) -> Faults[Any]:
    types, values = key_types(kind), dict[str, Any]()
    for name, item in value.items():
        if name in types:
            converted = yield from _convert_value(f"{key}.{name}", item, types[name], wrong)
            if converted is not UNSET:
                values[name] = converted
        elif name != kind.__struct_config__.tag_field:
            yield unknown_name_fault(f"{key}.{name}", "unknown key", name, types, "unknown-key")
    for name, field in ((field.encode_name, field) for field in structs.fields(kind)):
        if name not in values and field.required:
            if name not in value:
                wrong.add(f"{key}.{name}")
                yield missing_fault(f"{key}.{name}", inspect.type_info(kind), name)
            # An empty value, with which the rest of the table is checked.
            values[name] = getattr(field.type, "__origin__", field.type)()
    return kind.from_keys(**values) if issubclass(kind, ExtensibleTable) else kind(**values)
